//! `cfm/show` and `cfm/set-fault`, in ovs-vswitchd's words.

use super::{Command, command};
use crate::oam::cfm;
use crate::state::State;

/// Commands about connectivity fault management.
pub const COMMANDS: &[Command] = &[
    command("cfm/set-fault", "[interface] normal|false|true", 1, 2, set_fault),
    command("cfm/show", "[interface]", 0, 1, show),
];

const UNKNOWN: &str = "no such CFM object";

fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut all = s.oam.cfm.show(s.now_ms());
    match args.first() {
        None => Ok(all.map(|(_, text)| text).collect()),
        Some(wanted) => all
            .find(|(iface, _)| iface == wanted)
            .map(|(_, text)| text)
            .ok_or_else(|| UNKNOWN.into()),
    }
}

fn set_fault(s: &mut State, args: &[String]) -> Result<String, String> {
    let (iface, forced) = super::forced(args)?;
    cfm::set_fault(s, iface, forced).map_err(|()| UNKNOWN.to_string()).map(|()| "OK\n".into())
}
