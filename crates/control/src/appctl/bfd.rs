//! `bfd/show` and `bfd/set-forwarding`, in ovs-vswitchd's words.

use super::{Command, command};
use crate::oam::bfd;
use crate::state::State;

/// Commands about BFD.
pub const COMMANDS: &[Command] = &[
    command("bfd/set-forwarding", "[interface] normal|false|true", 1, 2, set_forwarding),
    command("bfd/show", "[interface]", 0, 1, show),
];

fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut all = s.oam.bfd.show(s.now_ms());
    match args.first() {
        None => Ok(all.map(|(iface, text)| format!("---- {iface} ----\n{text}")).collect()),
        Some(wanted) => {
            let found = all.find(|(iface, _)| iface == wanted);
            found.map(|(_, text)| text).ok_or_else(|| "no such bfd object".into())
        }
    }
}

fn set_forwarding(s: &mut State, args: &[String]) -> Result<String, String> {
    let (iface, forced) = super::forced(args)?;
    let unknown = |()| "no such BFD object".to_string();
    bfd::set_forwarding(s, iface, forced).map_err(unknown).map(|()| "OK\n".into())
}
