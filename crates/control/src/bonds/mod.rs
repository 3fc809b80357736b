//! Ports of several interfaces, and LACP on ports: the database says what is wanted ([`conf`]),
//! time, links and packets go to [`bond`] and [`lacp`], and what follows goes to the switch half,
//! the packet side and the database.
//!
//! A bond that spreads packets has a number of its own in the packet side, and a table of 256
//! buckets there ([`datapath::Bond`]): load moves between interfaces without a change of any
//! decision.

pub mod all;
mod announce;
mod balance;
mod bond;
mod bond_conf;
pub mod lacp;
mod pdu;

use crate::config::{BridgeConf, PortConf};
use crate::state::State;
use crate::vlog;
use all::{Entry, Spread, lacp_port};
pub use bond::Bond;
pub use bond_conf::mac as parse_mac;
use datapath::{BondHash, PuntEvent};
use flow::PortNo;
use ofproto::{BridgeId, LacpContext, LacpPort, PortSpec};
use openflow::{Action, Match, NO_BUFFER, OfPort, PacketOut, port, port_config, port_state};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often bonds are looked at.
pub const LOOK_MS: u64 = 100;

/// The bucket of a source address in a VLAN (0: untagged), in a bond of mode balance-slb.
pub fn source_bucket(mac: [u8; 6], vlan: u16, basis: u32) -> u8 {
    let tag = [&[0x81, 0][..], &vlan.to_be_bytes()].concat();
    let tag = if vlan == 0 { vec![0; 4] } else { tag };
    let frame = [&[0; 6][..], &mac, &tag].concat();
    datapath::Bond::new(BondHash::Source, basis).bucket(&frame)
}

/// Gives a bridge's ports the bonds and the LACP that the database asks for.
pub fn configure(s: &mut State, bridge: &BridgeConf) {
    for port in &bridge.ports {
        configure_port(s, bridge, port);
    }
}

fn configure_port(s: &mut State, bridge: &BridgeConf, port: &PortConf) {
    let Some(at) = s.bridges.get(&bridge.name) else { return };
    let (id, now, mut wrong) = (at.id, s.now_ms(), Vec::new());
    let bond = bond_conf::bond(port).map(|(conf, w)| {
        wrong.extend(w);
        conf
    });
    let lacp = bond_conf::lacp(port, at.mac).unwrap_or_else(|w| {
        wrong.push(w);
        None
    });
    if bond.is_none() && lacp.is_none() {
        return remove(s, &port.name);
    }
    let works = |iface: &crate::config::IfaceConf| {
        let of_port = at.ifaces.get(&iface.name)?.of_port?;
        Some((iface.name.clone(), of_port))
    };
    let members: BTreeMap<String, OfPort> = port.interfaces.iter().filter_map(works).collect();
    let entry = s.bonds.all.entry(port.name.clone()).or_insert_with(|| Entry::new(id));
    if entry.wrong != wrong {
        wrong.iter().for_each(|w| vlog::warn!("bridge", "port {}: {w}", port.name));
        entry.wrong = wrong;
    }
    (entry.bridge, entry.lb_output) = (id, bond_conf::lb_output(port));
    entry.members = members;
    entry.configure_bond(bond, &s.ofproto, now);
    entry.configure_lacp(lacp, port, now);
    turn_one(s, &port.name);
}

/// Ends bonds and LACP of ports that are gone.
pub fn sweep(s: &mut State) {
    let is_there =
        |name: &String| s.bridges.values().any(|b| b.conf.ports.iter().any(|p| p.name == *name));
    let gone: Vec<String> = s.bonds.all.keys().filter(|name| !is_there(name)).cloned().collect();
    gone.iter().for_each(|name| remove(s, name));
}

fn remove(s: &mut State, name: &str) {
    let Some(e) = s.bonds.all.remove(name) else { return };
    let _ = s.ofproto.set_bond(e.bridge, name, None);
    for of_port in e.members.values() {
        set_lacp(s, e.bridge, *of_port, None);
    }
    give_up(s, e.spread.map(|spread| spread.no));
}

/// Lets time pass for all bonds, and looks at their links; true: packets were sent.
pub fn turn(s: &mut State) -> bool {
    let names: Vec<String> = s.bonds.all.keys().cloned().collect();
    names.iter().fold(false, |sent, name| turn_one(s, name) | sent)
}

/// A packet of LACP has come in.
pub fn receive(s: &mut State, punt: &PuntEvent, to: &LacpContext) {
    let Some(spec) = s.ofproto.port(to.bridge, to.port) else { return };
    let (name, iface, now) = (spec.bundle.clone(), spec.name.clone(), s.now_ms());
    let lacp = s.bonds.all.get_mut(&name).and_then(|e| e.lacp.as_mut());
    let Some(lacp) = lacp else { return };
    // Many may have come before the gate was closed: they cost no more than this.
    if !lacp.hears(&iface, now) {
        return;
    }
    if let Some(text) = lacp.receive(&iface, &pdu::read(&punt.packet), now) {
        vlog::warn!("lacp", "{iface}: {text}");
    }
    turn_one(s, &name);
}

fn turn_one(s: &mut State, name: &str) -> bool {
    let sent = run_lacp(s, name);
    run_bond(s, name);
    s.flush_changes();
    announce::turn(s, name);
    sent
}

