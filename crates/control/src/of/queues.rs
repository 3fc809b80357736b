//! Queues of ports. Without QoS only devices that come with queues have any.

use super::ConnId;
use crate::state::State;
use openflow::{OfError, OfPort, Queue, QueueStats, port};

/// `OFPQ_ALL`.
pub const ALL: u32 = 0xffff_ffff;

impl State {
    /// The queues of a port (or of [`port::ANY`]) with this number (or [`ALL`]).
    pub fn queues(
        &mut self,
        id: ConnId,
        of_port: OfPort,
        queue: u32,
    ) -> Result<Vec<Queue>, OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        let wanted = |p: OfPort| of_port == port::ANY || p == of_port;
        let ports = self.ofproto.ports(bridge).filter(|p| wanted(p.of_port));
        let ports: Vec<_> = ports.map(|p| (p.of_port, p.dp_port)).collect();
        if ports.is_empty() && of_port != port::ANY {
            return Err(OfError::QueueBadPort);
        }
        let mut found = Vec::new();
        for (port, dp_port) in ports {
            let device = dp_port.and_then(|no| self.dp.port_mut(no));
            let ids = device.map_or(&[][..], |d| d.queues());
            let ids = ids.iter().filter(|n| queue == ALL || **n == queue);
            found.extend(ids.map(|id| Queue { port, id: *id }));
        }
        if found.is_empty() && queue != ALL { Err(OfError::QueueBadQueue) } else { Ok(found) }
    }
}

/// Statistics of a queue: nothing is counted per queue.
pub fn uncounted(queue: Queue) -> QueueStats {
    QueueStats { queue, tx_bytes: u64::MAX, tx_packets: u64::MAX, tx_errors: u64::MAX }
}
