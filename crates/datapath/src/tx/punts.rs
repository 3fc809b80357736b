//! Punts to the control side: each source of punts has a rate, and a share of the queue.
//!
//! A source is an input port and a class of its packets. Packets of protocols that the switch
//! itself speaks (LACP, BFD, ...) are a class of their own, so a port that sends many other packets
//! to controllers does not lose its sessions. So are samples.

use crate::events::PuntEvent;
use crate::messages::PUNTS_MAX;
use crate::settings::Settings;
use action::PuntClass;
use flow::PortNo;
use std::collections::{BTreeMap, VecDeque};
use sync::Producer;
use telemetry::Drop;

/// Bytes of all packets in the queue, at most: about 9,000 for each of [`PUNTS_MAX`] packets.
const PUNTS_BYTES_MAX: usize = 32 << 20;

/// A source of punts: an input port, and the class of its packets.
pub(crate) type Source = (PortNo, PuntClass);

/// The rate and the share of one source.
struct Share {
    tokens: f64,
    /// When `tokens` was last updated.
    filled_ms: u64,
    waiting: Load,
}

/// Packets and bytes: in the queue, or free.
#[derive(Clone, Copy, Default)]
struct Load {
    packets: usize,
    bytes: usize,
}

/// The queue of punts, with each source's rate and share.
pub(crate) struct Punts {
    queue: Producer<Box<PuntEvent>>,
    /// Source and bytes of each packet in the queue, oldest first.
    waiting: VecDeque<(Source, usize)>,
    /// Bytes of all packets in the queue.
    bytes: usize,
    shares: BTreeMap<Source, Share>,
    /// Packets per millisecond that a source may send.
    per_ms: f64,
    /// Packets that a source may send at once.
    burst: f64,
    /// True if packets were queued since this was reset.
    pub has_sent: bool,
}

