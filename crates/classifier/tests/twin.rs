//! The classifier against its slow twin, and the law of un-wildcarding.

use std::sync::Arc;

use classifier::{Classifier, Linear, NEVER, Rule};
use flow::{Field, Key, Mask};
use proptest::prelude::*;
use sync::{Domain, Writer};

/// Fields of every stage, with few values so that rules and packets meet often.
const USED: [Field; 8] = [
    Field::InPort,
    Field::EthType,
    Field::EthDst,
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::IpProto,
    Field::TcpDst,
    Field::Reg(3),
];

fn value(field: Field, pick: u8) -> u128 {
    let small = u128::from(pick % 4);
    match field {
        Field::Ipv4Src | Field::Ipv4Dst => {
            [0x0a000001, 0x0a000102, 0x0a800001, 0xc0a80001][usize::from(pick % 4)]
        }
        _ => small,
    }
}

fn prefix(field: Field, pick: u8) -> u128 {
    let bits = field.bits();
    match (field, pick % 4) {
        (_, 0 | 1) => 0,
        (Field::Ipv4Src | Field::Ipv4Dst | Field::TcpDst | Field::EthDst, 2) => {
            field.full() ^ ((1 << (bits - bits / 4)) - 1)
        }
        _ => field.full(),
    }
}

prop_compose! {
    fn packet()(picks in any::<[u8; 8]>()) -> Key {
        let mut key = Key::ZERO;
        USED.iter().zip(picks).for_each(|(f, p)| f.set(&mut key, value(*f, p)));
        key
    }
}

prop_compose! {
    fn matches()(key in packet(), picks in any::<[u8; 8]>()) -> (Key, Mask) {
        let mut mask = Key::ZERO;
        USED.iter().zip(picks).for_each(|(f, p)| f.set(&mut mask, prefix(*f, p)));
        (key.masked(&mask), mask)
    }
}

/// Fields of access lists.
const LISTED: [Field; 5] =
    [Field::Ipv4Src, Field::Ipv4Dst, Field::IpProto, Field::TcpSrc, Field::TcpDst];

prop_compose! {
    /// IPv4, mostly; addresses that share prefixes of every length.
    fn listed_packet()(
        picks in any::<[u8; 5]>(),
        odd in any::<u8>(),
        addresses in any::<[u32; 2]>(),
    ) -> Key {
        let mut key = Key::ZERO;
        LISTED.iter().zip(picks).for_each(|(f, p)| f.set(&mut key, value(*f, p)));
        for (f, a) in LISTED.iter().zip(addresses) {
            f.set(&mut key, u128::from(a & 0x8100_8103 | 0x0a00_0000));
        }
        Field::EthType.set(&mut key, if odd % 8 == 0 { 0x0806 } else { 0x0800 });
        key
    }
}

prop_compose! {
    /// A rule of an access list: any pair of prefixes, hardly ever about anything but IPv4.
    fn listed()(
        key in listed_packet(),
        picks in any::<[u8; 5]>(),
        lengths in prop::array::uniform2(prop_oneof![Just(0), 1u32..33, 24u32..33]),
    ) -> (Key, Mask) {
        let mut mask = Key::ZERO;
        LISTED.iter().zip(picks).for_each(|(f, p)| f.set(&mut mask, prefix(*f, p)));
        for (f, len) in LISTED.iter().zip(lengths) {
            f.set(&mut mask, u128::from(u32::MAX.checked_shl(32 - len).unwrap_or(0)));
        }
        Field::EthType.unwildcard(&mut mask);
        (key.masked(&mask), mask)
    }
}

fn any_packet() -> impl Strategy<Value = Key> {
    prop_oneof![1 => packet(), 2 => listed_packet()]
}

fn any_match() -> impl Strategy<Value = (Key, Mask)> {
    prop_oneof![1 => matches(), 2 => listed()]
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Box<(Key, Mask)>, u16),
    Remove(usize),
    /// Hide a rule from version 1 on.
    Hide(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any_match(), 0u16..9).prop_map(|((k, m), p)| Step::Insert(Box::new((k, m)), p)),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Hide),
    ]
}

