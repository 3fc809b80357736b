//! A port's rules against a slow model of adapter and datapath, with generated input.

use flow::{Key, Mask, at};
use offload::{
    Binding, FlowId, Limits, Mark, MarkAnswer, MarkRequest, Outcome, Port, Reason, Worth,
};
use port::{MarkRule, RuleError, RuleId};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// UDP to this port number, from datapath port 1.
fn udp(n: u16) -> (Key, Mask) {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    let fields = [(at::ETH_TYPE, 0x0800), (at::TP_DST, n), (at::IN_PORT, 1)];
    for (at, v) in fields {
        key.set_u16(at, v);
        mask.set_u16(at, 0xffff);
    }
    key.set_u8(at::PROTO, 17);
    mask.set_u8(at::PROTO, 0xff);
    mask.set_u8(at::FRAG, 3);
    (key, mask)
}

fn flow(n: u16) -> FlowId {
    FlowId { worker: u32::from(n % 2), megaflow: u32::from(n) }
}

fn error(errno: i32) -> RuleError {
    RuleError { errno, kind: 2, message: "no".into() }
}

/// An adapter with room for some rules.
struct Adapter {
    rules: BTreeMap<RuleId, MarkRule>,
    room: usize,
    next: u64,
    /// Calls that fail next, with which number.
    fails: Vec<i32>,
}

impl Adapter {
    fn new(room: usize) -> Adapter {
        Adapter { rules: BTreeMap::new(), room, next: 1, fails: Vec::new() }
    }

    fn answer(&mut self, request: MarkRequest) -> Outcome {
        match request {
            MarkRequest::Create(mark, rule) => Outcome::Created(mark, self.create(rule)),
            MarkRequest::Destroy(mark, id) => {
                assert!(self.rules.remove(&id).is_some(), "destroyed twice");
                Outcome::Destroyed(mark, Ok(()))
            }
            MarkRequest::Flush => {
                self.rules.clear();
                Outcome::Flushed(Ok(()))
            }
        }
    }

    fn create(&mut self, rule: MarkRule) -> Result<RuleId, RuleError> {
        if let Some(errno) = self.fails.pop() {
            return Err(error(errno));
        }
        if self.rules.len() >= self.room {
            return Err(error(28));
        }
        let same = |r: &MarkRule| r.pattern == rule.pattern || r.mark == rule.mark;
        assert!(!self.rules.values().any(same), "a pattern or mark twice");
        let id = RuleId(self.next);
        self.next += 1;
        self.rules.insert(id, rule);
        Ok(id)
    }
}

/// Everything that is asked for happens.
fn settle(port: &mut Port, adapter: &mut Adapter, bound: &mut BTreeMap<FlowId, Mark>, now: u64) {
    loop {
        while let Some(b) = port.next_binding() {
            match b {
                Binding::Bind(flow, mark, _) => {
                    bound.insert(flow, mark);
                }
                Binding::Unbind(flow, mark) => {
                    if bound.get(&flow) == Some(&mark) {
                        bound.remove(&flow);
                    }
                }
            }
        }
        let Some(request) = port.next_request() else { return };
        let outcome = adapter.answer(request);
        port.answer(now, MarkAnswer { outcome, took_us: 10, cpu_us: 5 });
    }
}

