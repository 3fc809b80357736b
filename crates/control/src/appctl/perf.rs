//! `dpif-netdev/pmd-perf-show` and `pmd-perf-log-set`: what the iterations of PMD threads are spent
//! on.

use super::pmd::pmds;
use crate::state::State;
use crate::vlog;
use datapath::{BINS, HISTORY, Histogram, Iteration, MetricsView, Perf, PerfLog};
use std::fmt::Write;

const MODULE: &str = "pmd_perf";

/// What else is shown.
#[derive(Debug, PartialEq, Eq)]
struct Show {
    histograms: bool,
    iterations: usize,
    milliseconds: usize,
}

impl Show {
    /// The options, and the arguments behind them. A number that is none is 0, as in ovs-vswitchd.
    fn read(mut args: &[String]) -> (Show, &[String]) {
        let mut show = Show { histograms: true, iterations: 0, milliseconds: 0 };
        let most = |n: &String| (number(n).max(0) as usize).min(HISTORY);
        loop {
            args = match args {
                [o, rest @ ..] if o == "-nh" => {
                    show.histograms = false;
                    rest
                }
                [o, n, rest @ ..] if o == "-it" => {
                    show.iterations = most(n);
                    rest
                }
                [o, n, rest @ ..] if o == "-ms" => {
                    show.milliseconds = most(n);
                    rest
                }
                _ => return (show, args),
            };
        }
    }
}

/// The number that a text begins with, like C's strtol; 0 if there is none.
pub(super) fn number(text: &str) -> i64 {
    let text = text.trim_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    match &digits[..end] {
        "" => 0,
        digits => sign * digits.parse().unwrap_or(i64::MAX),
    }
}

/// Where the time goes, with the cycles of each step.
pub fn perf_show(s: &mut State, args: &[String]) -> Result<String, String> {
    let hz = datapath::cycles_per_second() as f64;
    let mut out = String::new();
    let (show, args) = Show::read(args);
    for (core, info) in pmds(s, args)? {
        let p = &info.perf;
        let used = p.idle_cycles + p.busy_cycles;
        let seconds = (used + p.sleep_cycles) as f64 / hz;
        let _ = writeln!(out, "\nTime: {}", crate::vlog::time_of_day());
        let _ = writeln!(out, "Measurement duration: {seconds:.3} s\n");
        let _ = writeln!(out, "pmd thread numa_id {} core_id {core}:\n", info.numa);
        iterations(&mut out, p, used, hz);
        super::engine_commands::perf(&mut out, s, core);
        packets(&mut out, p, seconds, hz);
        stages(&mut out, p);
        if s.dp.settings().perf_metrics
            && let Some(m) = s.dp.metrics(info.worker, show.iterations, show.milliseconds)
        {
            metrics(&mut out, &m, &show);
        }
    }
    Ok(out)
}

fn metrics(out: &mut String, m: &MetricsView, show: &Show) {
    if show.histograms {
        out.push('\n');
        histograms(out, m);
    }
    if show.iterations > 0 {
        out.push('\n');
        out.push_str(&iteration_table(&m.iterations, show.iterations));
    }
    if show.milliseconds > 0 {
        out.push('\n');
        milliseconds(out, &m.milliseconds, show.milliseconds);
    }
}

/// Columns of histograms, and of their means.
const COLUMNS: [&str; 7] = [
    "cycles/it",
    "packets/it",
    "cycles/pkt",
    "pkts/batch",
    "max vhost qlen",
    "upcalls/it",
    "cycles/upcall",
];

fn histograms(out: &mut String, m: &MetricsView) {
    let line = |cells: Vec<String>| format!("   {}\n", cells.join("  "));
    let head = |names: [&str; 7]| line(names.iter().map(|n| format!("{n:<21}")).collect());
    out.push_str("Histograms\n");
    out.push_str(&head(COLUMNS));
    for i in 0..BINS {
        let edge = |edge: u32| if i + 1 < BINS { edge.to_string() } else { ">".into() };
        let cell = |h: &Histogram| format!("{:<9} {:<11}", edge(h[i].0), h[i].1);
        out.push_str(&line(m.histograms.iter().map(cell).collect()));
    }
    out.push_str(&"-".repeat(154));
    out.push('\n');
    let mut names = COLUMNS;
    names[4] = "vhost qlen";
    out.push_str(&head(names));
    let t = &m.total;
    let whole = |a: u64, b: u64| format!("{:<21}", a.checked_div(b).unwrap_or(0));
    let mean = |a: u64, b: u64| format!("{:<21.5}", per(a, b));
    out.push_str(&line(vec![
        whole(t.cycles, t.iterations),
        mean(t.packets, t.iterations),
        whole(t.busy_cycles, t.packets),
        mean(t.packets, t.bursts),
        mean(0, t.iterations),
        mean(t.misses, t.iterations),
        whole(t.miss_cycles, t.misses),
    ]));
}

/// `n` iterations, as far as they are known.
pub fn iteration_table(all: &[Iteration], n: usize) -> String {
    let mut out = format!(
        "   {:<17}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}\n",
        "iter",
        "cycles",
        "packets",
        "cycles/pkt",
        "pkts/batch",
        "vhost qlen",
        "upcalls",
        "cycles/upcall"
    );
    for i in all.iter().take(n) {
        let _ = writeln!(
            out,
            "   {:<17}   {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}",
            i.stamp,
            i.cycles,
            i.packets,
            mean(i.cycles, i.packets),
            mean(i.packets, i.bursts),
            0,
            i.misses,
            mean(i.miss_cycles, i.misses)
        );
    }
    out
}

/// The mean of single iterations, in whole numbers; 0 if there were none.
fn mean(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(0)
}

