//! A port's rules that forward against a slow model of adapter and datapath, with generated input.

use offload::full::{ForwardRequest, ForwardTable, Id, Outcome, Plan, Step};
use offload::{FlowId, Limits, Reason};
use port::{Fate, ForwardRule, HEADER_BYTES_MAX, Header, Item, RuleCount, RuleError, RuleId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn flow(n: u16) -> FlowId {
    FlowId { worker: 0, megaflow: u32::from(n) }
}

/// What takes the outer headers of every fourth flow's packets off, if they have one.
fn outer(n: u16) -> Option<FlowId> {
    n.is_multiple_of(4).then(|| flow(OUTERS.start + n / 4 % 3))
}

const OUTERS: std::ops::Range<u16> = 40..43;

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
    Plan { rule, outer: outer(n), outer_bytes: 0 }
}

/// An adapter with room for some rules.
#[derive(Default)]
struct Adapter {
    rules: BTreeMap<RuleId, (ForwardRule, RuleCount)>,
    room: usize,
    next: u64,
    /// Calls that fail next, with which number.
    fails: Vec<i32>,
    /// Whether rules match more than they are asked to.
    lies: bool,
}

impl Adapter {
    fn fail(&mut self) -> Result<(), RuleError> {
        let errno = self.fails.pop();
        errno.map_or(Ok(()), |errno| Err(RuleError { errno, kind: 0, message: "no".into() }))
    }

    fn answer(&mut self, request: ForwardRequest) -> Outcome {
        match request {
            ForwardRequest::Create(id, rule) => Outcome::Created(id, self.create(rule)),
            ForwardRequest::Destroy(id, rule) => {
                let count = self.rules.get(&rule).map(|(_, count)| *count);
                let result = self.fail();
                if result.is_ok() {
                    assert!(self.rules.remove(&rule).is_some(), "destroyed twice");
                }
                Outcome::Destroyed(id, count, result)
            }
            ForwardRequest::Count(all) => {
                let count = |(id, rule)| Some((id, self.rules.get(&rule)?.1));
                Outcome::Counted(all.into_iter().filter_map(count).collect())
            }
        }
    }

    /// All rules that packets fit have some.
    fn forward(&mut self, packets: u64) -> u64 {
        let lies = self.lies;
        let fits = self.rules.values_mut().filter(|(r, _)| lies || r.fate != Fate::Host);
        fits.map(|(_, count)| count.packets += packets).count() as u64 * packets
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
    fn take(&mut self, table: &mut ForwardTable, now: u64) {
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

/// Up to `most` requests are answered. True: the table asked for a flush; before that nothing else
/// is asked of the adapter.
fn work(t: &mut ForwardTable, a: &mut Adapter, dp: &mut Datapath, now: u64, most: usize) -> bool {
    let mut flush = false;
    for _ in 0..most {
        dp.take(t, now);
        if flush {
            break;
        }
        let Some(request) = t.next_request() else { break };
        let outcome = a.answer(request);
        flush = t.answer(now, outcome, 10, 5);
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
             proptest::collection::vec(0u16..OUTERS.end, 0..6),
             proptest::option::weighted(0.2, prop_oneof![Just(5), Just(16), Just(12), Just(22)]),
             0usize..60),
            1..25),
    ) {
        let mut t = ForwardTable::new(Limits::default(), 0);
        let (mut a, mut dp) = (Adapter { room, ..Adapter::default() }, Datapath::default());
        let (mut now, mut rates, mut sent) = (0, BTreeMap::<u16, f32>::new(), 0);
        for (more, ended, fails, most) in seconds {
            now += 1000;
            dp.there.extend(more.iter().map(|(n, _)| flow(*n)).chain(OUTERS.map(flow)));
            rates.extend(more);
            a.fails.extend(fails);
            rates.iter().for_each(|(n, pps)| t.observe(flow(*n), *pps));
            t.decide(now, &mut |f| {
                rates.contains_key(&(f.megaflow as u16)).then(|| plan(f.megaflow as u16)).into_iter().collect()
            });
            t.count(now);
            let mut flush = work(&mut t, &mut a, &mut dp, now, most);
            sent += a.forward(7);
            // Flows end while requests are under way.
            let ends = |n: &u16| OUTERS.contains(n) || rates.remove(n).is_some();
            let gone: Vec<u16> = ended.into_iter().filter(ends).collect();
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
                // It is not known what they had since they were asked last.
                sent = dp.credited;
            }
            let ended = |n: &u16| gone.contains(n) || outer(*n).is_some_and(|o| gone.iter().any(|g| flow(*g) == o));
            for rule in (0..40).filter(ended).map(|n| plan(n).rule) {
                prop_assert!(a.rules.values().all(|(r, _)| *r != rule));
            }
            prop_assert!(a.rules.len() <= room);
        }
        // All that is left ends, and everything was counted.
        now += 60_000;
        a.fails.clear();
        rates.keys().for_each(|n| t.gone(now, flow(*n)));
        t.decide(now, &mut |_| vec![]);
        while work(&mut t, &mut a, &mut dp, now, 1000) {}
        prop_assert!(t.is_empty() && a.rules.is_empty() && dp.watched.is_empty());
        prop_assert_eq!((dp.credited, t.stats().packets), (sent, sent));
    }
}

