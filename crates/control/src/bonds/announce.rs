//! When another interface of a bond carries packets, the switches on the other side hear it at
//! once: for each station that is not behind the bond, a frame with its source address.

use super::all::{Announcement, Entry};
use super::send;
use crate::state::State;
use ofproto::{Switch, VlanMode};
use wire::ETH_RARP;

/// Stations that are announced after a change: as many as a MAC table holds by default.
const STATIONS_MAX: usize = 8192;
/// Stations that are announced in one turn, every [`super::LOOK_MS`]; other work goes on between.
const STATIONS_TURN_MAX: usize = 256;
/// Places of the MAC table that one turn looks at: it may be large, and full of addresses that are
/// not to be announced.
const LOOKS_TURN_MAX: usize = 4096;

/// An announcement of all stations, from the beginning.
pub(super) fn begin() -> Announcement {
    Announcement { next: 0, left: STATIONS_MAX }
}

/// Operation of RARP (RFC 903): a host asks for its own IP address.
const REVERSE_REQUEST: u8 = 3;

/// Some of the bridge's stations (VLAN and address) that are not behind the bond, until there are
/// none to announce.
fn some_stations(of: &Switch, e: &mut Entry, bond: &str) -> Vec<(u16, [u8; 6])> {
    let Some(a) = &e.announcement else { return Vec::new() };
    let (bridge, most) = (e.bridge, a.left.min(STATIONS_TURN_MAX));
    let elsewhere = |port| of.port(bridge, port).is_none_or(|p| p.bundle != bond);
    let mut stations = Vec::new();
    let next = of.fdb_from(bridge, a.next, LOOKS_TURN_MAX, &mut |m| {
        stations.extend(elsewhere(m.port).then_some((m.vlan, m.mac)));
        stations.len() < most
    });
    let left = a.left.saturating_sub(stations.len());
    e.announcement = next.filter(|_| left > 0).map(|next| Announcement { next, left });
    stations
}

/// Sends frames of stations that are to be announced, some at a time.
pub fn turn(s: &mut State, name: &str) {
    let Some(e) = s.bonds.all.get_mut(name) else { return };
    for (vlan, mac) in some_stations(&s.ofproto, e, name) {
        let Some(e) = s.bonds.all.get_mut(name) else { return };
        let first = e.members.values().next().and_then(|p| s.ofproto.port(e.bridge, *p));
        let Some(tag) = first.and_then(|p| tag_on_wire(&p.vlan, vlan)) else { continue };
        let frame = frame(mac, tag);
        if let Some(port) = e.member_for(&frame) {
            let bridge = e.bridge;
            send(s, bridge, port, |_| frame.clone());
        }
    }
}

impl Entry {
    /// The interface by which a frame leaves.
    fn member_for(&self, frame: &[u8]) -> Option<openflow::OfPort> {
        let bond = self.bond.as_ref()?;
        match &self.spread {
            Some(spread) => {
                let bucket = usize::from(spread.table.bucket(frame));
                bond.buckets.members().nth(bucket).flatten()
            }
            None => bond.active_port(),
        }
    }
}

/// The tag with which packets of a VLAN leave, 0 for none; None: the port does not carry the VLAN.
fn tag_on_wire(mode: &VlanMode, vlan: u16) -> Option<u16> {
    match mode {
        VlanMode::Access(tag) => (vlan == *tag).then_some(0),
        VlanMode::Trunk(set) => set.contains(vlan).then_some(vlan),
        VlanMode::NativeTagged { tag, trunks } => {
            (vlan == *tag || trunks.contains(vlan)).then_some(vlan)
        }
        VlanMode::NativeUntagged { tag, .. } if vlan == *tag => Some(0),
        VlanMode::NativeUntagged { trunks, .. } => trunks.contains(vlan).then_some(vlan),
        VlanMode::Dot1qTunnel { tag, .. } => (vlan == *tag).then_some(0),
    }
}

/// A broadcast from a station, in a VLAN unless it is 0.
fn frame(station: [u8; 6], vlan: u16) -> Vec<u8> {
    let mut out = [&[0xff; 6][..], &station].concat();
    if vlan != 0 {
        out.extend([0x81, 0]);
        out.extend(vlan.to_be_bytes());
    }
    out.extend(ETH_RARP.to_be_bytes());
    out.extend([0, 1, 8, 0, 6, 4, 0, REVERSE_REQUEST]);
    for _ in 0..2 {
        out.extend(station);
        out.extend([0; 4]);
    }
    out.resize(out.len().max(60), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_tag_of_their_port() {
        let trunks = || std::sync::Arc::new([5u16, 7].into_iter().collect());
        let untagged = VlanMode::NativeUntagged { tag: 5, trunks: trunks() };
        let tagged = VlanMode::NativeTagged { tag: 5, trunks: trunks() };
        for (mode, vlan, tag) in [
            (&VlanMode::Access(5), 5, Some(0)),
            (&VlanMode::Access(5), 7, None),
            (&VlanMode::default(), 0, Some(0)),
            (&VlanMode::default(), 7, Some(7)),
            (&untagged, 5, Some(0)),
            (&untagged, 7, Some(7)),
            (&tagged, 5, Some(5)),
            (&tagged, 9, None),
        ] {
            assert_eq!(tag_on_wire(mode, vlan), tag, "{mode:?} {vlan}");
        }
        assert_eq!(frame([2; 6], 0)[12..16], [0x80, 0x35, 0, 1]);
        assert_eq!(frame([2; 6], 7)[12..18], [0x81, 0, 0, 7, 0x80, 0x35]);
        assert!((0..2).all(|vlan| frame([2; 6], vlan).len() == 60));
    }
}
