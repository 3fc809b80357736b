//! Parses packets of a burst: by profiles where one claims the packet, otherwise by the scalar
//! parser.
//!
//! The loop is generic over how a key is put together from a packet's first 64 bytes; each
//! [`Level`] is one instance of it.

use super::profile::{
    Family, PROBE_AT, PROFILE_BYTES_MIN, PROFILES_COUNT, Profile, ProfileStats, find,
};
use crate::batch::columns::Columns;
use crate::batch::keys::{EXT1, Ext, Keys, Layout, Line, bytes_mut};
use crate::cpu::Level;
use crate::mem::prefetch;
use crate::parse::scalar::parse;
use flow::at;
use packet::{BURST, Packet, VECTOR};
use std::ops::Range;
use telemetry::Drop;
use wire::TCP_LEN;

/// A range of adjacent packets of a vector that came in on one port, to be parsed.
pub(crate) struct ParseJob<'a> {
    pub packets: &'a [Packet],
    pub range: Range<usize>,
    /// Which packets of the range are parsed, a bit each; None: all. With Some the range is at most
    /// a burst, and the caller corrects [`Columns::same`] of a parsed packet behind one that was
    /// not.
    pub some: Option<u32>,
    /// The number from which on all packets of the vector came in on this port.
    pub since: usize,
    pub in_port: u16,
    pub vlan_limit: u8,
    /// What packets must agree on to be the same ([`Columns::same`]).
    pub matched: &'a Matched,
    pub keys: &'a mut Keys,
    pub columns: &'a mut Columns,
    pub profile_stats: &'a mut ProfileStats,
    /// Numbers of the packets that cannot be parsed, and why.
    pub failed: &'a mut Vec<(u8, Drop)>,
}

/// A line that no key has: bytes 56..64 of a key are zero.
const NO_LINE: Line = [!0; 8];

/// The bits of keys that some megaflow of a port matches on.
pub(crate) struct Matched {
    /// The bits of key line 0. Word 7, which no key has, is all ones, so that no key agrees with
    /// [`NO_LINE`].
    pub line: Line,
    /// True if megaflows match on bits of key lines 1 to 3, too.
    pub ext: bool,
}

/// For packets that are the same only if their keys are equal.
pub(crate) const ALL_BITS: Matched = Matched { line: [!0; 8], ext: true };

impl ParseJob<'_> {
    /// Parses the packets; returns how many of them profiles claimed.
    pub fn run(&mut self, level: Level) -> usize {
        let Range { start, end } = self.range;
        assert!(self.since <= start && start <= end && end <= self.packets.len() && end <= VECTOR);
        assert!(self.some.is_none() || end - start <= BURST);
        let claimed = match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is used only where `is_available` found it; the range is checked.
            Level::Avx512 => unsafe { super::simd::avx512(self) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { super::simd::avx2(self) },
            _ => {
                let which = self.some;
                let parsed = |i: &usize| which.is_none_or(|bits| bits >> (i - start) & 1 != 0);
                self.range.clone().filter(parsed).for_each(|i| self.one(i));
                0
            }
        };
        self.profile_stats.judge(end - start);
        claimed
    }

    /// Parses packet `i` by the scalar parser.
    #[inline(never)]
    pub fn one(&mut self, i: usize) {
        let p = &self.packets[i];
        self.columns.len[i] = p.len() as u16;
        let (line, ext) = (&mut self.keys.line.0[i], &mut self.keys.ext[i]);
        let layout = match p.segments() {
            1 => parse(p.data(), self.in_port, self.vlan_limit, line, ext).ok_or(Drop::Truncated),
            _ => Err(Drop::Segmented),
        };
        let layout = layout.unwrap_or_else(|why| {
            *line = NO_LINE;
            self.failed.push((i as u8, why));
            Layout::default()
        });
        self.columns.layout[i] = layout;
        self.keys.have[i] = layout.ext;
        self.columns.same[i] = i > self.since
            && (self.keys.have[i] | self.keys.have[i - 1] == 0 || !self.matched.ext)
            && !self.columns.preset[i - 1]
            && agree(&self.keys.line.0[i], &self.keys.line.0[i - 1], &self.matched.line);
    }
}

