//! Which megaflow recirculated packets took before: a prediction that one comparison proves or
//! refutes, instead of a lookup. What most packets of a recirculation id, a connection state and a
//! destination share is one megaflow. 46 cycles less per packet (docs/perf/conntrack.md).

use super::compare::MaskLine;
use super::flow_store::{MASKS, Store};
use super::table::Table;
use crate::batch::keys::{KeyRef, Keys, Line};
use flow::at;
use packet::VECTOR;
use std::cell::Cell;

/// Places of the memo: 4 KiB.
const PLACES: usize = 1 << 10;
/// Predictions after which they are judged.
const JUDGED_PACKETS: u32 = 1 << 12;
/// One in so many predictions has to be right, or they rest.
const RIGHT_PACKETS_RATIO: u32 = 4;
/// Recirculated packets that are looked up without a prediction after too many wrong ones.
const REST_PACKETS: u32 = 1 << 16;

/// See the module.
pub(crate) struct RecircMemo {
    /// Megaflows; 0: none.
    places: Box<[u32; PLACES]>,
    /// Predictions since they were judged: right ones, and wrong ones.
    right: u32,
    wrong: Cell<u32>,
    /// Packets for which predictions still rest.
    rest: u32,
}

/// A megaflow for a packet, as far as line 0 of its key says.
#[derive(Clone, Copy)]
pub(crate) struct Prediction {
    pub megaflow: u32,
    pub program: u32,
    mask: u8,
    /// The megaflow looks at more than line 0.
    pub more: bool,
}

impl RecircMemo {
    pub fn new() -> Self {
        RecircMemo { places: Box::new([0; PLACES]), right: 0, wrong: Cell::new(0), rest: 0 }
    }

    /// Of a key: its destination, input port, flags, and what recirculation and connection
    /// tracking say.
    #[inline]
    fn place(line: &Line) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        const { assert!(at::IN_PORT / 4 == 9 && at::CT_MARK == 40 && at::RECIRC == 44) };
        let tracked = line[5] ^ (line[4] & !0xffff_ffff).rotate_left(17);
        let mixed = (tracked ^ (line[0] << 16).wrapping_mul(ODD)).wrapping_mul(ODD);
        (mixed >> 54) as usize
    }

    /// The megaflow that a packet with this key may take, if it does so as far as line 0 says.
    #[inline]
    fn predict(&self, store: &Store, masks: &[MaskLine; MASKS], line: &Line) -> Option<Prediction> {
        if self.rest > 0 {
            return None;
        }
        let megaflow = self.places[Self::place(line)];
        let p = store.payload(megaflow);
        let (mask, same) = (&masks[p.mask()], store.line(megaflow));
        // By halves, of which the compiler makes pairs of words.
        let differ = |w: usize| (line[w] & mask.words[w]) ^ same[w];
        let differ =
            (differ(0) | differ(2)) | (differ(1) | differ(3)) | differ(4) | differ(5) | differ(6);
        let prediction =
            Prediction { megaflow, program: p.program(), mask: p.mask() as u8, more: mask.ext };
        // Index 0 is of no megaflow, so it is not usable.
        let right = differ == 0 && p.usable();
        if !right {
            self.wrong.set(self.wrong.get() + 1);
        }
        right.then_some(prediction)
    }

    /// Takes note of recirculated packets, of which so many were predicted.
    fn judge(&mut self, packets: u32, predicted: u32) {
        self.rest = self.rest.saturating_sub(packets);
        self.right += predicted;
        let predictions = self.right + self.wrong.get();
        if predictions >= JUDGED_PACKETS {
            if self.right * RIGHT_PACKETS_RATIO < predictions {
                self.rest = REST_PACKETS;
            }
            self.right = 0;
            self.wrong.set(0);
        }
    }
}

impl Table {
    /// The megaflow that a recirculated packet with this key takes, as far as line 0 says, if the
    /// memo knows it. [`Table::confirms`] says the rest.
    #[inline]
    pub fn predict_recirculated(&self, line: &Line) -> Option<Prediction> {
        self.history.recirculated.predict(&self.store, &self.masks, line)
    }

    /// Does a packet with this key, whose line 0 was compared, take the megaflow?
    #[inline]
    pub fn confirms(&self, prediction: &Prediction, key: &KeyRef<'_>) -> bool {
        !prediction.more || self.verify_ext(prediction.megaflow, prediction.mask.into(), key)
    }

