use super::*;
use crate::trees::tree_conf::PortAsked;
use stp::bpdu::{Config, Rst, frame};
use stp::{BridgeId as TreeId, RstpPortConf};

/// Ports that the tests' tree has, far more than a network of bridges needs.
const PORTS: u16 = 400;

fn tree(rapid: bool, ports: u16) -> Tree {
    let port = |number: u16| PortAsked {
        iface: format!("p{number}"),
        of_port: number.into(),
        number,
        priority: 128,
        path_cost: 10,
        rapid: RstpPortConf {
            priority: 128,
            path_cost: 10,
            admin_edge: false,
            auto_edge: true,
            point_to_point: true,
        },
        checks: false,
    };
    let asked = Asked {
        rapid,
        id: TreeId(9 << 48),
        hello_ms: 2000,
        max_age_ms: 20_000,
        forward_delay_ms: 15_000,
        hold_count: 6,
        stp_only: false,
        ports: (1..=ports).map(port).collect(),
    };
    let mut switch = ofproto::Switch::new(sync::Domain::new().writer());
    let bridge = switch.add_bridge("br0", ofproto::BridgeConfig::default(), 0).unwrap();
    let mut tree = Tree::new(bridge, Machine::new(&asked, 0));
    tree.configure(asked, 0);
    (1..=ports).for_each(|number| tree.machine.set_link(number, true, 0));
    tree.run(0);
    tree
}

/// A better root than any before, further down the lower `rank`.
fn bpdu(rapid: bool, rank: u64) -> Vec<u8> {
    let id = TreeId(8 << 48 | rank);
    let config = Config { root: id, bridge: id, max_age: 20 << 8, ..Config::default() };
    let rst = Rst { proposal: true, ..Rst::of_config(config) };
    frame([2; 6], &if rapid { stp::bpdu::Bpdu::Rst(rst) } else { stp::bpdu::Bpdu::Config(config) })
}

#[test]
fn settings_of_many_ports_cost_few_visits() {
    let tree = tree(true, PORTS);
    let per_port = tree.machine.steps() / u64::from(PORTS);
    assert!(per_port < 50, "{per_port} visits a port");
}

#[test]
fn bpdus_of_many_ports_have_a_tree_do_no_more_than_those_of_few() {
    for (rapid, ports) in [(true, PORTS), (false, stp::STP_PORTS_MAX)] {
        let (mut tree, mut rank) = (tree(rapid, ports), 1 << 32);
        let before = tree.machine.steps();
        for now in 1..=500u64 {
            for number in 1..=ports {
                rank -= 1;
                tree.hear(number, bpdu(rapid, rank));
            }
            if tree.hears(now) {
                tree.run(now);
            }
            tree.machine.take_output();
        }
        // What was begun last may go beyond.
        let (steps, last) = (tree.machine.steps() - before, 200 * u64::from(ports));
        let most = 2 * STEPS_BURST + 500 * STEPS_MS + last;
        assert!(steps <= most, "{steps} of {most}");
        assert!(tree.heard.len() <= usize::from(ports), "one of each port waits");
    }
}

#[test]
fn a_neighbour_is_heard_while_other_ports_say_too_much() {
    let (mut tree, mut rank) = (tree(true, PORTS), 1 << 32);
    let best = bpdu(true, 7);
    for now in 1..=500 {
        for number in 2..=PORTS {
            rank -= 1;
            tree.hear(number, bpdu(true, rank));
        }
        if now == 200 {
            tree.hear(1, best.clone());
        }
        if tree.hears(now) {
            tree.run(now);
        }
    }
    let Machine::Rstp(rstp) = &tree.machine else { panic!("RSTP") };
    assert_eq!((rstp.root(), rstp.root_port()), (TreeId(8 << 48 | 7), Some(1)));
}