impl Punts {
    pub fn new(queue: Producer<Box<PuntEvent>>) -> Self {
        let (waiting, shares) = Default::default();
        Punts { queue, waiting, bytes: 0, shares, per_ms: 0.0, burst: 0.0, has_sent: false }
    }

    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings) {
        (self.per_ms, self.burst) = (s.punts.per_second as f64 / 1000.0, s.punts.burst as f64);
    }

    /// Forgets a port that was removed.
    pub fn forget(&mut self, port: PortNo) {
        self.shares.retain(|(no, _), _| *no != port);
    }

    /// Checks whether another packet of `bytes` bytes may be queued; the error says why not. A
    /// source may have as many packets and bytes in the queue as are free for the others. Packets
    /// that controllers sent are not limited by a rate here.
    pub fn admit(&mut self, source: Source, bytes: usize, now_ms: u64) -> Result<(), Drop> {
        let room = self.room();
        let full = Share { tokens: self.burst, filled_ms: now_ms, waiting: Load::default() };
        let s = self.shares.entry(source).or_insert(full);
        let passed = now_ms.saturating_sub(s.filled_ms) as f64;
        (s.tokens, s.filled_ms) = ((s.tokens + passed * self.per_ms).min(self.burst), now_ms);
        if flow::is_received(source.0) {
            if s.tokens < 1.0 {
                return Err(Drop::PuntRate);
            }
            s.tokens -= 1.0;
        }
        let fits = s.waiting.packets < room.packets && s.waiting.bytes + bytes <= room.bytes;
        if fits { Ok(()) } else { Err(Drop::PuntFull) }
    }

    /// Queues a packet that was admitted.
    pub fn send(&mut self, source: Source, event: PuntEvent) {
        let bytes = event.packet.len();
        let sent = self.queue.push(Box::new(event)).is_ok();
        debug_assert!(sent, "there was room");
        self.waiting.push_back((source, bytes));
        (self.bytes, self.has_sent) = (self.bytes + bytes, true);
        if let Some(s) = self.shares.get_mut(&source) {
            s.waiting.packets += 1;
            s.waiting.bytes += bytes;
        }
    }

    /// Returns what is free in the queue. Packets that the control side has taken no longer count
    /// for their sources.
    fn room(&mut self) -> Load {
        let left = self.queue.waiting();
        let taken = self.waiting.len().saturating_sub(left);
        for (source, bytes) in self.waiting.drain(..taken) {
            self.bytes -= bytes;
            if let Some(s) = self.shares.get_mut(&source) {
                s.waiting.packets = s.waiting.packets.saturating_sub(1);
                s.waiting.bytes = s.waiting.bytes.saturating_sub(bytes);
            }
        }
        Load { packets: PUNTS_MAX - left, bytes: PUNTS_BYTES_MAX - self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PuntRate;
    use action::Punt;
    use flow::Key;
    use std::sync::Arc;
    use sync::{Consumer, ring};

    const CONTROLLER: PuntClass = PuntClass::Controller;

    struct Lab {
        punts: Punts,
        control: Consumer<Box<PuntEvent>>,
        punt: Arc<Punt>,
    }

    fn lab(rate: u32, burst: u32) -> Lab {
        let (queue, control) = ring(PUNTS_MAX);
        let mut punts = Punts::new(queue);
        let limit = PuntRate { per_second: rate, burst };
        punts.configure(&Settings { punts: limit, ..Settings::default() });
        let punt =
            Arc::new(Punt { class: CONTROLLER, max_len: 64, wanted: None, context: Box::new(()) });
        Lab { punts, control, punt }
    }

    impl Lab {
        /// Offers `n` packets: how many go to the control side, and why the last one does not.
        fn offer(&mut self, source: Source, n: usize, now_ms: u64) -> (usize, Option<Drop>) {
            self.offer_bytes(source, (n, 64), now_ms)
        }

        /// As `offer`, with the size of the packets.
        fn offer_bytes(
            &mut self,
            source: Source,
            (n, bytes): (usize, usize),
            now_ms: u64,
        ) -> (usize, Option<Drop>) {
            let (mut sent, mut refused) = (0, None);
            for _ in 0..n {
                match self.punts.admit(source, bytes, now_ms) {
                    Ok(()) => {
                        let (packet, key, punt) = (vec![0; bytes], Key::ZERO, self.punt.clone());
                        let in_port = source.0;
                        let event = PuntEvent { packet, key, in_port, punt, total_len: 0 };
                        self.punts.send(source, event);
                        sent += 1;
                    }
                    Err(why) => refused = Some(why),
                }
            }
            (sent, refused)
        }

        fn take(&mut self, n: usize) -> usize {
            (0..n).map_while(|_| self.control.pop()).count()
        }
    }

    #[test]
    fn a_port_has_its_rate_and_its_sessions_another() {
        let mut lab = lab(1000, 20);
        assert_eq!(lab.offer((1, CONTROLLER), 100, 0), (20, Some(Drop::PuntRate)));
        assert_eq!(lab.offer((1, PuntClass::Protocol), 5, 0), (5, None));
        assert_eq!(lab.offer((2, CONTROLLER), 5, 0), (5, None));
        assert_eq!(lab.offer((1, CONTROLLER), 100, 7), (7, Some(Drop::PuntRate)));
        assert_eq!(lab.offer((flow::origin_port(0), CONTROLLER), 100, 7), (100, None));
    }

    #[test]
    fn what_one_controller_sends_leaves_others_room() {
        let (mut lab, full) = (lab(1000, 20), Some(Drop::PuntFull));
        let [a, b] = [0, 1].map(|bridge| (flow::origin_port(bridge), CONTROLLER));
        assert_eq!(lab.offer(a, 10_000, 0), (PUNTS_MAX / 2, full));
        assert_eq!(lab.offer(b, 1000, 0), (1000, None), "another bridge's");
        assert_eq!(lab.offer((1, CONTROLLER), 20, 0), (20, None), "a port's");
    }

    #[test]
    fn large_packets_have_less_places() {
        let mut lab = lab(u32::MAX, u32::MAX);
        let (large, full) = (60_000, Some(Drop::PuntFull));
        let half = PUNTS_BYTES_MAX.div_ceil(2 * large);
        assert_eq!(lab.offer_bytes((1, CONTROLLER), (PUNTS_MAX, large), 0), (half, full));
        assert_eq!(lab.offer((2, CONTROLLER), 1000, 0), (1000, None));
        assert_eq!(lab.take(PUNTS_MAX), half + 1000);
        assert_eq!(lab.offer_bytes((1, CONTROLLER), (PUNTS_MAX, large), 0), (half, full));
    }

    #[test]
    fn ports_that_flood_leave_others_room() {
        let mut lab = lab(u32::MAX, u32::MAX);
        let full = Some(Drop::PuntFull);
        assert_eq!(lab.offer((1, CONTROLLER), 10_000, 0), (PUNTS_MAX / 2, full));
        for port in 2..10 {
            let (sent, why) = lab.offer((port, CONTROLLER), 10_000, 0);
            assert!((1..PUNTS_MAX / 2).contains(&sent) && why == full, "{port}: {sent}");
        }
        assert_eq!(lab.offer((10, CONTROLLER), 1, 0), (1, None), "there is a place left");
        assert_eq!(lab.offer((1, PuntClass::Protocol), 1, 0), (1, None), "for a session, too");
        // What the control side takes is free again, and not counted any more.
        let all = lab.take(PUNTS_MAX);
        assert!(all < PUNTS_MAX && lab.take(1) == 0, "{all}");
        assert_eq!(lab.offer((1, CONTROLLER), 10_000, 0), (PUNTS_MAX / 2, full));
        lab.punts.forget(1);
        assert_eq!(lab.offer((1, CONTROLLER), 10_000, 0), (PUNTS_MAX / 4, full), "a new port's");
        assert_eq!(lab.take(PUNTS_MAX), PUNTS_MAX / 4 * 3);
        assert_eq!(lab.offer((1, CONTROLLER), 10_000, 0), (PUNTS_MAX / 2, full));
    }
}
