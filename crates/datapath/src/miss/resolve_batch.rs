//! Missed packets that the pipeline is asked about together.

use crate::batch::keys::{KEY_WORDS, KeyRef, Line};
use crate::lookup::table::InsertPosition;
use crate::miss::rates::RESOLVE_PACKETS_MAX;
use action::Decision;
use flow::{Key, PACKET_LINES};

/// Missed packets, the keys with which the pipeline is asked, and its decisions. Reused.
pub(super) struct ResolveBatch {
    pub len: usize,
    /// Each packet's number in the vector.
    pub packets: [usize; RESOLVE_PACKETS_MAX],
    pub keys: [Key; RESOLVE_PACKETS_MAX],
    /// Which keys have something in lines 1 to 3.
    has_extensions: [bool; RESOLVE_PACKETS_MAX],
    pub decisions: [Decision; RESOLVE_PACKETS_MAX],
    /// Where each decision is to be stored; None: it is not stored.
    pub positions: [Option<InsertPosition>; RESOLVE_PACKETS_MAX],
}

impl Default for ResolveBatch {
    fn default() -> Self {
        ResolveBatch {
            len: 0,
            packets: [0; RESOLVE_PACKETS_MAX],
            keys: [Key::ZERO; RESOLVE_PACKETS_MAX],
            has_extensions: [false; RESOLVE_PACKETS_MAX],
            decisions: Default::default(),
            positions: Default::default(),
        }
    }
}

impl ResolveBatch {
    /// True if a packet with the same line 0 is in the batch.
    pub fn has(&self, line: &Line) -> bool {
        let same = |key: &Key| key.words[..KEY_WORDS] == line[..KEY_WORDS];
        self.keys[..self.len].iter().any(same)
    }

    /// Adds packet `packet` of the vector. The caller makes sure that there is room.
    #[inline]
    pub fn add(&mut self, packet: usize, key: &KeyRef<'_>) {
        let n = self.len;
        self.packets[n] = packet;
        let words = &mut self.keys[n].words;
        if key.have != 0 || self.has_extensions[n] {
            words[..PACKET_LINES * 8].copy_from_slice(&key.words());
            self.has_extensions[n] = key.have != 0;
        } else {
            words[..KEY_WORDS].copy_from_slice(&key.line[..KEY_WORDS]);
        }
        self.len += 1;
    }
}
