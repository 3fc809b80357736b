//! `mdb/*`: members of multicast groups, of bridges that snoop.

use super::command::{Job, bridge};
use super::fdb::{collected, number};
use crate::state::State;
use std::fmt::Write;

const DISABLED: &str = "multicast snooping is disabled";

/// Members and routers.
pub fn show(s: &mut State, args: &[String]) -> Result<Job, String> {
    bridge(s, &args[0])?;
    Ok(collected(args, shown))
}

fn shown(s: &mut State, args: &[String]) -> Result<String, String> {
    let id = bridge(s, &args[0])?;
    let now = s.now_ns();
    let mut out = String::from(" port  VLAN  GROUP                Age\n");
    for e in s.ofproto.mdb(id).ok_or(DISABLED)? {
        let (port, age) = (number(e.port), now.saturating_sub(e.used) / 1_000_000_000);
        let _ = match e.group.map(|g| (g, g.to_ipv4_mapped())) {
            Some((_, Some(group))) => writeln!(out, "{port:>5}  {:4}  {group}{age:12}", e.vlan),
            Some((group, None)) => writeln!(out, "{port:>5}  {:4}  {group}{age:12}", e.vlan),
            None => writeln!(out, "{port:>5}  {:4}  querier{age:16}", e.vlan),
        };
    }
    Ok(out)
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