fn run_lacp(s: &mut State, name: &str) -> bool {
    let now = s.now_ms();
    let Some(e) = s.bonds.all.get_mut(name) else { return false };
    let (bridge, members) = (e.bridge, e.members.clone());
    let Some(lacp) = &mut e.lacp else {
        members.values().for_each(|of_port| set_lacp(s, bridge, *of_port, None));
        return false;
    };
    for (iface, of_port) in &members {
        let is_up = |p: &PortSpec| {
            p.config & port_config::PORT_DOWN == 0 && p.state & port_state::LINK_DOWN == 0
        };
        lacp.set_carrier(iface, s.ofproto.port(bridge, *of_port).is_some_and(is_up), now);
    }
    s.status_dirty |= lacp.run(now);
    if lacp.take_loop() {
        vlog::warn!("lacp", "{name}: Loopback detected. Interface is connected to its own bond");
    }
    let due = lacp.transmit(now);
    let may: Vec<(OfPort, LacpPort)> =
        members.iter().map(|(iface, of_port)| (*of_port, lacp_port(lacp, iface))).collect();
    may.into_iter().for_each(|(of_port, may)| set_lacp(s, bridge, of_port, Some(may)));
    for (iface, actor, partner) in &due {
        let Some(of_port) = members.get(iface) else { continue };
        send(s, bridge, *of_port, |mac| pdu::frame(mac, actor, partner));
    }
    !due.is_empty()
}

/// What LACP says of a port.
fn set_lacp(s: &mut State, bridge: BridgeId, of_port: OfPort, lacp: Option<LacpPort>) {
    let Some(spec) = s.ofproto.port(bridge, of_port).filter(|p| p.lacp != lacp) else { return };
    let spec = PortSpec { lacp, ..spec.clone() };
    let _ = s.ofproto.update_port(bridge, spec);
}

/// Sends a frame that a port's address makes.
fn send(s: &mut State, bridge: BridgeId, of_port: OfPort, make: impl Fn([u8; 6]) -> Vec<u8>) {
    let Some(mac) = s.ofproto.port(bridge, of_port).map(|p| p.hw_addr) else { return };
    let mut matching = Match::default();
    matching.key.set_u32(flow::at::OF_IN_PORT, port::ANY);
    let (actions, data) = (vec![Action::output(of_port)], make(mac));
    let packet = PacketOut { buffer_id: NO_BUFFER, matching, actions, data };
    if let Err(error) = s.packet_out(bridge, &packet) {
        vlog::warn!("lacp", "sending on port {of_port}: {error}");
    }
}

fn run_bond(s: &mut State, name: &str) {
    let now = s.now_ms();
    let Some(e) = s.bonds.all.get_mut(name) else { return };
    let status = e.lacp_status();
    let Some(bond) = &mut e.bond else {
        let unused = e.spread.take().map(|spread| spread.no);
        let _ = s.ofproto.set_bond(e.bridge, name, None);
        return give_up(s, unused);
    };
    for (iface, of_port) in &e.members {
        bond.set_up(iface, s.ofproto.port(e.bridge, *of_port).is_some_and(PortSpec::live));
    }
    if let Some(spread) = &e.spread {
        bond.buckets.count(|bucket| spread.table.bytes(bucket));
    }
    let before = bond.active_mac();
    bond.run(status, now);
    s.status_dirty |= before != bond.active_mac();
    if bond.take_announcement() {
        e.announcement = Some(announce::begin());
    }
    for line in bond.take_log() {
        vlog::info!("bond", "bond {name}: {line}");
    }
    let unused = update_spread(s, name);
    let Some(e) = s.bonds.all.get(name) else { return };
    let number = e.spread.as_ref().map(|spread| spread.no);
    let spec = e.bond.as_ref().map(|bond| bond.spec(number));
    let _ = s.ofproto.set_bond(e.bridge, name, spec);
    give_up(s, unused);
}

/// Ends a bond's number in the packet side; the switch half does not name it any more.
fn give_up(s: &mut State, number: Option<PortNo>) {
    if let Some(no) = number {
        s.flush_changes();
        s.dp.del_bond(no);
    }
}

/// Has the packet side spread packets as the bond says; returns the number that is no longer used.
fn update_spread(s: &mut State, name: &str) -> Option<PortNo> {
    let e = s.bonds.all.get_mut(name)?;
    let mut unused = None;
    let how = e.how(&s.ofproto);
    if how.is_none() || e.spread.as_ref().map(|spread| spread.how) != how {
        let old = e.spread.take();
        let number = old.as_ref().map(|spread| spread.no);
        match how {
            Some((hash, basis)) => {
                let table = Arc::new(datapath::Bond::new(hash, basis));
                let put = s.dp.put_bond(number, &table);
                let made = put.map(|no| Spread { no, table, how: (hash, basis) });
                if made.is_none() {
                    vlog::err!("bond", "bond {name}: too many bonds, one interface is used");
                }
                e.spread = made;
            }
            None => unused = number,
        }
    }
    let (Some(spread), Some(bond)) = (&e.spread, &e.bond) else { return unused };
    for (bucket, member) in (0..=u8::MAX).zip(bond.buckets.members()) {
        let of_port = member.and_then(|p| s.ofproto.port(e.bridge, p));
        spread.table.set(bucket, of_port.and_then(|p| p.dp_port));
    }
    unused
}