fn milliseconds(out: &mut String, all: &[Iteration], n: usize) {
    let _ = writeln!(
        out,
        "   {:<12}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}",
        "ms",
        "iterations",
        "cycles/it",
        "Kpps",
        "cycles/pkt",
        "pkts/batch",
        "vhost qlen",
        "upcalls",
        "cycles/upcall"
    );
    for ms in all.iter().take(n) {
        let _ = writeln!(
            out,
            "   {:<12}   {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}",
            ms.stamp,
            ms.iterations,
            mean(ms.cycles, ms.iterations),
            ms.packets,
            mean(ms.busy_cycles, ms.packets),
            mean(ms.packets, ms.bursts),
            0,
            ms.misses,
            mean(ms.miss_cycles, ms.misses)
        );
    }
}

/// `dpif-netdev/pmd-perf-log-set`: which iterations are logged, if `pmd-perf-metrics` is
/// on.
pub fn log_set(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut settings = s.dp.settings().clone();
    settings.perf_log = log_options(settings.perf_log, args).ok_or(
        "Usage: ovs-appctl dpif-netdev/pmd-perf-log-set [on|off] [-b before] [-a after] [-e|-ne] \
         [-us usec] [-q qlen]",
    )?;
    let l = settings.perf_log;
    vlog::info!(
        MODULE,
        "pmd-perf-log-set: {}, before={}, after={}, extend={}, us_thr={}, q_thr={}",
        if l.on { "on" } else { "off" },
        l.before,
        l.after,
        l.extend,
        l.longest_us,
        l.ring_fill
    );
    s.dp.set_settings(settings);
    Ok(String::new())
}

/// Reads the arguments; None: they are wrong.
fn log_options(mut log: PerfLog, mut args: &[String]) -> Option<PerfLog> {
    const MOST: usize = HISTORY - 2;
    while let [option, rest @ ..] = args {
        args = rest;
        match option.as_str() {
            "on" => log.on = true,
            "off" => log.on = false,
            "-e" => log.extend = true,
            "-ne" => log.extend = false,
            "-a" | "-b" | "-us" | "-q" => {
                let [n, rest @ ..] = rest else { return None };
                let n: u32 = n.parse().ok()?;
                args = rest;
                match option.as_str() {
                    "-a" => log.after = (n as usize).min(MOST),
                    "-b" => log.before = (n as usize).min(MOST),
                    "-us" => log.longest_us = n.into(),
                    _ => log.ring_fill = n.into(),
                }
            }
            _ => return None,
        }
    }
    log.after = log.after.min(MOST - log.before);
    Some(log)
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
    let _ = writeln!(
        out,
        "  - sleep iterations: {:12}  ({:5.1} % of iterations)",
        p.sleep_iterations,
        share(p.sleep_iterations, p.iterations)
    );
    let slept = p.sleep_cycles as f64 / hz * 1e6;
    let _ = writeln!(
        out,
        "  Sleep time (us):    {slept:12.0}  ({:3.0} us/iteration avg.)",
        us(p.sleep_cycles, p.sleep_iterations)
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
        let _ = writeln!(out, "  Tx packets:         {:12}\n", 0);
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
        ("PHWOL hits:    ", p.mark_hits),
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

/// Cycles of each stage, deciding misses as a part of lookup; ovs-vswitchd has no such lines.
fn stages(out: &mut String, p: &Perf) {
    if p.validated() > 0 {
        let _ = writeln!(
            out,
            "  Validated:          {:12}  (parse {}, lookup {}, direct {}, decapsulation {}, act {}, differences {})",
            p.validated(),
            p.parse_validated,
            p.lookup_validated,
            p.direct_validated,
            p.tunnel_validated,
            p.act_validated,
            p.differences
        );
    }
    if p.rx_packets == 0 {
        return;
    }
    for (dashes, stage, cycles) in [
        ("- ", "rx", p.rx_cycles),
        ("- ", "parse", p.parse_cycles),
        ("- ", "lookup", p.lookup_cycles),
        ("--", "misses", p.miss_cycles),
        ("- ", "act, tx", p.act_cycles),
    ] {
        let (name, each) = (format!("cycles of {stage}:"), per(cycles, p.rx_packets));
        let _ = writeln!(out, "  {dashes}{name:<18}{cycles:13}  ({each:.1} cycles/pkt)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn options_come_first_and_numbers_may_be_nonsense() {
        for (text, histograms, iterations, milliseconds, rest) in [
            ("", true, 0, 0, ""),
            ("-nh -it 5 -ms 7 -pmd 1", false, 5, 7, "-pmd 1"),
            ("-it x -ms -4 dp", true, 0, 0, "dp"),
            ("-it 5000 -ms 12x -nh", false, HISTORY, 12, ""),
            ("-it", true, 0, 0, "-it"),
            ("-pmd 1 -nh", true, 0, 0, "-pmd 1 -nh"),
        ] {
            let args = words(text);
            let want = Show { histograms, iterations, milliseconds };
            assert_eq!(Show::read(&args), (want, &words(rest)[..]), "{text}");
        }
    }

    #[test]
    fn log_options_are_checked() {
        let log = |text: &str| log_options(PerfLog::default(), &words(text));
        let all = log("on -b 10 -a 20 -e -us 100 -q 64").unwrap();
        let want = PerfLog {
            on: true,
            before: 10,
            after: 20,
            extend: true,
            longest_us: 100,
            ring_fill: 64,
        };
        assert_eq!(all, want);
        let most = log("-b 2000 -a 2000 -ne").unwrap();
        assert_eq!((most.before, most.after, most.extend), (HISTORY - 2, 0, false));
        for wrong in ["-a", "-a x", "-us -1", "maybe", "on 5"] {
            assert_eq!(log(wrong), None, "{wrong}");
        }
    }
}
