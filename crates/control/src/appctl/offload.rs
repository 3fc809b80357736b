//! `offload/*` and `dpctl/offload-stats-show`: what adapters do, and why not more.

use super::dpctl::{self, Style};
use super::{Job, flow_dump};
use crate::offload::{rule_counts, show_refusals, worth_text};
use crate::state::State;
use datapath::FlowDump;
use offload::REASONS;
use std::fmt::Write;

/// `dpctl/offload-stats-show [dp]`.
pub fn stats(s: &mut State, args: &[String]) -> Result<String, String> {
    dpctl::check_name(s, args)?;
    let o = &s.offload;
    if !o.enabled {
        return Err("ovs-vswitchd: retrieving offload statistics (Invalid argument)".into());
    }
    const NAMES: [&str; 6] = [
        "Enqueued offloads",
        "Inserted offloads",
        "Cumulative Average latency (us)",
        "Cumulative Latency stddev (us)",
        "Exponential Average latency (us)",
        "Exponential Latency stddev (us)",
    ];
    let of_thread = |i: usize| -> [u64; 6] {
        let [a, b, c, d] = o.threads[i].latency.all();
        [o.waiting_of(i) as u64, o.rules_of(i) as u64, a, b, c, d]
    };
    let all: Vec<[u64; 6]> = (0..o.threads.len()).map(of_thread).collect();
    let mut out = String::from("HW Offload stats:\n");
    let mut line = |who: &str, i: usize, n: u64| {
        let _ = writeln!(out, "   {who} {:>33}: {n:>6}", NAMES[i]);
    };
    for i in 0..NAMES.len() {
        let sum: u64 = all.iter().map(|t| t[i]).sum();
        line("  Total", i, if i < 2 { sum } else { sum / all.len().max(1) as u64 });
    }
    for (n, thread) in all.iter().enumerate() {
        thread.iter().enumerate().for_each(|(i, v)| line(&format!("  [{n:>3}]"), i, *v));
    }
    Ok(out)
}

/// `offload/show [PORT]`: each adapter's rules, and all megaflows by reason.
pub fn show(s: &mut State, args: &[String]) -> Result<Job, String> {
    let port = args.first().cloned();
    if let Some(name) = &port
        && !s.offload.ports.values().any(|e| e.name == *name)
    {
        return Err(format!("{name}: no port with an adapter"));
    }
    let now = s.now_ms();
    let count = move |s: &State, f: &FlowDump, counts: &mut [u64; REASONS.len()]| {
        counts[s.offload.reason(now, f).index()] += 1;
    };
    let end = move |s: &State, counts: &[u64; REASONS.len()]| {
        let mut out = adapters(s, port.as_deref());
        let _ = writeln!(out, "megaflows: {}", counts.iter().sum::<u64>());
        for ((name, text), n) in REASONS.iter().zip(counts).filter(|(_, n)| **n > 0) {
            let _ = writeln!(out, "  {name:<20} {n:>8}  {text}");
        }
        out
    };
    Ok(flow_dump::survey(s, [0; REASONS.len()], count, end))
}

/// The adapters' rules, of all ports or of one.
fn adapters(s: &State, port: Option<&str>) -> String {
    let (o, mut out) = (&s.offload, String::new());
    for e in o.ports.values().filter(|e| port.is_none_or(|name| name == e.name)) {
        let (p, stats) = (&e.port, e.port.stats());
        let room = p.capacity().map_or("unknown".into(), |n| n.to_string());
        let state = if p.is_down() { "down" } else { "up" };
        let _ = writeln!(out, "{}: {state}", e.name);
        let _ = writeln!(
            out,
            "  rules: {} (room: {room}, requests waiting: {})",
            p.rules(),
            p.waiting()
        );
        let _ = writeln!(
            out,
            "  insertion: {:.0} us, worth it from {:.0} packets/s on",
            p.create_us(),
            p.enter_pps()
        );
        let _ = writeln!(out, "  {}, flushes: {}", rule_counts(&stats.rules), stats.flushes);
        let _ = writeln!(out, "  marks: {}", worth_text(&e.judge));
        if let Some(full) = &e.full {
            full.show(&mut out);
        }
        let silence = o.silence_of(e).as_secs();
        if silence > 0 {
            let _ = writeln!(out, "  no answer for {silence} s");
        }
        let _ = writeln!(
            out,
            "  found out: {} resets, {} packets with marks of others, {} rules withdrawn for it, {} rules that marked nothing",
            stats.resets, e.wrong_packets, stats.rules.wider, stats.rules.silent
        );
        show_refusals(&mut out, "  ", &stats.rules);
    }
    if !o.ports.is_empty() {
        let (cycles, measured) = o.saved.cycles();
        let how = if measured { "measured" } else { "assumed" };
        let _ = writeln!(out, "a mark saves: {cycles:.0} cycles per packet ({how})");
    }
    let perf: Vec<_> = s.dp.pmd_info().into_iter().map(|p| p.perf).collect();
    let sum = |f: fn(&datapath::Perf) -> u64| perf.iter().map(f).sum::<u64>();
    let _ = writeln!(
        out,
        "marked packets: {} known, {} stale, {} not of their megaflow",
        sum(|p| p.mark_hits),
        sum(|p| p.mark_stale),
        sum(|p| p.mark_wrong)
    );
    out.push_str(&o.waits.text());
    out
}

/// `offload/why [UFID | TEXT]`: megaflows with this identifier, or whose text has this in it, and
/// their reasons.
pub fn why(s: &mut State, args: &[String]) -> Result<Job, String> {
    let now = s.now_ms();
    let wanted = args.first().map_or("", |a| a.strip_prefix("ufid:").unwrap_or(a)).to_string();
    let (names, style) = (dpctl::port_names(s), Style::full());
    Ok(flow_dump::search(s, "no such flow", move |s, f, out| {
        let text = dpctl::one(&s.ofproto, f, &style, &names, s.offload.how(f));
        if text.contains(&wanted) {
            let _ = write!(out, "{}", s.offload.reason(now, f));
            if let Some(why) = s.offload.why_not_full(now, f) {
                let _ = write!(out, "; not forwarded by the adapter: {why}");
            }
            let _ = write!(out, "\n{text}");
        }
    }))
}
