//! `mdb/*`: members of multicast groups, of bridges that snoop.

use super::command::{Job, bridge};
use super::fdb::{ROWS_AT_ONCE_MAX, ROWS_PER_TURN, collected, number, rows};
use crate::state::State;
use ofproto::{BridgeId, McastEntry, McastPlace};
use std::fmt::Write;

const DISABLED: &str = "multicast snooping is disabled";

/// Members and routers: of a long list some in each turn, by group.
pub fn show(s: &mut State, args: &[String]) -> Result<Job, String> {
    let id = bridge(s, &args[0])?;
    s.ofproto.mdb_len(id).ok_or(DISABLED)?;
    let title = " port  VLAN  GROUP                Age\n";
    Ok(rows(title, move |s, place, out| some(s, id, place, out)))
}

/// Writes some members and routers, or all if they are few; the place to go on behind.
fn some(
    s: &State,
    id: BridgeId,
    place: Option<McastPlace>,
    out: &mut String,
) -> Option<McastPlace> {
    let now = s.now_ns();
    if place.is_none() && s.ofproto.mdb_len(id).is_none_or(|n| n <= ROWS_AT_ONCE_MAX) {
        s.ofproto.mdb(id).into_iter().flatten().for_each(|e| line(&e, now, out));
        return None;
    }
    s.ofproto.mdb_after(id, place, ROWS_PER_TURN, &mut |e| line(&e, now, out))
}

fn line(e: &McastEntry, now: u64, out: &mut String) {
    let (port, age) = (number(e.port), now.saturating_sub(e.used) / 1_000_000_000);
    let _ = match e.group.map(|g| (g, g.to_ipv4_mapped())) {
        Some((_, Some(group))) => writeln!(out, "{port:>5}  {:4}  {group}{age:12}", e.vlan),
        Some((group, None)) => writeln!(out, "{port:>5}  {:4}  {group}{age:12}", e.vlan),
        None => writeln!(out, "{port:>5}  {:4}  querier{age:16}", e.vlan),
    };
}

/// Forgets members and routers.
pub fn flush(_: &mut State, args: &[String]) -> Result<Job, String> {
    Ok(collected(args, flushed))
}

fn flushed(s: &mut State, args: &[String]) -> Result<String, String> {
    match args.first() {
        Some(name) => {
            let id = bridge(s, name)?;
            s.ofproto.mdb_flush(id).then_some(()).ok_or(DISABLED)?;
        }
        None => {
            let all: Vec<_> = s.bridges.values().map(|b| b.id).collect();
            all.into_iter().for_each(|id| _ = s.ofproto.mdb_flush(id));
        }
    }
    s.flush_changes();
    Ok("table successfully flushed\n".into())
}
