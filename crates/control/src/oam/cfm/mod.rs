//! Connectivity fault management (IEEE 802.1ag) on interfaces: who is asked for it by the database
//! sends continuity check messages, and an interface whose remote points are not heard carries no
//! traffic where there is a choice.
//!
//! Messages leave as a controller's would, through tunnels too. What comes is taken before the
//! tables see it (`ofproto::translate::special`) and handed over; [`point`] says what follows.

mod ccm;
mod cfm_conf;
mod point;
pub mod points;

use crate::config::IfaceConf;
use crate::oam::path::{self, named, place, received};
use crate::state::State;
use crate::vlog;
use cfm_conf::CfmConf;
use datapath::PuntEvent;
use ofproto::CfmContext;
use point::MaintenancePoint;
use std::hash::{BuildHasher, RandomState};

const MODULE: &str = "cfm";

/// Runs a session that it is time for at `now`, and is not again before `now + 1`; false: there is
/// none.
pub fn turn(s: &mut State, now: u64) -> bool {
    let next = s.oam.cfm.wakeups.next(now);
    next.iter().for_each(|iface| advance(s, iface, now));
    next.is_some()
}

/// Gives an interface what the database asks for.
pub fn configure(s: &mut State, conf: &IfaceConf) {
    let iface = conf.name.as_str();
    let (new, wrong) = CfmConf::read(conf);
    if s.oam.cfm.keep_wrong(iface, &wrong) {
        wrong.iter().for_each(|w| vlog::warn!(MODULE, "interface {iface}: {w}"));
    }
    let Some(new) = new else { return s.oam.cfm.remove(iface) };
    let (now, received) = (s.now_ms(), data(s, iface, new.demand));
    match s.oam.cfm.all.get_mut(iface) {
        Some(e) if *e.point.conf() == new => return,
        Some(e) => e.point.configure(new, now, received),
        None => s.oam.cfm.add(iface, MaintenancePoint::new(new, now, received)),
    }
    s.oam.cfm.wakeups.set(iface, now);
}

/// Ends CFM of interfaces that are gone.
pub fn sweep(s: &mut State) {
    let known = s.oam.cfm.all.keys().chain(s.oam.cfm.wrong.keys());
    let gone: Vec<String> = known.filter(|iface| place(s, iface).is_none()).cloned().collect();
    for iface in gone {
        s.oam.cfm.remove(&iface);
        s.oam.cfm.wrong.remove(&iface);
    }
}

/// A message has come in.
pub fn receive(s: &mut State, punt: &PuntEvent, to: &CfmContext) {
    let Some(iface) = s.ofproto.port(to.bridge, to.port).map(|p| p.name.clone()) else { return };
    let now = s.now_ms();
    let Some(e) = s.oam.cfm.all.get_mut(&iface) else { return };
    // Many may have come before the gate was closed: they cost no more than this.
    if !e.point.hears(now) {
        s.oam.cfm.unheard += 1;
        return;
    }
    e.point.receive(&punt.packet, now);
    e.gate.set(e.point.hears(now));
    for (level, text) in e.point.take_notes() {
        vlog::at!(level, MODULE, "{iface}: {text}");
    }
    let wake = e.point.wake();
    s.oam.cfm.wakeups.set(&iface, wake);
}

/// Makes an interface, or all with CFM, report a fault or none whatever was heard. Error: the
/// interface has no CFM.
pub fn set_fault(s: &mut State, iface: Option<&str>, forced: Option<bool>) -> Result<(), ()> {
    let now = s.now_ms();
    for iface in named(iface, s.oam.cfm.all.keys()) {
        s.oam.cfm.all.get_mut(&iface).ok_or(())?.point.force(forced);
        advance(s, &iface, now);
    }
    Ok(())
}

/// Packets received by the interface, if data counts.
fn data(s: &mut State, iface: &str, counts: bool) -> u64 {
    if counts { received(s, iface) } else { 0 }
}

/// Sends what is due, lets the session know the time, and tells what came of it.
fn advance(s: &mut State, iface: &str, now: u64) {
    let Some(place) = place(s, iface) else { return s.oam.cfm.remove(iface) };
    s.oam.cfm.runs += 1;
    let mac = s.ofproto.port(place.0, place.1).map_or([0; 6], |p| p.hw_addr);
    let Some(e) = s.oam.cfm.all.get_mut(iface) else { return };
    let counts = e.point.conf().demand;
    if e.point.is_due(now) {
        let random = RandomState::new().hash_one(now) as u16;
        let frame = e.point.transmit(now, mac, random);
        if let Err(error) = path::send(s, place, Vec::new(), frame) {
            vlog::warn!(MODULE, "{iface}: sending a continuity check message: {error}");
        }
    }
    let received = data(s, iface, counts);
    let Some(e) = s.oam.cfm.all.get_mut(iface) else { return };
    e.point.check(now, received);
    e.gate.set(e.point.hears(now));
    // A rate of its own: what messages say cannot hide a fault.
    for (level, text) in e.point.take_notes() {
        vlog::at!(level, MODULE, "{iface}: {text}");
    }
    let (wake, is) = (e.point.wake(), e.point.status());
    s.status_dirty |= is != e.published;
    e.published = is;
    s.oam.cfm.wakeups.set(iface, wake.max(now + 1));
    path::tell(s, iface, place);
}
