//! Queues of ports: those of QoS, which the kernel keeps, and those of devices that come with
//! queues.

use super::ConnId;
use crate::qos::counters;
use crate::state::{Shared, State};
use flow::PortNo;
use openflow::{OfError, OfPort, Queue, QueueStats, port};

/// `OFPQ_ALL`.
pub const ALL: u32 = 0xffff_ffff;

/// Has the kernel say what the queues have sent that a request asks for. Another thread waits for
/// it, and of the connections this one.
pub async fn asked(state: &Shared, id: ConnId, of_port: OfPort) {
    let ports = state.borrow().queue_ports(id, of_port).unwrap_or_default();
    counters::asked(state, ports.into_iter().map(|(_, no)| no).collect()).await;
}

impl State {
    /// The queues of a port (or of [`port::ANY`]) with this number (or [`ALL`]).
    pub fn queues(
        &mut self,
        id: ConnId,
        of_port: OfPort,
        queue: u32,
    ) -> Result<Vec<Queue>, OfError> {
        let ports = self.queue_ports(id, of_port)?;
        let mut found = Vec::new();
        for (port, no) in &ports {
            let mut ids: Vec<u32> =
                self.applied.qos.get(no).map_or_else(Vec::new, |q| q.queues().collect());
            ids.extend(self.own_queues(*no));
            ids.retain(|n| queue == ALL || *n == queue);
            found.extend(ids.into_iter().map(|id| Queue { port: *port, id }));
        }
        let is_kernels = |(_, no): &(OfPort, PortNo)| self.applied.qos.contains_key(no);
        match queue {
            ALL => Ok(found),
            _ if !found.is_empty() => Ok(found),
            _ if of_port != port::ANY && ports.iter().any(is_kernels) => Err(OfError::QueueError),
            _ => Err(OfError::QueueBadQueue),
        }
    }

    /// Statistics of the queues of a port (or of [`port::ANY`]) with this number (or [`ALL`]).
    pub fn queue_stats(
        &self,
        id: ConnId,
        of_port: OfPort,
        queue: u32,
    ) -> Result<Vec<QueueStats>, OfError> {
        let now = self.now_ms();
        let mut found = Vec::new();
        for (port, no) in self.queue_ports(id, of_port)? {
            for (id, counters) in counters::counters(self, no) {
                let (queue, stats) = (Queue { port, id }, counters.stats);
                found.push(QueueStats {
                    queue,
                    tx_bytes: stats.bytes,
                    tx_packets: stats.packets,
                    tx_errors: stats.drops,
                    duration_ns: now.saturating_sub(counters.since_ms) * 1_000_000,
                });
            }
            found.extend(self.own_queues(no).iter().map(|id| uncounted(Queue { port, id: *id })));
        }
        found.retain(|stats| queue == ALL || stats.queue.id == queue);
        if found.is_empty() && queue != ALL { Err(OfError::QueueBadQueue) } else { Ok(found) }
    }

    /// The ports of a connection's bridge that a request for queues is about.
    fn queue_ports(&self, id: ConnId, of_port: OfPort) -> Result<Vec<(OfPort, PortNo)>, OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        let wanted = |p: OfPort| of_port == port::ANY || p == of_port;
        let ports: Vec<_> = self.ofproto.ports(bridge).filter(|p| wanted(p.of_port)).collect();
        if ports.is_empty() && of_port != port::ANY {
            return Err(OfError::QueueBadPort);
        }
        Ok(ports.iter().filter_map(|p| Some((p.of_port, p.dp_port?))).collect())
    }

    /// Queues that a port's device has without configuration.
    fn own_queues(&self, no: PortNo) -> Vec<u32> {
        self.dp.port(no).map_or_else(Vec::new, |device| device.queues().to_vec())
    }
}

/// Statistics of a queue of a device that counts nothing per queue.
fn uncounted(queue: Queue) -> QueueStats {
    let [tx_bytes, tx_packets, tx_errors, duration_ns] = [u64::MAX; 4];
    QueueStats { queue, tx_bytes, tx_packets, tx_errors, duration_ns }
}
