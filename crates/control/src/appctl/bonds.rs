//! `bond/show` and `bond/list`: bonds as they work, in ovs-vswitchd's layout. The first live
//! interface carries all packets.

use super::{Command, command};
use crate::config::PortConf;
use crate::state::State;
use ofproto::{BridgeId, PortSpec, Switch};
use std::fmt::Write;

/// All of them.
pub const COMMANDS: &[Command] =
    &[command("bond/list", "", 0, 0, list), command("bond/show", "[port]", 0, 1, show)];

/// The interface that carries a bond's packets; None when no link is up.
pub fn active<'a>(ofproto: &'a Switch, bridge: BridgeId, bond: &str) -> Option<&'a PortSpec> {
    ofproto.ports(bridge).find(|p| p.bundle == bond && p.live())
}

/// Ports of more than one interface.
fn bonds(s: &State) -> impl Iterator<Item = (BridgeId, &PortConf)> {
    let ports = s.bridges.values().flat_map(|b| b.conf.ports.iter().map(|p| (b.id, p)));
    ports.filter(|(_, port)| port.interfaces.len() > 1)
}

fn list(s: &mut State, _: &[String]) -> Result<String, String> {
    let mut text = String::from("bond\ttype\trecircID\tmembers\n");
    for (_, bond) in bonds(s) {
        let members: Vec<_> = bond.interfaces.iter().map(|i| i.name.as_str()).collect();
        let _ = writeln!(text, "{}\tactive-backup\t0\t{}", bond.name, members.join(", "));
    }
    Ok(text)
}

fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let wanted = |name: &str| args.first().is_none_or(|arg| arg == name);
    let all: String =
        bonds(s).filter(|(_, b)| wanted(&b.name)).map(|(id, b)| about(s, id, b)).collect();
    if all.is_empty() && !args.is_empty() { Err("no such bond".into()) } else { Ok(all) }
}

fn about(s: &State, bridge: BridgeId, bond: &PortConf) -> String {
    let active = active(&s.ofproto, bridge, &bond.name);
    let mac = active.map_or("00:00:00:00:00:00(none)".to_string(), |p| {
        format!("{}({})", p.hw_addr.map(|byte| format!("{byte:02x}")).join(":"), p.name)
    });
    let mut text = format!(
        "---- {} ----\nbond_mode: active-backup\nbond may use recirculation: no, Recirc-ID : -1\n\
         bond-hash-basis: 0\nlb_output action: disabled, bond-id: -1\nupdelay: 0 ms\ndowndelay: 0 ms\n\
         lacp_status: off\nlacp_fallback_ab: false\nactive-backup primary: <none>\nactive member mac: {mac}\n",
        bond.name
    );
    for member in &bond.interfaces {
        let live = s.ofproto.ports(bridge).any(|p| p.name == member.name && p.live());
        let state = if live { "enabled" } else { "disabled" };
        let _ = writeln!(text, "\nmember {}: {state}", member.name);
        if active.is_some_and(|p| p.name == member.name) {
            text += "  active member\n";
        }
        let _ = writeln!(text, "  may_enable: {live}");
    }
    text + "\n"
}
