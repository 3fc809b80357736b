//! A frame that its sender left whole for the adapter, and that is segmented as packets are asked
//! for; and the memory that such frames are read into.

use crate::stats::Stats;
use memmap2::{Advice, MmapMut};
use packet::{Packet, Pool};
use std::io;
use std::ops::Range;
use telemetry::Drop as Reason;
use wire::gso::Plan;
use wire::vnet::{VnetHeader, complete_checksum};

/// Bytes of a frame that are read into an ordinary packet buffer, at most; the rest is read into a
/// [`Spill`].
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes by which a frame may be longer than a packet buffer: the longest frame that a device
/// sends.
const SPILL_BYTES: usize = 64 * 1024 + 256;

/// Bytes of a frame's place: its head, and the rest.
const PLACE_BYTES: usize = HEAD_BYTES_MAX + SPILL_BYTES;

/// Memory for the parts of frames that do not fit into their packet buffers, a place for each
/// frame. There is room in front of it for the frame's head, so that a frame that is segmented need
/// not be copied as a whole.
///
/// It is a mapping of its own without huge pages, so that the system provides only what was
/// written: a port whose frames are short holds 0.1 MB, and 2.2 MB in malloc's memory.
pub struct Spill(MmapMut);

impl Spill {
    /// Memory for so many frames.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn new(frames: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(frames * PLACE_BYTES)?;
        // A kernel without huge pages refuses.
        let _ = memory.advise(Advice::NoHugePage);
        Ok(Spill(memory))
    }

    /// Bytes of a frame that go to the empty packet `p`; the others go to the spill.
    pub fn head_len(p: &Packet) -> usize {
        p.tailroom().min(HEAD_BYTES_MAX)
    }

    /// Where the kernel writes what does not fit into the packet of frame `i`.
    pub fn tail_mut(&mut self, i: usize) -> &mut [u8] {
        &mut self.0[i * PLACE_BYTES..][HEAD_BYTES_MAX..PLACE_BYTES]
    }

    /// A packet with frame `i`, which consists of `head` and the first `tail` bytes of its spill.
    pub fn large(
        &self,
        i: usize,
        (head, tail): (&[u8], usize),
        pool: &dyn Pool,
    ) -> Result<Packet, Reason> {
        let len = head.len() + tail;
        let mut large = pool.sized(len).ok_or_else(|| missing(pool, len))?;
        let _ = large.set_len(len);
        let (to_head, to_tail) = large.data_mut().split_at_mut(head.len());
        to_head.copy_from_slice(head);
        to_tail.copy_from_slice(&self.0[i * PLACE_BYTES..][HEAD_BYTES_MAX..][..tail]);
        Ok(large)
    }

    /// Where frame `i` is that consists of `head` and the first `tail` bytes of its spill.
    fn join(&mut self, i: usize, head: &[u8], tail: usize) -> Range<usize> {
        let at = i * PLACE_BYTES + HEAD_BYTES_MAX;
        let start = at - head.len();
        self.0[start..at].copy_from_slice(head);
        start..at + tail
    }
}

/// The frame of a receive queue that is being segmented.
#[derive(Default)]
pub struct Cutting {
    /// Where the frame is in the queue's spill.
    frame: Range<usize>,
    /// None: nothing is left of the frame.
    plan: Option<Plan>,
    /// Index of the next segment.
    next: usize,
    tag: Option<[u8; 4]>,
}

impl Cutting {
    /// True if nothing is left of the last frame.
    pub fn is_done(&self) -> bool {
        self.plan.is_none()
    }

    /// Begins with frame `i` of the spill, which consists of `head` and the first `tail` bytes
    /// there, and stays there until it [is done](Cutting::is_done). Each segment gets this tag.
    pub fn begin(
        &mut self,
        spill: &mut Spill,
        (i, head, tail): (usize, &[u8], usize),
        h: &VnetHeader,
        tag: Option<[u8; 4]>,
    ) -> Result<(), Reason> {
        self.frame = spill.join(i, head, tail);
        (self.plan, self.next, self.tag) = (Plan::new(&spill.0[self.frame.clone()], h), 0, tag);
        self.plan.map(|_| ()).ok_or(Reason::BadOffload)
    }

    /// Makes up to `n` segments, in `spare` packets first. If there is no buffer for the next one,
    /// the rest of the frame is dropped: no descriptor would announce when there is a buffer.
    pub fn segment(
        &mut self,
        n: usize,
        spill: &Spill,
        (spare, pool): (&mut Vec<Packet>, &dyn Pool),
        stats: &Stats,
        out: &mut Vec<Packet>,
    ) {
        let Some(plan) = self.plan.take() else { return };
        let frame = &spill.0[self.frame.clone()];
        let end = plan.count().min(self.next + n);
        for i in self.next..end {
            let mut p = match buffer(spare, pool, plan.len(i), end - i) {
                Ok(p) => p,
                Err(reason) => return stats.rx.drop(reason, (plan.count() - i) as u64),
            };
            let _ = p.set_len(plan.len(i));
            let written = plan.write(frame, i, p.data_mut()).is_some();
            p.set_sound_checksums();
            match written && insert_tag(&mut p, self.tag) {
                true => out.push(p),
                false => {
                    stats.rx.drop(Reason::NoHeadroom, 1);
                    pool.free(&[p]);
                }
            }
        }
        self.next = end;
        self.plan = Some(plan).filter(|_| end < plan.count());
    }
}

/// An empty packet with room for `bytes`; `n` such packets are wanted.
fn buffer(
    spare: &mut Vec<Packet>,
    pool: &dyn Pool,
    bytes: usize,
    n: usize,
) -> Result<Packet, Reason> {
    if spare.is_empty() && !pool.alloc(spare, n) {
        return Err(Reason::NoBuffer);
    }
    match spare.last() {
        Some(p) if p.tailroom() >= bytes => spare.pop().ok_or(Reason::NoBuffer),
        _ => pool.sized(bytes).ok_or_else(|| missing(pool, bytes)),
    }
}

/// The reason for which there is no buffer of this size.
fn missing(pool: &dyn Pool, bytes: usize) -> Reason {
    if bytes > pool.room() { Reason::TooLong } else { Reason::NoBuffer }
}

/// Does what the sender left undone on a frame that is one packet, and inserts a tag if there is
/// one.
pub fn complete(p: &mut Packet, h: &VnetHeader, tag: Option<[u8; 4]>) -> Result<(), Reason> {
    if h.needs_csum && !complete_checksum(p.data_mut(), h.csum_start, h.csum_offset) {
        return Err(Reason::BadOffload);
    }
    if insert_tag(p, tag) { Ok(()) } else { Err(Reason::NoHeadroom) }
}

/// Inserts a tag behind the addresses, if there is one; false: there is no headroom.
fn insert_tag(p: &mut Packet, tag: Option<[u8; 4]>) -> bool {
    let Some(tag) = tag else { return true };
    if p.len() < wire::ETH_LEN || !p.push_front(wire::VLAN_LEN) {
        return false;
    }
    let data = p.data_mut();
    data.copy_within(4..16, 0);
    data[12..16].copy_from_slice(&tag);
    true
}
