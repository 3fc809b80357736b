//! `bfd/show` and `bfd/set-forwarding`, in ovs-vswitchd's words.

use super::{Command, command};
use crate::oam::bfd;
use crate::state::State;

/// All of them.
pub const COMMANDS: &[Command] = &[
    command("bfd/set-forwarding", "[interface] normal|false|true", 1, 2, set_forwarding),
    command("bfd/show", "[interface]", 0, 1, show),
];

fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut all = s.bfd.show(s.now_ms());
    match args.first() {
        None => Ok(all.map(|(iface, text)| format!("---- {iface} ----\n{text}")).collect()),
        Some(wanted) => {
            let found = all.find(|(iface, _)| iface == wanted);
            found.map(|(_, text)| text).ok_or_else(|| "no such bfd object".into())
        }
    }
}

fn set_forwarding(s: &mut State, args: &[String]) -> Result<String, String> {
    let (iface, value) = match args {
        [iface, value] => (Some(iface.as_str()), value),
        _ => (None, &args[0]),
    };
    let forced = match value.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        "normal" => None,
        _ => return Err("unknown fault string".into()),
    };
    let unknown = |()| "no such BFD object".to_string();
    bfd::set_forwarding(s, iface, forced).map_err(unknown).map(|()| "OK\n".into())
}
