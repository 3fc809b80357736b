//! `fdb/*`, `ofproto/list`, `bridge/*`.

use super::command::{Handler, Job, bridge};
use super::flow_dump::in_turns;
use crate::housekeeping::take_in;
use crate::state::{State, collect};
use ofproto::{BridgeId, MacEntry, instructions_text};
use openflow::{FlowSelect, FlowStats};
use std::fmt::Write;

/// Flows that a piece of a dump is made of at a time, how often, and bytes after which it ends:
/// a flow may have 200 kB of text.
const PART_FLOWS: usize = 16;
const PIECE_PARTS_MAX: usize = 32;
const PIECE_BYTES: usize = 1 << 16;

/// Rows of a table that are shown at once, the oldest first. A longer table is shown in turns, in
/// an order of its own.
pub(super) const ROWS_AT_ONCE_MAX: usize = 16_384;
/// Places of a longer table that are looked at in one turn.
pub(super) const ROWS_PER_TURN: usize = 2048;

/// Learned addresses.
pub fn show(s: &mut State, args: &[String]) -> Result<Job, String> {
    let id = bridge(s, &args[0])?;
    let title = " port  VLAN  MAC                Age\n";
    Ok(rows(title, move |s, from, out| some(s, id, from, out)))
}

/// A command that shows rows under a title when what packets taught so far is known. `some` writes
/// those from a place on, and returns where it goes on in the next turn.
pub(super) fn rows<P: Copy + 'static>(
    title: &str,
    some: impl Fn(&State, Option<P>, &mut String) -> Option<P> + 'static,
) -> Job {
    let (mut out, mut place) = (title.to_string(), None);
    let turn = move |s: &mut State| {
        place = some(s, place, &mut out);
        (std::mem::take(&mut out), place.is_some())
    };
    Box::new(move |state, reply| {
        Box::pin(async move {
            take_in(&state).await;
            collect(&state).await;
            let job = in_turns(&state.borrow(), None, turn);
            job(state, reply).await;
        })
    })
}

/// Writes some learned addresses, or all if they are few; the place to go on from.
fn some(s: &State, id: BridgeId, from: Option<usize>, out: &mut String) -> Option<usize> {
    let now = s.now_ns();
    let few = |stats: ofproto::MacStats| stats.current <= ROWS_AT_ONCE_MAX;
    if from.is_none() && s.ofproto.fdb_stats(id).is_ok_and(few) {
        s.ofproto.fdb(id).into_iter().flatten().for_each(|e| line(&e, now, out));
        return None;
    }
    s.ofproto.fdb_from(id, from.unwrap_or(0), ROWS_PER_TURN, &mut |e| {
        line(e, now, out);
        true
    })
}

fn line(e: &MacEntry, now: u64, out: &mut String) {
    let (port, [a, b, c, d, f, g]) = (number(e.port), e.mac);
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{f:02x}:{g:02x}");
    let age = match e.fixed {
        true => "static".into(),
        false => format!("{:3}", now.saturating_sub(e.used) / 1_000_000_000),
    };
    let _ = writeln!(out, "{port:>5}  {:4}  {mac}  {age}", e.vlan);
}

/// A command that is carried out when what packets taught so far is known.
pub(super) fn collected(args: &[String], run: Handler) -> Job {
    let args = args.to_vec();
    Box::new(move |state, reply| {
        Box::pin(async move {
            take_in(&state).await;
            collect(&state).await;
            let answer = run(&mut state.borrow_mut(), &args);
            reply.send(answer);
        })
    })
}

/// An OpenFlow port as a number, or by its name if that is reserved.
pub fn number(port: u32) -> String {
    if port == openflow::port::LOCAL { "LOCAL".into() } else { port.to_string() }
}

/// Forgets learned addresses.
pub fn flush(s: &mut State, args: &[String]) -> Result<Job, String> {
    args.first().map(|name| bridge(s, name)).transpose()?;
    Ok(collected(args, flushed))
}

