//! `dpif-netdev/*`: workers and their receive queues.

use super::usage::{self, Sample};
use crate::state::State;
use datapath::{Perf, PmdInfo, RxqInfo, WorkerId};
use std::fmt::Write;

/// The name of the only datapath.
const DATAPATHS: [&str; 2] = ["ovs-netdev", "ovs-dummy"];

/// What ovs-vswitchd says when a datapath's name is wrong where it matters, or missing.
const NO_DATAPATH: &str = "please specify an existing datapath";

/// `-pmd CORE` of the arguments. As in ovs-vswitchd the last one that is a number counts, and
/// others do not matter.
fn wanted_core(args: &[String]) -> Option<usize> {
    let pairs = args.windows(2).filter(|pair| pair[0] == "-pmd");
    pairs.filter_map(|pair| pair[1].parse::<u32>().ok()).next_back().map(|core| core as usize)
}

/// PMD threads, or the one that the arguments ask for. There are none without a bridge; then a
/// datapath's name would have to be right.
pub(super) fn pmds(s: &State, args: &[String]) -> Result<Vec<(usize, PmdInfo)>, String> {
    exists(s)?;
    Ok(of_core(s.dp.pmd_info(), args))
}

/// The datapath comes with the first bridge.
fn exists(s: &State) -> Result<(), String> {
    if s.bridges.is_empty() { Err(NO_DATAPATH.into()) } else { Ok(()) }
}

/// A datapath's name, which must be right if it is given.
pub(super) fn datapath(s: &State, args: &[String]) -> Result<(), String> {
    match args.first() {
        Some(name) if !DATAPATHS.contains(&name.as_str()) => Err(NO_DATAPATH.into()),
        _ => exists(s),
    }
}

fn of_core(all: Vec<PmdInfo>, args: &[String]) -> Vec<(usize, PmdInfo)> {
    let core = wanted_core(args);
    let all = all.into_iter().filter_map(|p| match p.worker {
        WorkerId::Pmd(c) if core.is_none_or(|want| want == c) => Some((c, p)),
        _ => None,
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(core, _)| *core);
    all
}

/// Which core polls which queue, and what it costs.
pub fn rxq_show(s: &mut State, args: &[String]) -> Result<String, String> {
    exists(s)?;
    let secs = usage::seconds(args);
    let now = Sample { queues: s.dp.rxq_info(), pmds: s.dp.pmd_info() };
    let Sample { mut queues, pmds } = s.recent.usage.since(secs, now);
    queues.sort_by(|a, b| (&a.name, a.queue).cmp(&(&b.name, b.queue)));
    let (mut out, pmds) = (String::new(), of_core(pmds, args));
    if wanted_core(args).is_none() || !pmds.is_empty() {
        let _ = writeln!(out, "Displaying last {secs} seconds pmd usage %");
    }
    for (core, info) in pmds {
        let _ = writeln!(out, "pmd thread numa_id {} core_id {core}:", info.numa);
        let _ = writeln!(out, "  isolated : {}", info.isolated);
        let total = match s.recent.usage.knows(info.worker) {
            true => info.perf.busy_cycles + info.perf.idle_cycles,
            false => 0,
        };
        let mine: Vec<&RxqInfo> = queues.iter().filter(|q| q.worker == Some(info.worker)).collect();
        for q in &mine {
            let usage = percent(q.cycles, total).map_or("NOT AVAIL".into(), |p| format!("{p:2} %"));
            let _ = writeln!(
                out,
                "  port: {:<16}  queue-id: {:2} (enabled)   pmd usage: {usage}",
                q.name, q.queue
            );
        }
        if mine.is_empty() {
            continue;
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
pub fn rebalance(s: &mut State, args: &[String]) -> Result<String, String> {
    datapath(s, args)?;
    s.dp.rebalance();
    Ok("pmd rxq rebalance requested.\n".into())
}

/// `dpif-netdev/bond-show`: the buckets of bonds that spread packets.
pub fn bond_show(s: &mut State, args: &[String]) -> Result<String, String> {
    datapath(s, args)?;
    let mut out = String::new();
    for (id, ports) in s.bonds.buckets() {
        let _ = writeln!(out, "  bond-id {id}:");
        for (bucket, port) in ports.iter().enumerate() {
            let _ = writeln!(out, "    bucket {bucket} - member {port}");
        }
    }
    Ok(if out.is_empty() { out } else { format!("Bonds:\n{out}") })
}

/// Counters start again from zero.
pub fn stats_clear(s: &mut State, args: &[String]) -> Result<String, String> {
    exists(s)?;
    let core = wanted_core(args);
    s.dp.stats_clear(core.map(WorkerId::Pmd));
    super::engine_commands::clear(core);
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
    if wanted_core(args).is_none()
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
    let _ = writeln!(out, "  phwol hits: {}", p.mark_hits);
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
