//! Bidirectional Forwarding Detection (RFC 5880, 5881) on interfaces: who is asked for it by the
//! database speaks with the other end, and an interface whose other end is not heard carries no
//! traffic where there is a choice.
//!
//! Packets of a session leave as a controller's would, through tunnels too. What comes is taken
//! before the tables see it (`ofproto::translate::special`) and handed over; [`session`] says what
//! follows.

mod bfd_conf;
mod packet;
mod session;
pub mod sessions;

use crate::config::IfaceConf;
use crate::oam::path::{self, named, place, received};
use crate::state::State;
use crate::vlog;
use bfd_conf::Conf;
use datapath::PuntEvent;
use ofproto::{BfdContext, BridgeId};
use openflow::{Action, OfPort};
use packet::Refusal;
use session::Override;

const MODULE: &str = "bfd";
/// How often an interface is looked at whose data counts.
const DATA_LOOK_MS: u64 = 500;
/// `tun_flags`: of the control plane.
const OAM: u128 = 1;

/// Runs a session that it is time for at `now`, and is not again before `now + 1`; false: there is
/// none.
pub fn turn(s: &mut State, now: u64) -> bool {
    let next = s.oam.bfd.wakeups.next(now);
    next.iter().for_each(|iface| advance(s, iface, now));
    next.is_some()
}

/// Gives an interface the session that the database asks for, or none.
pub fn configure(s: &mut State, conf: &IfaceConf) {
    let iface = conf.name.as_str();
    let Some((new, wrong)) = Conf::read(&conf.bfd) else { return s.oam.bfd.remove(iface) };
    let (now, received) = (s.now_ms(), received(s, iface));
    match s.oam.bfd.all.get_mut(iface) {
        Some(e) if *e.session.conf() == new => {}
        Some(e) => e.session.configure(new, now, received),
        None => s.oam.bfd.add(iface, new, now, received),
    }
    let Some(e) = s.oam.bfd.all.get_mut(iface) else { return };
    if e.wrong != wrong {
        // ovs-vswitchd says nothing: it is no reason to worry.
        wrong.iter().for_each(|w| vlog::info!(MODULE, "interface {iface}: bfd: {w}"));
        e.wrong = wrong;
    }
    s.oam.bfd.wakeups.set(iface, now);
}

/// Ends sessions whose interfaces are gone.
pub fn sweep(s: &mut State) {
    let gone = |iface: &&String| place(s, iface).is_none();
    let gone: Vec<String> = s.oam.bfd.all.keys().filter(gone).cloned().collect();
    gone.iter().for_each(|iface| s.oam.bfd.remove(iface));
}

/// A packet of a session has come in.
pub fn receive(s: &mut State, punt: &PuntEvent, to: &BfdContext) {
    let Some(iface) = s.ofproto.port(to.bridge, to.port).map(|p| p.name.clone()) else { return };
    let now = s.now_ms();
    // Many may have come before the gate was closed: they cost no more than this.
    if !s.oam.bfd.all.get_mut(&iface).is_some_and(|e| e.session.hears(now)) {
        s.oam.bfd.unheard += 1;
        return;
    }
    let received = data(s, &iface);
    let Some(e) = s.oam.bfd.all.get_mut(&iface) else { return };
    match e.session.receive(&punt.packet, now, received) {
        Ok(()) => {}
        Err(Refusal::Ttl) => vlog::dbg!(MODULE, "{iface}: {}", Refusal::Ttl),
        Err(why) => vlog::warn!(MODULE, "{iface}: {why}."),
    }
    advance(s, &iface, now);
}

/// Makes an interface, or all that have sessions, forward or not whatever the sessions say. Error:
/// the interface has none.
pub fn set_forwarding(s: &mut State, iface: Option<&str>, forced: Override) -> Result<(), ()> {
    let now = s.now_ms();
    for iface in named(iface, s.oam.bfd.all.keys()) {
        s.oam.bfd.all.get_mut(&iface).ok_or(())?.session.force(forced);
        advance(s, &iface, now);
    }
    Ok(())
}

/// Packets received by an interface whose session counts data, 0 of others: reading the counters
/// of a device is a system call.
fn data(s: &mut State, iface: &str) -> u64 {
    match s.oam.bfd.all.get(iface) {
        Some(e) if e.session.counts_data() => received(s, iface),
        _ => 0,
    }
}

/// Sends what is due, lets the session know the time, and tells what came of it.
fn advance(s: &mut State, iface: &str, now: u64) {
    let Some((bridge, port)) = place(s, iface) else { return s.oam.bfd.remove(iface) };
    s.oam.bfd.runs += 1;
    send(s, iface, bridge, port, now);
    let received = data(s, iface);
    let Some(e) = s.oam.bfd.all.get_mut(iface) else { return };
    if received > std::mem::replace(&mut e.received, received) {
        e.session.data(now);
    }
    e.session.run(now, received);
    e.gate.set(e.session.hears(now));
    let look = if e.session.conf().forwarding_if_rx { now + DATA_LOOK_MS } else { u64::MAX };
    let wake = e.session.wake().clamp(now + 1, look);
    s.oam.bfd.wakeups.set(iface, wake);
    record_state(s, iface, bridge, port, now);
}

fn send(s: &mut State, iface: &str, bridge: BridgeId, port: OfPort, now: u64) {
    let random = s.oam.bfd.draw() as u32;
    let Some(mac) = s.ofproto.port(bridge, port).map(|p| p.hw_addr) else { return };
    let Some(e) = s.oam.bfd.all.get_mut(iface).filter(|e| e.session.is_due(now)) else { return };
    let control = e.session.transmit(now, random);
    let data = control.frame(e.session.conf(), mac, e.source_port);
    let oam = e.session.conf().oam;
    let mark = Action::SetField { field: flow::Field::TunFlags, value: OAM, mask: OAM };
    let actions = oam.then_some(mark).into_iter().collect();
    if let Err(error) = path::send(s, (bridge, port), actions, data) {
        vlog::warn!(MODULE, "{iface}: sending a control message: {error}");
    }
}

/// Writes down what the session has come to: for the log, the database, and the code that chooses
/// among ports.
fn record_state(s: &mut State, iface: &str, bridge: BridgeId, port: OfPort, now: u64) {
    let Some(e) = s.oam.bfd.all.get_mut(iface) else { return };
    for change in e.session.take_state_changes() {
        vlog::info!(MODULE, "{iface}: {change}");
    }
    let is = e.session.status(now);
    let was = std::mem::replace(&mut e.published, is);
    s.status_dirty |= is != was;
    path::tell(s, iface, (bridge, port));
}
