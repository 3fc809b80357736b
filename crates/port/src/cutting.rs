//! A frame that its sender left whole for the adapter, and that is segmented as packets are asked
//! for.

use crate::stats::Stats;
use packet::{Packet, Pool};
use telemetry::Drop as Reason;
use wire::gso::Plan;
use wire::vnet::{VnetHeader, complete_checksum};

/// The frame of a receive queue that is being segmented.
#[derive(Default)]
pub struct Cutting {
    frame: Vec<u8>,
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

    /// Begins with the frame in these pieces, each segment of which gets this tag.
    pub fn begin(
        &mut self,
        pieces: [&[u8]; 2],
        h: &VnetHeader,
        tag: Option<[u8; 4]>,
    ) -> Result<(), Reason> {
        self.frame.clear();
        pieces.iter().for_each(|piece| self.frame.extend_from_slice(piece));
        (self.plan, self.next, self.tag) = (Plan::new(&self.frame, h), 0, tag);
        self.plan.map(|_| ()).ok_or(Reason::BadOffload)
    }

    /// Makes up to `n` segments, in `spare` packets first. If there is no buffer for the next one,
    /// the rest of the frame is dropped: no descriptor would announce when there is a buffer.
    pub fn segment(
        &mut self,
        n: usize,
        (spare, pool): (&mut Vec<Packet>, &dyn Pool),
        stats: &Stats,
        out: &mut Vec<Packet>,
    ) {
        let Some(plan) = self.plan.take() else { return };
        let end = plan.count().min(self.next + n);
        for i in self.next..end {
            let mut p = match buffer(spare, pool, plan.len(i), end - i) {
                Ok(p) => p,
                Err(reason) => return stats.rx.drop(reason, (plan.count() - i) as u64),
            };
            let _ = p.set_len(plan.len(i));
            let written = plan.write(&self.frame, i, p.data_mut()).is_some();
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
pub fn missing(pool: &dyn Pool, bytes: usize) -> Reason {
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
