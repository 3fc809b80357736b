//! A port's rules that forward against a slow model of adapter and datapath, with generated input.

use offload::full::{Id, Outcome, Plan, Request, Step, Table};
use offload::{FlowId, Limits, Reason};
use port::{Fate, ForwardRule, HEADER_BYTES_MAX, Header, Item, RuleCount, RuleError, RuleId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn flow(n: u16) -> FlowId {
    FlowId { worker: 0, rule: u32::from(n) }
}

/// Frames to an address of their own.
fn plan(n: u16) -> Plan {
    let mut item = Item {
        header: Header::Ethernet,
        value: [0; HEADER_BYTES_MAX],
        mask: [0; HEADER_BYTES_MAX],
    };
    item.value[4..6].copy_from_slice(&n.to_be_bytes());
    item.mask[..6].fill(0xff);
    let rule = ForwardRule { items: vec![item], edits: vec![], fate: Fate::Port(1) };
    Plan { rule, outer: None, outer_bytes: 0 }
}

/// An adapter with room for some rules.
#[derive(Default)]
struct Adapter {
    rules: BTreeMap<RuleId, (ForwardRule, RuleCount)>,
    room: usize,
    next: u64,
    /// Calls that fail next, with which number.
    fails: Vec<i32>,
}

impl Adapter {
    fn fail(&mut self) -> Result<(), RuleError> {
        let errno = self.fails.pop();
        errno.map_or(Ok(()), |errno| Err(RuleError { errno, kind: 0, message: "no".into() }))
    }

    fn answer(&mut self, request: Request) -> Outcome {
        match request {
            Request::Create(id, rule) => Outcome::Created(id, self.create(rule)),
            Request::Destroy(id, rule) => {
                let count = self.rules.get(&rule).map(|(_, count)| *count);
                let result = self.fail();
                if result.is_ok() {
                    assert!(self.rules.remove(&rule).is_some(), "destroyed twice");
                }
                Outcome::Destroyed(id, count, result)
            }
            Request::Count(all) => {
                let count = |(id, rule)| Some((id, self.rules.get(&rule)?.1));
                Outcome::Counted(all.into_iter().filter_map(count).collect())
            }
        }
    }

    fn create(&mut self, rule: ForwardRule) -> Result<RuleId, RuleError> {
        self.fail()?;
        if self.rules.len() >= self.room {
            self.fails.push(28);
            self.fail()?;
        }
        assert!(self.rules.values().all(|(r, _)| *r != rule), "a rule twice");
        self.next += 1;
        self.rules.insert(RuleId(self.next), (rule, RuleCount::default()));
        Ok(RuleId(self.next))
    }
}

/// What the datapath knows.
#[derive(Default)]
struct Datapath {
    there: BTreeSet<FlowId>,
    watched: BTreeMap<Id, Vec<FlowId>>,
    credited: u64,
}

impl Datapath {
    fn take(&mut self, table: &mut Table, now: u64) {
        while let Some(step) = table.next_step() {
            match step {
                Step::Watch { flow, .. } if !self.there.contains(&flow) => table.gone(now, flow),
                Step::Watch { id, flow, .. } => self.watched.entry(id).or_default().push(flow),
                Step::Unwatch(id) => drop(self.watched.remove(&id)),
                Step::Credit { more, .. } => self.credited += more.packets,
            }
        }
    }
}

/// Up to `most` requests are answered. True: the table asked for a flush.
fn work(t: &mut Table, a: &mut Adapter, dp: &mut Datapath, now: u64, most: usize) -> bool {
    let mut flush = false;
    for _ in 0..most {
        dp.take(t, now);
        let Some(request) = t.next_request() else { break };
        let outcome = a.answer(request);
        flush |= t.answer(now, outcome, 10, 5);
    }
    dp.take(t, now);
    flush
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_rule_is_gone_when_the_table_says_so(
        room in 1usize..20,
        seconds in proptest::collection::vec(
            (proptest::collection::vec((0u16..40, 0f32..3000.0), 0..40),
             proptest::collection::vec(0u16..40, 0..6),
             proptest::option::weighted(0.2, prop_oneof![Just(5), Just(16), Just(12), Just(22)]),
             0usize..60),
            1..25),
    ) {
        let mut t = Table::new(Limits::default(), 0);
        let (mut a, mut dp) = (Adapter { room, ..Adapter::default() }, Datapath::default());
        let (mut now, mut rates, mut sent) = (0, BTreeMap::<u16, f32>::new(), 0);
        for (more, ended, fails, most) in seconds {
            now += 1000;
            dp.there.extend(more.iter().map(|(n, _)| flow(*n)));
            rates.extend(more);
            a.fails.extend(fails);
            rates.iter().for_each(|(n, pps)| t.observe(flow(*n), *pps));
            t.decide(now, &mut |f| {
                let known = rates.contains_key(&(f.rule as u16));
                known.then(|| plan(f.rule as u16)).into_iter().collect()
            });
            t.count(now);
            let mut flush = work(&mut t, &mut a, &mut dp, now, most);
            for (_, count) in a.rules.values_mut() {
                count.packets += 7;
                sent += 7;
            }
            // Flows end while requests are under way.
            let gone: Vec<u16> = ended.into_iter().filter(|n| rates.remove(n).is_some()).collect();
            for n in &gone {
                dp.there.remove(&flow(*n));
                t.gone(now, flow(*n));
            }
            let (last, _) = t.leaving();
            while !flush && t.leaving().1.is_some_and(|first| first <= last) {
                flush |= work(&mut t, &mut a, &mut dp, now, 1);
            }
            if flush {
                t.leave_all(now);
                a.rules.clear();
                t.flushed();
                dp.take(&mut t, now);
                // Nobody knows what they had since they were asked last.
                sent = dp.credited;
            }
            for n in gone {
                let rule = plan(n).rule;
                prop_assert!(a.rules.values().all(|(r, _)| *r != rule));
            }
            prop_assert!(a.rules.len() <= room);
        }
        // All that is left ends, and everything was counted.
        now += 60_000;
        a.fails.clear();
        rates.keys().for_each(|n| t.gone(now, flow(*n)));
        while work(&mut t, &mut a, &mut dp, now, 1000) {}
        prop_assert!(t.is_empty() && a.rules.is_empty() && dp.watched.is_empty());
        prop_assert_eq!((dp.credited, t.stats().packets), (sent, sent));
    }
}

#[test]
fn a_counter_that_goes_back_takes_nothing_away() {
    let mut t = Table::new(Limits::default(), 0);
    let (mut a, mut dp) = (Adapter { room: 9, ..Adapter::default() }, Datapath::default());
    dp.there.insert(flow(1));
    t.observe(flow(1), 5000.0);
    t.decide(1000, &mut |_| vec![plan(1)]);
    let mut known = Vec::new();
    for (second, packets) in [(1, 0), (2, 100), (3, 50), (4, 60)] {
        work(&mut t, &mut a, &mut dp, second * 1000, 10);
        a.rules.values_mut().for_each(|(_, count)| count.packets = packets);
        t.count(second * 1000);
        work(&mut t, &mut a, &mut dp, second * 1000, 10);
        known.push(dp.credited);
    }
    assert_eq!((known, t.stats().went_back), (vec![0, 100, 100, 110], 1));
    assert_eq!(t.reason(5000, flow(1), 0.0), Reason::Full);
}
