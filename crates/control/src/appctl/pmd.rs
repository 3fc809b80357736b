//! `dpif-netdev/*`: workers and their receive queues.

use super::usage::{self, Sample};
use crate::state::State;
use datapath::{Perf, PmdInfo, RxqInfo, WorkerId};
use std::fmt::Write;

/// `-pmd CORE` of the arguments.
fn wanted_core(args: &[String]) -> Result<Option<usize>, String> {
    match args.iter().position(|a| a == "-pmd") {
        None => Ok(None),
        Some(i) => match args.get(i + 1).map(|c| c.parse()) {
            Some(Ok(core)) => Ok(Some(core)),
            _ => Err("-pmd takes a core number".into()),
        },
    }
}

/// PMD threads, or the one that the arguments ask for.
pub(super) fn pmds(s: &State, args: &[String]) -> Result<Vec<(usize, PmdInfo)>, String> {
    of_core(s.dp.pmd_info(), args)
}

fn of_core(all: Vec<PmdInfo>, args: &[String]) -> Result<Vec<(usize, PmdInfo)>, String> {
    let core = wanted_core(args)?;
    let all = all.into_iter().filter_map(|p| match p.worker {
        WorkerId::Pmd(c) if core.is_none_or(|want| want == c) => Some((c, p)),
        _ => None,
    });
    Ok(all.collect())
}

/// Which core polls which queue, and what it costs.
pub fn rxq_show(s: &mut State, args: &[String]) -> Result<String, String> {
    let secs = usage::seconds(args);
    let now = Sample { queues: s.dp.rxq_info(), pmds: s.dp.pmd_info() };
    let Sample { queues, pmds } = s.usage.since(secs, now);
    let mut out = format!("Displaying last {secs} seconds pmd usage %\n");
    for (core, info) in of_core(pmds, args)? {
        let _ = writeln!(out, "pmd thread numa_id {} core_id {core}:", info.numa);
        let _ = writeln!(out, "  isolated : {}", info.isolated);
        let total = info.perf.busy_cycles + info.perf.idle_cycles;
        let mine: Vec<&RxqInfo> = queues.iter().filter(|q| q.worker == Some(info.worker)).collect();
        for q in &mine {
            let usage = percent(q.cycles, total).map_or("NOT AVAIL".into(), |p| format!("{p:2} %"));
            let _ = writeln!(
                out,
                "  port: {:<16}  queue-id: {:2} (enabled)   pmd usage: {usage}",
                q.name, q.queue
            );
        }
        let used: u64 = mine.iter().map(|q| q.cycles).sum();
        let overhead = percent(info.perf.busy_cycles.saturating_sub(used), total);
        let overhead = overhead.map_or("NOT AVAIL".into(), |p| format!("{p:2} %"));
        let _ = writeln!(out, "  overhead: {overhead}");
    }
    Ok(out)
}

fn percent(part: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| (u128::from(part) * 100 / u128::from(whole)).min(100) as u64)
}

/// How long PMD threads may sleep.
pub fn sleep_show(s: &mut State, _: &[String]) -> Result<String, String> {
    let settings = s.dp.settings();
    let mut out = format!("Default max sleep: {:4} us\n", settings.pmd_sleep_max_us);
    for (core, info) in pmds(s, &[])? {
        let us = settings.sleep_max_us(core);
        let _ = writeln!(
            out,
            "PMD thread core {core:3} NUMA {:2}: Max sleep request set to {us:4} us",
            info.numa
        );
    }
    Ok(out)
}

/// Moves queues to where measured cycles want them.
pub fn rebalance(s: &mut State, _: &[String]) -> Result<String, String> {
    s.dp.rebalance();
    Ok("pmd rxq rebalance requested.\n".into())
}

/// Counters start again from zero.
pub fn stats_clear(s: &mut State, _: &[String]) -> Result<String, String> {
    s.dp.stats_clear();
    Ok(String::new())
}

