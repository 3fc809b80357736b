//! Conjunctive matches (ovs-actions(7), "conjunction"). Some flows are clauses of a match; one flow
//! matches on `conj_id`, and takes the packets for which every clause of that id has a matching
//! flow.
//!
//! Clauses are in a classifier of their own, apart from the flows that packets can hit. A lookup
//! that found a flow searches there for all matching clauses of higher priority. From the highest
//! such priority down, the first id of which all clauses match is looked up as `conj_id`; the
//! result, of any priority, is the answer. The product of the clauses is never built: ten thousand
//! addresses and a hundred ports are 10,100 flows.

use crate::tables::instructions::Clause;
use crate::tables::table::{FlowRule, Table};
use crate::work::step;
use flow::{Key, Mask, at};
use sync::Guard;

/// Clauses that one lookup collects, and steps that it takes, at most. With more the packet is
/// dropped. The number is that of steps that one packet may cause.
const CLAUSES_MAX: usize = 65_536;

/// The clauses that match a packet, with their priorities.
#[derive(Default)]
struct Collected {
    /// Complement of the priority (so that the highest sorts first), and the clause.
    all: Vec<(u16, Clause)>,
    too_many: bool,
}

impl Collected {
    fn add(&mut self, rule: &FlowRule) {
        let clauses = rule.value().clauses.as_deref().unwrap_or_default();
        self.too_many |= self.all.len() + clauses.len() > CLAUSES_MAX;
        if !self.too_many {
            clauses.iter().for_each(|_| step());
            self.all.extend(clauses.iter().map(|c| (!rule.priority(), *c)));
        }
    }

    /// The ids of which all clauses match at one priority, by falling priority.
    fn complete(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.all.sort_unstable();
        let same =
            |a: &(u16, Clause), b: &(u16, Clause)| (a.0, a.1.id, a.1.n) == (b.0, b.1.id, b.1.n);
        self.all.chunk_by(same).filter_map(|list| {
            let have = list.iter().fold(0u64, |have, (_, c)| have | 1 << (c.k & 63));
            let Clause { id, n, .. } = list[0].1;
            (have == u64::MAX >> (64 - n.clamp(1, 64))).then_some(id)
        })
    }
}

