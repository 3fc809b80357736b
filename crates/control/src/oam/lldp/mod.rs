//! LLDP (IEEE 802.1AB) and Auto Attach on interfaces: who is asked for it by the database
//! (`Interface.lldp`) says every five seconds which port of which bridge it is, and to which
//! services (I-SIDs) VLANs belong (table `AutoAttach`), and remembers what neighbours say.
//!
//! Data units come from whoever is at the other end of the link: each interface hears as many as
//! its budget allows, and knows few neighbours, for as long as they say.

mod agent;
pub mod agents;
mod lldp_conf;
mod trunks;

pub use lldp_conf::LldpConf;
pub use trunks::Trunks;

use crate::config::IfaceConf;
use crate::oam::path::{self, place};
use crate::state::State;
use crate::vlog;
use agent::Agent;
use datapath::PuntEvent;
use ofproto::LldpContext;

const MODULE: &str = "lldp";

/// Runs an agent that it is time for at `now`, and is not again before `now + 1`; false: there is
/// none.
pub fn turn(s: &mut State, now: u64) -> bool {
    let next = s.oam.lldp.wakeups.next(now);
    next.iter().for_each(|iface| advance(s, iface, now));
    next.is_some()
}

/// Gives an interface what the database asks for.
pub fn configure(s: &mut State, conf: &IfaceConf) {
    let iface = conf.name.as_str();
    let Some(new) = &conf.lldp else { return s.oam.lldp.remove(iface) };
    let (now, lldp) = (s.now_ms(), &mut s.oam.lldp);
    let old = lldp.all.get(iface).map(|a| a.conf().assignments.clone()).unwrap_or_default();
    lldp.trunks.assign(iface, &old, &new.assignments);
    s.status_dirty |= !lldp.trunks.is_empty();
    match lldp.all.get_mut(iface) {
        Some(agent) if agent.conf() == new => return,
        Some(agent) => agent.configure(new.clone()),
        None => _ = lldp.all.insert(iface.into(), Agent::new(new.clone(), now)),
    }
    lldp.wakeups.set(iface, now);
}

/// Ends LLDP of interfaces that are gone.
pub fn sweep(s: &mut State) {
    let known = s.oam.lldp.all.keys();
    let gone: Vec<String> = known.filter(|iface| place(s, iface).is_none()).cloned().collect();
    gone.iter().for_each(|iface| s.oam.lldp.remove(iface));
}

/// A data unit has come in.
pub fn receive(s: &mut State, punt: &PuntEvent, to: &LldpContext) {
    let Some(iface) = s.ofproto.port(to.bridge, to.port).map(|p| p.name.clone()) else { return };
    let (now, lldp) = (s.now_ms(), &mut s.oam.lldp);
    let Some(agent) = lldp.all.get_mut(&iface) else { return };
    // Many may have come before the gate was closed: they cost no more than this.
    if !agent.hears(now) {
        lldp.unheard += 1;
        return;
    }
    if let Some(refusal) = agent.receive(&punt.packet, now) {
        vlog::warn!(MODULE, "{refusal} received on {iface}");
    }
    agent.hears(now);
    lldp.wakeups.set(&iface, agent.wake(now));
}

/// Sends what is due, and forgets neighbours that were not heard of for too long.
fn advance(s: &mut State, iface: &str, now: u64) {
    let Some(place) = place(s, iface) else { return s.oam.lldp.remove(iface) };
    s.oam.lldp.runs += 1;
    let mac = s.ofproto.port(place.0, place.1).map_or([0; 6], |p| p.hw_addr);
    let Some(agent) = s.oam.lldp.all.get_mut(iface) else { return };
    agent.expire(now);
    agent.hears(now);
    let frame = agent.transmit(iface, mac, now);
    let wake = agent.wake(now);
    s.oam.lldp.wakeups.set(iface, wake.max(now + 1));
    let Some((frame, left_out)) = frame else { return };
    if left_out > 0 && s.oam.lldp.says_left_out(iface, left_out) {
        vlog::warn!(MODULE, "{iface}: {left_out} mappings have no room in a frame");
    }
    if let Err(error) = path::send(s, place, Vec::new(), frame) {
        vlog::warn!(MODULE, "{iface}: sending an LLDP data unit: {error}");
    }
}
