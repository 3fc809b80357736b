//! `dpctl/ipf-*`: fragments that wait for the rest of their datagram.

use super::conntrack::{INVALID, fail, plain};
use super::{Command, command};
use crate::state::State;
use conntrack::ipf::{FRAGMENT_COUNT_NAMES, FragmentCount, FragmentSettings};
use std::fmt::Write;

/// Commands about fragments.
pub const COMMANDS: &[Command] = &[
    command("dpctl/ipf-get-status", "[dp]", 0, 2, status),
    command("dpctl/ipf-set-disabled", "[dp] v4|v6", 1, 2, |s, a| set_on(s, a, false)),
    command("dpctl/ipf-set-enabled", "[dp] v4|v6", 1, 2, |s, a| set_on(s, a, true)),
    command("dpctl/ipf-set-max-nfrags", "[dp] maxfrags", 1, 2, set_most),
    command("dpctl/ipf-set-min-frag", "[dp] v4|v6 minfragment", 2, 3, set_bytes_min),
];

const REFUSED: &str = "Operation not permitted";
/// In order of [`FRAGMENT_COUNT_NAMES`].
const COUNTED: [FragmentCount; FRAGMENT_COUNT_NAMES.len()] = [
    FragmentCount::Accepted,
    FragmentCount::Completed,
    FragmentCount::Expired,
    FragmentCount::TooSmall,
    FragmentCount::Overlapped,
    FragmentCount::Purged,
];

fn settings(s: &State) -> &FragmentSettings {
    &s.dp.conntrack().fragments
}

/// Reads `v4` or `v6`; true: IPv6.
fn version(arg: Option<&String>, otherwise: &str) -> Result<bool, String> {
    match arg.map(String::as_str) {
        Some("v4") => Ok(false),
        Some("v6") => Ok(true),
        _ => fail(otherwise, INVALID),
    }
}

fn number(arg: Option<&String>, of: &str) -> Result<u32, String> {
    let parsed = arg.and_then(|a| a.parse().ok());
    parsed.map_or_else(|| fail(&format!("parameter missing for {of}"), INVALID), Ok)
}

fn set_on(s: &mut State, args: &[String], on: bool) -> Result<String, String> {
    let v6 = version(plain(args, 1)?.first(), "parameter missing: 'v4' for IPv4 or 'v6' for IPv6")?;
    settings(s).set_on(v6, on);
    let verb = if on { "enabling" } else { "disabling" };
    Ok(format!("{verb} fragmentation reassembly successful\n"))
}

fn set_bytes_min(s: &mut State, args: &[String]) -> Result<String, String> {
    let args = plain(args, 2)?;
    let v6 = version(args.first(), "parameter missing: v4 for IPv4 or v6 for IPv6")?;
    let bytes = number(args.get(1), "minimum fragment size")?;
    match settings(s).set_bytes_min(v6, bytes) {
        true => Ok("setting minimum fragment size successful\n".into()),
        false => fail("requested minimum fragment size too small; see documentation", REFUSED),
    }
}

fn set_most(s: &mut State, args: &[String]) -> Result<String, String> {
    let n = number(plain(args, 1)?.first(), "maximum fragments")?;
    match settings(s).set_most(n) {
        true => Ok("setting maximum fragments successful\n".into()),
        false => fail("setting maximum fragments failed", REFUSED),
    }
}

fn status(s: &mut State, args: &[String]) -> Result<String, String> {
    let is_option = |a: &&String| matches!(a.as_str(), "-m" | "--more");
    let verbose = args.iter().any(|a| is_option(&a));
    let rest: Vec<String> = args.iter().filter(|a| !is_option(a)).cloned().collect();
    plain(&rest, 0)?;
    let f = settings(s);
    let mut out = format!("{0:8}Fragmentation Module Status\n{0:8}{1}\n", "", "-".repeat(27));
    let mut line = |text: &str, n: u64| {
        let _ = writeln!(out, "{:8}{text}: {n}", "");
    };
    line("v4 enabled", f.is_on(false).into());
    line("v6 enabled", f.is_on(true).into());
    line("max num frags (v4/v6)", f.most().into());
    line("num frag", f.waiting().into());
    for (v6, version) in [(false, "v4"), (true, "v6")] {
        line(&format!("min {version} frag size"), f.bytes_min(v6).into());
        for (name, what) in FRAGMENT_COUNT_NAMES.iter().zip(COUNTED) {
            line(&format!("{version} {name}"), f.counted(v6, what));
        }
    }
    if verbose {
        out += &lists(s);
    }
    Ok(out)
}

/// The datagrams that wait.
fn lists(s: &State) -> String {
    let mut out = format!("\n{:8}Fragment Lists:\n\n", "");
    s.dp.fragments(|datagram, count, seen| {
        let address = |n| conntrack::address(n, datagram.v6);
        let _ = writeln!(
            out,
            "(src={},dst={},recirc_id={},ip_id={},dl_type=0x{},zone={},nw_proto={},num_fragments={count},state={})",
            address(datagram.src),
            address(datagram.dst),
            datagram.recirc,
            datagram.id,
            if datagram.v6 { "86dd" } else { "800" },
            datagram.zone,
            datagram.proto,
            match seen {
                [false, false] => "other frag",
                [true, false] => "first frag",
                [false, true] => "last frag",
                [true, true] => "first/last frag",
            },
        );
    });
    out
}
