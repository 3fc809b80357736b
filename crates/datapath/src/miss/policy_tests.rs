//! The policy as a table: what was measured, what it was before, and what comes next.

use super::policy::*;
use super::rates::*;
use crate::settings::Tri;

/// A port with 12 masks whose misses cost 32 visits: hits of the cache and of subtables, visits,
/// misses, and how many percent of packets are of known flows.
fn rates(cache_hits: u64, flow_hits: u64, visits: u64, missed: u64, known: u64) -> PortRates {
    let lookups = LookupCounts { cache_hits, flow_hits, visits, missed, ..LookupCounts::default() };
    let packets_returning = Share { all: 100, good: known };
    PortRates {
        lookups,
        masks: 12,
        packets_returning,
        miss_cycles: 32 * VISIT_COST_CYCLES,
        ..PortRates::default()
    }
}

#[test]
fn the_cache_is_used_where_packets_come_back_and_visit_many_subtables() {
    use CacheUse::*;
    let table = [
        (Off, rates(0, 1000, 1150, 0, 100), Off, "hardly more than a visit"),
        (Off, rates(0, 60, 240, 0, 100), Off, "too few packets say nothing"),
        (On, rates(60, 0, 0, 0, 0), On, "too few packets say nothing"),
        (Off, rates(0, 1000, 3600, 0, 100), On, "it is tried"),
        (Sampled, rates(0, 1000, 3600, 0, 100), On, "all come back"),
        (Sampled, rates(0, 1000, 3600, 0, 30), Sampled, "too few come back"),
        (Sampled, rates(0, 1000, 1150, 0, 100), Off, "hardly more than a visit"),
        (On, rates(900, 100, 600, 0, 100), On, "others visit six"),
        (On, rates(1000, 0, 0, 0, 100), On, "not measured: half of 12"),
        (On, rates(900, 100, 120, 0, 100), On, "between both limits"),
        (On, rates(900, 100, 105, 0, 100), Off, "others visit hardly more than one"),
        (On, rates(0, 1000, 6000, 0, 2), Sampled, "flows do not come back"),
        (On, rates(0, 1000, 6000, 0, 90), On, "it is being filled"),
        (Off, rates(0, 80, 80, 920, 0), Sampled, "what is missed might come back"),
        (Sampled, rates(0, 80, 80, 920, 0), Sampled, "and does not"),
        (Sampled, rates(0, 80, 80, 920, 100), On, "or does"),
        (Sampled, rates(0, 900, 900, 100, 90), Sampled, "those that miss are those that are new"),
    ];
    for (cache, r, expected, why) in table {
        let policy = PortPolicy { cache, cache_age: 100, ..PortPolicy::default() };
        assert_eq!(policy.next(&r, Tri::Auto).cache, expected, "{why}: {r:?}");
        assert_eq!(policy.next(&r, Tri::On).cache, On);
        assert_eq!(policy.next(&r, Tri::Off).cache, Off);
    }
}

#[test]
fn new_flows_are_stored_as_far_as_they_come_back() {
    use NewFlows::*;
    let (few, many) = (NEW_FLOWS_MIN - 1, NEW_FLOWS_MIN);
    // Before; new flows; of the sample all and those that came back; after.
    let table = [
        (Stored, few, (100, 0), Stored),
        (Direct, few, (100, 0), Stored),
        (Stored, many, (10, 0), SeenTwice),
        (SeenTwice, many, (10, 10), SeenTwice),
        (MostReturn, many, (10, 0), MostReturn),
        (Direct, many, (10, 10), Direct),
        (SeenTwice, many, (100, 12), Direct),
        (SeenTwice, many, (100, 13), SeenTwice),
        (Direct, many, (100, 25), Direct),
        (Direct, many, (100, 26), SeenTwice),
        (Direct, many, (100, 50), MostReturn),
        (MostReturn, many, (100, 49), SeenTwice),
        (Stored, many, (100, 50), MostReturn),
    ];
    for (new_flows, n, (all, good), expected) in table {
        let policy = PortPolicy { new_flows, ..PortPolicy::default() };
        let misses_returning = Share { all, good };
        let r = PortRates { new_flows: n, misses_returning, ..PortRates::default() };
        let after = policy.next(&r, Tri::Auto).new_flows;
        assert_eq!(after, expected, "{new_flows:?} {n} {all} {good}");
    }
}