/// Seconds in which the host has so many packets of flow 1, from the first to the last one.
fn seconds(
    t: &mut ForwardTable,
    a: &mut Adapter,
    dp: &mut Datapath,
    which: std::ops::Range<u64>,
    pps: f32,
) {
    for second in which {
        let now = second * 1000;
        t.observe(flow(1), pps);
        t.decide(now, &mut |_| vec![plan(1)]);
        t.count(now);
        work(t, a, dp, now, 100);
        a.forward(7);
    }
}

#[test]
fn a_counter_that_goes_back_takes_nothing_away() {
    let mut t = ForwardTable::new(Limits::default(), 0);
    let (mut a, mut dp) = (Adapter { room: 9, ..Adapter::default() }, Datapath::default());
    dp.there.insert(flow(1));
    seconds(&mut t, &mut a, &mut dp, 1..6, 5000.0);
    assert!(t.is_in(flow(1)) && a.rules.len() == 1, "probes went");
    let (before, mut known) = (dp.credited, Vec::new());
    for (second, packets) in [(6, 100), (7, 200), (8, 150), (9, 160)] {
        a.rules.values_mut().for_each(|(_, count)| count.packets = packets);
        t.count(second * 1000);
        work(&mut t, &mut a, &mut dp, second * 1000, 10);
        known.push(dp.credited);
    }
    assert_eq!((known, t.stats().went_back), (vec![100, 200, 200, 210], 1), "{before}");
    assert_eq!(t.reason(5000, flow(1), 0.0), Reason::Full);
}

/// An adapter that matches more than it is asked to gets no rule that forwards, until it is asked
/// again.
#[test]
fn nothing_is_forwarded_by_an_adapter_that_widens_masks() {
    let mut t = ForwardTable::new(Limits::default(), 0);
    let mut a = Adapter { room: 9, lies: true, ..Adapter::default() };
    let mut dp = Datapath::default();
    dp.there.insert(flow(1));
    seconds(&mut t, &mut a, &mut dp, 1..30, 5000.0);
    assert!(!t.has(flow(1)) && a.rules.is_empty() && t.is_empty());
    assert_eq!(t.takes(29_000, &plan(1).rule), Err(Reason::Wider));
    // Each time it is left alone for longer.
    seconds(&mut t, &mut a, &mut dp, 30..120, 5000.0);
    assert_eq!(t.stats().rules.wider, 2);
    seconds(&mut t, &mut a, &mut dp, 120..180, 5000.0);
    assert_eq!((t.stats().rules.wider, dp.credited), (2, 0));
    a.lies = false;
    seconds(&mut t, &mut a, &mut dp, 180..190, 5000.0);
    assert!(t.is_in(flow(1)), "{:?} {:?}", t.takes(189_000, &plan(1).rule), t.stats());
}

/// A flow that ends and comes again as another one has its rule again at once.
#[test]
fn who_comes_in_the_place_of_another_does_not_wait() {
    let mut t = ForwardTable::new(Limits::default(), 0);
    let (mut a, mut dp) = (Adapter { room: 9, ..Adapter::default() }, Datapath::default());
    dp.there.extend([flow(1), flow(2), flow(3)]);
    seconds(&mut t, &mut a, &mut dp, 1..6, 5000.0);
    let elsewhere = |n: u16| {
        let mut plan = plan(n);
        plan.rule.fate = Fate::Port(2);
        plan
    };
    t.follow(5000, flow(2), elsewhere(1));
    assert!(!t.expects() && !t.has(flow(2)), "no flow ended");
    t.gone(5000, flow(1));
    assert!(t.expects());
    t.follow(5001, flow(3), elsewhere(3));
    assert!(!t.has(flow(3)), "other packets");
    t.follow(5002, flow(2), elsewhere(1));
    while work(&mut t, &mut a, &mut dp, 5003, 100) {}
    assert!(t.is_in(flow(2)) && !t.expects());
    assert_eq!(a.rules.values().map(|(r, _)| r.fate).collect::<Vec<_>>(), [Fate::Port(2)]);
    // Too late is the end of the second's business.
    t.gone(6000, flow(2));
    t.follow(8001, flow(3), plan(1));
    assert!(!t.has(flow(3)));
}

/// A rule that does nothing: its flow's packets are the host's.
#[test]
fn a_rule_that_forwards_nothing_goes_and_does_not_come_again_at_once() {
    let mut t = ForwardTable::new(Limits::default(), 0);
    let (mut a, mut dp) = (Adapter { room: 9, ..Adapter::default() }, Datapath::default());
    dp.there.insert(flow(1));
    seconds(&mut t, &mut a, &mut dp, 1..6, 5000.0);
    assert!(t.is_in(flow(1)));
    let made = t.stats().rules.inserted;
    for second in 6..40 {
        t.observe(flow(1), 5000.0);
        t.decide(second * 1000, &mut |_| vec![plan(1)]);
        work(&mut t, &mut a, &mut dp, second * 1000, 100);
    }
    assert_eq!((t.stats().rules.silent, t.stats().rules.inserted - made, a.rules.len()), (1, 0, 0));
    assert_eq!(t.reason(39_000, flow(1), 5000.0), Reason::CoolingDown);
}
