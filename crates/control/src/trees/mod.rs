//! Spanning trees of bridges: the database says what is wanted ([`tree_conf`]), time, links and
//! BPDUs go to the protocol's state machine (crate `stp`), and what follows goes to the switch
//! half, the log and the database ([`tree_show`]).
//!
//! BPDUs leave as a controller's packets would. What comes is taken before the tables see it
//! (`ofproto::translate::tree`) and handed over, each port at a rate of its own.

pub mod bridge_trees;

mod tree_conf;
mod tree_machine;
pub mod tree_show;

use crate::config::BridgeConf;
use crate::state::State;
use crate::vlog;
use bridge_trees::Tree;
use datapath::PuntEvent;
use ofproto::{BridgeId, PortSpec, TreeContext, TreePort, TreeProtocol};
use openflow::{Action, Match, NO_BUFFER, OfPort, PacketOut, port, port_config, port_state};
use tree_conf::Asked;
use tree_machine::Machine;

const MODULE: &str = "stp";
/// Learned addresses of a bridge are forgotten once in this time, and not much more often for a
/// moment: a neighbour can ask for it with every BPDU.
const FLUSH_MS: u64 = 1000;

/// Gives a bridge the tree that the database asks for, or none.
pub fn configure(s: &mut State, conf: &BridgeConf) {
    let Some(bridge) = s.bridges.get(&conf.name) else { return };
    let (id, mac, now) = (bridge.id, bridge.mac, s.now_ms());
    let found = |name: &str| {
        let of_port = bridge.ifaces.get(name)?.of_port?;
        Some((of_port, s.ofproto.port(id, of_port)?.speeds[0] / 1000))
    };
    let before = s.trees.all.get(&conf.name).map(Tree::numbers).unwrap_or_default();
    let (asked, wrong) = tree_conf::read(conf, mac, &before, found);
    log_errors(s, &conf.name, &wrong);
    let protocol = asked.as_ref().map(|asked| match asked.rapid {
        true => TreeProtocol::Rstp,
        false => TreeProtocol::Stp,
    });
    s.change_bridge(id, |c| c.tree = protocol);
    match asked {
        None => _ = s.trees.all.remove(&conf.name),
        Some(asked) => put(s, (&conf.name, id), asked, now),
    }
    // Some have been in the tree, and some were to be.
    let tree = s.trees.all.get(&conf.name);
    let out = |p: &&PortSpec| tree.is_none_or(|tree| tree.number_of(p.of_port).is_none());
    let ports = s.ofproto.ports(id).filter(|p| p.tree.is_some()).filter(out);
    let ports: Vec<OfPort> = ports.map(|p| p.of_port).collect();
    ports.into_iter().for_each(|of_port| set_tree(s, id, of_port, None));
    advance(s, &conf.name);
}

/// Gives a bridge a tree, or other settings to the one that it has.
fn put(s: &mut State, (name, id): (&str, BridgeId), asked: Asked, now: u64) {
    let fits = |tree: &Tree| tree.bridge == id && tree.machine.is(&asked);
    if !s.trees.all.get(name).is_some_and(fits) {
        s.trees.all.insert(name.into(), Tree::new(id, Machine::new(&asked, now)));
    }
    if let Some(tree) = s.trees.all.get_mut(name) {
        tree.configure(asked, now);
    }
    s.status_dirty = true;
}

/// Logs what is wrong with the settings, once.
fn log_errors(s: &mut State, bridge: &str, wrong: &[String]) {
    let logged = s.trees.logged.entry(bridge.into()).or_default();
    if logged != wrong {
        wrong.iter().for_each(|text| vlog::err!("bridge", "{text}"));
        *logged = wrong.to_vec();
    }
}

/// Ends trees whose bridges are gone.
pub fn sweep(s: &mut State) {
    let (trees, bridges) = (&mut s.trees, &s.bridges);
    trees.all.retain(|name, _| bridges.contains_key(name));
    trees.logged.retain(|name, _| bridges.contains_key(name));
}

/// Lets time pass for all trees, and looks at their links; true: BPDUs were sent.
pub fn turn(s: &mut State) -> bool {
    let names: Vec<String> = s.trees.all.keys().cloned().collect();
    names.iter().fold(false, |sent, name| advance(s, name) | sent)
}

/// A BPDU has come in; [`hear`] takes it in.
pub fn receive(s: &mut State, punt: &PuntEvent, to: &TreeContext) {
    let now = s.now_ms();
    let found = s.trees.all.iter_mut().find(|(_, tree)| tree.bridge == to.bridge);
    let Some((_, tree)) = found else { return };
    let Some(number) = tree.number_of(to.port) else { return };
    // Many may have come before the gate was closed: they cost no more than this.
    if !tree.admits(number, now) {
        s.trees.refused_bpdus += 1;
        return;
    }
    tree.hear(number, punt.packet.clone());
}

/// Takes in BPDUs that wait, of trees that may have some taken in now.
pub fn hear(s: &mut State) {
    let now = s.now_ms();
    let hears = |(name, tree): (&String, &mut Tree)| tree.hears(now).then(|| name.clone());
    let names: Vec<String> = s.trees.all.iter_mut().filter_map(hears).collect();
    names.iter().for_each(|name| _ = advance(s, name));
}

