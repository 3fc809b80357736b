//! `mdb/*`: members of multicast groups, of bridges that snoop.

use super::bridge;
use super::fdb::number;
use crate::state::State;
use std::fmt::Write;

const DISABLED: &str = "multicast snooping is disabled";

/// Members and routers.
pub fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let id = bridge(s, &args[0])?;
    // What packets before the command taught is shown.
    crate::housekeeping::poll_datapath_fully(s);
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
pub fn flush(s: &mut State, args: &[String]) -> Result<String, String> {
    crate::housekeeping::poll_datapath_fully(s);
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
