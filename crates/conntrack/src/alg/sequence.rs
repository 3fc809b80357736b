//! Shifts of TCP sequence numbers. Where a helper replaced a text by a longer or shorter one, all
//! bytes behind it have other numbers at the receiver than at the sender.

use crate::machine::ahead;
use wire::checksum;

/// The shift of one direction's sequence numbers, because a helper changed the length of its
/// payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqShift {
    /// The sender's number behind the segment that was changed last.
    pub from: u32,
    /// Bytes that are added to numbers before `from`.
    pub before: i32,
    /// Bytes that are added to numbers from `from` on.
    pub after: i32,
}

impl SeqShift {
    /// True if sequence numbers stay as they are.
    pub fn is_none(&self) -> bool {
        self.before == 0 && self.after == 0
    }

    /// The receiver's number for a sender's.
    pub fn forth(&self, seq: u32) -> u32 {
        let by = if ahead(seq, self.from) >= 0 { self.after } else { self.before };
        seq.wrapping_add_signed(by)
    }

    /// The sender's number for a receiver's.
    pub fn back(&self, ack: u32) -> u32 {
        let late = ack.wrapping_add_signed(self.after.wrapping_neg());
        match ahead(late, self.from) >= 0 {
            true => late,
            false => ack.wrapping_add_signed(self.before.wrapping_neg()),
        }
    }

    /// Records that a segment which ends before the sender's number `end` became `by` bytes longer.
    /// A retransmission of it changes nothing more.
    pub fn grow(&mut self, end: u32, by: i32) {
        if self.is_none() || ahead(end, self.from) > 0 {
            *self =
                SeqShift { from: end, before: self.after, after: self.after.saturating_add(by) };
        }
    }
}

/// Writes a number into the TCP header at `tcp`, and updates the checksum. `at`: 4 for the sequence
/// number, 8 for the acknowledgement number.
pub fn write(data: &mut [u8], tcp: usize, at: usize, number: u32) {
    let place = tcp + at..tcp + at + 4;
    let mut old = [0; 4];
    old.copy_from_slice(&data[place.clone()]);
    let new = number.to_be_bytes();
    let sum = u16::from_be_bytes([data[tcp + 16], data[tcp + 17]]);
    let sum = checksum::update(sum, 0, &old, &new);
    data[place].copy_from_slice(&new);
    data[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_before_and_behind_a_longer_text() {
        let mut seq_shift = SeqShift::default();
        seq_shift.grow(120, 5);
        seq_shift.grow(120, 5);
        assert_eq!(
            (seq_shift.forth(100), seq_shift.forth(120), seq_shift.forth(130)),
            (100, 125, 135)
        );
        assert_eq!(
            (seq_shift.back(100), seq_shift.back(125), seq_shift.back(135)),
            (100, 120, 130)
        );
        seq_shift.grow(220, -3);
        assert_eq!((seq_shift.forth(200), seq_shift.forth(220)), (205, 222));
        assert_eq!(
            (seq_shift.back(205), seq_shift.back(222), seq_shift.back(230)),
            (200, 220, 228)
        );
        let mut wraps = SeqShift::default();
        wraps.grow(2, 4);
        assert_eq!((wraps.forth(u32::MAX), wraps.forth(2), wraps.back(6)), (u32::MAX, 6, 2));
    }
}
