//! States of spanning trees, and who gets BPDUs.

use crate::tests::{Lab, apply, flow, out, packet};
use crate::translate::effects::Effects;
use crate::{BridgeConfig, PortSpec, TreeContext, TreePort, TreeProtocol, TreeState};
use action::{Decision, Op, ops_text};
use openflow::{Match, NO_BUFFER, PacketOut, PortMod, port, port_config, port_state};
use telemetry::Drop;

const BPDU: &str = "in_port=1,dl_src=02:00:00:00:00:07,dl_dst=01:80:c2:00:00:00,dl_type=0x05ff";
const FRAME: &str = "in_port=1,udp,dl_src=02:00:00:00:00:07,dl_dst=02:00:00:00:00:08";

fn lab(tree: Option<TreeProtocol>) -> Lab {
    let mut lab = Lab::new();
    let config = lab.sw.bridge_config(lab.br).unwrap().clone();
    lab.sw.configure_bridge(lab.br, BridgeConfig { tree, ..config }).unwrap();
    lab.add(flow(0, 1, "", apply(vec![out(2)])));
    lab
}

fn set(lab: &mut Lab, port: u32, state: TreeState) -> TreePort {
    let spec = lab.sw.port(lab.br, port).unwrap().clone();
    let tree = spec.tree.clone().map_or(TreePort::default(), |t| t);
    let tree = TreePort { state, ..tree };
    lab.sw.update_port(lab.br, PortSpec { tree: Some(tree.clone()), ..spec }).unwrap();
    tree
}

fn decide(lab: &mut Lab, text: &str) -> (String, Option<Drop>) {
    let d = lab.decide(&packet(text));
    (ops_text(&d.ops), d.drop)
}

fn taken(d: &Decision) -> bool {
    matches!(&d.ops[..], [Op::Punt(p)] if p.context.is::<TreeContext>() && p.is_wanted())
}

#[test]
fn bpdus_are_the_bridges_own_while_it_has_a_tree() {
    let mut lab = lab(None);
    assert_eq!(decide(&mut lab, BPDU).1, None, "a frame like others");
    let mut lab = self::lab(Some(TreeProtocol::Stp));
    assert_eq!(decide(&mut lab, BPDU), ("drop".into(), Some(Drop::SpanningTree)));
    for state in [TreeState::Blocking, TreeState::Listening, TreeState::Forwarding] {
        let tree = set(&mut lab, 1, state);
        let key = packet(BPDU);
        let d = lab.decide(&key);
        assert!(taken(&d), "{state:?}");
        let mut twin = packet("in_port=1");
        (0..flow::WORDS).for_each(|i| twin.words[i] |= key.words[i] & d.mask.words[i]);
        assert!(taken(&lab.decide(&twin)), "{state:?}");
        tree.gate.set(false);
        assert!(!taken(&d) && d.drop == Some(Drop::PuntRate), "{state:?}");
        tree.gate.set(true);
    }
    let other = BPDU.replace(":00,dl_type", ":0e,dl_type");
    assert!(!taken(&lab.decide(&packet(&other))));
}

/// Tries a received packet, and one to be sent, in every state.
#[test]
fn states_say_what_is_received_sent_and_learned() {
    use TreeState::*;
    for (state, forwards, learns) in [
        (Disabled, true, true),
        (Blocking, false, false),
        (Listening, false, false),
        (Learning, false, true),
        (Forwarding, true, true),
    ] {
        let mut lab = lab(Some(TreeProtocol::Stp));
        lab.add(flow(0, 2, "udp", apply(vec![out(port::NORMAL)])));
        set(&mut lab, 1, state);
        let d = lab.decide(&packet(FRAME));
        assert_eq!(!d.ops.is_empty(), forwards, "{state:?}");
        let drop = (!forwards).then_some(Drop::SpanningTree);
        assert_eq!(d.drop, drop, "{state:?}");
        let effects = d.effects.as_ref().and_then(|e| e.downcast_ref::<Effects>());
        assert_eq!(effects.is_some_and(|e| !e.learns.is_empty()), learns, "{state:?}");
        // NORMAL floods to the other ports, and a flow sends to it.
        let from2 = FRAME.replace("in_port=1", "in_port=2");
        let all = lab.decide(&packet(&from2)).ops.len();
        let to = |lab: &mut Lab| decide(lab, "in_port=3,tcp").0;
        lab.add(flow(0, 3, "tcp", apply(vec![out(1)])));
        assert_eq!(to(&mut lab) != "drop", forwards, "{state:?}");
        set(&mut lab, 1, Forwarding);
        assert_eq!(lab.decide(&packet(&from2)).ops.len() - all, usize::from(!forwards));
        assert_ne!(to(&mut lab), "drop");
    }
}

#[test]
fn all_asks_no_tree_and_bpdus_leave_where_ports_listen() {
    let mut lab = lab(Some(TreeProtocol::Stp));
    lab.add(flow(0, 2, "arp", apply(vec![out(port::ALL)])));
    let open = decide(&mut lab, "in_port=2,arp").0;
    set(&mut lab, 1, TreeState::Blocking);
    assert_eq!(decide(&mut lab, "in_port=2,arp").0, open);
    let send = |lab: &mut Lab| {
        let mut matching = Match::default();
        matching.key.set_u32(flow::at::OF_IN_PORT, port::ANY);
        let m = PacketOut { buffer_id: NO_BUFFER, matching, actions: vec![out(1)], data: vec![] };
        lab.sw.packet_out(lab.br, &m, &packet(BPDU)).unwrap()
    };
    assert!(send(&mut lab).ops.is_empty());
    set(&mut lab, 1, TreeState::Listening);
    assert!(!send(&mut lab).ops.is_empty());
}

#[test]
fn a_change_of_state_ends_decisions_and_shows_in_port_descriptions() {
    let mut lab = lab(Some(TreeProtocol::Stp));
    for (state, bits) in [
        (TreeState::Blocking, port_state::STP_BLOCK),
        (TreeState::Listening, port_state::STP_LISTEN),
        (TreeState::Learning, port_state::STP_LEARN),
        (TreeState::Forwarding, port_state::STP_FORWARD),
    ] {
        lab.sw.take_regions();
        set(&mut lab, 1, state);
        assert!(!lab.sw.take_regions().is_empty(), "{state:?}");
        let desc = lab.sw.port_descs(lab.br).into_iter().find(|d| d.port == 1).unwrap();
        assert_eq!(desc.state & port_state::STP_MASK, bits);
    }
    let hw_addr = lab.sw.port(lab.br, 1).unwrap().hw_addr;
    let bit = port_config::NO_RECV_STP;
    let m = PortMod { port: 1, hw_addr, config: bit, mask: bit, advertise: 0 };
    lab.sw.port_mod(lab.br, &m).unwrap();
    assert!(taken(&lab.decide(&packet(BPDU))), "the bridge's own are not received");
    assert_ne!(decide(&mut lab, "in_port=1,tcp").0, "drop");
}
