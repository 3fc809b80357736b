//! Connections in memory. Each entry has a hot line, a cold line, and one for IPv6 addresses, all
//! of atomic words. Their memory is never given back, so whoever holds an entry's number may always
//! read it.

use super::atomics::{AtomicU16, AtomicU64, CacheLines, Ordering::*, prefetch};
use crate::alg::SeqShift;
use crate::conn::{Conn, Translation};
use crate::machine::{Peer, Peers, state};
use crate::tuple::Tuple;
use action::Alg;
use std::sync::OnceLock;

/// Entries whose memory is allocated at once: 4 MiB of hot lines.
pub const CHUNK: u32 = 1 << 16;
/// Chunks, at most: 64 Mi connections.
const CHUNKS: usize = 1 << 10;

// Words of the hot line.
/// Addresses of the original direction (IPv4), the source's in the upper half.
const ADDRS: usize = 0;
/// Ports of the original direction (upper half); zone, protocol, ICMP type.
const PORTS: usize = 1;
/// Addresses of the reply direction (IPv4), the source's in the upper half.
const REPLY_ADDRS: usize = 2;
/// Ports of the reply direction in the lower half; the ends' windows in the upper half.
const REPLY_PORTS: usize = 3;
/// The control word: [`mod@bit`] has its parts.
const CONTROL: usize = 4;
/// Sequence numbers, a word for each end.
const SEQUENCE: usize = 5;
/// Expiry (upper half) and mark.
const LIFE: usize = 7;

// Words of the cold line.
/// Label, two words, the upper half first.
const LABEL: usize = 0;
/// Counts the beginnings and the ends of changes of the label: odd during a change.
const LABEL_VERSION: usize = 2;
/// 1 + the timeout policy in the lower half, 0: none; the helper above it.
const POLICY: usize = 3;
/// Name of the connection that announced this one; 0: none.
const PARENT: usize = 4;
/// [`SeqShift::from`] of the original direction in the lower half, of the reply direction in the
/// upper half; only of a connection with a helper.
const SHIFT_FROM: usize = 5;
/// [`SeqShift::before`] and [`SeqShift::after`], a word for each direction.
const SHIFTS: usize = 6;

/// Bits of the control word. Bits 0-7 are the ends' states, 8-23 their window scales, 32-47 the
/// zone's epoch, 48-63 how often the entry was used.
pub mod bit {
    #![allow(missing_docs)]
    pub const LIVE: u64 = 1 << 24;
    /// The connection has ended, and its entry is to be removed by the keeper.
    pub const DEAD: u64 = 1 << 25;
    pub const SOURCE: u64 = 1 << 26;
    pub const DESTINATION: u64 = 1 << 27;
    pub const TRANSLATED: u64 = SOURCE | DESTINATION;
    pub const V6: u64 = 1 << 28;
    pub const HALF_OPEN: u64 = 1 << 29;
    /// The cold line has a label.
    pub const LABELLED: u64 = 1 << 30;
    /// The connection has a policy, a helper or a parent: the rest of the cold line says which.
    pub const SPECIAL: u64 = 1 << 31;
    pub const GENERATION_SHIFT: u32 = 48;
    pub const EPOCH_SHIFT: u32 = 32;
    /// The bits that packets change. In a dead entry they are 0, except [`UNLINKED`].
    pub const PEERS: u64 = (1 << 24) - 1;
    /// The index does not have the dead entry any more.
    pub const UNLINKED: u64 = 1;
}

/// The entries of a table.
pub struct Entries {
    chunks: Box<[OnceLock<Chunk>; CHUNKS]>,
}

/// The memory of [`CHUNK`] entries.
struct Chunk {
    hot: CacheLines,
    cold: CacheLines,
    addrs_v6: CacheLines,
    /// The input ports of the packets that began the connections.
    ports: Box<[AtomicU16]>,
}

impl Chunk {
    /// Memory for entries; None: the system gives none.
    fn new() -> Option<Chunk> {
        let new = || CacheLines::new(CHUNK as usize);
        let (hot, cold, addrs_v6) = (CacheLines::dense(CHUNK as usize)?, new()?, new()?);
        let ports = (0..CHUNK).map(|_| AtomicU16::new(0)).collect();
        let chunk = Chunk { hot, cold, addrs_v6, ports };
        chunk.hot.touch();
        Some(chunk)
    }
}

