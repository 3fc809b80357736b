//! `ct` and the `nat` in it.

use super::error::{Parsed, err};
use super::values::number;
use super::words::Words;
use crate::action_text::subfields::parse_subfield;
use openflow::conntrack::*;
use openflow::{Action, Conntrack, Nat, Zone};
use std::net::IpAddr;

/// The arguments of a `ct`; `exec` reads the list in it.
pub(super) fn ct(text: &str, exec: impl Fn(&str) -> Parsed<Vec<Action>>) -> Parsed<Action> {
    let mut ct =
        Conntrack { flags: 0, zone: Zone::Number(0), table: None, alg: 0, actions: vec![] };
    for word in Words::of(text) {
        let word = word?;
        match word.name {
            "commit" => ct.flags |= CT_COMMIT,
            "force" => ct.flags |= CT_FORCE,
            "table" => match number(word.value, "table", 0xff)? {
                0xff => return err("invalid table 0xff"),
                table => ct.table = Some(table),
            },
            "zone" => ct.zone = zone(word.value)?,
            "alg" => match word.value {
                "ftp" => ct.alg = ALG_FTP,
                "tftp" => ct.alg = ALG_TFTP,
                name => return err(format!("invalid conntrack helper \"{name}\"")),
            },
            "nat" => ct.actions.push(nat(word.value)?),
            "exec" => ct.actions.extend(exec(word.value)?),
            name => return err(format!("invalid argument to \"ct\" action: `{name}'")),
        }
    }
    let plain = |a: &Action| matches!(a, Action::Nat(n) if **n == Nat::default());
    match ct.flags & CT_COMMIT {
        0 if ct.flags & CT_FORCE != 0 => err("\"force\" flag requires \"commit\" flag."),
        0 if !ct.actions.iter().all(plain) => err(
            "CT action requires commit flag if actions other than NAT without arguments are specified.",
        ),
        _ => Ok(Action::Ct(Box::new(ct))),
    }
}

fn zone(text: &str) -> Parsed<Zone> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Zone::Number(number(text, "zone", 0xffff)?));
    }
    match parse_subfield(text)? {
        s if s.bits == 16 => Ok(Zone::Field(s)),
        s => err(format!("{text}: a zone has 16 bits, this has {}", s.bits)),
    }
}

/// The arguments of a `nat`.
pub(super) fn nat(text: &str) -> Parsed<Action> {
    let mut nat = Nat::default();
    for word in Words::of(text) {
        let word = word?;
        match word.name {
            "src" => nat.flags |= NAT_SRC,
            "dst" => nat.flags |= NAT_DST,
            "persistent" => nat.flags |= NAT_PERSISTENT,
            "hash" => nat.flags |= NAT_HASH,
            "random" => nat.flags |= NAT_RANDOM,
            name => return err(format!("invalid key \"{name}\" in \"nat\" argument")),
        }
        if matches!(word.name, "src" | "dst") && !word.value.is_empty() {
            let Some(()) = range(word.value, &mut nat) else {
                return err(format!("invalid nat range \"{}\"", word.value));
            };
        }
    }
    let has = |flags: u16| nat.flags & flags == flags;
    if has(NAT_SRC | NAT_DST) {
        return err("May only specify one of \"src\" or \"dst\".");
    }
    if has(NAT_HASH | NAT_RANDOM) {
        return err("Both \"hash\" and \"random\" are not allowed.");
    }
    if nat.flags != 0 && nat.flags & (NAT_SRC | NAT_DST) == 0 {
        return err("Flags allowed only with \"src\" or \"dst\".");
    }
    Ok(Action::Nat(Box::new(nat)))
}

/// `ADDRESS[-ADDRESS][:PORT[-PORT]]`, an IPv6 address before a port in brackets; None: it is none.
fn range(text: &str, nat: &mut Nat) -> Option<()> {
    let (addresses, ports) = match text.rfind(']') {
        Some(end) => (&text[..=end], text[end + 1..].strip_prefix(':')),
        None if text.matches(':').count() == 1 => {
            text.split_once(':').map(|(a, p)| (a, Some(p)))?
        }
        None => (text, None),
    };
    let left_over = text.len() - addresses.len() - ports.map_or(0, |p| p.len() + 1);
    let (first, last) = ends(addresses);
    let first = address(first)?;
    let last = match last {
        Some(last) => Some(address(last)?),
        None => None,
    };
    let family = last.is_none_or(|last| last.is_ipv4() == first.is_ipv4());
    if left_over != 0 || !family || last.is_some_and(|last| last < first) {
        return None;
    }
    nat.first = Some(first).filter(|a| !a.is_unspecified());
    nat.last = last;
    let Some(ports) = ports else { return Some(()) };
    let (first, last) = ends(ports);
    nat.first_port = first.parse().ok()?;
    nat.last_port = last.map_or(Some(0), |last| last.parse().ok())?;
    let ordered = last.is_none() || nat.last_port >= nat.first_port;
    if nat.first_port == 0 {
        // Port 0 is none.
        nat.last_port = 0;
    }
    ordered.then_some(())
}

/// Both ends of `FIRST[-LAST]`.
fn ends(text: &str) -> (&str, Option<&str>) {
    text.split_once('-').map_or((text, None), |(first, last)| (first, Some(last)))
}

fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}