/// True if the lines agree on these bits.
#[inline]
pub(crate) fn agree(a: &Line, b: &Line, bits: &Line) -> bool {
    (0..a.len()).fold(0, |differing, w| differing | (a[w] ^ b[w]) & bits[w]) == 0
}

/// How a kernel makes, compares and stores keys.
///
/// # Safety
///
/// For all functions: the CPU has the kernel's instructions, and `d` points to at least
/// [`PROFILE_BYTES_MIN`] bytes, or to as many as the profile demands.
pub(crate) trait KeyBuilder {
    /// The first bytes of a packet, in registers.
    type Head: Copy;
    /// A key line, in registers.
    type Key: Copy;
    /// A profile and an input port, made ready for many packets.
    type Ready: Copy;
    /// `port`: bytes 32..40 of a line that has only the input port.
    unsafe fn ready(p: &Profile, port: u64) -> Self::Ready;
    unsafe fn head(d: *const u8, len: usize) -> Self::Head;
    unsafe fn claims(head: Self::Head, r: &Self::Ready) -> bool;
    /// `FLAGS`: takes the TCP flags if the profile has them.
    unsafe fn key<const FLAGS: bool>(head: Self::Head, d: *const u8, r: &Self::Ready) -> Self::Key;
    unsafe fn with_tos(key: Self::Key, tos: u8) -> Self::Key;
    /// True if the keys agree on these bits.
    unsafe fn agree(a: Self::Key, b: Self::Key, bits: Self::Key) -> bool;
    unsafe fn store(key: Self::Key, to: *mut Line);
    unsafe fn load(from: &Line) -> Self::Key;
}

/// The loop of all kernels. Returns how many packets profiles claimed.
///
/// # Safety
/// As for [`KeyBuilder`]; the job's range lies in its packets and in a vector.
#[inline(always)]
pub(crate) unsafe fn run<M: KeyBuilder>(job: &mut ParseJob<'_>) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match job.some {
            None => run_places::<M, false>(job, Places::new(job)),
            Some(_) => run_places::<M, true>(job, Places::new(job)),
        }
    }
}

/// Which packets of a job are parsed: all of its range, or those that have a bit.
#[derive(Clone, Copy)]
struct Places {
    start: usize,
    end: usize,
    bits: u32,
}

impl Places {
    fn new(job: &ParseJob<'_>) -> Places {
        let Range { start, end } = job.range;
        let inside = u32::MAX >> BURST.saturating_sub(end - start).min(BURST - 1);
        Places { start, end, bits: job.some.unwrap_or(0) & inside }
    }

    #[inline(always)]
    fn first<const SOME: bool>(self) -> usize {
        match SOME {
            true => (self.start + self.bits.trailing_zeros() as usize).min(self.end),
            false => self.start,
        }
    }

    /// The next place behind place `i`; the range's end if there is none.
    #[inline(always)]
    fn after<const SOME: bool>(self, i: usize) -> usize {
        match SOME {
            true => {
                let behind = self.bits >> (i - self.start) >> 1;
                (i + 1 + behind.trailing_zeros() as usize).min(self.end)
            }
            false => i + 1,
        }
    }

    /// How many places are in `from..to`.
    #[inline(always)]
    fn count<const SOME: bool>(self, from: usize, to: usize) -> usize {
        let below = |i: usize| u64::from(self.bits) & ((1 << (i - self.start)) - 1);
        match SOME {
            true => (below(to) & !below(from)).count_ones() as usize,
            false => to - from,
        }
    }
}

/// [`run`] for all packets of the range, or with `SOME` for those that have a bit.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn run_places<M: KeyBuilder, const SOME: bool>(
    job: &mut ParseJob<'_>,
    all: Places,
) -> usize {
    let Range { start, end } = job.range;
    if !SOME {
        job.packets[start..end].iter().for_each(|p| prefetch(p.data().as_ptr()));
    }
    let mut claimed = 0;
    let mut expected = job.profile_stats.tried[0];
    let mut i = all.first::<SOME>();
    while i < end {
        // SAFETY: `i` is in the range; the rest is the caller's.
        let stop = unsafe {
            match (expected.family, expected.flags_mask) {
                (Family::V4, 0) => stretch::<M, false, SOME>(job, i, expected, all),
                (Family::V4, _) => stretch::<M, true, SOME>(job, i, expected, all),
                _ => i,
            }
        };
        let n = all.count::<SOME>(i, stop);
        job.profile_stats.claimed[expected.index as usize] += n as u32;
        claimed += n;
        i = stop;
        if i == end {
            break;
        }
        // SAFETY: `i` is in the range; the rest is the caller's.
        match unsafe { claim::<M>(job, i) } {
            Some(p) => {
                job.profile_stats.claimed[p.index as usize] += 1;
                claimed += 1;
                expected = p;
            }
            None => job.one(i),
        }
        i = all.after::<SOME>(i);
    }
    claimed
}

