//! Which numbers ports have in OpenFlow, and those of dummies in the datapath.

use crate::config::{BridgeConf, IfaceConf};
use crate::state::{Bridge, State};
use openflow::{OfPort, port as of_port};
use std::collections::{BTreeMap, BTreeSet};

/// OpenFlow numbers that interfaces may have.
const OF_PORTS: std::ops::Range<OfPort> = 1..0xff00;

/// Interfaces that leave to get other numbers, as in ovs-vswitchd: those that ask for another one
/// than they have, unless its holder asked for it, too, and those that hold one which they did not
/// ask for and such an interface does. A new interface waits for the next change.
pub(super) fn renumbered(
    bridge: &Bridge,
    wanted: &BTreeMap<&str, &IfaceConf>,
    gone: &[String],
) -> Vec<String> {
    let gone: BTreeSet<&str> = gone.iter().map(String::as_str).collect();
    let request = |name: &str| {
        let asked = wanted.get(name)?.ofport_request.map(OfPort::from);
        asked.filter(|n| OF_PORTS.contains(n))
    };
    // Interface, the number it has, the number it asks for.
    let all = bridge.ifaces.iter().filter(|(name, i)| !gone.contains(name.as_str()) && i.works());
    let all = all.filter_map(|(name, i)| Some((name, i.of_port?, request(name))));
    let all: Vec<_> = all.filter(|(_, has, _)| *has != of_port::LOCAL).collect();
    let settled = all.iter().filter(|(_, has, asked)| *asked == Some(*has));
    let settled: BTreeSet<OfPort> = settled.map(|(_, has, _)| *has).collect();
    let moving = |(_, has, asked): &&(&String, OfPort, Option<OfPort>)| {
        asked.is_some_and(|n| n != *has && !settled.contains(&n))
    };
    let asked: BTreeSet<OfPort> = all.iter().filter(moving).filter_map(|(.., n)| *n).collect();
    let leaves = all.iter().filter(|i| moving(i) || asked.contains(&i.1));
    leaves.map(|(name, ..)| (*name).clone()).collect()
}

/// An OpenFlow port as the database and logs have it, in OpenFlow 1.0's 16 bits.
pub(super) fn database_number(port: OfPort) -> u16 {
    port as u16
}

/// The datapath number that ovs-vswitchd gives a port of this name in a dummy datapath: the first
/// number in the name, counted from 100 if the name begins with "br", or the lowest free one if
/// there is none or it is in use; never 0, which is the datapath's own port there.
pub fn dummy_number(s: &State, name: &str) -> Option<flow::PortNo> {
    let mut numbers = number_in(name).into_iter().chain(1..flow::BOND_NO_MIN);
    numbers.find(|no| !s.dp.has_port(*no))
}

fn number_in(name: &str) -> Option<flow::PortNo> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let first = if name.starts_with("br") { 100 } else { 0 };
    let no = digits[..end].parse::<flow::PortNo>().ok()?.checked_add(first)?;
    (1..flow::BOND_NO_MIN).contains(&no).then_some(no)
}

/// LOCAL, the requested number, the one that the interface had before, or the next free one; and
/// where to look for a free one next time.
pub(super) fn of_number(
    bridge: &Bridge,
    br: &BridgeConf,
    conf: &IfaceConf,
) -> Result<(OfPort, OfPort), String> {
    if conf.name == br.name {
        return Ok((of_port::LOCAL, bridge.next_port));
    }
    let valid = |n: &OfPort| OF_PORTS.contains(n);
    let used = numbers(bridge.ifaces.values().filter_map(|i| i.of_port).filter(valid));
    let requested = |i: &IfaceConf| i.ofport_request.map(OfPort::from).filter(valid);
    let last = |i: &IfaceConf| {
        let known = bridge.ifaces.get(&i.name).and_then(|i| i.last_port);
        known.or(i.last_ofport.0.map(OfPort::from)).filter(valid)
    };
    // Numbers that others ask for or had are theirs even before they are there.
    let others = || br.interfaces().filter(|i| i.name != conf.name);
    let asked = numbers(others().filter_map(requested));
    let open = |n: &OfPort| !used[*n as usize] && !asked[*n as usize];
    let wish = requested(conf).filter(|n| !used[*n as usize]);
    let mut free = (bridge.next_port..0xff00).chain(1..bridge.next_port).filter(open);
    if let Some(n) = wish.or_else(|| last(conf).filter(open)) {
        return Ok((n, bridge.next_port));
    }
    let had = numbers(others().filter_map(last));
    let found = free.clone().find(|n| !had[*n as usize]).or_else(|| free.next());
    let n = found.ok_or("no free OpenFlow port number")?;
    Ok((n, n % 0xfeff + 1))
}

/// Which OpenFlow port numbers are among these.
fn numbers(all: impl Iterator<Item = OfPort>) -> Vec<bool> {
    let mut found = vec![false; 0xff00];
    all.for_each(|n| found[n as usize] = true);
    found
}
