//! Handing packets over to the workers that serve other ports, by rings.
//!
//! All ports that a worker serves share its ring. The packets of one port in the ring may be no
//! more than the free places, so a port that is sent more than its worker takes does not fill the
//! ring for other ports.

use crate::messages::{HANDOFFS_MAX, Handoff};
use crate::wake::Wake;
use flow::PortNo;
use packet::Packet;
use std::collections::VecDeque;
use std::sync::Arc;
use sync::Producer;
use telemetry::Drop;

/// Another worker, which sends to ports that this one does not.
struct Peer {
    ring: Producer<Handoff>,
    wake: Option<Arc<Wake>>,
    /// Packets were handed to this worker in this vector.
    dirty: bool,
    /// The port of each packet that was in the ring when it was last looked at, the oldest first.
    queued: VecDeque<PortNo>,
    /// How many of these packets each port has.
    of_port: Vec<u16>,
}

impl Peer {
    fn new(ring: Producer<Handoff>, wake: Option<Arc<Wake>>) -> Self {
        Peer { ring, wake, dirty: false, queued: VecDeque::new(), of_port: Vec::new() }
    }

    /// How many packets of port `no` the ring may take now: half of what is free beyond the number
    /// of packets that the port has there.
    fn room(&mut self, no: PortNo) -> usize {
        let waiting = self.ring.waiting();
        let gone = self.queued.len().saturating_sub(waiting);
        for port in self.queued.drain(..gone) {
            self.of_port[usize::from(port)] -= 1;
        }
        let of_port = self.of_port.get(usize::from(no)).copied().unwrap_or(0);
        (HANDOFFS_MAX - waiting).saturating_sub(of_port.into()).div_ceil(2)
    }

    /// Records that `n` packets of port `no` were put into the ring.
    fn note(&mut self, no: PortNo, n: usize) {
        let i = usize::from(no);
        if self.of_port.len() <= i {
            self.of_port.resize(i + 1, 0);
        }
        self.of_port[i] += n as u16;
        self.queued.extend(std::iter::repeat_n(no, n));
    }
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
        self.peers[worker] = Some(Peer::new(ring, wake));
    }

    /// Removes the ring to another worker.
    pub fn remove(&mut self, worker: usize) {
        if let Some(peer) = self.peers.get_mut(worker) {
            *peer = None;
        }
    }

    /// Hands packets of port `no` over to a worker, from the front of `packets` as many as its ring
    /// has room for in the port's share. Returns the reason for which the others are to be dropped.
    pub fn hand_over(&mut self, worker: usize, no: PortNo, packets: &mut Vec<Packet>) -> Drop {
        let Some(Some(peer)) = self.peers.get_mut(worker) else { return Drop::TxDown };
        let room = peer.room(no);
        // SAFETY: packets that the ring takes are forgotten here and used by the other worker.
        let mut hand = |p: &Packet| peer.ring.push((no, unsafe { p.duplicate() }));
        let n = packets.iter().take(room).take_while(|p| hand(p).is_ok()).count();
        packets.drain(..n);
        peer.note(no, n);
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

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{HeapPool, Pool};
    use sync::Consumer;

    struct Lab {
        peers: Peers,
        end: Consumer<Handoff>,
        pool: HeapPool,
    }

    impl Lab {
        fn new() -> Lab {
            let (tx, end) = sync::ring(HANDOFFS_MAX);
            let mut peers = Peers::default();
            peers.add(3, tx, None);
            Lab { peers, end, pool: HeapPool::new() }
        }

        /// How many of `n` packets of a port are handed over.
        fn hand_over(&mut self, no: PortNo, n: usize) -> usize {
            let mut packets = Vec::new();
            assert!(self.pool.alloc(&mut packets, n));
            self.peers.hand_over(3, no, &mut packets);
            let handed = n - packets.len();
            self.pool.free(&packets);
            handed
        }

        /// Takes packets out of the ring; how many were there.
        fn take(&mut self, n: usize) -> usize {
            let all: Vec<_> = (0..n).map_while(|_| self.end.pop()).collect();
            all.iter().for_each(|(_, p)| self.pool.free(std::slice::from_ref(p)));
            let n = all.len();
            all.into_iter().for_each(std::mem::forget);
            n
        }
    }

    #[test]
    fn packets_that_are_taken_leave_room() {
        let mut lab = Lab::new();
        for round in 0..HANDOFFS_MAX {
            assert_eq!(lab.hand_over(1, 4), 4, "in {round}");
            assert_eq!(lab.take(9), 4);
        }
        // While no thread takes any, what is refused leaves nothing behind.
        (0..1000).for_each(|i| _ = lab.hand_over(1 + i % 2, 256));
        assert!(lab.peers.peers[3].as_ref().is_some_and(|p| p.queued.len() <= HANDOFFS_MAX));
        while lab.take(64) > 0 {}
        assert_eq!(lab.pool.in_use(), 0);
    }

    #[test]
    fn a_port_takes_as_much_of_a_ring_as_it_leaves_free() {
        let mut lab = Lab::new();
        let mut flooding = 0;
        for round in 0..100 {
            flooding += (0..10).map(|_| lab.hand_over(1, 256)).sum::<usize>();
            assert!(flooding <= HANDOFFS_MAX / 2 + 1 + 200 * round, "{flooding} in {round}");
            assert_eq!(lab.hand_over(2, 32), 32, "another port loses nothing");
            lab.take(200);
        }
        assert!(flooding > 100 * (200 - 32), "it has what the other one leaves: {flooding}");
        while lab.take(64) > 0 {}
        assert_eq!((0..3).map(|_| lab.hand_over(1, 256)).sum::<usize>(), 3 * 256);
        lab.take(HANDOFFS_MAX);
        assert_eq!(lab.pool.in_use(), 0);
    }
}