    /// Counts recirculated packets, of which some were predicted, and remembers what the others
    /// took.
    pub fn learn_recirculated(&mut self, keys: &Keys, packets: usize, known: &[bool; VECTOR]) {
        let predicted: u32 = known[..packets].iter().map(|k| u32::from(*k)).sum();
        self.followed(predicted.into());
        let memo = &mut self.history.recirculated;
        memo.judge(packets as u32, predicted);
        if predicted as usize == packets || memo.rest > 0 {
            return;
        }
        for i in (0..packets).filter(|i| !known[*i] && keys.megaflow[*i] != 0) {
            memo.places[RecircMemo::place(&keys.line.0[i])] = keys.megaflow[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::keys::{Words, bytes_mut};
    use flow::{Field, Key};

    const PORT: u128 = 3;

    /// A recirculated packet to this destination and with this mark.
    fn key(to: u8, mark: u32) -> Words {
        let mut key = Key::ZERO;
        key.set_u16(at::IN_PORT, PORT as u16);
        key.set_u32(at::RECIRC, 1);
        key.set_u32(at::CT_MARK, mark);
        key.set_u8(at::ETH_DST + 5, to);
        *key.words.first_chunk().expect("a key has more")
    }

    fn put(t: &mut Table, key: &Words, fields: &[Field], program: u32) -> u32 {
        let mut mask = Key::ZERO;
        fields.iter().for_each(|f| f.unwildcard(&mut mask));
        mask.set_u16(at::IN_PORT, u16::MAX);
        mask.set_u32(at::RECIRC, u32::MAX);
        let mask = mask.words.first_chunk().expect("a key has more");
        t.put(key, mask, program, u32::MAX).expect("room")
    }

    fn line(key: &Words) -> Line {
        *key.first_chunk().expect("eight words")
    }

    /// Has the table learn that a packet with this key took this megaflow.
    fn learn(t: &mut Table, key: &Words, megaflow: u32) {
        let mut keys = Keys::new();
        (keys.line.0[0], keys.megaflow[0]) = (line(key), megaflow);
        t.learn_recirculated(&keys, 1, &[false; VECTOR]);
    }

    #[test]
    fn only_a_live_megaflow_for_the_packet_is_predicted() {
        let mut t = Table::new(100);
        let (one, other) = (key(1, 7), key(1, 8));
        let megaflow = put(&mut t, &one, &[Field::CtMark], 5);
        assert!(t.predict_recirculated(&line(&one)).is_none(), "nothing is known yet");
        learn(&mut t, &one, megaflow);
        let prediction = t.predict_recirculated(&line(&one)).expect("as the packet before");
        assert_eq!(
            (prediction.megaflow, prediction.program, prediction.more),
            (megaflow, 5, false)
        );
        // What the mask does not look at does not matter; what it looks at does.
        let mut same = line(&one);
        bytes_mut(&mut same)[at::TTL] = 9;
        assert!(t.predict_recirculated(&same).is_some());
        learn(&mut t, &other, megaflow);
        assert!(t.predict_recirculated(&line(&other)).is_none(), "another mark");
        let payload = t.store.payload(megaflow);
        assert!(t.store.kill(megaflow, payload));
        assert!(t.predict_recirculated(&line(&one)).is_none(), "it is dead");
    }

    #[test]
    fn a_prediction_says_when_line_0_does_not_decide() {
        let mut t = Table::new(100);
        let mut one = key(1, 7);
        one[24] = 99;
        let megaflow = put(&mut t, &one, &[Field::CtLabel], 5);
        learn(&mut t, &one, megaflow);
        let prediction = t.predict_recirculated(&line(&one)).expect("line 0 fits");
        assert!(prediction.more);
        let line = line(&one);
        let mut ext = [[0; 8]; 3];
        let confirmed =
            |ext: &[Line; 3]| t.confirms(&prediction, &KeyRef { line: &line, ext, have: 4 });
        assert!(!confirmed(&ext), "another label");
        ext[2][0] = 99;
        assert!(confirmed(&ext));
    }

    #[test]
    fn predictions_rest_while_they_are_wrong() {
        let mut t = Table::new(100);
        let one = key(1, 7);
        let megaflow = put(&mut t, &one, &[Field::CtMark], 5);
        learn(&mut t, &one, megaflow);
        let mut wrong = line(&one);
        bytes_mut(&mut wrong)[at::ETH_DST + 5] = 2;
        (0..JUDGED_PACKETS).for_each(|_| assert!(t.predict_recirculated(&wrong).is_none()));
        learn(&mut t, &one, megaflow);
        assert!(t.predict_recirculated(&line(&one)).is_none(), "resting");
        let keys = Keys::new();
        let vectors = REST_PACKETS as usize / VECTOR;
        (0..vectors).for_each(|_| t.learn_recirculated(&keys, VECTOR, &[false; VECTOR]));
        assert!(t.predict_recirculated(&line(&one)).is_some());
    }
}