/// Bytes 32..40 of a line that has only this input port.
pub(crate) fn port_word(port: u16) -> u64 {
    let [high, low] = port.to_be_bytes();
    u64::from_ne_bytes([0, 0, 0, 0, high, low, 0, 0])
}

/// Line 0 of the key of packet `i - 1`, to compare packet `i` with; [`NO_LINE`] if that packet is
/// of another port, has extension lines that matter, or was not parsed because its megaflow was
/// known.
#[inline(always)]
fn before<M: KeyBuilder>(job: &ParseJob<'_>, i: usize) -> M::Key {
    let ext = job.matched.ext && i > job.since && job.keys.have[i - 1] != 0;
    let lone = i <= job.since || ext || job.columns.preset[i - 1];
    // SAFETY: any line may be loaded; kernels that get here run.
    unsafe { M::load(if lone { &NO_LINE } else { &job.keys.line.0[i - 1] }) }
}

/// Parses IPv4 packets from packet `first` on as long as the profile claims them. Returns the first
/// that it does not claim, or the range's end.
///
/// # Safety
/// As for [`run`]; the profile is of IPv4 and has TCP flags if `FLAGS`.
#[inline(always)]
unsafe fn stretch<M: KeyBuilder, const FLAGS: bool, const SOME: bool>(
    job: &mut ParseJob<'_>,
    first: usize,
    p: &Profile,
    all: Places,
) -> usize {
    let mut last = before::<M>(job, first);
    let mut i = first;
    // The loop's stores might change the profile for all that the compiler knows.
    let (least, len_at) = (usize::from(p.least), usize::from(p.len_at));
    let (end_base, end_least) = (usize::from(p.end_base), usize::from(p.end_least));
    let layout = LayoutWord::new(p.layout);
    // SAFETY: places up to the range's end are inside all of these; the data is `len` bytes long.
    unsafe {
        let ready = M::ready(p, port_word(job.in_port));
        let matched = M::load(&job.matched.line);
        let packets = job.packets.as_ptr();
        let lines = job.keys.line.0.as_mut_ptr();
        let lays = job.columns.layout.as_mut_ptr();
        let lens = job.columns.len.as_mut_ptr();
        let sames = job.columns.same.as_mut_ptr();
        let haves = job.keys.have.as_mut_ptr();
        while i < all.end {
            let packet = &*packets.add(i);
            let (d, len) = (packet.data().as_ptr(), packet.len());
            if len < least || packet.segments() != 1 {
                break;
            }
            let head = M::head(d, len);
            if !M::claims(head, &ready) {
                break;
            }
            let end = end_base + be16(d, len_at) as usize;
            if end < end_least || end > len {
                break;
            }
            if FLAGS && !has_tcp_header(d, p, end) {
                break;
            }
            let key = M::key::<FLAGS>(head, d, &ready);
            *sames.add(i) = M::agree(key, last, matched);
            M::store(key, lines.add(i));
            *haves.add(i) = 0;
            *lens.add(i) = len as u16;
            *lays.add(i) = layout.with_end(end as u16);
            last = key;
            i = all.after::<SOME>(i);
        }
    }
    i
}

/// A layout as one word, so that one store writes it.
#[derive(Clone, Copy)]
struct LayoutWord(u64);

impl LayoutWord {
    /// The word of a layout without its end.
    fn new(layout: Layout) -> LayoutWord {
        // SAFETY: a layout has eight bytes without padding.
        LayoutWord(unsafe { std::mem::transmute::<Layout, u64>(Layout { end: 0, ..layout }) })
    }

