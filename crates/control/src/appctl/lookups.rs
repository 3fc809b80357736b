//! `dpif-netdev/pmd-lookup-show`: how PMD threads find the megaflows of each port, and what the
//! cost model says about the signature cache.

use super::pmd::pmds;
use crate::state::State;
use datapath::{CacheState, PortLookup, WorkerId};
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
    let per = |n: u64| n as f64 / p.lookups.max(1) as f64;
    format!(
        "  port: {name:<16}  flows: {}  masks: {}  visits per lookup: {:.2}  cached: {:.1} %\n    \
         signature cache {}\n    new flows: {}\n",
        p.flows,
        p.masks,
        per(p.visits),
        per(p.cache_hits) * 100.0,
        reason(&p.cache),
        if p.direct { "direct, hardly any come back" } else { "stored" },
    )
}

/// On or off, and why.
fn reason(c: &CacheState) -> String {
    let state = if c.on { "on" } else { "off" };
    let saves = format!("{:.2} subtable visits per packet", c.saves);
    match c {
        CacheState { forced: true, .. } => format!("{state}: configured"),
        CacheState { on: true, .. } => {
            format!("on: saves {saves}, off at {:.2}", CacheState::STAYS)
        }
        CacheState { wait: 0, .. } => {
            format!("off: would save at most {saves}, on above {:.2}", CacheState::PAYS)
        }
        _ => format!(
            "off: did not pay, tried again after {:.1} s of traffic",
            f64::from(c.wait) / 10.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_said() {
        let state = |on, forced, wait| CacheState { on, forced, saves: 1.5, wait };
        let off = "off: would save at most 1.50 subtable visits per packet, on above 1.75";
        assert_eq!(reason(&state(false, false, 0)), off);
        let on = "on: saves 1.50 subtable visits per packet, off at 1.25";
        assert_eq!(reason(&state(true, false, 0)), on);
        let later = "off: did not pay, tried again after 0.8 s of traffic";
        assert_eq!(reason(&state(false, false, 8)), later);
        assert_eq!(reason(&state(true, true, 0)), "on: configured");
    }
}
