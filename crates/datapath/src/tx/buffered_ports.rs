//! The ports with buffered packets.

use crate::tx::buffer::TxPort;
use crate::tx::flush::FlushPolicy;
use flow::PortNo;

/// Which ports have buffered packets, and for how long these are held.
#[derive(Default)]
pub(super) struct BufferedPorts {
    /// Ports with buffered packets.
    pub ports: Vec<PortNo>,
    /// The memory of the list that [`BufferedPorts::take_due`] returns.
    flushing: Vec<PortNo>,
    pub policy: FlushPolicy,
}

impl BufferedPorts {
    /// Removes the ports whose bursts are due from the list and returns them.
    /// [`BufferedPorts::reuse`] takes the returned list back.
    #[inline]
    pub fn take_due(&mut self, ports: &mut [Option<TxPort>], now: u64) -> Vec<PortNo> {
        let mut flushing = std::mem::take(&mut self.flushing);
        let mut kept = 0;
        for k in 0..self.ports.len() {
            let no = self.ports[k];
            if self.take_if_due(ports, no, now) {
                flushing.push(no);
            } else {
                self.ports[kept] = no;
                kept += 1;
            }
        }
        self.ports.truncate(kept);
        flushing
    }

    /// Takes the list of [`BufferedPorts::take_due`] back.
    #[inline]
    pub fn reuse(&mut self, mut flushing: Vec<PortNo>) {
        flushing.clear();
        self.flushing = flushing;
    }

    /// Takes a port off the list if its burst is sent now; returns whether it is.
    #[inline]
    fn take_if_due(&self, ports: &mut [Option<TxPort>], no: PortNo, now: u64) -> bool {
        let Some(Some(port)) = ports.get_mut(usize::from(no)) else { return true };
        port.listed = !port.flush_timer.end_vector(&self.policy, port.buf.len(), now);
        if port.listed {
            port.stats.tx_held.add(1);
        }
        !port.listed
    }
}