/// The topology is said to change, in one bridge or all. Error: it has no such tree.
pub fn change_topology(s: &mut State, bridge: Option<&str>, rapid: bool) -> Result<(), ()> {
    let now = s.now_ms();
    let fits = |(name, tree): (&String, &Tree)| {
        let wanted = bridge.is_none_or(|wanted| wanted == name) && tree.machine.is_rapid() == rapid;
        wanted.then(|| name.clone())
    };
    let names: Vec<String> = s.trees.all.iter().filter_map(fits).collect();
    if names.is_empty() && bridge.is_some() {
        return Err(());
    }
    for name in &names {
        if let Some(tree) = s.trees.all.get_mut(name) {
            tree.machine.change_topology(now);
        }
        advance(s, name);
    }
    Ok(())
}

/// Looks at links, lets time pass, and does what follows.
fn advance(s: &mut State, name: &str) -> bool {
    let now = s.now_ms();
    let Some(tree) = s.trees.all.get_mut(name) else { return false };
    let id = tree.bridge;
    let is_up = |p: &PortSpec| {
        p.config & port_config::PORT_DOWN == 0 && p.state & port_state::LINK_DOWN == 0
    };
    for (number, port) in &mut tree.ports {
        let up = s.ofproto.port(id, port.of_port).is_some_and(is_up);
        tree.machine.set_link(*number, up, now);
    }
    for text in tree.run(now) {
        vlog::warn!(MODULE, "{name}: {text}");
    }
    tree.open_gates(now);
    let out = tree.machine.take_output();
    if out.changed {
        let module = if tree.machine.is_rapid() { "rstp" } else { MODULE };
        vlog::info!(module, "{name}: detected topology change.");
    }
    tree.flush |= out.flush;
    apply_states(s, name);
    flush(s, name, now);
    let Some(tree) = s.trees.all.get(name) else { return false };
    let place = |number: u16| tree.ports.get(&number).map(|p| p.of_port);
    let due: Vec<_> =
        out.bpdus.into_iter().filter_map(|(number, bpdu)| Some((place(number)?, bpdu))).collect();
    let sent = !due.is_empty();
    due.iter().for_each(|(of_port, bpdu)| send(s, (name, id), *of_port, bpdu));
    sent
}

/// Tells the switch half of states that have changed.
fn apply_states(s: &mut State, name: &str) {
    let now = s.now_ms();
    let Some(tree) = s.trees.all.get_mut(name) else { return };
    let (id, mut changed) = (tree.bridge, Vec::new());
    for (number, port) in &mut tree.ports {
        let state = tree.machine.state(*number);
        let old = std::mem::replace(&mut port.state, state);
        if old != state {
            let [was, is] = [old, state].map(|state| tree.machine.state_name(state));
            vlog::dbg!(
                "ofproto_dpif",
                "port {}: {} state changed from {was} to {is}",
                port.iface,
                tree.machine.name()
            );
            port.since_ms = now;
            tree.flush |= bridge_trees::learns(old) != bridge_trees::learns(state);
        }
        changed.push((port.of_port, port.tree_port(tree.machine.is_rapid())));
    }
    // Ports close before others open.
    changed.sort_by_key(|(_, is)| is.state.forwards());
    changed.into_iter().for_each(|(of_port, is)| set_tree(s, id, of_port, Some(is)));
}

/// What the tree says of a port.
fn set_tree(s: &mut State, id: BridgeId, of_port: OfPort, tree: Option<TreePort>) {
    let Some(spec) = s.ofproto.port(id, of_port).filter(|p| p.tree != tree) else { return };
    let spec = PortSpec { tree, ..spec.clone() };
    let _ = s.ofproto.update_port(id, spec);
    s.status_dirty = true;
    s.flush_changes();
}

/// Forgets learned addresses and groups, if that is asked for and was not done just now.
fn flush(s: &mut State, name: &str, now: u64) {
    let Some(tree) = s.trees.all.get_mut(name).filter(|tree| tree.flush) else { return };
    if !tree.flushes.has(now, FLUSH_MS) {
        return;
    }
    tree.flushes.spend();
    tree.flush = false;
    let id = tree.bridge;
    let _ = s.ofproto.fdb_flush(id);
    s.ofproto.mdb_flush(id);
    s.flush_changes();
}

fn send(s: &mut State, (name, id): (&str, BridgeId), of_port: OfPort, bpdu: &stp::bpdu::Bpdu) {
    let Some(mac) = s.ofproto.port(id, of_port).map(|p| p.hw_addr) else { return };
    let mut matching = Match::default();
    matching.key.set_u32(flow::at::OF_IN_PORT, port::ANY);
    let (actions, data) = (vec![Action::output(of_port)], stp::bpdu::frame(mac, bpdu));
    let packet = PacketOut { buffer_id: NO_BUFFER, matching, actions, data };
    if let Err(error) = s.packet_out(id, &packet) {
        vlog::warn!(MODULE, "{name}: sending a BPDU on port {of_port}: {error}");
    }
}
