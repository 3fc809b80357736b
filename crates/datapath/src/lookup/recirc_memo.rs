//! Remembers which megaflow recirculated packets took: a prediction that one comparison verifies,
//! instead of a lookup. Packets share a megaflow when they have the same recirculation id,
//! connection state and destination, and the same addresses and ports as far as megaflows match on
//! them. 46 cycles less per packet (docs/perf/conntrack.md).

use super::compare::{MaskLine, Probe};
use super::flow_store::{MASKS, StoredLines};
use super::table::Table;
use crate::batch::keys::{KeyRef, Keys, Line};
use crate::miss::policy::RETRY_INTERVALS;
use flow::at;
use packet::VECTOR;
use std::cell::Cell;

/// Entries of the memo: 32 KiB, of which a packet touches one cache line. With 1,024 entries, 16
/// rules cost 5 cycles more: two of 32 keys shared an entry, and 6.6 % of predictions were wrong.
const PLACES: usize = 1 << 13;
/// Bits of `ct_state`: a new connection; a packet of the reply direction.
const NEW: u8 = 1;
const REPLY: u8 = 1 << 3;
/// One prediction in this many may be wrong. If more are, nothing is predicted for
/// [`RETRY_INTERVALS`]. Where half of the predictions were wrong, at random, a packet took 364
/// cycles, and 315 without predictions; without judging, wrong ones cost 10 cycles of 245
/// (docs/perf/conntrack.md).
const WRONG_PACKETS_RATIO: u32 = 8;
/// Predictions after which they are judged. Each entry is wrong once, when it is learned; that
/// alone must not be too much.
const JUDGED_PACKETS: u32 = WRONG_PACKETS_RATIO * PLACES as u32;

/// Megaflows that recirculated packets took, by the part of the key that packets of one megaflow
/// mostly share.
pub(crate) struct RecircMemo {
    /// Indices of megaflows; 0: none.
    places: Box<[u32; PLACES]>,
    /// For each direction, bits of words 2 (addresses) and 3 (ports) in the masks of the megaflows
    /// that packets took, all masks together: megaflows that match on the destination in one
    /// direction match on the source in the other.
    looked_at: [[u64; 2]; 2],
    /// True if an entry of `looked_at` has bits: megaflows match on addresses or ports.
    ends_matter: bool,
    /// Right predictions since they were last judged.
    right: u32,
    /// Wrong predictions since they were last judged.
    wrong: Cell<u32>,
    /// Intervals until packets are predicted again.
    resting: u32,
}

/// The megaflow that a packet takes if lines 1 to 3 match too; line 0 does.
#[derive(Clone, Copy)]
pub(crate) struct Prediction {
    pub megaflow: u32,
    pub program: u32,
    mask: u8,
    /// True if the megaflow matches on more than line 0.
    pub more: bool,
}

fn ct_state(line: &Line) -> u8 {
    line[4].to_ne_bytes()[at::CT_STATE - 32]
}

impl RecircMemo {
    pub fn new() -> Self {
        let (places, looked_at) = (Box::new([0; PLACES]), [[0; 2]; 2]);
        RecircMemo {
            places,
            looked_at,
            ends_matter: false,
            right: 0,
            wrong: Cell::new(0),
            resting: 0,
        }
    }

    /// The entry of `looked_at` for a key's direction.
    #[inline]
    fn direction(line: &Line) -> usize {
        usize::from(ct_state(line) & REPLY != 0)
    }

