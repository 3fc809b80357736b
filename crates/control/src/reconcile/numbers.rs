//! Which numbers ports have in OpenFlow, and those of dummies in the datapath.

use crate::config::{BridgeConf, IfaceConf};
use crate::ports::Iface;
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

/// The numbers that a bridge's interfaces ask for or had, which are theirs even before they are
/// there. They are counted when the first interface needs a number, for a whole configuration.
#[derive(Default)]
pub(super) struct Claims {
    counts: Option<Counts>,
    /// Interfaces that were looked at.
    #[cfg(test)]
    looks: usize,
}

/// How many interfaces ask for each number, and had it.
struct Counts {
    asked: Vec<u32>,
    had: Vec<u32>,
}

/// The numbers that an interface asks for and had.
fn claim(ifaces: &BTreeMap<String, Iface>, conf: &IfaceConf) -> [Option<OfPort>; 2] {
    let known = ifaces.get(&conf.name).and_then(|i| i.last_port);
    let had = known.or(conf.last_ofport.0.map(OfPort::from));
    [conf.ofport_request.map(OfPort::from), had].map(|n| n.filter(|n| OF_PORTS.contains(n)))
}

impl Claims {
    fn counts(&mut self, ifaces: &BTreeMap<String, Iface>, br: &BridgeConf) -> &Counts {
        self.counts.get_or_insert_with(|| {
            let [mut asked, mut had] = [(); 2].map(|()| vec![0; OF_PORTS.end as usize]);
            for conf in br.interfaces() {
                #[cfg(test)]
                (self.looks += 1);
                let [asks, had_one] = claim(ifaces, conf);
                asks.iter().for_each(|n| asked[*n as usize] += 1);
                had_one.iter().for_each(|n| had[*n as usize] += 1);
            }
            Counts { asked, had }
        })
    }
}

/// LOCAL, the requested number, the one that the interface had before, or the next free one; and
/// where to look for a free one next time. `ifaces`: what is known of the bridge's interfaces;
/// `is_used`: which numbers have a port.
pub(super) fn of_number(
    (ifaces, next_port): (&BTreeMap<String, Iface>, OfPort),
    (br, conf): (&BridgeConf, &IfaceConf),
    claims: &mut Claims,
    is_used: impl Fn(OfPort) -> bool,
) -> Result<(OfPort, OfPort), String> {
    if conf.name == br.name {
        return Ok((of_port::LOCAL, next_port));
    }
    let [wish, last] = claim(ifaces, conf);
    let counts = claims.counts(ifaces, br);
    // Its own claims are among those that are counted.
    let asked = |n: OfPort| counts.asked[n as usize] > u32::from(wish == Some(n));
    let had = |n: OfPort| counts.had[n as usize] > u32::from(last == Some(n));
    let open = |n: &OfPort| !asked(*n) && !is_used(*n);
    let mut free = (next_port..OF_PORTS.end).chain(OF_PORTS.start..next_port).filter(open);
    if let Some(n) = wish.filter(|n| !is_used(*n)).or_else(|| last.filter(open)) {
        return Ok((n, next_port));
    }
    let found = free.clone().find(|n| !had(*n)).or_else(|| free.next());
    let n = found.ok_or("no free OpenFlow port number")?;
    Ok((n, n % 0xfeff + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PortConf;

    fn named(name: &str) -> IfaceConf {
        IfaceConf { name: name.into(), ..IfaceConf::default() }
    }

    fn bridge(interfaces: Vec<IfaceConf>) -> BridgeConf {
        let ports = vec![PortConf { interfaces, ..PortConf::default() }];
        BridgeConf { name: "br0".into(), ports, ..BridgeConf::default() }
    }

    /// The numbers of the interfaces when they come one after the other.
    fn given(br: &BridgeConf, claims: &mut Claims) -> Vec<OfPort> {
        let (ifaces, mut used, mut next) = (BTreeMap::new(), BTreeSet::new(), 1);
        let mut add = |conf: &IfaceConf| {
            let found = of_number((&ifaces, next), (br, conf), claims, |n| used.contains(&n));
            let (n, after) = found.unwrap();
            (next, _) = (after, used.insert(n));
            n
        };
        br.interfaces().map(&mut add).collect()
    }

    #[test]
    fn numbers_that_others_ask_for_or_had_are_theirs() {
        let asks = |name: &str, n| IfaceConf { ofport_request: Some(n), ..named(name) };
        let mut had = named("d");
        had.last_ofport.0 = Some(3);
        let br =
            bridge(vec![named("br0"), named("a"), asks("b", 1), asks("c", 1), had, named("e")]);
        let expected = [of_port::LOCAL, 2, 1, 4, 3, 5];
        assert_eq!(given(&br, &mut Claims::default()), expected);
    }

    /// Also those that cannot be opened, which need a number at each change of the database.
    #[test]
    fn interfaces_are_looked_at_once_for_the_numbers_of_all() {
        const N: usize = 1000;
        let br = bridge((0..N).map(|i| named(&format!("e{i}"))).collect());
        let mut claims = Claims::default();
        assert_eq!(given(&br, &mut claims), (1..=N as OfPort).collect::<Vec<_>>());
        assert_eq!(claims.looks, N);
    }
}