/// A tuple as entries hold it.
#[derive(Clone, Copy)]
pub struct Packed {
    addrs: u64,
    ports: u32,
    /// Zone, protocol and ICMP type; `reply_zone_proto` has the ICMP type of replies.
    zone_proto: u32,
    reply_zone_proto: u32,
    addrs_v6: Option<[u64; 4]>,
}

impl Packed {
    /// The packed form of a tuple.
    #[inline]
    pub fn new(t: &Tuple) -> Packed {
        let zone_proto =
            |kind: u8| u32::from(t.zone) << 16 | u32::from(t.proto) << 8 | u32::from(kind);
        let reply_type = if t.icmp_type == 0 && !t.is_icmp() { 0 } else { t.reversed().icmp_type };
        Packed {
            addrs: if t.v6 { 0 } else { (t.src as u64) << 32 | t.dst as u64 },
            ports: u32::from(t.sport) << 16 | u32::from(t.dport),
            zone_proto: zone_proto(t.icmp_type),
            reply_zone_proto: zone_proto(reply_type),
            addrs_v6: t.v6.then_some([
                (t.src >> 64) as u64,
                t.src as u64,
                (t.dst >> 64) as u64,
                t.dst as u64,
            ]),
        }
    }
}

/// One entry.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    hot: &'a [AtomicU64; 8],
    /// The chunk that has the entry's other lines.
    chunk: &'a Chunk,
    i: usize,
}

/// The words of an entry of IPv4 that say whose connection it is, and how long it lives, as one
/// packet reads them.
#[derive(Clone, Copy)]
pub struct Head {
    /// The control word.
    pub control: u64,
    addrs: [u64; 2],
    ports: u64,
    reply_ports: u64,
    life: u64,
}

impl Default for Entries {
    fn default() -> Self {
        Entries { chunks: Box::new([const { OnceLock::new() }; CHUNKS]) }
    }
}

impl Entries {
    /// Allocates the memory of chunk `n`. False: there are as many chunks as there can be, or there
    /// is no memory. Called by the keeper.
    pub fn provide(&self, n: u32) -> bool {
        let Some(place) = self.chunks.get(n as usize) else { return false };
        let Some(chunk) = Chunk::new() else { return false };
        let _ = place.set(chunk);
        true
    }

    /// Prefetches the hot line of entry `n`, and for IPv6 the line of its addresses; does nothing
    /// for an entry without memory.
    #[inline]
    pub fn prefetch(&self, n: u32, is_v6: bool) {
        if let Some(chunk) = self.chunks[(n / CHUNK) as usize % CHUNKS].get() {
            prefetch(&chunk.hot[(n % CHUNK) as usize]);
            if is_v6 {
                prefetch(&chunk.addrs_v6[(n % CHUNK) as usize]);
            }
        }
    }

    /// Entry `n`, which has memory.
    #[inline(always)]
    pub fn get(&self, n: u32) -> Entry<'_> {
        let chunk = self.chunks[(n / CHUNK) as usize % CHUNKS].get();
        let chunk = chunk.expect("an entry in use has memory");
        let i = (n % CHUNK) as usize;
        Entry { hot: &chunk.hot[i].0, chunk, i }
    }
}

impl Head {
    /// Compares the entry's two tuples with that of a packet of TCP or UDP over IPv4, as
    /// [`Entry::matches`] does.
    #[inline(always)]
    pub fn matches_v4(&self, addrs: u64, ports: u32, zone_proto: u32) -> Option<bool> {
        let sent = ((self.ports >> 32) ^ u64::from(ports)) | (self.addrs[0] ^ addrs);
        let replied = u64::from(self.reply_ports as u32 ^ ports) | (self.addrs[1] ^ addrs);
        // The smaller one is 0 if either is: a branch for each direction would be predicted
        // wrongly.
        (self.ports as u32 == zone_proto && sent.min(replied) == 0).then_some(sent != 0)
    }

    /// The state of the first end.
    #[inline(always)]
    pub fn state(&self) -> u8 {
        self.control as u8 & 0xf
    }

    /// As [`Entry::expiry`].
    #[inline(always)]
    pub fn expiry(&self) -> u32 {
        (self.life >> 32) as u32
    }

    /// As [`Entry::mark`].
    #[inline(always)]
    pub fn mark(&self) -> u32 {
        self.life as u32
    }