fn listed_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (listed(), 0u16..500).prop_map(|((k, m), p)| Step::Insert(Box::new((k, m)), p)),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Hide),
    ]
}

/// A domain that is emptied at the end, after the table: what waits in it would keep it alive.
struct Emptied(Writer);

impl Emptied {
    fn new() -> Self {
        Emptied(Domain::new().writer())
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        self.0.reclaim();
    }
}

struct Both {
    table: Classifier<usize>,
    twin: Linear<usize>,
    domain: Emptied,
}

fn run(steps: &[Step]) -> Both {
    let domain = Emptied::new();
    let mut both =
        Both { table: Classifier::new(domain.0.domain().clone()), twin: Linear::new(), domain };
    for (id, step) in steps.iter().enumerate() {
        let n = both.twin.rules().len();
        match step {
            Step::Insert(r#match, priority) => {
                let (key, mask) = &**r#match;
                let rule = Arc::new(Rule::new(key, mask, *priority, id));
                both.table.insert(rule.clone());
                both.twin.insert(rule);
            }
            Step::Remove(i) if n > 0 => {
                let rule = both.twin.rules()[i % n].clone();
                assert!(both.table.remove(&rule));
                assert!(!both.table.remove(&rule));
                assert!(both.twin.remove(&rule));
            }
            Step::Hide(i) if n > 0 => both.twin.rules()[i % n].set_remove_version(1),
            _ => {}
        }
        assert_eq!(both.table.len(), both.twin.rules().len());
    }
    both
}

fn ids(rules: impl Iterator<Item = Arc<Rule<usize>>>) -> Vec<usize> {
    let mut ids: Vec<_> = rules.map(|r| *r.value()).collect();
    ids.sort();
    ids
}

