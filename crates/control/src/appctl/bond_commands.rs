//! `bond/...` and `lacp/...`, in ovs-vswitchd's words.

use super::{Command, command};
use crate::bonds;
use crate::state::State;
use crate::unixctl::UNLISTED;

/// Commands about bonds. Those with `slave` are older names, which ovs-vswitchd has, too.
pub const COMMANDS: &[Command] = &[
    command("bond/disable-member", "port member", 2, 2, disable),
    command("bond/disable-slave", UNLISTED, 2, 2, disable),
    command("bond/enable-member", "port member", 2, 2, enable),
    command("bond/enable-slave", UNLISTED, 2, 2, enable),
    command("bond/hash", "mac [vlan] [basis]", 1, 3, hash),
    command("bond/list", "", 0, 0, list),
    command("bond/migrate", "port hash member", 3, 3, migrate),
    command("bond/set-active-member", "port member", 2, 2, set_active),
    command("bond/set-active-slave", UNLISTED, 2, 2, set_active),
    command("bond/show", "[port]", 0, 1, show),
    command("lacp/show", "[port]", 0, 1, show_lacp),
    command("lacp/show-stats", "[port]", 0, 1, show_lacp_stats),
];

/// The texts of one object, or of all; error: there is no such object.
fn wanted<'a>(
    all: impl Iterator<Item = (&'a String, String)>,
    args: &[String],
    error: &str,
) -> Result<String, String> {
    let named = all.filter(|(name, _)| args.first().is_none_or(|arg| arg == *name));
    let texts: Vec<String> = named.map(|(_, text)| text).collect();
    if texts.is_empty() && !args.is_empty() { Err(error.into()) } else { Ok(texts.concat()) }
}

fn list(s: &mut State, _: &[String]) -> Result<String, String> {
    Ok(format!("bond\ttype\trecircID\tmembers\n{}", s.bonds.list()))
}

fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    wanted(s.bonds.show(s.now_ms()), args, "no such bond")
}

fn show_lacp(s: &mut State, args: &[String]) -> Result<String, String> {
    wanted(s.bonds.show_lacp(), args, "no such lacp object")
}

fn show_lacp_stats(s: &mut State, args: &[String]) -> Result<String, String> {
    wanted(s.bonds.show_lacp_stats(), args, "no such lacp object")
}

/// Changes a bond; what follows takes effect at once.
fn change(
    s: &mut State,
    name: &str,
    how: impl FnOnce(&mut bonds::Bond) -> Result<&'static str, &'static str>,
) -> Result<String, String> {
    let bond = s.bonds.bond_mut(name).ok_or("no such bond")?;
    let answer = how(bond)?;
    bonds::turn(s);
    Ok(answer.into())
}

fn enable(s: &mut State, args: &[String]) -> Result<String, String> {
    change(s, &args[0], |bond| bond.force(&args[1], true))
}

fn disable(s: &mut State, args: &[String]) -> Result<String, String> {
    change(s, &args[0], |bond| bond.force(&args[1], false))
}

fn migrate(s: &mut State, args: &[String]) -> Result<String, String> {
    change(s, &args[0], |bond| bond.migrate(&args[1], &args[2]))
}

fn set_active(s: &mut State, args: &[String]) -> Result<String, String> {
    change(s, &args[0], |bond| bond.set_active(&args[1]))
}

/// The bucket of a source address in a bond of mode balance-slb.
fn hash(_: &mut State, args: &[String]) -> Result<String, String> {
    let number = |at: usize, error: &'static str| match args.get(at) {
        None => Ok(0),
        Some(text) => text.parse::<u32>().map_err(|_| error),
    };
    let (vlan, basis) = (number(1, "invalid vlan")?, number(2, "invalid basis")?);
    let mac = bonds::parse_mac(&args[0]).ok_or("invalid mac")?;
    Ok(bonds::source_bucket(mac, vlan as u16 & 0xfff, basis).to_string())
}