    #[inline(always)]
    fn with_end(self, end: u16) -> Layout {
        const SHIFT: usize = 8 * std::mem::offset_of!(Layout, end);
        // SAFETY: the word of a layout, in which only `end`, which takes any value, was written.
        unsafe { std::mem::transmute::<u64, Layout>(self.0 | (u64::from(end) << SHIFT)) }
    }
}

/// Parses packet `i` if a profile claims it; returns that profile.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn claim<M: KeyBuilder>(job: &mut ParseJob<'_>, i: usize) -> Option<&'static Profile> {
    // SAFETY: the data is `len` bytes long.
    unsafe {
        let packet = &job.packets[i];
        let (d, len) = (packet.data().as_ptr(), packet.len());
        if len < PROFILE_BYTES_MIN || packet.segments() != 1 {
            return None;
        }
        let head = M::head(d, len);
        let port = port_word(job.in_port);
        let mut tried = job.profile_stats.tried.iter();
        let p = match tried.find(|p| M::claims(head, &M::ready(p, port))) {
            Some(p) => *p,
            None => find(&*d.add(PROBE_AT).cast())?,
        };
        if len < p.least as usize {
            return None;
        }
        let mut end = len;
        if p.family != Family::Arp {
            end = p.end_base as usize + be16(d, p.len_at as usize) as usize;
            if end < p.end_least as usize || end > len {
                return None;
            }
            if p.flags_mask != 0 && !has_tcp_header(d, p, end) {
                return None;
            }
        }
        let mut key = M::key::<true>(head, d, &M::ready(p, port));
        if p.family != Family::V4 {
            key = line1::<M>(key, d, p, &mut job.keys.ext[i]);
        }
        job.columns.same[i] = (p.family == Family::V4 || !job.matched.ext)
            && M::agree(key, before::<M>(job, i), M::load(&job.matched.line));
        M::store(key, &mut job.keys.line.0[i]);
        job.keys.have[i] = p.layout.ext;
        job.columns.len[i] = len as u16;
        job.columns.layout[i] = Layout { end: end as u16, ..p.layout };
        Some(p)
    }
}

/// True if the length that a TCP header names is valid, and the header ends before `end`, which is
/// not before the profile's least.
///
/// # Safety
/// The profile has TCP flags; the data is as long as the profile demands.
#[inline(always)]
unsafe fn has_tcp_header(d: *const u8, p: &Profile, end: usize) -> bool {
    // SAFETY: the caller's promise.
    let header = usize::from(unsafe { *d.add(p.flags_at as usize) } >> 4) * 4;
    header.wrapping_sub(TCP_LEN) <= end - p.end_least as usize
}

#[inline(always)]
unsafe fn be16(d: *const u8, at: usize) -> u16 {
    // SAFETY: the caller's promise.
    u16::from_be(unsafe { d.add(at).cast::<u16>().read_unaligned() })
}

/// Writes line 1 of an IPv6 or ARP packet; returns its line 0, for IPv6 with the traffic class.
#[inline(always)]
unsafe fn line1<M: KeyBuilder>(key: M::Key, d: *const u8, p: &Profile, ext: &mut Ext) -> M::Key {
    ext[0] = [0; 8];
    let to = bytes_mut(&mut ext[0]).as_mut_ptr();
    let put = |at: usize, from: *const u8, n: usize| {
        // SAFETY: the profile's shortest packet contains what its family has; `at` is in line 1.
        unsafe { std::ptr::copy_nonoverlapping(from, to.add(at - 64), n) }
    };
    // SAFETY: as above.
    unsafe {
        let h = d.add(p.layout.l3 as usize);
        if p.family == Family::Arp {
            put(at::ARP_SHA, h.add(8), 6);
            put(at::ARP_THA, h.add(18), 6);
            return key;
        }
        let word = u32::from_be(h.cast::<u32>().read_unaligned());
        put(at::IPV6_SRC, h.add(8), 32);
        put(at::IPV6_LABEL, (word & 0xf_ffff).to_be_bytes().as_ptr(), 4);
        M::with_tos(key, (word >> 20) as u8)
    }
}

const _: () = assert!(EXT1 == 1 && PROFILES_COUNT <= 16);
