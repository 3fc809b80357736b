//! Segments of TCP that follow each other, sent as one frame to guests that take them so (virtio
//! 1.2, sections 5.1.6.2 and 5.1.6.4): the guest does its work once instead of once per segment.

use super::enqueue::{Choice, Frame};
use super::{HEADER, Moved, Ring};
use crate::batch::{BATCH, Batch, Direction, steps_max};
use crate::copier::CpuCopier;
use packet::Packet;
use wire::merge::Merged;
use wire::vnet::VNET_LEN;

/// Bytes of a receive buffer that are expected at least: a Linux guest's have 1,536 and more.
const BUFFER_BYTES_USUAL: usize = 1024;

impl Ring {
    /// Does what [`Ring::enqueue`] does, and merges segments. A frame for which the guest has no
    /// buffers is sent as its segments. A call reads twice [`steps_max`] descriptors at most.
    #[inline(never)] // Few guests take this way.
    pub(super) fn enqueue_merging(
        &mut self,
        batch: &mut Batch,
        packets: &[Packet],
        moved: &mut Moved,
    ) {
        let (mut rest, steps_end) = (packets, self.steps + steps_max(packets.len()) as u64);
        while !rest.is_empty() && !self.broken {
            if self.steps > steps_end {
                moved.exhausted = true;
                return;
            }
            let (alone, merged) = next_merged(rest);
            if !self.enqueue_all(batch, &rest[..alone], moved) {
                return;
            }
            rest = &rest[alone..];
            let Some(merged) = merged else { return };
            let (segments, behind) = rest.split_at(merged.segments);
            if !self.give_merged(batch, segments, &merged, moved)
                && !self.enqueue_all(batch, segments, moved)
            {
                return;
            }
            rest = behind;
        }
    }

    /// Sends packets as they are. True: all of them were taken, and the call may go on.
    fn enqueue_all(&mut self, batch: &mut Batch, packets: &[Packet], moved: &mut Moved) -> bool {
        let before = moved.packets;
        self.enqueue_by(batch, packets, moved, &mut CpuCopier);
        moved.packets - before == packets.len() && !moved.exhausted
    }

    /// Copies a frame of these segments into buffers of any kind. False: the guest has no buffers
    /// for it, or one of them is bad.
    fn give_merged(
        &mut self,
        batch: &mut Batch,
        segments: &[Packet],
        merged: &Merged,
        moved: &mut Moved,
    ) -> bool {
        let (before, began) = (self.base(), moved.packets);
        let (vnet, data) = merged.headers().split_at(VNET_LEN);
        let frame = Frame { data, more: segments, skip: merged.header_len };
        let need = self.header + frame.len();
        self.begin(batch);
        batch.begin(segments.len());
        self.gather(Direction::ToGuest, (need / BUFFER_BYTES_USUAL + 1).min(BATCH), batch);
        self.count_steps(batch, moved);
        let Choice::Buffers(range) = self.choose(batch, 0, need) else { return false };
        let mut header = [0; HEADER];
        header[..VNET_LEN].copy_from_slice(vnet);
        self.write(batch, range, header, frame, &mut CpuCopier);
        moved.packets += segments.len();
        moved.bytes += segments.iter().map(|packet| packet.len() as u64).sum::<u64>();
        self.end(before, began, moved);
        true
    }
}

/// How many packets come before the first that can be merged with those behind it; and the frame
/// that these make.
fn next_merged(packets: &[Packet]) -> (usize, Option<Merged>) {
    let merged = |at: usize| {
        let whole = packets[at..].iter().take_while(|p| p.segments() == 1);
        Merged::new(whole.map(|p| (p.data(), p.has_sound_checksums())))
    };
    let first = (0..packets.len()).find_map(|at| merged(at).map(|m| (at, Some(m))));
    first.unwrap_or((packets.len(), None))
}