fn flushed(s: &mut State, args: &[String]) -> Result<String, String> {
    let ids = match args.first() {
        Some(name) => vec![bridge(s, name)?],
        None => s.bridges.values().map(|b| b.id).collect(),
    };
    for id in ids {
        let _ = s.ofproto.fdb_flush(id);
    }
    s.flush_changes();
    Ok("table successfully flushed\n".into())
}

/// What ovs-vswitchd says of a port that the bridge does not have.
const NO_PORT: &str = "software error, odp port is present but no ofp port";

/// A static entry.
pub fn add(s: &mut State, args: &[String]) -> Result<String, String> {
    let id = bridge(s, &args[0])?;
    let ports = &s.bridges[&args[0]].ifaces;
    let port = ports.get(&args[1]).and_then(|i| i.of_port).ok_or(NO_PORT)?;
    let mac = crate::ports::parse_mac(&args[3]).ok_or("bad MAC address")?;
    let now = s.now_ns();
    let added = s.ofproto.fdb_add(id, port, vlan(&args[2])?, mac, now);
    let before = added.map_err(|e| e.to_string())?;
    s.flush_changes();
    let before = before.filter(|e| !e.fixed || e.port != port);
    Ok(before.map_or(String::new(), |e| {
        let kind = if e.fixed { "static" } else { "dynamic" };
        format!("Overriding already existing {kind} entry on {}\n", number(e.port))
    }))
}

/// Removes a static entry.
pub fn del(s: &mut State, args: &[String]) -> Result<String, String> {
    let id = bridge(s, &args[0])?;
    let mac = crate::ports::parse_mac(&args[2]).ok_or("bad MAC address")?;
    let was = s.ofproto.fdb_del(id, vlan(&args[1])?, mac).map_err(|e| e.to_string())?;
    s.flush_changes();
    if was { Ok(String::new()) } else { Err("could not find static mac entry".into()) }
}

fn vlan(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|v| *v < 4096).ok_or_else(|| format!("{text}: bad VLAN"))
}

/// Counters of the learning table.
pub fn stats_show(s: &mut State, args: &[String]) -> Result<String, String> {
    let id = bridge(s, &args[0])?;
    let f = s.ofproto.fdb_stats(id).map_err(|e| e.to_string())?;
    let mut out = format!(
        "Statistics for bridge \"{}\":\n  Current/maximum MAC entries in the table: {}/{}\n  \
         Current static MAC entries in the table : {}\n  Total number of learned MAC entries     : {}\n  \
         Total number of expired MAC entries     : {}\n  Total number of evicted MAC entries     : {}\n  \
         Total number of port moved MAC entries  : {}\n",
        args[0], f.current, f.max, f.fixed, f.learned, f.expired, f.evicted, f.moved
    );
    for (port, n) in s.ofproto.fdb_limited(id).map_err(|e| e.to_string())? {
        let name = s.ofproto.port(id, port).map_or("", |p| &p.name);
        let _ = writeln!(out, "  MAC addresses not learned, over the rate of port {name}: {n}");
    }
    Ok(out)
}

/// Zeroes them.
pub fn stats_clear(s: &mut State, args: &[String]) -> Result<String, String> {
    let ids = match args.first() {
        Some(name) => vec![bridge(s, name)?],
        None => s.bridges.values().map(|b| b.id).collect(),
    };
    for id in ids {
        let _ = s.ofproto.fdb_clear_stats(id);
    }
    Ok("statistics successfully cleared\n".into())
}

/// Names of the bridges.
pub fn list(s: &mut State, _: &[String]) -> Result<String, String> {
    Ok(s.bridges.keys().map(|n| format!("{n}\n")).collect())
}