fn second(port: &mut Port, now: u64, rates: &BTreeMap<u16, f32>) {
    rates.iter().for_each(|(n, pps)| port.observe(flow(*n), *pps));
    port.decide(now, &mut |f| {
        rates.contains_key(&(f.megaflow as u16)).then(|| udp(f.megaflow as u16))
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn adapter_and_datapath_have_what_the_port_says(
        room in 1usize..20,
        seconds in proptest::collection::vec(
            (proptest::collection::vec((0u16..40, 0f32..3000.0), 0..40),
             proptest::collection::vec(0u16..40, 0..4),
             proptest::option::weighted(0.2, prop_oneof![Just(5), Just(16), Just(12), Just(22)])),
            1..25),
    ) {
        let mut port = Port::new(Limits::default(), 0);
        let (mut adapter, mut bound) = (Adapter::new(room), BTreeMap::new());
        let (mut now, mut rates) = (0, BTreeMap::new());
        settle(&mut port, &mut adapter, &mut bound, now);
        for (more, ended, fails) in seconds {
            now += 1000;
            rates.extend(more);
            adapter.fails.extend(fails);
            second(&mut port, now, &rates);
            prop_assert!(port.waiting() <= 2 * rates.len() + 64);
            // Flows end while requests are under way.
            for n in ended {
                if rates.remove(&n).is_some() {
                    bound.remove(&flow(n));
                    port.gone(now, flow(n));
                }
            }
            settle(&mut port, &mut adapter, &mut bound, now);
            if port.is_down() {
                // What is in the adapter means nothing, and is flushed first.
                prop_assert!(port.rules() == 0 && bound.is_empty());
                continue;
            }
            prop_assert_eq!(port.rules(), adapter.rules.len());
            prop_assert!(adapter.rules.len() <= room);
            for (n, pps) in &rates {
                let (key, mask) = udp(*n);
                let reason = port.reason(now, flow(*n), &key, &mask, *pps);
                let mark = bound.get(&flow(*n)).map(|m| m.number());
                let pattern = offload::first_bytes(&key, &mask).unwrap().1;
                let rule = adapter.rules.values().find(|r| r.pattern == pattern);
                prop_assert_eq!(rule.map(|r| r.mark), mark);
                prop_assert_eq!(reason == Reason::Partial, mark.is_some());
            }
        }
    }
}

/// 10,000 equally busy flows, room for 8,192: after filling it nothing moves.
#[test]
fn equal_flows_do_not_push_each_other_out() {
    let mut port = Port::new(Limits::default(), 0);
    let (mut adapter, mut bound) = (Adapter::new(8192), BTreeMap::new());
    settle(&mut port, &mut adapter, &mut bound, 0);
    let mut noise = 1u32;
    let mut swaps = 0;
    for s in 1..=30 {
        let rates = (0..10_000).map(|n| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (n, 900.0 + (noise >> 22) as f32 / 5.0)
        });
        second(&mut port, s * 1000, &rates.collect());
        settle(&mut port, &mut adapter, &mut bound, s * 1000);
        if s == 5 {
            assert_eq!(adapter.rules.len(), 8192);
            swaps = port.stats().rules.swaps;
        }
    }
    assert_eq!((adapter.rules.len(), port.stats().rules.swaps), (8192, swaps));
}

/// The hot tenth changes: it is in the adapter within ten seconds at 1,000 insertions per second.
#[test]
fn a_new_hot_set_gets_in() {
    let mut port = Port::new(Limits::default(), 0);
    let (mut adapter, mut bound) = (Adapter::new(2000), BTreeMap::new());
    settle(&mut port, &mut adapter, &mut bound, 0);
    let hot = |n: u16, set: u16| if n / 1000 == set { 5000.0 } else { 300.0 };
    for s in 1..=30u64 {
        let set = if s <= 15 { 0 } else { 3 };
        second(&mut port, s * 1000, &(0..8000).map(|n| (n, hot(n, set))).collect());
        for _ in 0..1000 {
            let Some(request) = port.next_request() else { break };
            let outcome = adapter.answer(request);
            port.answer(s * 1000, MarkAnswer { outcome, took_us: 1000, cpu_us: 5 });
        }
        while let Some(b) = port.next_binding() {
            match b {
                Binding::Bind(flow, mark, _) => drop(bound.insert(flow, mark)),
                Binding::Unbind(flow, _) => drop(bound.remove(&flow)),
            }
        }
        if s == 15 || s == 26 {
            let in_set = (0..8000).filter(|n| n / 1000 == set && port.is_in(flow(*n))).count();
            assert!(in_set >= 950, "{in_set} after {s} s");
        }
    }
}

/// With one mask per packet type the mask that most packets want gets the table.
#[test]
fn one_mask_per_type() {
    let mut port = Port::new(Limits::default(), 0);
    let mut adapter: BTreeMap<RuleId, MarkRule> = BTreeMap::new();
    let find = |f: FlowId| {
        let (key, mut mask) = udp(f.megaflow as u16);
        if f.megaflow >= 100 {
            mask.set_u32(at::IP_DST, !0);
        }
        Some((key, mask))
    };
    let mut next = 0;
    for s in 1..=60u64 {
        // Ten flows of one mask from the beginning, fifty of another later.
        (0..10).for_each(|n| port.observe(FlowId { worker: 0, megaflow: n }, 1000.0));
        if s > 5 {
            (100..150).for_each(|n| port.observe(FlowId { worker: 0, megaflow: n }, 1000.0));
        }
        port.decide(s * 1000, &mut |f| find(f));
        while let Some(request) = port.next_request() {
            let outcome = match request {
                MarkRequest::Create(mark, rule) => {
                    let fits = adapter.values().all(|r| r.pattern.mask == rule.pattern.mask);
                    next += 1;
                    let id = RuleId(next);
                    if fits {
                        adapter.insert(id, rule);
                    }
                    Outcome::Created(mark, fits.then_some(id).ok_or(error(22)))
                }
                MarkRequest::Destroy(mark, id) => {
                    adapter.remove(&id);
                    Outcome::Destroyed(mark, Ok(()))
                }
                MarkRequest::Flush => Outcome::Flushed(Ok(())),
            };
            port.answer(s * 1000, MarkAnswer { outcome, took_us: 10, cpu_us: 5 });
        }
        let (key, mask) = find(FlowId { worker: 0, megaflow: 120 }).unwrap();
        let reason =
            port.reason(s * 1000, FlowId { worker: 0, megaflow: 120 }, &key, &mask, 1000.0);
        if s == 20 {
            assert_eq!((adapter.len(), reason), (10, Reason::MaskConflict));
        }
    }
    assert_eq!(adapter.len(), 50, "{:?}", port.stats());
}

/// A port with one rule for a flow with 1,000 packets per second, some seconds old.
fn settled() -> (Port, Adapter, BTreeMap<FlowId, Mark>, BTreeMap<u16, f32>) {
    let (mut port, rates) = (Port::new(Limits::default(), 0), BTreeMap::from([(7u16, 9000f32)]));
    let (mut adapter, mut bound) = (Adapter::new(9), BTreeMap::new());
    settle(&mut port, &mut adapter, &mut bound, 0);
    for s in 1..10 {
        second(&mut port, s * 1000, &rates);
        settle(&mut port, &mut adapter, &mut bound, s * 1000);
    }
    assert_eq!((port.rules(), bound.len()), (1, 1));
    (port, adapter, bound, rates)
}

/// The adapter took the rule and lost it: packets come, none of them marked.
#[test]
fn a_rule_that_marks_nothing_goes() {
    let (mut port, mut adapter, mut bound, rates) = settled();
    let mark = bound[&flow(7)];
    for s in 10..30 {
        port.observe(flow(7), 9000.0);
        port.compared(s * 1000, mark, 0, s < 20);
        port.decide(s * 1000, &mut |_| Some(udp(7)));
        settle(&mut port, &mut adapter, &mut bound, s * 1000);
        assert_eq!(port.stats().rules.silent, u64::from(s >= 22), "{s}");
        if s == 22 {
            assert!(adapter.rules.is_empty() && bound.is_empty());
        }
    }
    // It is worth another try.
    assert_eq!(port.rules(), 1);
    // Without packets nothing can be said.
    let mark = bound[&flow(7)];
    (30..40).for_each(|s| port.compared(s * 1000, mark, 0, false));
    assert!(port.stats().rules.silent == 1 && !rates.is_empty());
}

#[test]
fn rules_whose_marks_do_not_pay_go_and_come_back() {
    let (mut port, mut adapter, mut bound, rates) = settled();
    let (n, ((key, mask), mut now)) = (port.rules(), (udp(7), 100_000));
    let mut after = |port: &mut Port, worth| {
        port.set_worth(worth);
        (0..2).for_each(|_| {
            now += 4000;
            second(port, now, &rates);
            settle(port, &mut adapter, &mut bound, now);
        });
        assert_eq!((adapter.rules.len(), bound.len()), (port.rules(), port.rules()));
        (port.rules(), port.reason(now, flow(7), &key, &mask, 9000.0) == Reason::NoGain)
    };
    assert_eq!(after(&mut port, Worth::Ignored), (n, true), "they stay for the next trial");
    assert_eq!(after(&mut port, Worth::Withdrawn), (0, true));
    assert_eq!(after(&mut port, Worth::Ignored), (n, true));
    assert_eq!(after(&mut port, Worth::Used), (n, false));
}

#[test]
fn a_rule_whose_mark_others_have_goes() {
    let (mut port, mut adapter, mut bound, _) = settled();
    let mark = bound[&flow(7)];
    port.compared(10_000, mark, 15, true);
    assert_eq!(port.stats().rules.wider, 0);
    port.compared(10_000, mark, 9000, true);
    settle(&mut port, &mut adapter, &mut bound, 10_000);
    assert_eq!((port.stats().rules.wider, port.rules(), adapter.rules.len()), (1, 0, 0));
    let (key, mask) = udp(7);
    assert_eq!(port.reason(10_001, flow(7), &key, &mask, 9000.0), Reason::Wider);
}

/// After a reset nothing is believed of what was there, and the rules come back.
#[test]
fn a_reset_adapter_is_filled_again() {
    let (mut port, mut adapter, mut bound, rates) = settled();
    let before = bound[&flow(7)];
    adapter.rules.clear();
    port.upset(10_000);
    settle(&mut port, &mut adapter, &mut bound, 10_000);
    assert!(port.is_down() && bound.is_empty() && port.stats().resets == 1);
    for s in 11..16 {
        second(&mut port, s * 1000, &rates);
        settle(&mut port, &mut adapter, &mut bound, s * 1000);
    }
    assert!(!port.is_down() && adapter.rules.len() == 1);
    assert_ne!(bound[&flow(7)], before);
}