impl Table {
    /// The result of a lookup with conjunctive matches, where `hard` is the best ordinary rule.
    /// Adds to `steps`.
    #[cold]
    pub(crate) fn conjunctive<'a>(
        &'a self,
        guard: Guard<'a>,
        (key, version): (&Key, u64),
        hard: Option<&'a FlowRule>,
        wc: &mut Mask,
        steps: &mut usize,
    ) -> Option<&'a FlowRule> {
        let least = hard.map_or(0, |h| u32::from(h.priority()) + 1);
        let mut found = Collected::default();
        *steps += self.clauses_for(guard, key, version, least, wc, &mut |rule| found.add(rule));
        *steps += if found.too_many { usize::MAX / 2 } else { found.all.len() };
        if found.too_many {
            return None;
        }
        let mut key = *key;
        for id in found.complete() {
            step();
            *steps += 1;
            // No packet may take this many steps: the caller drops it.
            if *steps > CLAUSES_MAX {
                return None;
            }
            key.set_u32(at::CONJ_ID, id);
            let rule = self.ordinary(guard, &key, version, wc, steps);
            if rule.is_some() {
                return rule;
            }
        }
        hard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::table::{Flow, Tables};
    use crate::work::steps;
    use flow::{Field, PACKET_LINES};
    use openflow::{Action, Instruction};
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::sync::Arc;
    use sync::Domain;

    const FIELDS: [Field; 3] = [Field::Ipv4Src, Field::Ipv4Dst, Field::TcpDst];

    fn packet(picks: [u8; 3]) -> Key {
        let mut key = Key::ZERO;
        Field::EthType.set(&mut key, 0x0800);
        Field::IpProto.set(&mut key, 6);
        FIELDS.iter().zip(picks).for_each(|(f, p)| f.set(&mut key, u128::from(p % 4)));
        key
    }

    prop_compose! {
        fn matches()(picks in any::<[u8; 3]>(), lens in any::<[u8; 3]>()) -> (Key, Mask) {
            let mut mask = Key::ZERO;
            Field::EthType.unwildcard(&mut mask);
            for (f, len) in FIELDS.iter().zip(lens) {
                let bits = [0, 0, f.full(), f.full() & !1][usize::from(len % 4)];
                f.set(&mut mask, bits);
            }
            (packet(picks).masked(&mask), mask)
        }
    }

    /// Ids with two or three clauses, which one in ten flows gets wrong.
    fn clause() -> impl Strategy<Value = Action> {
        (1u32..5, any::<u8>(), 0u8..10).prop_map(|(id, k, odd)| {
            let n = if odd == 0 { 4 } else { 2 + (id % 2) as u8 };
            Action::Conjunction { id, clause: k % n, n_clauses: n }
        })
    }

    #[derive(Clone, Debug)]
    struct Given {
        place: (Key, Mask),
        priority: u16,
        /// Empty: an ordinary flow, that matches this id unless it is 0.
        clauses: Vec<Action>,
        id: u32,
        hidden: bool,
    }

    fn given() -> impl Strategy<Value = Given> {
        let clauses = prop_oneof![
            3 => prop::collection::vec(clause(), 1..4),
            2 => Just(vec![]),
        ];
        (matches(), 0u16..6, clauses, 0u32..5, 0u8..8).prop_map(
            |(place, priority, clauses, id, hidden)| {
                let id = if clauses.is_empty() { id } else { 0 };
                Given { place, priority, clauses, id, hidden: hidden == 0 }
            },
        )
    }

    fn rule(n: usize, g: &Given) -> Arc<FlowRule> {
        let (mut key, mut mask) = g.place;
        if g.id > 0 {
            key.set_u32(at::CONJ_ID, g.id);
            mask.set_u32(at::CONJ_ID, !0);
        }
        let actions =
            if g.clauses.is_empty() { vec![Action::output(1)] } else { g.clauses.clone() };
        let flow = Flow::new(n as u32, false, 0, [Instruction::Apply(actions)].as_slice().into());
        // No two ordinary flows have one priority, so that it is clear which is better.
        let priority = match g.clauses.is_empty() {
            true => g.priority * 1000 + n as u16,
            false => g.priority * 1000,
        };
        let rule = FlowRule::with_version(&key, &mask, priority, 0, flow);
        rule.set_remove_version(if g.hidden { 1 } else { classifier::NEVER });
        Arc::new(rule)
    }

    /// The slow twin: all rules, one after the other.
    fn slow<'a>(rules: &'a [Arc<FlowRule>], key: &Key, version: u64) -> Option<&'a Arc<FlowRule>> {
        let here = |r: &&Arc<FlowRule>, key: &Key| r.visible(version) && r.matches(key);
        let ordinary = |key: &Key| {
            let all = rules.iter().filter(|r| r.value().clauses.is_none() && here(r, key));
            all.max_by_key(|r| r.priority())
        };
        let hard = ordinary(key);
        let mut ids: Vec<(Reverse<u16>, u32, u8)> = Vec::new();
        let mut have: Vec<(u16, Clause)> = Vec::new();
        for r in rules.iter().filter(|r| r.value().clauses.is_some() && here(r, key)) {
            if hard.is_some_and(|h| h.priority() >= r.priority()) {
                continue;
            }
            for c in r.value().clauses.iter().flatten() {
                have.push((r.priority(), *c));
                ids.push((Reverse(r.priority()), c.id, c.n));
            }
        }
        ids.sort();
        for (Reverse(priority), id, n) in ids {
            let complete = (0..n).all(|k| have.contains(&(priority, Clause { id, n, k })));
            let mut with = *key;
            with.set_u32(at::CONJ_ID, id);
            if let Some(found) = complete.then(|| ordinary(&with)).flatten() {
                return Some(found);
            }
        }
        hard
    }

    fn look(table: &Table, guard: Guard<'_>, key: &Key, version: u64) -> (Option<u32>, Mask) {
        let mut wc = Mask::ZERO;
        let found = table.lookup(guard, key, version, &mut wc, &mut 0);
        wc.words[PACKET_LINES * 8..].fill(0);
        (found.map(|r| r.value().id), wc)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn lookups_agree_with_the_slow_twin(
            all in prop::collection::vec(given(), 1..40),
            packets in prop::collection::vec(any::<[u8; 3]>(), 12),
        ) {
            let mut writer = Domain::new().writer();
            let tables = Tables::new(writer.domain().clone());
            let table = tables.make(0);
            let rules: Vec<_> = all.iter().enumerate().map(|(n, g)| rule(n, g)).collect();
            rules.iter().for_each(|r| table.insert(r.clone()));
            for (picks, version) in packets.iter().flat_map(|p| [(*p, 0), (*p, 1)]) {
                let key = packet(picks);
                let (found, wc) = look(table, writer.pin(), &key, version);
                prop_assert_eq!(found, slow(&rules, &key, version).map(|r| r.value().id));
                // What agrees on the marked bits gets the same rule.
                for other in &packets {
                    let mut other = packet(*other);
                    for i in 0..flow::WORDS {
                        other.words[i] =
                            key.words[i] & wc.words[i] | other.words[i] & !wc.words[i];
                    }
                    prop_assert_eq!(found, slow(&rules, &other, version).map(|r| r.value().id));
                }
            }
            let unlinked = rules.iter().filter_map(|r| table.unlink(r)).collect();
            classifier::Unlinked::retire(unlinked, writer.domain());
            prop_assert!(!table.has_clauses());
            drop(tables);
            writer.reclaim();
        }
    }

    fn clause_flow(table: &Table, n: u32, key: &Key, mask: &Mask, list: Vec<Action>) {
        let flow = Flow::new(n, false, 0, [Instruction::Apply(list)].as_slice().into());
        table.insert(Arc::new(FlowRule::with_version(key, mask, 100, 0, flow)));
    }

    #[test]
    fn addresses_and_ports_are_not_multiplied() {
        let mut writer = Domain::new().writer();
        let tables = Tables::new(writer.domain().clone());
        let table = tables.make(0);
        let mut n = 0;
        for (field, count, k) in [(Field::Ipv4Src, 10_000u32, 0), (Field::TcpDst, 100, 1)] {
            for i in 0..count {
                let (mut key, mut mask) = (packet([0; 3]), Key::ZERO);
                field.set(&mut key, i.into());
                field.unwildcard(&mut mask);
                n += 1;
                let one = Action::Conjunction { id: 7, clause: k, n_clauses: 2 };
                clause_flow(table, n, &key, &mask, vec![one]);
            }
        }
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        key.set_u32(at::CONJ_ID, 7);
        mask.set_u32(at::CONJ_ID, !0);
        clause_flow(table, 0, &key, &mask, vec![Action::output(1)]);
        assert_eq!(n, 10_100);
        for (src, port, found) in [(9_999, 99, Some(0)), (9_999, 100, None), (10_000, 1, None)] {
            let mut key = packet([0; 3]);
            Field::Ipv4Src.set(&mut key, src);
            Field::TcpDst.set(&mut key, port);
            let (taken, (rule, _)) = steps(|| look(table, writer.pin(), &key, 0));
            assert_eq!(rule, found);
            assert!(taken <= 3, "{taken} steps");
        }
        drop(tables);
        writer.reclaim();
    }

    #[test]
    fn a_lookup_gives_up_before_it_does_too_much() {
        let mut writer = Domain::new().writer();
        let tables = Tables::new(writer.domain().clone());
        let table = tables.make(0);
        let many = |id| Action::Conjunction { id, clause: 0, n_clauses: 2 };
        for i in 0..40u32 {
            let (key, mut mask) = (packet([0; 3]), Key::ZERO);
            mask.set_u32(at::IP_SRC, !0 << (i % 32));
            mask.set_u32(at::IP_DST, !0 << (i / 32));
            clause_flow(table, i, &key, &mask, (0..2000).map(many).collect());
        }
        let (mut wc, mut spent) = (Mask::ZERO, 0);
        let look = || table.lookup(writer.pin(), &packet([0; 3]), 0, &mut wc, &mut spent).is_none();
        let (taken, none) = steps(look);
        assert!(none && taken <= CLAUSES_MAX && spent > CLAUSES_MAX, "{taken}, {spent}");
        drop(tables);
        writer.reclaim();
    }
}