/// Drops the bridge's controllers' connections; they come back.
pub fn reconnect(s: &mut State, args: &[String]) -> Result<String, String> {
    if let Some(name) = args.first() {
        bridge(s, name).map_err(|_| "Unknown bridge")?;
    }
    let only = args.first().cloned();
    s.conns
        .retain(|_, c| c.kind.target().is_none() || only.as_ref().is_some_and(|b| *b != c.bridge));
    Ok(String::new())
}

/// All flows of a bridge, hidden ones included.
pub fn bridge_dump_flows(s: &mut State, args: &[String]) -> Result<Job, String> {
    let name = args.last().ok_or("bridge name missing")?;
    let id = bridge(s, name).map_err(|_| "Unknown bridge")?;
    let offload = args.iter().any(|a| a == "--offload-stats");
    let asked = s.applied.other_config.get("hw-offload").is_some_and(|on| on == "true");
    if offload && asked {
        return Err(
            "what adapters forward is counted by megaflow (offload/show), not by flow".into()
        );
    }
    let mut dump = None;
    let turn = move |s: &mut State| match &mut dump {
        None => match s.ofproto.dump(id, &FlowSelect::default()) {
            Ok(begun) => {
                dump = Some(begun);
                (before_flows(s, id, offload), true)
            }
            Err(e) => (format!("{e}\n"), false),
        },
        Some(dump) => next_flows(s, dump, offload),
    };
    Ok(Box::new(move |state, reply| {
        Box::pin(async move {
            collect(&state).await;
            let job = in_turns(&state.borrow(), None, turn);
            job(state, reply).await;
        })
    }))
}

/// What comes before the flows that controllers see.
fn before_flows(s: &State, id: BridgeId, offload: bool) -> String {
    let mut out = String::new();
    if s.ofproto.bridge_config(id).is_some_and(|c| c.fail_open) {
        out.push_str("duration=0s, n_packets=0, n_bytes=0, priority=15790320,actions=NORMAL\n");
    }
    for (priority, f) in s.ofproto.hidden_flows(id, s.now_ns()) {
        write_flow(priority, &f, offload, &mut out);
    }
    out
}

/// Some of the next flows; true: there are more.
fn next_flows(s: &State, dump: &mut ofproto::Dump, offload: bool) -> (String, bool) {
    let (mut out, mut more, now) = (String::new(), true, s.now_ns());
    for _ in 0..PIECE_PARTS_MAX {
        let each = &mut |f: FlowStats| write_flow(f.priority.into(), &f, offload, &mut out);
        more = s.ofproto.dump_next(dump, PART_FLOWS, now, each);
        if !more || out.is_empty() || out.len() >= PIECE_BYTES {
            break;
        }
    }
    (out, more)
}

/// `offload`: what adapters forward is asked for, and none does.
fn write_flow(priority: u32, f: &FlowStats, offload: bool, out: &mut String) {
    let seconds = f.duration_ns / 1_000_000_000;
    let (packets, bytes, line) = (f.packets, f.bytes, flow_line(priority, f));
    let offload = if offload { "n_offload_packets=0, n_offload_bytes=0, " } else { "" };
    let table = if f.table == 0 { String::new() } else { format!("table_id={}, ", f.table) };
    let counts = format!("duration={seconds}s, n_packets={packets}, n_bytes={bytes}, {offload}");
    let _ = writeln!(out, "{table}{counts}{line}");
}

/// The priority that is not printed.
const DEFAULT_PRIORITY: u32 = 0x8000;

/// Priority, match and actions of a flow.
fn flow_line(priority: u32, f: &FlowStats) -> String {
    let names = |_| None;
    let matching = flow::match_text(&f.matching.key, &f.matching.mask, &f.matching.tun, &names);
    let actions = instructions_text(&f.instructions);
    let priority = match priority {
        DEFAULT_PRIORITY => String::new(),
        p if matching.is_empty() => format!("priority={p}"),
        p => format!("priority={p},"),
    };
    format!("{priority}{matching},actions={actions}")
}
