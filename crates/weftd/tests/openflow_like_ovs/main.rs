//! What is answered to requests of every kind, to odd ones and to damaged ones, by Weft and by
//! ovs-vswitchd 3.1: the same bytes go to both, and both must take them, or refuse them with the
//! same error.
//!
//! `OPENFLOW_SEEDS=a..b` runs other seeds of damage than the usual ones.

mod corpus;
mod differences;
mod stateful;
mod table_features;
mod wire;

use corpus::Case;
use std::collections::BTreeMap;
use testkit::Rng;
use testkit::{Netns, Switch, SwitchConfig, privileged};
use wire::{Answer, Client};

/// Damaged messages that are made of each good one, for one seed.
const DAMAGED_PER_MESSAGE: usize = 3;
/// Messages after which both switches are emptied, so that what one message changed does not decide
/// about all later ones.
const MESSAGES_BETWEEN_RESETS: usize = 25;

/// A bridge with two ports, and a connection to it in each version.
struct Side<'a> {
    sw: Switch<'a>,
    /// Address of port 1, which messages that change it name.
    mac: Vec<u8>,
    clients: BTreeMap<u8, Client>,
}

impl<'a> Side<'a> {
    fn new(ns: &'a Netns, mut config: SwitchConfig) -> Self {
        config.args.push("--enable-dummy".into());
        let sw = Switch::start(ns, config).unwrap();
        let words = "add-br br0 -- set bridge br0 datapath_type=dummy fail_mode=secure \
            protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15 \
            -- add-port br0 p1 -- set interface p1 type=dummy ofport_request=1 \
            -- add-port br0 p2 -- set interface p2 type=dummy ofport_request=2";
        sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        let mac = sw.vsctl(&["get", "interface", "p1", "mac_in_use"]).unwrap();
        let mac = mac.trim().trim_matches('"').split(':');
        let mac = mac.map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
        Side { sw, mac, clients: BTreeMap::new() }
    }

    fn ask(&mut self, version: u8, message: &[u8]) -> Vec<Answer> {
        let path = self.sw.dir().join("br0.mgmt");
        let client = self.clients.entry(version).or_insert_with(|| Client::connect(&path, version));
        let mut message = message.to_vec();
        if let Some(at) = message.windows(6).position(|w| w == corpus::PORT_MAC) {
            message[at..at + 6].copy_from_slice(&self.mac);
        }
        let answers = client.ask(&message);
        if answers.contains(&Answer::Closed) {
            self.clients.remove(&version);
        }
        answers
    }

    /// No flows, no groups, no connections, ports as they were.
    fn reset(&mut self) {
        self.clients.clear();
        for message in corpus::cleaning() {
            self.ask(corpus::CLEANING_VERSION, &message);
        }
        self.clients.clear();
    }
}

/// Sends all to both; what differs without being a known difference.
fn compare(weft: &mut Side<'_>, ovs: &mut Side<'_>, cases: &[Case]) -> Vec<String> {
    let mut found = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        if i % MESSAGES_BETWEEN_RESETS == 0 {
            weft.reset();
            ovs.reset();
        }
        let mine = weft.ask(case.version, &case.message);
        let theirs = ovs.ask(case.version, &case.message);
        // Who is secondary may change nothing more, which is looked at before or after the message
        // is read.
        let role = wire::is_role_request(&case.message);
        // A request in parts is waited for.
        let part = case.message.get(8..12).is_some_and(|m| m[1] == 12 && m[3] & 1 != 0);
        if mine == theirs && !role && !part {
            continue;
        }
        if mine != theirs && differences::deliberate(case, &mine, &theirs).is_none() {
            let hex: String = case.message.iter().map(|b| format!("{b:02x}")).collect();
            found.push(format!("{}: weft {mine:?}, ovs {theirs:?}: {hex}", case.name));
        }
        weft.reset();
        ovs.reset();
    }
    found
}

fn both(test: impl FnOnce(&mut Side<'_>, &mut Side<'_>)) {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let mut weft = Side::new(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let mut ovs = Side::new(&b, SwitchConfig::oracle());
    test(&mut weft, &mut ovs);
}

#[test]
fn requests_are_answered_alike() {
    both(|weft, ovs| {
        let cases = corpus::requests();
        assert!(cases.len() > 300, "{}", cases.len());
        let found = compare(weft, ovs, &cases);
        assert!(found.is_empty(), "{} of {}:\n{}", found.len(), cases.len(), found.join("\n"));
    });
}

#[test]
fn damaged_requests_are_answered_alike() {
    both(|weft, ovs| {
        let seeds = std::env::var("OPENFLOW_SEEDS").unwrap_or_else(|_| "1..2".into());
        let (from, to) = seeds.split_once("..").expect("a range of seeds");
        let mut found = Vec::new();
        let mut sent = 0;
        for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
            let mut rng = Rng::new(seed);
            let good = corpus::requests();
            let damaged: Vec<_> = good
                .iter()
                .filter(|case| !corpus::UNDAMAGED.iter().any(|name| case.name.contains(name)))
                .flat_map(|case| std::iter::repeat_n(case, DAMAGED_PER_MESSAGE))
                .map(|case| corpus::damage(case, &mut rng))
                .collect();
            sent += damaged.len();
            found.extend(compare(weft, ovs, &damaged));
        }
        assert!(sent > 2000, "{sent}");
        assert!(found.is_empty(), "{} of {sent}:\n{}", found.len(), found.join("\n"));
    });
}
