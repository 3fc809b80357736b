//! `dpif-netdev/pmd-lookup-show`: how PMD threads find the megaflows of each port, and what the
//! cost model says about the signature cache.

use super::pmd::pmds;
use crate::state::State;
use datapath::{
    CACHE_SAVES_VISITS_MIN, CACHE_STAYS_VISITS_MIN, CacheUse, NewFlows, PortLookup, PortPolicy,
    PredictorUse, Share, WorkerId,
};
use std::fmt::Write;

/// `dpif-netdev/pmd-lookup-show [-pmd CORE] [DP]`.
pub fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let wanted = pmds(s, args)?;
    let all = s.dp.lookups();
    let mut out = String::new();
    for (core, info) in wanted {
        let _ = writeln!(out, "pmd thread numa_id {} core_id {core}:", info.numa);
        let of_core = all.iter().filter(|(worker, _)| *worker == WorkerId::Pmd(core));
        for p in of_core.flat_map(|(_, ports)| ports) {
            let name = match s.dp.port_mut(p.port) {
                Some(port) => port.name().to_string(),
                None => format!("#{}", p.port),
            };
            out += &line(&name, p);
        }
    }
    Ok(out)
}

fn line(name: &str, p: &PortLookup) -> String {
    let (r, t) = (&p.rates, &p.rates.lookups);
    let cached = t.cache_hits as f64 / t.hits().max(1) as f64;
    format!(
        "  port: {name:<16}  flows: {}  masks: {}  visits per lookup: {:.2}  cached: {:.1} %\n    \
         signature cache {}\n    new flows: {}\n    \
         predicted subtables probed: {}\n    \
         judged by: cache hits {} flow hits {} visits {} missed visits {} missed {} resolved {} \
         new flows {} cycles per miss {}\n    \
         of samples: packets {}; learned {}; misses {}; predictions {}; direct {}\n",
        p.flows,
        p.masks,
        t.visits_per_hit(),
        cached * 100.0,
        reason(p),
        new_flows(&p.policy),
        match p.policy.predictor {
            PredictorUse::Off => "not",
            PredictorUse::Last => "last",
            PredictorUse::First => "first",
        },
        t.cache_hits,
        t.flow_hits,
        t.visits,
        t.missed_visits,
        t.missed,
        t.resolved,
        r.new_flows,
        r.miss_cycles,
        share(r.packets_returning, "came back"),
        share(r.learned, "had a free place"),
        share(r.misses_returning, "would be found"),
        share(r.predictions, "right"),
        share(r.direct, "answered"),
    )
}

fn share(s: Share, good: &str) -> String {
    format!("{} ({} {good})", s.all, s.good)
}

fn new_flows(p: &PortPolicy) -> &'static str {
    match p.new_flows {
        NewFlows::Stored => "stored",
        NewFlows::MostReturn => "stored, most come back",
        NewFlows::SeenTwice if p.direct_refused => "stored when seen again, direct mode failed",
        NewFlows::SeenTwice => "stored when seen again",
        NewFlows::Direct => "direct, hardly any come back",
    }
}

/// Whether the port's lookups use a cache, and why.
fn reason(p: &PortLookup) -> String {
    let on = p.policy.cache == CacheUse::On;
    let state = if on { "on" } else { "off" };
    let (returning, pays) = (p.rates.packets_returning.part(), CACHE_SAVES_VISITS_MIN);
    let saves =
        |returning| format!("{:.2} subtable visits per packet", p.rates.cache_saves(returning));
    match p.policy.cache {
        _ if p.cache_forced => format!("{state}: configured"),
        CacheUse::Sampled if p.policy.cache_refused => {
            "off: too small for these flows, tried again every few seconds".into()
        }
        CacheUse::On => {
            format!("on: saves {}, off at {CACHE_STAYS_VISITS_MIN:.2}", saves(returning))
        }
        CacheUse::Off => format!("off: would save at most {}, on above {pays:.2}", saves(1.0)),
        CacheUse::Sampled => format!(
            "off: would save {} as {:.0} % of packets are of known flows, on above {pays:.2}",
            saves(returning),
            returning * 100.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::{LookupCounts, PortRates};

    fn shown(cache: CacheUse) -> PortLookup {
        let lookups = LookupCounts { flow_hits: 1000, visits: 2000, ..LookupCounts::default() };
        PortLookup {
            port: 1,
            flows: 7,
            masks: 2,
            rates: PortRates {
                lookups,
                masks: 2,
                packets_returning: Share { all: 100, good: 75 },
                ..PortRates::default()
            },
            cache_forced: false,
            policy: PortPolicy { cache, ..PortPolicy::default() },
        }
    }

    #[test]
    fn the_reason_is_said() {
        let off = "off: would save at most 2.00 subtable visits per packet, on above 1.30";
        assert_eq!(reason(&shown(CacheUse::Off)), off);
        let on = "on: saves 1.50 subtable visits per packet, off at 1.15";
        assert_eq!(reason(&shown(CacheUse::On)), on);
        let sampled = "off: would save 1.50 subtable visits per packet as 75 % of packets are of \
                       known flows, on above 1.30";
        assert_eq!(reason(&shown(CacheUse::Sampled)), sampled);
        let forced = PortLookup { cache_forced: true, ..shown(CacheUse::On) };
        assert_eq!(reason(&forced), "on: configured");
    }

    #[test]
    fn all_that_was_judged_is_shown() {
        let text = line("p1", &shown(CacheUse::Off));
        assert!(text.contains("masks: 2  visits per lookup: 2.00  cached: 0.0 %"), "{text}");
        assert!(text.contains("packets 100 (75 came back)"), "{text}");
        assert!(text.contains("new flows: stored\n"), "{text}");
    }
}