/// How many of so many intervals it is on, with what is measured while it is.
fn on_of(n: usize, on: fn(&PortPolicy) -> bool, measured: PortRates) -> usize {
    let (mut policy, idle) = (PortPolicy::default(), PortRates { ..measured });
    let idle = PortRates { predictions: Share::default(), direct: Share::default(), ..idle };
    let count = (0..n).filter(|_| {
        let was_on = on(&policy);
        policy = policy.next(if was_on { &measured } else { &idle }, Tri::Auto);
        was_on
    });
    count.count()
}

#[test]
fn a_cache_that_is_too_small_is_rarely_tried() {
    let full = Share { all: 1000, good: 100 };
    let on = |cache_hits, learned| {
        let r = PortRates { learned, ..rates(cache_hits, 1000 - cache_hits, 6000, 0, 100) };
        on_of(320, |p| p.cache == CacheUse::On, r)
    };
    assert_eq!([on(10, full), on(900, full), on(10, Share { all: 9, good: 0 })], [10, 319, 319]);
}

#[test]
fn a_cache_has_time_to_be_filled() {
    let new = rates(0, 1000, 6000, 0, 2);
    let on = |measured| on_of(320, |p| p.cache == CacheUse::On, measured);
    assert_eq!([on(new), on(PortRates { union_changed: true, ..new })], [33, 319]);
}

#[test]
fn predictions_come_first_where_they_find_more() {
    let first = |good, flow_hits| {
        let predictions = Share { all: 1000, good };
        // Of 11,000 visits 1,000 are of predicted subtables.
        let r = PortRates { predictions, ..rates(0, flow_hits, 11_000, 0, 40) };
        let mut policy = PortPolicy::default();
        let first = (0..320).filter(|_| {
            policy = policy.next(&r, Tri::Auto);
            policy.predictor == PredictorUse::First
        });
        first.count()
    };
    // They come last for one interval in 32.
    assert_eq!([first(500, 5500), first(500, 5499), first(400, 900)], [0, 310, 310]);
}

#[test]
fn what_fails_is_rarely_tried() {
    let right = |good| {
        let predictions = Share { all: 1000, good };
        on_of(
            320,
            |p| p.predictor != PredictorUse::Off,
            PortRates { predictions, ..rates(0, 1, 1, 0, 0) },
        )
    };
    assert_eq!([right(0), right(31), right(32), right(900)], [10, 10, 320, 320]);
    let answered = |good| {
        let direct = Share { all: 1000, good };
        let misses_returning = Share { all: 100, good: 0 };
        let r = PortRates { direct, misses_returning, ..rates(0, 0, 0, 1000, 0) };
        let r = PortRates { new_flows: NEW_FLOWS_MIN, ..r };
        on_of(320, |p| p.new_flows == NewFlows::Direct, r)
    };
    assert_eq!([answered(0), answered(499), answered(500)], [10, 10, 319]);
}

#[test]
fn what_is_too_few_to_judge_is_kept_for_the_next_interval() {
    let few = Share { all: JUDGED_EVENTS_MIN - 1, good: 1 };
    let many = Share { all: JUDGED_EVENTS_MIN, good: 1 };
    let mut r = PortRates {
        new_flows: 9,
        packets_returning: few,
        misses_returning: many,
        ..rates(1, 2, 3, 4, 5)
    };
    r.packets_returning = few;
    r.begin();
    assert_eq!((r.packets_returning, r.misses_returning), (few, Share::default()));
    assert_eq!((r.lookups.flow_hits, r.new_flows), (2, 4));
    r.lookups.flow_hits = JUDGED_EVENTS_MIN;
    r.begin();
    assert_eq!(r.lookups, LookupCounts::default());
}
