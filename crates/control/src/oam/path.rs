//! An interface as the protocols see it that watch its path.

use crate::state::State;
use ofproto::BridgeId;
use openflow::{Action, Match, NO_BUFFER, OfError, OfPort, PacketOut, port};

/// Bridge and OpenFlow number of an interface that works.
pub fn place(s: &State, iface: &str) -> Option<(BridgeId, OfPort)> {
    s.bridges.values().find_map(|b| Some((b.id, b.ifaces.get(iface)?.of_port?)))
}

/// The interface that a command names, or all of these.
pub fn named<'a>(iface: Option<&str>, all: impl Iterator<Item = &'a String>) -> Vec<String> {
    iface.map_or_else(|| all.cloned().collect(), |iface| vec![iface.into()])
}

/// Packets that an interface received so far.
pub fn received(s: &mut State, iface: &str) -> u64 {
    let found = s.bridges.values_mut().find_map(|b| Some((b.id, b.ifaces.get_mut(iface)?)));
    let Some((bridge, iface)) = found else { return 0 };
    if let (true, Some(port)) = (iface.is_virtual(), iface.of_port) {
        return s.ofproto.patch_counters(bridge, port).map_or(0, |[rx, _]| rx.0);
    }
    iface.counters(&mut s.dp).get("rx_packets").copied().unwrap_or(0)
}

/// Sends a frame as a controller would whose actions end with an output to the port.
pub fn send(
    s: &mut State,
    (bridge, port): (BridgeId, OfPort),
    mut actions: Vec<Action>,
    data: Vec<u8>,
) -> Result<(), OfError> {
    actions.push(Action::output(port));
    let mut matching = Match::default();
    matching.key.set_u32(flow::at::OF_IN_PORT, port::ANY);
    let packet = PacketOut { buffer_id: NO_BUFFER, matching, actions, data };
    s.packet_out(bridge, &packet)
}

/// Tells the switch half what the protocols report about an interface.
pub fn tell(s: &mut State, iface: &str, (bridge, port): (BridgeId, OfPort)) {
    let faulty = s.oam.is_faulty(iface);
    let spec = s.ofproto.port(bridge, port).filter(|spec| spec.faulty != faulty).cloned();
    if let Some(mut spec) = spec {
        spec.faulty = faulty;
        let _ = s.ofproto.update_port(bridge, spec);
        s.flush_changes();
    }
}