    /// The entry of a key, by a hash of its destination, input port, flags, what recirculation and
    /// connection tracking say, and of the addresses and ports that megaflows match on.
    #[inline]
    fn place(&self, line: &Line) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        const { assert!(at::IN_PORT / 4 == 9 && at::CT_MARK == 40) };
        // If no megaflow matches on addresses and ports they are not read: those of a translated
        // packet were just written, in parts, and a read of the whole would have to wait for that.
        let ends = if self.ends_matter { self.ends(line) } else { 0 };
        let tracked = line[5] ^ (line[4] & !0xffff_ffff).rotate_left(17);
        let mixed = (tracked ^ ((line[0] << 16) ^ ends).wrapping_mul(ODD)).wrapping_mul(ODD);
        (mixed >> (u64::BITS - PLACES.ilog2())) as usize
    }

    /// The addresses and ports of a key, as far as megaflows match on them.
    #[inline(never)] // A branch, and no choice between two values, both of which are made.
    fn ends(&self, line: &Line) -> u64 {
        const { assert!(at::IP_SRC == 16 && at::IP_DST == 20 && at::TP_SRC == 24) };
        let [addresses, ports] = self.looked_at[Self::direction(line)];
        (line[2] & addresses) ^ (line[3] & ports).rotate_left(29)
    }

    /// Records which megaflow a packet took, and on which bits it matches.
    fn remember(&mut self, line: &Line, megaflow: u32, mask: &MaskLine) {
        // Packets that begin connections are not predicted.
        if ct_state(line) & NEW == 0 {
            let [addresses, ports] = &mut self.looked_at[Self::direction(line)];
            *addresses |= mask.words[2];
            *ports |= mask.words[3];
            self.ends_matter |= *addresses | *ports != 0;
        }
        let place = self.place(line);
        self.places[place] = megaflow;
    }

    /// Judges the predictions, if there were enough. Called once per interval.
    pub fn tune(&mut self) {
        self.resting = self.resting.saturating_sub(1);
        let predictions = self.right.saturating_add(self.wrong.get());
        if predictions >= JUDGED_PACKETS {
            if self.wrong.get() > predictions / WRONG_PACKETS_RATIO {
                self.resting = RETRY_INTERVALS;
                (self.looked_at, self.ends_matter) = ([[0; 2]; 2], false);
            }
            self.right = 0;
            self.wrong.set(0);
        }
    }
}

/// Predicts the megaflows of recirculated packets.
#[derive(Clone, Copy)]
pub(crate) struct Predictions<'a> {
    memo: &'a RecircMemo,
    lines: StoredLines<'a>,
    masks: &'a [MaskLine; MASKS],
}

impl Predictions<'_> {
    /// The megaflow that a packet with this line 0 takes, if the memo has one that matches line 0,
    /// and if [`Table::confirms`] agrees.
    #[inline(always)]
    pub fn predict<P: Probe>(self, line: &Line) -> Option<Prediction> {
        let megaflow = self.memo.places[self.memo.place(line)];
        let p = self.lines.payload(megaflow);
        let mask = &self.masks[p.mask()];
        // SAFETY: whoever makes a prediction by this level found that the CPU has its instructions;
        // the store has the megaflow's line.
        let same = unsafe { P::equal(line, P::mask(mask), self.lines.line(megaflow).cast()) };
        // Index 0 is no megaflow, so it is not usable.
        if !(same && p.usable()) {
            self.memo.wrong.set(self.memo.wrong.get() + 1);
            return None;
        }
        let (program, mask_at) = (p.program(), p.mask() as u8);
        Some(Prediction { megaflow, program, mask: mask_at, more: mask.ext })
    }
}