/// How packets leave each port: bursts, their fill, how many waited for more, what was lost.
pub fn tx_show(s: &mut State, _: &[String]) -> Result<String, String> {
    let interval = match s.dp.settings().tx_flush_interval_us {
        None => "by load and rate, at most 25 us".to_string(),
        Some(us) => format!("{us} us"),
    };
    let mut out = format!("tx-flush-interval: {interval}\n");
    let numbers: Vec<_> = s.dp.ports().collect();
    for no in numbers {
        let (Some(stats), Some(port)) = (s.dp.port_stats(no), s.dp.port_mut(no)) else { continue };
        let fill = stats.tx_packets as f64 / stats.tx_bursts.max(1) as f64;
        let _ = writeln!(
            out,
            "  port: {:<16}  packets: {}  bursts: {} ({fill:.2} packets each)  held: {}  full: {}  busy: {}",
            port.name(),
            stats.tx_packets,
            stats.tx_bursts,
            stats.tx_held,
            stats.drops[telemetry::Drop::TxFull as usize],
            stats.drops[telemetry::Drop::TxBusy as usize],
        );
    }
    Ok(out)
}

/// Packets by where they were found.
pub fn stats_show(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut out = String::new();
    for (core, info) in pmds(s, args)? {
        let _ = writeln!(out, "pmd thread numa_id {} core_id {core}:", info.numa);
        hits(&mut out, &info.perf);
        cycles(&mut out, &info.perf);
    }
    if wanted_core(args)?.is_none()
        && let Some(kernel) = s.dp.pmd_info().iter().find(|p| p.worker == WorkerId::Kernel)
    {
        out.push_str("main thread:\n");
        hits(&mut out, &kernel.perf);
    }
    Ok(out)
}

fn hits(out: &mut String, p: &Perf) {
    let per = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let _ = writeln!(out, "  packets received: {}", p.rx_packets);
    let _ = writeln!(out, "  packet recirculations: {}", p.recirculated);
    let _ = writeln!(out, "  avg. datapath passes per packet: {:.2}", per(p.passes, p.rx_packets));
    let _ = writeln!(out, "  phwol hits: 0");
    let _ = writeln!(out, "  mfex opt hits: {}", p.claimed);
    let _ = writeln!(out, "  simple match hits: 0");
    let _ = writeln!(out, "  emc hits: 0");
    let _ = writeln!(out, "  smc hits: {}", p.cache_hits);
    let _ = writeln!(out, "  megaflow hits: {}", p.flow_hits);
    let lookups = per(p.subtable_lookups, p.flow_hits);
    let _ = writeln!(out, "  avg. subtable lookups per megaflow hit: {lookups:.2}");
    let _ = writeln!(out, "  miss with success upcall: {}", p.misses);
    let _ = writeln!(out, "  miss with failed upcall: 0");
    let batch = per(p.tx_packets, p.tx_batches);
    let _ = writeln!(out, "  avg. packets per output batch: {batch:.2}");
}

fn cycles(out: &mut String, p: &Perf) {
    let total = p.idle_cycles + p.busy_cycles;
    if total == 0 {
        return;
    }
    let share = |c: u64| c as f64 * 100.0 / total as f64;
    let _ = writeln!(out, "  idle cycles: {} ({:.2}%)", p.idle_cycles, share(p.idle_cycles));
    let _ = writeln!(out, "  processing cycles: {} ({:.2}%)", p.busy_cycles, share(p.busy_cycles));
    if p.rx_packets > 0 {
        let n = p.rx_packets as f64;
        let (all, busy) = (total as f64 / n, p.busy_cycles as f64 / n);
        let _ = writeln!(out, "  avg cycles per packet: {all:.2} ({total}/{})", p.rx_packets);
        let _ = writeln!(
            out,
            "  avg processing cycles per packet: {busy:.2} ({}/{})",
            p.busy_cycles, p.rx_packets
        );
    }
}

/// Where the time goes, with the cycles of each step.
pub fn perf_show(s: &mut State, args: &[String]) -> Result<String, String> {
    let hz = datapath::cycles_per_second() as f64;
    let mut out = String::new();
    for (core, info) in pmds(s, args)? {
        let p = &info.perf;
        let used = p.idle_cycles + p.busy_cycles;
        let seconds = (used + p.sleep_cycles) as f64 / hz;
        let _ = writeln!(out, "\nTime: {}", crate::vlog::time_of_day());
        let _ = writeln!(out, "Measurement duration: {seconds:.3} s\n");
        let _ = writeln!(out, "pmd thread numa_id {} core_id {core}:\n", info.numa);
        iterations(&mut out, p, used, hz);
        packets(&mut out, p, seconds, hz);
        stages(&mut out, p);
    }
    Ok(out)
}

