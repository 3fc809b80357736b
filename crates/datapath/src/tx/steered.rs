//! All transmit queues of a port as one (`tx-steering=hash`). A hash of a packet's connection, and
//! not the thread that sends it, chooses its queue: a receiver that reads several queues gets
//! packets in all of them, and those of one connection in one.

use crate::tx::bond::connection_bucket;
use packet::{Packet, VECTOR};
use port::TxQueue;

/// All transmit queues of a port, as one.
pub(crate) struct Steered {
    queues: Vec<Box<dyn TxQueue>>,
    /// The packets for each queue, in order.
    parts: Vec<Vec<Packet>>,
    /// The packets for which their queue had no room.
    refused: Vec<Packet>,
}

impl Steered {
    /// The queues, two or more.
    pub fn new(queues: Vec<Box<dyn TxQueue>>) -> Steered {
        let parts = queues.iter().map(|_| Vec::with_capacity(VECTOR)).collect();
        Steered { queues, parts, refused: Vec::with_capacity(VECTOR) }
    }
}

impl TxQueue for Steered {
    /// Takes all packets: those for which their queue has no room wait in
    /// [`TxQueue::take_refused`], so that a queue that is not read stops no other.
    fn tx(&mut self, packets: &[Packet]) -> usize {
        for packet in packets {
            let part = usize::from(connection_bucket(packet.data())) % self.parts.len();
            // SAFETY: all packets are taken, the caller does not use them any more.
            self.parts[part].push(unsafe { packet.duplicate() });
        }
        for (queue, part) in self.queues.iter_mut().zip(&mut self.parts) {
            let taken = if part.is_empty() { 0 } else { queue.tx(part).min(part.len()) };
            self.refused.extend(part.drain(..).skip(taken));
        }
        packets.len()
    }

    fn refuses(&self) -> bool {
        true
    }

    fn take_refused(&mut self, to: &mut Vec<Packet>) {
        to.append(&mut self.refused);
    }

    fn notify(&mut self, all: bool) {
        self.queues.iter_mut().for_each(|queue| queue.notify(all));
    }

    fn notifies(&self) -> bool {
        self.queues.iter().any(|queue| queue.notifies())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{HeapPool, Pool};
    use std::sync::{Arc, Mutex};

    /// A queue with so much room, and what it was sent.
    struct Queue(usize, Arc<Mutex<Vec<Packet>>>);

    impl TxQueue for Queue {
        fn tx(&mut self, packets: &[Packet]) -> usize {
            let n = packets.len().min(self.0);
            // SAFETY: these packets are taken.
            let taken = packets[..n].iter().map(|p| unsafe { p.duplicate() });
            self.1.lock().unwrap().extend(taken);
            n
        }
    }

    /// A packet of UDP with this source port and sequence number.
    fn frame(port: u8, n: u8) -> Vec<u8> {
        let mut d = vec![0; 64];
        (d[12], d[14], d[23], d[35], d[63]) = (8, 0x45, 17, port, n);
        d
    }

    #[test]
    fn connections_spread_in_order_and_a_full_queue_stops_no_other() {
        let pool = HeapPool::new();
        let sent: [_; 2] = std::array::from_fn(|_| Arc::new(Mutex::new(Vec::new())));
        let queues = [usize::MAX, 4].into_iter().zip(&sent);
        let queues = queues.map(|(room, to)| Box::new(Queue(room, to.clone())) as _);
        let mut all = Steered::new(queues.collect());
        let frames = (0..64).map(|i| pool.packet(&frame(i % 16, i)).unwrap());
        let packets: Vec<_> = frames.collect();
        assert_eq!(all.tx(&packets), 64);
        std::mem::forget(packets);
        let mut refused = Vec::new();
        all.take_refused(&mut refused);
        let taken = sent.map(|q| std::mem::take(&mut *q.lock().unwrap()));
        assert_eq!((taken[1].len(), refused.len() + 4 + taken[0].len()), (4, 64));
        assert!(!taken[0].is_empty() && !refused.is_empty());
        for queue in &taken {
            for connection in 0..16 {
                let own = queue.iter().filter(|p| p.data()[35] == connection);
                let order: Vec<_> = own.map(|p| p.data()[63]).collect();
                assert!(order.is_sorted(), "{order:?}");
            }
        }
        let ports = |of: &[Packet]| of.iter().map(|p| p.data()[35]).collect::<Vec<_>>();
        let elsewhere = [ports(&taken[1]), ports(&refused)].concat();
        assert!(ports(&taken[0]).iter().all(|port| !elsewhere.contains(port)));
        taken.into_iter().chain([refused]).for_each(|of| pool.free(&of));
    }
}
