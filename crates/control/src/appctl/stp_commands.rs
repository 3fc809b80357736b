//! `stp/...` and `rstp/...`, in ovs-vswitchd's words.

use super::{Command, command};
use crate::state::State;
use crate::trees;

/// Commands about spanning trees.
pub const COMMANDS: &[Command] = &[
    command("rstp/show", "[bridge]", 0, 1, |s, args| show(s, args, true)),
    command("rstp/tcn", "[bridge]", 0, 1, |s, args| change(s, args, true)),
    command("stp/show", "[bridge]", 0, 1, |s, args| show(s, args, false)),
    command("stp/tcn", "[bridge]", 0, 1, |s, args| change(s, args, false)),
];

/// A bridge has no such tree.
fn unknown(rapid: bool) -> String {
    if rapid { "No such RSTP object" } else { "no such stp object" }.into()
}

fn show(s: &mut State, args: &[String], rapid: bool) -> Result<String, String> {
    let named = s.trees.show(rapid).filter(|(name, _)| args.first().is_none_or(|arg| arg == *name));
    let texts: Vec<String> = named.map(|(_, text)| text).collect();
    match texts.is_empty() && !args.is_empty() {
        true => Err(unknown(rapid)),
        false => Ok(texts.concat()),
    }
}

fn change(s: &mut State, args: &[String], rapid: bool) -> Result<String, String> {
    let bridge = args.first().map(String::as_str);
    let changed = trees::change_topology(s, bridge, rapid);
    changed.map_err(|()| unknown(rapid)).map(|()| "OK\n".into())
}