impl Table {
    /// What predicts the megaflows of recirculated packets; None: nothing is predicted now.
    #[inline]
    pub fn predictions(&self) -> Option<Predictions<'_>> {
        let memo = &self.history.recirculated;
        let lines = self.store.lines();
        (memo.resting == 0).then_some(Predictions { memo, lines, masks: &self.masks })
    }

    /// True if a packet with this key, whose line 0 was compared, takes the predicted megaflow.
    #[inline]
    pub fn confirms(&self, prediction: &Prediction, key: &KeyRef<'_>) -> bool {
        !prediction.more || self.verify_ext(prediction.megaflow, prediction.mask.into(), key)
    }

    /// Counts the predictions among a pass's recirculated packets, and records which megaflow each
    /// of the others took. `preset`: which packets were predicted.
    pub fn learn_recirculated(&mut self, keys: &Keys, packets: usize, preset: &[bool; VECTOR]) {
        let predicted: u32 = preset[..packets].iter().map(|k| u32::from(*k)).sum();
        self.followed(predicted.into());
        let memo = &mut self.history.recirculated;
        memo.right = memo.right.saturating_add(predicted);
        if predicted as usize == packets || memo.resting > 0 {
            return;
        }
        for i in (0..packets).filter(|i| !preset[*i] && keys.megaflow[*i] != 0) {
            let megaflow = keys.megaflow[i];
            let mask = &self.masks[self.store.payload(megaflow).mask()];
            memo.remember(&keys.line.0[i], megaflow, mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::compare::Scalar;
    use super::*;
    use crate::batch::keys::{Words, bytes_mut};
    use crate::settings::Tri;
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

    fn predict(t: &Table, line: &Line) -> Option<Prediction> {
        t.predictions()?.predict::<Scalar>(line)
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
        assert!(predict(&t, &line(&one)).is_none(), "nothing is known yet");
        learn(&mut t, &one, megaflow);
        let prediction = predict(&t, &line(&one)).expect("as the packet before");
        assert_eq!(
            (prediction.megaflow, prediction.program, prediction.more),
            (megaflow, 5, false)
        );
        // Fields outside the mask do not matter; fields in the mask do.
        let mut same = line(&one);
        bytes_mut(&mut same)[at::TTL] = 9;
        assert!(predict(&t, &same).is_some());
        learn(&mut t, &other, megaflow);
        assert!(predict(&t, &line(&other)).is_none(), "another mark");
        let payload = t.store.payload(megaflow);
        assert!(t.store.kill(megaflow, payload));
        assert!(predict(&t, &line(&one)).is_none(), "it is dead");
    }

    #[test]
    fn a_prediction_says_when_line_0_does_not_decide() {
        let mut t = Table::new(100);
        let mut one = key(1, 7);
        one[24] = 99;
        let megaflow = put(&mut t, &one, &[Field::CtLabel], 5);
        learn(&mut t, &one, megaflow);
        let prediction = predict(&t, &line(&one)).expect("line 0 fits");
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
    fn packets_are_told_apart_by_what_megaflows_look_at() {
        let mut t = Table::new(100);
        let services = [1u32, 2].map(|server| {
            let mut key = Key::ZERO;
            key.words[..8].copy_from_slice(&self::key(1, 7)[..8]);
            key.set_u32(at::IP_DST, server);
            *key.words.first_chunk().expect("a key has more")
        });
        let fields = [Field::Ipv4Dst];
        let megaflows = services.each_ref().map(|key| put(&mut t, key, &fields, 5));
        // What megaflows look at is known when both were learned once.
        for _ in 0..2 {
            (0..2).for_each(|i| learn(&mut t, &services[i], megaflows[i]));
        }
        for (key, megaflow) in services.iter().zip(megaflows) {
            let prediction = predict(&t, &line(key)).expect("both are known");
            assert_eq!(prediction.megaflow, megaflow);
        }
    }

    #[test]
    fn predictions_rest_while_they_are_wrong() {
        let mut t = Table::new(100);
        let one = key(1, 7);
        let megaflow = put(&mut t, &one, &[Field::CtMark], 5);
        learn(&mut t, &one, megaflow);
        let mut wrong = line(&one);
        bytes_mut(&mut wrong)[at::ETH_DST + 5] = 2;
        (0..JUDGED_PACKETS).for_each(|_| assert!(predict(&t, &wrong).is_none()));
        assert!(predict(&t, &line(&one)).is_some(), "they are not judged yet");
        t.tune(Tri::Auto);
        learn(&mut t, &one, megaflow);
        for _ in 0..RETRY_INTERVALS {
            assert!(predict(&t, &line(&one)).is_none(), "resting");
            t.tune(Tri::Auto);
        }
        learn(&mut t, &one, megaflow);
        assert!(predict(&t, &line(&one)).is_some());
    }
}