fn iterations(out: &mut String, p: &Perf, used: u64, hz: f64) {
    let us = |cycles: u64, n: u64| if n == 0 { 0.0 } else { cycles as f64 / n as f64 / hz * 1e6 };
    let share = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 * 100.0 / b as f64 };
    let busy = p.iterations - p.idle_iterations;
    let all = used + p.sleep_cycles;
    let _ = writeln!(
        out,
        "  Iterations:         {:12}  ({:.2} us/it)",
        p.iterations,
        us(all, p.iterations)
    );
    let _ = writeln!(
        out,
        "  - Used TSC cycles:  {used:12}  ({:5.1} % of total cycles)",
        share(used, all)
    );
    let _ = writeln!(
        out,
        "  - idle iterations:  {:12}  ({:5.1} % of used cycles)",
        p.idle_iterations,
        share(p.idle_cycles, used)
    );
    let _ = writeln!(
        out,
        "  - busy iterations:  {busy:12}  ({:5.1} % of used cycles)",
        share(p.busy_cycles, used)
    );
    let slept = p.sleep_cycles as f64 / hz * 1e6;
    let _ = writeln!(
        out,
        "  Sleep time (us):    {slept:12.0}  ({:3.0} us/iteration avg.)",
        us(p.sleep_cycles, p.iterations)
    );
}

fn packets(out: &mut String, p: &Perf, seconds: f64, hz: f64) {
    let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds / 1000.0 } else { 0.0 };
    if p.rx_packets == 0 {
        let _ = writeln!(out, "  Rx packets:         {:12}", 0);
    } else {
        let _ = writeln!(
            out,
            "  Rx packets:         {:12}  ({:.0} Kpps, {:.0} cycles/pkt)",
            p.rx_packets,
            rate(p.rx_packets),
            per(p.busy_cycles, p.rx_packets)
        );
        let _ = writeln!(
            out,
            "  Datapath passes:    {:12}  ({:.2} passes/pkt)",
            p.passes,
            per(p.passes, p.rx_packets)
        );
        passes(out, p, hz);
    }
    if p.tx_packets == 0 {
        let _ = writeln!(out, "  Tx packets:         {:12}", 0);
    } else {
        let _ = writeln!(
            out,
            "  Tx packets:         {:12}  ({:.0} Kpps)",
            p.tx_packets,
            rate(p.tx_packets)
        );
        let _ = writeln!(
            out,
            "  Tx batches:         {:12}  ({:.2} pkts/batch)",
            p.tx_batches,
            per(p.tx_packets, p.tx_batches)
        );
    }
}

fn per(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// Where passes found their decision.
fn passes(out: &mut String, p: &Perf, hz: f64) {
    let share = |n: u64| per(n * 100, p.passes);
    for (name, n) in [
        ("PHWOL hits:    ", 0),
        ("MFEX Opt hits: ", p.claimed),
        ("Simple Match hits:", 0),
        ("EMC hits:      ", 0),
        ("SMC hits:      ", p.cache_hits),
    ] {
        let _ = writeln!(out, "  - {name:<18}{n:12}  ({:5.1} %)", share(n));
    }
    let lookups = per(p.subtable_lookups, p.flow_hits);
    let _ = writeln!(
        out,
        "  - {:<18}{:12}  ({:5.1} %, {lookups:.2} subtbl lookups/hit)",
        "Megaflow hits:",
        p.flow_hits,
        share(p.flow_hits)
    );
    let us = per(p.miss_cycles, p.misses) / hz * 1e6;
    let _ = writeln!(
        out,
        "  - {:<18}{:12}  ({:5.1} %, {us:.1} us/upcall)",
        "Upcalls:",
        p.misses,
        share(p.misses)
    );
    let _ = writeln!(out, "  - {:<18}{:12}  ({:5.1} %)", "Lost upcalls:", 0, 0.0);
}

/// Cycles per packet of the five steps; ovs-vswitchd has no such lines.
fn stages(out: &mut String, p: &Perf) {
    if p.validated > 0 {
        let (n, differ) = (p.validated, p.differences);
        let _ = writeln!(out, "  Validated:          {n:12}  ({differ} differences)");
    }
    if p.rx_packets == 0 {
        return;
    }
    let per = |c: u64| c as f64 / p.rx_packets as f64;
    let _ = writeln!(
        out,
        "  Cycles per packet:    rx {:.1}, parse {:.1}, lookup {:.1}, act and tx {:.1}",
        per(p.rx_cycles),
        per(p.parse_cycles),
        per(p.lookup_cycles),
        per(p.act_cycles)
    );
}
