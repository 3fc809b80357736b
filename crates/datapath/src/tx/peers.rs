//! Handing packets over to the workers that serve other ports, by rings.

use crate::messages::Handoff;
use crate::wake::Wake;
use flow::PortNo;
use packet::Packet;
use std::sync::Arc;
use sync::Producer;
use telemetry::Drop;

/// Another worker.
struct Peer {
    ring: Producer<Handoff>,
    wake: Option<Arc<Wake>>,
    /// Packets were handed to this worker in this vector.
    dirty: bool,
}

/// The workers to which this one hands packets over, by worker number.
#[derive(Default)]
pub(super) struct Peers {
    peers: Vec<Option<Peer>>,
    /// True if some worker was handed packets in this vector.
    handed: bool,
}

impl Peers {
    /// Adds the ring to another worker.
    pub fn add(&mut self, worker: usize, ring: Producer<Handoff>, wake: Option<Arc<Wake>>) {
        if self.peers.len() <= worker {
            self.peers.resize_with(worker + 1, || None);
        }
        self.peers[worker] = Some(Peer { ring, wake, dirty: false });
    }

    /// Removes the ring to another worker.
    pub fn remove(&mut self, worker: usize) {
        if let Some(peer) = self.peers.get_mut(worker) {
            *peer = None;
        }
    }

    /// Hands packets of port `no` over to a worker, from the front of `packets` as many as its ring
    /// has room for. Returns the reason for which the others are to be dropped.
    pub fn hand_over(&mut self, worker: usize, no: PortNo, packets: &mut Vec<Packet>) -> Drop {
        let Some(Some(peer)) = self.peers.get_mut(worker) else { return Drop::TxDown };
        // SAFETY: packets that the ring takes are forgotten here and used by the other worker.
        let mut hand = |p: &Packet| peer.ring.push((no, unsafe { p.duplicate() }));
        let n = packets.iter().take_while(|p| hand(p).is_ok()).count();
        packets.drain(..n);
        (peer.dirty, self.handed) = (true, true);
        Drop::RingFull
    }

    /// Wakes the workers that were handed packets in this vector and sleep.
    #[inline]
    pub fn wake(&mut self) {
        if !std::mem::take(&mut self.handed) {
            return;
        }
        for peer in self.peers.iter_mut().flatten() {
            if let (true, Some(w)) = (std::mem::take(&mut peer.dirty), &peer.wake) {
                w.wake();
            }
        }
    }
}