    /// True if a live entry has not expired, and its zone, whose epoch is now `epoch`, was not
    /// flushed since the entry was made.
    #[inline(always)]
    pub fn is_alive(&self, epoch: u16, now: u32) -> bool {
        let left = self.expiry().wrapping_sub(now) as i32;
        left > 0 && (self.control >> bit::EPOCH_SHIFT) as u16 == epoch
    }
}

impl<'a> Entry<'a> {
    fn cold(&self) -> &'a [AtomicU64; 8] {
        &self.chunk.cold[self.i].0
    }

    fn addrs_v6(&self) -> &'a [AtomicU64; 8] {
        &self.chunk.addrs_v6[self.i].0
    }

    /// The control word.
    #[inline]
    pub fn control(&self) -> u64 {
        self.hot[CONTROL].load(Acquire)
    }

    /// Replaces the control word if it is still `old`.
    pub fn exchange(&self, old: u64, new: u64) -> bool {
        self.hot[CONTROL].compare_exchange(old, new, AcqRel, Relaxed).is_ok()
    }

    /// Sets the control word of an entry that no other thread changes.
    pub fn set_control(&self, word: u64) {
        self.hot[CONTROL].store(word, Release);
    }

    /// Compares the entry's two tuples with `t`. Some(false): it is the original tuple; Some(true):
    /// the reply tuple; None: neither.
    #[inline]
    pub fn matches(&self, t: &Packed, control: u64) -> Option<bool> {
        if (control & bit::V6 != 0) != t.addrs_v6.is_some() {
            return None;
        }
        let ports = self.hot[PORTS].load(Relaxed);
        if ports == u64::from(t.ports) << 32 | u64::from(t.zone_proto) && self.has_addrs(t, false) {
            return Some(false);
        }
        let reply_ports = self.hot[REPLY_PORTS].load(Relaxed) as u32;
        (ports as u32 == t.reply_zone_proto && reply_ports == t.ports && self.has_addrs(t, true))
            .then_some(true)
    }

    /// Reads the words that [`Head`] has, the control word first.
    #[inline(always)]
    pub fn head(&self) -> Head {
        let control = self.control();
        let word = |at: usize| self.hot[at].load(Relaxed);
        Head {
            control,
            addrs: [word(ADDRS), word(REPLY_ADDRS)],
            ports: word(PORTS),
            reply_ports: word(REPLY_PORTS),
            life: word(LIFE),
        }
    }

    /// Addresses and ports of a direction of an IPv4 connection, the source's in the upper half.
    #[inline]
    pub fn ends_v4(&self, reply: bool) -> (u64, u32) {
        const { assert!(REPLY_ADDRS == ADDRS + 2 && REPLY_PORTS == PORTS + 2) };
        let word = |at: usize| self.hot[at + 2 * usize::from(reply)].load(Relaxed);
        (word(ADDRS), (word(PORTS) >> (32 * u32::from(!reply))) as u32)
    }

    /// The tuple of a direction, for an entry that is not ICMP's.
    #[inline]
    pub fn tuple(&self, v6: bool, reply: bool) -> Tuple {
        let (word, (_, ports)) = (self.hot[PORTS].load(Relaxed), self.ends_v4(reply));
        let (src, dst) = self.addrs(v6, reply);
        Tuple {
            src,
            dst,
            sport: (ports >> 16) as u16,
            dport: ports as u16,
            proto: (word >> 8) as u8,
            icmp_type: 0,
            v6,
            zone: (word >> 16) as u16,
        }
    }

    /// True if the addresses of a direction are those of `t`.
    #[inline]
    fn has_addrs(&self, t: &Packed, reply: bool) -> bool {
        match t.addrs_v6 {
            None => self.hot[if reply { REPLY_ADDRS } else { ADDRS }].load(Relaxed) == t.addrs,
            Some(words) => {
                let at = if reply { 4 } else { 0 };
                self.addrs_v6()[at..at + 4].iter().zip(words).all(|(a, b)| a.load(Relaxed) == b)
            }
        }
    }

    /// Expiry: the low 32 bits of the clock in milliseconds.
    #[inline]
    pub fn expiry(&self) -> u32 {
        (self.hot[LIFE].load(Relaxed) >> 32) as u32
    }

    /// Sets the expiry, in the form of [`Entry::expiry`].
    pub fn set_expiry(&self, at: u32) {
        let new = |life| Some(u64::from(at) << 32 | life & 0xffff_ffff);
        let _ = self.hot[LIFE].fetch_update(Relaxed, Relaxed, new);
    }

    /// The connection's mark.
    #[inline]
    pub fn mark(&self) -> u32 {
        self.hot[LIFE].load(Relaxed) as u32
    }

    /// Sets the bits of the mark that the mask has (value, mask); returns the whole mark.
    pub fn set_mark(&self, (value, mask): (u32, u32)) -> u32 {
        let to = |life: u64| life & !u64::from(mask) | u64::from(value & mask);
        match self.hot[LIFE].fetch_update(Relaxed, Relaxed, |life| Some(to(life))) {
            Ok(old) | Err(old) => to(old) as u32,
        }
    }

    /// The ends, whose states are in `control`.
    #[inline]
    pub fn peers(&self, control: u64) -> Peers {
        std::array::from_fn(|i| self.peer(control, i))
    }

    /// End `i` of the connection.
    #[inline]
    pub fn peer(&self, control: u64, i: usize) -> Peer {
        let windows = self.hot[REPLY_PORTS].load(Relaxed) >> 32;
        let sequence = self.hot[SEQUENCE + i].load(Relaxed);
        Peer {
            state: (control >> (4 * i) & 0xf) as u8,
            wscale: (control >> (8 + 8 * i)) as u8,
            max_win: (windows >> (16 * i)) as u16,
            seqlo: (sequence >> 32) as u32,
            seqhi: sequence as u32,
        }
    }

    /// The ends of a TCP connection, the sender's first, if both are established.
    #[inline(always)]
    pub fn established(&self, head: &Head, reply: bool) -> Option<[Peer; 2]> {
        const BOTH: u64 = (state::ESTABLISHED as u64) * 0x11;
        if head.control & 0xff != BOTH {
            return None;
        }
        let turns = u32::from(reply);
        let windows = ((head.reply_ports >> 32) as u32).rotate_left(16 * turns);
        let scales = ((head.control >> 8) as u16).rotate_left(8 * turns);
        let peer = |i: usize| {
            let sequence = self.hot[SEQUENCE + (i ^ usize::from(reply))].load(Relaxed);
            Peer {
                state: state::ESTABLISHED,
                wscale: (scales >> (8 * i)) as u8,
                max_win: (windows >> (16 * i)) as u16,
                seqlo: (sequence >> 32) as u32,
                seqhi: sequence as u32,
            }
        };
        Some([peer(0), peer(1)])
    }

    /// The bits of the control word for these ends.
    #[inline]
    pub fn peer_bits(peers: &Peers) -> u64 {
        let one = |i: usize| {
            let p = &peers[i];
            u64::from(p.state) << (4 * i) | u64::from(p.wscale) << (8 + 8 * i)
        };
        one(0) | one(1)
    }

    /// Writes the windows and sequence numbers of both ends, as far as they changed.
    #[inline]
    pub fn set_windows(&self, old: &Peers, new: &Peers) {
        (0..2).for_each(|i| self.set_window(i, &old[i], &new[i]));
    }

    /// Writes the window and sequence numbers of one end, as far as they changed.
    #[inline]
    pub fn set_window(&self, i: usize, old: &Peer, new: &Peer) {
        if (old.seqlo, old.seqhi) != (new.seqlo, new.seqhi) {
            self.hot[SEQUENCE + i].store(sequence(new), Relaxed);
        }
        if old.max_win != new.max_win {
            let word = self.hot[REPLY_PORTS].load(Relaxed) & !(0xffff << (32 + 16 * i));
            self.hot[REPLY_PORTS].store(word | u64::from(new.max_win) << (32 + 16 * i), Relaxed);
        }
    }

    /// The label, of an entry that has one.
    pub fn label(&self) -> u128 {
        /// Attempts to read the label while it is being changed; the last one counts in any case.
        const LOOKS_COUNT_MAX: usize = 64;
        let mut value = 0;
        for _ in 0..LOOKS_COUNT_MAX {
            let version = self.cold()[LABEL_VERSION].load(Acquire);
            let [hi, lo] = [self.cold()[LABEL].load(Acquire), self.cold()[LABEL + 1].load(Acquire)];
            value = u128::from(hi) << 64 | u128::from(lo);
            if version & 1 == 0 && self.cold()[LABEL_VERSION].load(Acquire) == version {
                break;
            }
        }
        value
    }

    /// Sets the bits of the label that the mask has (value, mask); returns the whole label.
    pub fn set_label(&self, (value, mask): (u128, u128)) -> u128 {
        /// Attempts while others change the label; after the last one it stays as it is.
        const ATTEMPTS_COUNT_MAX: usize = 256;
        let version = &self.cold()[LABEL_VERSION];
        for attempt in 0..ATTEMPTS_COUNT_MAX {
            let now = version.load(Relaxed);
            if now & 1 == 0 && version.compare_exchange(now, now + 1, AcqRel, Relaxed).is_ok() {
                let [hi, lo] = [LABEL, LABEL + 1].map(|i| u128::from(self.cold()[i].load(Relaxed)));
                let old = if self.control() & bit::LABELLED != 0 { hi << 64 | lo } else { 0 };
                let new = old & !mask | value & mask;
                self.cold()[LABEL].store((new >> 64) as u64, Release);
                self.cold()[LABEL + 1].store(new as u64, Release);
                self.hot[CONTROL].fetch_or(bit::LABELLED, AcqRel);
                version.store(now + 2, Release);
                return new;
            }
            super::atomics::wait(attempt);
        }
        self.label()
    }

    /// The timeout policy of an entry whose control word is `control`.
    pub fn policy(&self, control: u64) -> Option<u32> {
        let special = control & bit::SPECIAL != 0;
        special.then(|| self.cold()[POLICY].load(Relaxed) as u32)?.checked_sub(1)
    }

    /// The helper of an entry whose control word is `control`.
    fn alg(&self, control: u64) -> Option<Alg> {
        let special = control & bit::SPECIAL != 0;
        match special.then(|| self.cold()[POLICY].load(Relaxed) >> 32 & 0xffff)? {
            1 => Some(Alg::Ftp),
            2 => Some(Alg::Tftp),
            _ => None,
        }
    }

    /// The connection that announced this one, of an entry whose control word is `control`.
    fn parent(&self, control: u64) -> Option<u64> {
        let special = control & bit::SPECIAL != 0;
        special.then(|| self.cold()[PARENT].load(Relaxed)).filter(|parent| *parent != 0)
    }

    /// The shift of a direction's sequence numbers, for an entry with a helper.
    pub fn seq_shift(&self, reply: bool) -> SeqShift {
        let half = |word: u64, upper: bool| if upper { (word >> 32) as u32 } else { word as u32 };
        let by = self.cold()[SHIFTS + usize::from(reply)].load(Relaxed);
        let from = self.cold()[SHIFT_FROM].load(Relaxed);
        let (before, after) = (half(by, true) as i32, half(by, false) as i32);
        SeqShift { from: half(from, reply), before, after }
    }

    /// Sets the shift of a direction's sequence numbers. Only packets of that direction call this.
    pub fn set_seq_shift(&self, reply: bool, seq_shift: SeqShift) {
        let (place, shift) = (&self.cold()[SHIFT_FROM], if reply { 32 } else { 0 });
        let to = |word| Some(word & !(0xffff_ffff << shift) | u64::from(seq_shift.from) << shift);
        let _ = place.fetch_update(Relaxed, Relaxed, to);
        let by = u64::from(seq_shift.before as u32) << 32 | u64::from(seq_shift.after as u32);
        self.cold()[SHIFTS + usize::from(reply)].store(by, Relaxed);
    }

    /// The input port of the packet that began the connection.
    pub fn port(&self) -> u16 {
        self.chunk.ports[self.i].load(Relaxed)
    }

    /// The connection's zone.
    #[inline]
    pub fn zone(&self) -> u16 {
        (self.hot[PORTS].load(Relaxed) >> 16) as u16
    }

    /// Writes a connection, which a packet of `port` began, into an entry that no other thread can
    /// find; returns the bits of its control word.
    pub fn fill(&self, conn: &Conn, port: u16, expiry: u32) -> u64 {
        let (orig, reply) = (Packed::new(&conn.orig), Packed::new(&conn.reply));
        let store = |at: usize, word| self.hot[at].store(word, Relaxed);
        store(ADDRS, orig.addrs);
        store(PORTS, u64::from(orig.ports) << 32 | u64::from(orig.zone_proto));
        store(REPLY_ADDRS, reply.addrs);
        store(REPLY_PORTS, u64::from(reply.ports) | windows(&conn.peers));
        for (i, p) in conn.peers.iter().enumerate() {
            store(SEQUENCE + i, sequence(p));
        }
        store(LIFE, u64::from(expiry) << 32 | u64::from(conn.mark));
        let mut bits = Self::peer_bits(&conn.peers) | bit::HALF_OPEN;
        bits |= match conn.nat {
            Translation::None => 0,
            Translation::Source => bit::SOURCE,
            Translation::Destination => bit::DESTINATION,
        };
        if let (Some(a), Some(b)) = (orig.addrs_v6, reply.addrs_v6) {
            bits |= bit::V6;
            a.iter().chain(&b).zip(self.addrs_v6()).for_each(|(w, to)| to.store(*w, Relaxed));
        }
        self.chunk.ports[self.i].store(port, Relaxed);
        bits | self.fill_cold(conn)
    }

    /// Writes the cold line of a connection that needs one; returns bits of its control word.
    fn fill_cold(&self, conn: &Conn) -> u64 {
        let mut bits = 0;
        if conn.policy.is_some() || conn.alg.is_some() || conn.parent.is_some() {
            bits |= bit::SPECIAL;
            let policy = conn.policy.map_or(0, |id| u64::from(id) + 1);
            let helper = match conn.alg {
                None => 0,
                Some(Alg::Ftp) => 1,
                Some(Alg::Tftp) => 2,
            };
            self.cold()[POLICY].store(helper << 32 | policy, Relaxed);
            self.cold()[PARENT].store(conn.parent.unwrap_or(0), Relaxed);
            self.cold()[SHIFT_FROM..].iter().for_each(|word| word.store(0, Relaxed));
        }
        if conn.label != 0 {
            bits |= bit::LABELLED;
            self.cold()[LABEL].store((conn.label >> 64) as u64, Relaxed);
            self.cold()[LABEL + 1].store(conn.label as u64, Relaxed);
        }
        bits
    }

    /// A copy of the connection, which ends at `expires`.
    pub fn conn(&self, control: u64, expires: u64) -> Conn {
        let ports = self.hot[PORTS].load(Relaxed);
        let mut orig = Tuple {
            sport: (ports >> 48) as u16,
            dport: (ports >> 32) as u16,
            zone: (ports >> 16) as u16,
            proto: (ports >> 8) as u8,
            icmp_type: ports as u8,
            v6: control & bit::V6 != 0,
            ..Tuple::default()
        };
        (orig.src, orig.dst) = self.addrs(orig.v6, false);
        let reply_ports = self.hot[REPLY_PORTS].load(Relaxed);
        let mut reply = orig.reversed();
        (reply.sport, reply.dport) = ((reply_ports >> 16) as u16, reply_ports as u16);
        (reply.src, reply.dst) = self.addrs(orig.v6, true);
        Conn {
            orig,
            reply,
            nat: match control & (bit::SOURCE | bit::DESTINATION) {
                bit::SOURCE => Translation::Source,
                bit::DESTINATION => Translation::Destination,
                _ => Translation::None,
            },
            peers: self.peers(control),
            mark: self.mark(),
            label: if control & bit::LABELLED != 0 { self.label() } else { 0 },
            policy: self.policy(control),
            alg: self.alg(control),
            parent: self.parent(control),
            expires,
        }
    }

    /// The addresses of a direction, source and destination.
    #[inline]
    fn addrs(&self, v6: bool, reply: bool) -> (u128, u128) {
        if !v6 {
            let word = self.hot[if reply { REPLY_ADDRS } else { ADDRS }].load(Relaxed);
            return ((word >> 32).into(), (word & 0xffff_ffff).into());
        }
        let at = if reply { 4 } else { 0 };
        let word = |i: usize| u128::from(self.addrs_v6()[at + i].load(Relaxed));
        (word(0) << 64 | word(1), word(2) << 64 | word(3))
    }
}

fn sequence(p: &Peer) -> u64 {
    u64::from(p.seqlo) << 32 | u64::from(p.seqhi)
}

fn windows(peers: &Peers) -> u64 {
    u64::from(peers[0].max_win) << 32 | u64::from(peers[1].max_win) << 48
}
