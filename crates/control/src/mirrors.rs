//! Mirrors of bridges: from the database to the switch half.

use crate::config::{BridgeConf, MirrorConf};
use crate::state::{MirrorNotice, State};
use crate::vlog::Level;
use ofproto::{MIRRORS_MAX, MirrorSpec, MirrorTo};
use std::collections::{BTreeMap, BTreeSet};

const MODULE: &str = "bridge";

/// Gives a bridge the mirrors that the database asks for. What is wrong with one is said once,
/// until something else is.
pub fn apply(s: &mut State, conf: &BridgeConf) {
    let (now, now_ms) = (s.now_ns(), s.now_ms());
    let ports: BTreeSet<&str> = conf.ports.iter().map(|port| port.name.as_str()).collect();
    let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
    let mut notices = BTreeSet::new();
    let specs = conf.mirrors.iter().filter_map(|m| spec((conf, &ports), m, &mut notices)).collect();
    let left = s.ofproto.set_mirrors(bridge.id, specs, now).unwrap_or_default();
    let left: BTreeSet<_> = left.iter().map(|spec| spec.id).collect();
    for MirrorConf { name, .. } in conf.mirrors.iter().filter(|m| left.contains(&m.uuid.0)) {
        let text = format!("maximum of {MIRRORS_MAX} port mirrors reached, cannot create {name}");
        notices.insert((Level::Warn, "ofproto_dpif_mirror", text));
    }
    let new = notices.difference(&bridge.mirror_notices);
    let new = new.map(|(level, module, text)| (*level, *module, text.as_str()));
    s.applied.setting_log.say(now_ms, new);
    bridge.mirror_notices = notices;
}

/// None: it has nowhere to send to.
fn spec(
    (conf, ports): (&BridgeConf, &BTreeSet<&str>),
    m: &MirrorConf,
    notices: &mut BTreeSet<MirrorNotice>,
) -> Option<MirrorSpec> {
    let has = |port: &str| ports.contains(port);
    let mut say = |level, text: String| {
        let text = format!("bridge {}: mirror {} {text}", conf.name, m.name);
        notices.insert((level, MODULE, text));
    };
    let to = match (&m.output_port, m.output_vlan) {
        (Some(port), _) if !has(port) => {
            say(Level::Err, "outputs to port not on bridge".into());
            return None;
        }
        (Some(port), vlan) => {
            if vlan.is_some() {
                let what = "specifies both output port and output vlan; ignoring output vlan";
                say(Level::Err, what.into());
            }
            MirrorTo::Port(port.clone())
        }
        (None, Some(vlan)) => MirrorTo::Vlan(vlan),
        (None, None) => {
            say(Level::Err, "does not specify output; ignoring".into());
            return None;
        }
    };
    let mut known = |names: &[String]| {
        let (known, unknown): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|n| has(n));
        for name in unknown {
            say(Level::Warn, format!("cannot match on nonexistent port {name}"));
        }
        known.into_iter().collect::<BTreeSet<_>>()
    };
    let (received, sent) = match m.all {
        true => Default::default(),
        false => (known(&m.received), known(&m.sent)),
    };
    let vlans = (!m.vlans.is_empty()).then(|| Box::new(m.vlans.iter().copied().collect()));
    Some(MirrorSpec { id: m.uuid.0, all: m.all, received, sent, vlans, to, snaplen: m.snaplen })
}

/// `Mirror.statistics` of the mirrors that are in place, by row: packets and bytes as they were
/// received.
pub fn statistics(s: &State, conf: &BridgeConf) -> Vec<(ovsdb::Uuid, BTreeMap<String, i64>)> {
    let Some(bridge) = s.bridges.get(&conf.name) else { return Vec::new() };
    let count = |m: &MirrorConf| {
        let (packets, bytes) = s.ofproto.mirror_counters(bridge.id, m.uuid.0)?;
        let pairs = [("tx_packets", packets), ("tx_bytes", bytes)];
        Some((m.uuid, pairs.map(|(name, n)| (name.to_owned(), n as i64)).into()))
    };
    conf.mirrors.iter().filter_map(count).collect()
}