/// Lookups are the twin's, and the law: what agrees on the marked bits gets the same rule.
fn agrees(both: &Both, packets: &[Key], others: &[Key]) -> Result<(), TestCaseError> {
    for (key, version) in packets.iter().flat_map(|k| [(k, 0), (k, 1)]) {
        let mut marked = Key::ZERO;
        let got = both.table.find(key, version, &mut marked);
        let want = both.twin.lookup(key, version, &mut Key::default());
        prop_assert_eq!(got.as_ref().map(|r| r.priority()), want.map(|r| r.priority()));
        if let Some(got) = &got {
            prop_assert!(got.matches(key) && got.visible(version));
            prop_assert!(got.mask().subset_of(&marked));
        }
        // The law: what agrees on the marked bits gets the same rule.
        for other in others {
            let mut twin = *other;
            for i in 0..flow::WORDS {
                twin.words[i] = key.words[i] & marked.words[i] | other.words[i] & !marked.words[i];
            }
            let again = both.table.find(&twin, version, &mut Key::default());
            prop_assert_eq!(got.as_ref().map(|r| *r.value()), again.map(|r| *r.value()));
            let slow = both.twin.lookup(&twin, version, &mut Key::default());
            prop_assert_eq!(want.map(|r| r.priority()), slow.map(|r| r.priority()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// As many as make nodes of lists hand rules on.
    #[test]
    fn lookup_agrees_in_long_lists(
        steps in prop::collection::vec(listed_step(), 300..600),
        packets in prop::collection::vec(listed_packet(), 60),
        others in prop::collection::vec(listed_packet(), 20),
    ) {
        let both = run(&steps);
        agrees(&both, &packets, &others)?;
        for keys in packets.chunks(classifier::BATCH) {
            let (keys, mut found) = (keys.iter().collect::<Vec<_>>(), [None; classifier::BATCH]);
            both.table.lookup_all(both.domain.0.pin(), &keys, 0, &mut found);
            for (key, found) in keys.iter().zip(found) {
                let alone = both.table.find(key, 0, &mut Key::default());
                prop_assert_eq!(found.map(|r| *r.value()), alone.as_ref().map(|r| *r.value()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn lookup_agrees(
        steps in prop::collection::vec(step(), 1..80),
        packets in prop::collection::vec(any_packet(), 20),
        others in prop::collection::vec(any_packet(), 8),
    ) {
        agrees(&run(&steps), &packets, &others)?;
    }

    #[test]
    fn lookups_side_by_side_agree(
        steps in prop::collection::vec(step(), 1..80),
        packets in prop::collection::vec(any_packet(), 1..=classifier::BATCH),
    ) {
        let (both, keys) = (run(&steps), packets.iter().collect::<Vec<_>>());
        for version in [0, 1] {
            let mut found = [None; classifier::BATCH];
            let looked = both.table.lookup_all(both.domain.0.pin(), &keys, version, &mut found);
            for (key, found) in keys.iter().zip(found) {
                let alone = both.table.find(key, version, &mut Key::default());
                prop_assert_eq!(found.map(|r| *r.value()), alone.as_ref().map(|r| *r.value()));
                let mask = alone.map_or(Key::ZERO, |r| r.mask());
                let unseen = (0..flow::WORDS).find(|i| mask.words[*i] != 0 && looked >> i & 1 == 0);
                prop_assert_eq!(unseen, None);
            }
        }
    }

    #[test]
    fn queries_agree(
        steps in prop::collection::vec(step(), 1..60),
        (key, mask) in any_match(),
        priority in 0u16..9,
    ) {
        let both = run(&steps);
        let rules = || both.twin.rules().iter().cloned();
        prop_assert_eq!(ids(both.table.iter()), ids(rules()));
        let loose = |r: &Arc<Rule<usize>>| {
            mask.subset_of(&r.mask()) && r.key().matches(&key, &mask)
        };
        prop_assert_eq!(ids(both.table.iter_loose(&key, &mask)), ids(rules().filter(loose)));
        let overlaps = |r: &Arc<Rule<usize>>| {
            r.priority() == priority && r.key().overlaps(&r.mask(), &key, &mask)
        };
        let mut looks = usize::MAX;
        prop_assert_eq!(
            both.table.overlapping(&key, &mask, priority, &mut looks, |_| true),
            Some(rules().any(|r| overlaps(&r)))
        );
        if usize::MAX - looks > 1 {
            let few = both.table.overlapping(&key, &mask, priority, &mut 1, |_| false);
            prop_assert_eq!(few, None);
        }
        for version in [0, 1] {
            let exact = |r: &Arc<Rule<usize>>| {
                r.priority() == priority && r.visible(version)
                    && r.mask() == mask && r.key() == key
            };
            let got = both.table.find_exact(&key, &mask, priority, version);
            prop_assert_eq!(got.is_some(), rules().any(|r| exact(&r)));
            prop_assert!(got.is_none_or(|r| exact(&r)));
        }
    }

    #[test]
    fn nothing_leaks(steps in prop::collection::vec(step(), 1..60)) {
        let Both { table, twin, mut domain } = run(&steps);
        domain.0.reclaim();
        for rule in twin.rules() {
            prop_assert_eq!(Arc::strong_count(rule), 2);
        }
        drop(table);
        domain.0.reclaim();
        for rule in twin.rules() {
            prop_assert_eq!(Arc::strong_count(rule), 1);
        }
    }
}

#[test]
fn grows_and_shrinks() {
    let domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let mut mask = Key::ZERO;
    Field::Ipv4Dst.unwildcard(&mut mask);
    Field::TcpDst.unwildcard(&mut mask);
    let key = |i: u32| {
        let mut key = Key::ZERO;
        Field::Ipv4Dst.set(&mut key, u128::from(i / 7));
        Field::TcpDst.set(&mut key, u128::from(i % 7));
        key
    };
    let rules: Vec<_> = (0..20_000).map(|i| Arc::new(Rule::new(&key(i), &mask, 5, i))).collect();
    rules.iter().for_each(|r| table.insert(r.clone()));
    for i in (0..20_000).step_by(37) {
        assert_eq!(*table.find(&key(i), 0, &mut Key::default()).unwrap().value(), i);
    }
    assert!(rules[1..].iter().all(|r| table.remove(r)));
    assert!(table.find(&key(9), 0, &mut Key::default()).is_none());
    assert!(table.bytes() < 4096, "{} bytes for one rule", table.bytes());
    assert!(table.remove(&rules[0]));
    assert_eq!((table.len(), table.subtables()), (0, 0));
}

#[test]
fn replaced_rule_by_version() {
    let domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let old = Arc::new(Rule::new(&Key::ZERO, &Key::ZERO, 1, "old"));
    table.insert(old.clone());
    table.insert(Arc::new(Rule::with_version(&Key::ZERO, &Key::ZERO, 1, 7, "new")));
    old.set_remove_version(7);
    let at = |v| *table.find(&Key::ZERO, v, &mut Key::default()).unwrap().value();
    assert_eq!((at(6), at(7)), ("old", "new"));
    old.set_remove_version(NEVER);
    assert_eq!(at(6), "old");
}

#[test]
fn stages_leave_later_bits_wild() {
    let domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    for f in [Field::InPort, Field::Ipv4Dst, Field::TcpDst] {
        f.unwildcard(&mut mask);
        f.set(&mut key, 1);
    }
    table.insert(Arc::new(Rule::new(&key, &mask, 1, ())));
    let mut marked = Key::ZERO;
    assert!(table.find(&Key::ZERO, 0, &mut marked).is_none());
    assert_eq!(Field::InPort.get(&marked), Field::InPort.full());
    assert_eq!((Field::Ipv4Dst.get(&marked), Field::TcpDst.get(&marked)), (0, 0));
}

#[test]
fn a_catch_all_pins_few_address_bits() {
    let domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let route = |address: u32, len: u32, priority| {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        Field::Ipv4Dst.set(&mut key, address.into());
        Field::Ipv4Dst.set(&mut mask, u128::from(u32::MAX << (32 - len)));
        Arc::new(Rule::new(&key, &mask, priority, len))
    };
    table.insert(Arc::new(Rule::new(&Key::ZERO, &Key::ZERO, 0, 0)));
    let hosts: Vec<_> = (1..=200).map(|i| route(0x0a00_0000 + i, 32, 9)).collect();
    hosts.iter().for_each(|r| table.insert(r.clone()));
    table.insert(route(0x0a80_0000, 9, 5));
    let ask = |address: u32| {
        let (mut key, mut marked) = (Key::ZERO, Key::ZERO);
        Field::Ipv4Dst.set(&mut key, address.into());
        let found = *table.find(&key, 0, &mut marked).unwrap().value();
        (found, Field::Ipv4Dst.get(&marked) as u32)
    };
    assert_eq!(ask(0xc0a8_0001), (0, 0x8000_0000));
    assert_eq!(ask(0x0a80_1234), (9, 0xff80_0000));
    assert_eq!(ask(0x0a00_0001), (32, 0xffff_ffff));
    assert_eq!(ask(0x0a40_0001), (0, 0xffc0_0000));
    hosts.iter().for_each(|r| assert!(table.remove(r)));
    assert_eq!(ask(0x0a40_0001), (0, 0xff80_0000));
}

#[test]
fn a_trie_that_grew_too_large_is_given_up() {
    let mut domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let mut mask = Key::ZERO;
    Field::Ipv4Dst.unwildcard(&mut mask);
    let rule = |i: u32| {
        let mut key = Key::ZERO;
        Field::Ipv4Dst.set(&mut key, i.into());
        Arc::new(Rule::new(&key, &mask, 1, i))
    };
    let marked_for = |address: u32| {
        let (mut key, mut marked) = (Key::ZERO, Key::ZERO);
        Field::Ipv4Dst.set(&mut key, address.into());
        assert!(table.find(&key, 0, &mut marked).is_none());
        Field::Ipv4Dst.get(&marked).count_ones()
    };
    let rules: Vec<_> = (0..100_001).map(rule).collect();
    rules[1..].iter().for_each(|r| table.insert(r.clone()));
    assert_eq!(marked_for(u32::MAX), 1);
    table.insert(rules[0].clone());
    assert_eq!(marked_for(u32::MAX), 32);
    rules.iter().for_each(|r| assert!(table.remove(r)));
    domain.0.reclaim();
    table.insert(rule(1));
    assert_eq!(marked_for(u32::MAX), 1);
}

#[test]
fn an_access_list_marks_what_decides_and_no_more() {
    let domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let rule = |src: (u32, u32), dst: (u32, u32), port: u16, priority| {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        Field::EthType.set(&mut key, 0x0800);
        Field::EthType.unwildcard(&mut mask);
        for (f, (address, len)) in [(Field::Ipv4Src, src), (Field::Ipv4Dst, dst)] {
            f.set(&mut key, address.into());
            f.set(&mut mask, u128::from(u32::MAX.checked_shl(32 - len).unwrap_or(0)));
        }
        if port != 0 {
            Field::TcpDst.set(&mut key, port.into());
            Field::TcpDst.unwildcard(&mut mask);
        }
        table.insert(Arc::new(Rule::new(&key, &mask, priority, priority)));
    };
    let host = |low: u32| (0x0a00_0000 + low, 32);
    // Other destinations have sources that are near: they count for nothing.
    (1..200).for_each(|i| rule(host(0x1_0000 + i), host(0x8000 + i), 0, 9));
    rule((0, 0), host(1), 80, 7);
    rule((0x8000_0000, 1), host(1), 0, 5);
    let ask = |src: u32, dst: u32, port: u16| {
        let (mut key, mut marked) = (Key::ZERO, Key::ZERO);
        let fields = [Field::EthType, Field::Ipv4Src, Field::Ipv4Dst, Field::TcpDst];
        let values = [0x0800, src, dst, port.into()];
        fields.iter().zip(values).for_each(|(f, v)| f.set(&mut key, v.into()));
        let found = table.find(&key, 0, &mut marked).map(|r| *r.value());
        let bits = fields[1..].iter().map(|f| f.get(&marked).count_ones());
        (found, bits.collect::<Vec<_>>())
    };
    assert_eq!(ask(0x0a00_0001, 0x0a00_0001, 80), (Some(7), vec![0, 32, 16]));
    assert_eq!(ask(0x8a00_0001, 0x0a00_0001, 81), (Some(5), vec![1, 32, 1]));
    assert_eq!(ask(0x0a00_0001, 0x0a00_0001, 81), (None, vec![1, 24, 1]));
    assert_eq!(ask(0x0a00_0001, 0xc000_0001, 80), (None, vec![0, 1, 0]));
    assert_eq!(ask(0xc000_0001, 0x0a00_8001, 80), (None, vec![1, 32, 0]));
}

#[test]
fn many_rules_of_one_pair_of_prefixes_go_by_hash() {
    let domain = Emptied::new();
    let table = Classifier::new(domain.0.domain().clone());
    let rule = |port: u16| {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        for (f, v) in [
            (Field::EthType, 0x0800),
            (Field::Ipv4Dst, 0x0a00_0001),
            (Field::TcpDst, u32::from(port)),
        ] {
            f.set(&mut key, v.into());
            f.unwildcard(&mut mask);
        }
        Arc::new(Rule::new(&key, &mask, 3, port))
    };
    let rules: Vec<_> = (0..20_000).map(rule).collect();
    rules.iter().for_each(|r| table.insert(r.clone()));
    assert_eq!(table.subtables(), 2);
    for r in rules.iter().step_by(7) {
        let found = table.find_exact(&r.key(), &r.mask(), 3, 0);
        assert_eq!(found.map(|r| *r.value()), Some(*r.value()));
        let found = table.find(&r.key(), 0, &mut Key::default());
        assert_eq!(found.map(|r| *r.value()), Some(*r.value()));
    }
    assert!(rules.iter().all(|r| table.remove(r)));
    assert_eq!((table.len(), table.subtables()), (0, 0));
}
