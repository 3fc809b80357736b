//! Ports of bridges.

use super::Switch;
use super::fdb::MOVED_MACS_MAX;
use crate::events::Event;
use crate::tables::counters::{Counter, Slot};
use crate::types::*;
use crate::work;
use openflow::{OfError, OfPort, PortDesc, PortMod, port, port_config, port_state};

/// Reasons of port-status messages (`OFPPR_*`).
const ADDED: u8 = 0;

const DELETED: u8 = 1;

const MODIFIED: u8 = 2;

fn describe(spec: &PortSpec) -> Box<PortDesc> {
    let others = spec.state & !(port_state::LIVE | port_state::STP_MASK);
    let live = if spec.live() { port_state::LIVE } else { 0 };
    Box::new(PortDesc {
        port: spec.of_port,
        hw_addr: spec.hw_addr,
        name: spec.name.clone(),
        config: spec.config,
        state: others | live | spec.tree_state().of_bits(),
        curr: spec.features[0],
        advertised: spec.features[1],
        supported: spec.features[2],
        curr_speed: spec.speeds[0],
        max_speed: spec.speeds[1],
        ..PortDesc::default()
    })
}

/// Bits of a port's config that a port-mod may change.
const CONFIGURABLE: u32 = port_config::PORT_DOWN
    | port_config::NO_STP
    | port_config::NO_RECV
    | port_config::NO_RECV_STP
    | port_config::NO_FLOOD
    | port_config::NO_FWD
    | port_config::NO_PACKET_IN;

impl Switch {
    fn check_port(&self, id: BridgeId, spec: &PortSpec) -> Result<(), ConfigError> {
        let valid = (1..port::MAX).contains(&spec.of_port) && spec.of_port < 0xff00;
        if !valid && spec.of_port != port::LOCAL {
            return Err(ConfigError::BadPort(spec.of_port));
        }
        let Some(dp) = spec.dp_port else { return Ok(()) };
        let used = self.bridges.iter().flatten().any(|b| {
            let other = |p: &&PortSpec| (b.id, p.of_port) != (id.0, spec.of_port);
            let shared = |p: &PortSpec| p.tunnel.is_some() && spec.tunnel.is_some();
            let ports = b.ports.values().inspect(|_| work::step());
            ports.filter(other).any(|p| p.dp_port == Some(dp) && !shared(p))
        });
        if used { Err(ConfigError::DpPortInUse(dp)) } else { Ok(()) }
    }

    /// Adds a port.
    pub fn add_port(&mut self, id: BridgeId, spec: PortSpec) -> Result<(), ConfigError> {
        self.check_port(id, &spec)?;
        let b = self.bridge_mut(id)?;
        if b.ports.contains_key(&spec.of_port) {
            return Err(ConfigError::PortInUse(spec.of_port));
        }
        if spec.patch_peer.is_some() {
            self.rewritten.add_patch();
        }
        self.put_port(id, spec, ADDED)
    }

    /// Changes a port, which is found by its OpenFlow number.
    pub fn update_port(&mut self, id: BridgeId, spec: PortSpec) -> Result<(), ConfigError> {
        match self.bridge(id)?.ports.get(&spec.of_port) {
            None => return Err(ConfigError::NoPort(spec.of_port)),
            Some(old) if *old == spec => return Ok(()),
            Some(_) => self.check_port(id, &spec)?,
        }
        if spec.patch_peer.is_some() {
            self.rewritten.add_patch();
        }
        self.put_port(id, spec, MODIFIED)
    }

    fn put_port(&mut self, id: BridgeId, spec: PortSpec, reason: u8) -> Result<(), ConfigError> {
        if spec.vlan != VlanMode::default() {
            self.rewritten.vlan();
        }
        let desc = describe(&spec);
        let virt = spec.patch_peer.is_some() || spec.tunnel.is_some();
        if virt && !self.bridge(id)?.patch_counts.contains_key(&spec.of_port) {
            let base = self.slots.push_run(2, |_| Slot::Count(Counter::default()));
            self.bridge_mut(id)?.patch_counts.insert(spec.of_port, base);
        }
        let decides = self.port_decides(id, &spec)?;
        let b = self.bridge_mut(id)?;
        let (of_port, vlan) = (spec.of_port, spec.vlan.clone());
        let before = b.ports.insert(of_port, spec.clone());
        if before.as_ref().is_some_and(|before| before.vlan != vlan) {
            self.forget_mcast(id, of_port);
        }
        let events = &mut self.outbox.events;
        match before.as_ref().map(describe) {
            Some(old) if old == desc => {}
            Some(old) => events.push(Event::PortStatus(id, reason, desc, Some(old))),
            // As in OVS a port is added first, and becomes live afterwards.
            None => {
                let state = desc.state & !port_state::LIVE;
                let first = Box::new(PortDesc { state, ..(*desc).clone() });
                events.push(Event::PortStatus(id, reason, first.clone(), None));
                if first != desc {
                    events.push(Event::PortStatus(id, MODIFIED, desc, Some(first)));
                }
            }
        }
        self.publish_later();
        self.ports_changed(id, of_port);
        if decides {
            self.port_changed(id, before.as_ref(), Some(&spec));
        }
        Ok(())
    }

    /// True if decisions may change when a port becomes `spec`. They do not if only its link
    /// changes, which a tenant can cause as often as it likes.
    fn port_decides(&self, id: BridgeId, spec: &PortSpec) -> Result<bool, ConfigError> {
        let b = self.bridge(id)?;
        let Some(old) = b.ports.get(&spec.of_port) else { return Ok(true) };
        let asked = || b.liveness_decides(spec) || self.rewritten.chooses_live();
        Ok(!spec.differs_in_link_only(old) || old.live() != spec.live() && asked())
    }

    /// Removes a port and addresses learned behind it; other bridges, which may have learned them
    /// behind patch ports, forget them, too: a guest that goes may come back elsewhere. Flows that
    /// refer to it stay.
    pub fn remove_port(&mut self, id: BridgeId, of_port: OfPort) -> Result<(), ConfigError> {
        let (b, guard) = self.bridge_pinned(id)?;
        let spec = b.ports.remove(&of_port).ok_or(ConfigError::NoPort(of_port))?;
        let learned = b.macs.remove_port(b.mac_index.writer(guard), of_port, MOVED_MACS_MAX);
        self.forget_moved(id, &learned);
        self.outbox.events.push(Event::PortStatus(id, DELETED, describe(&spec), None));
        self.forget_neighbours(&[&spec.name]);
        self.forget_mcast(id, of_port);
        self.publish_later();
        self.ports_changed(id, of_port);
        self.port_changed(id, Some(&spec), None);
        Ok(())
    }

    /// Sets which interfaces of a port carry packets; None: the first that is live.
    pub fn set_bond(
        &mut self,
        id: BridgeId,
        name: &str,
        bond: Option<BondSpec>,
    ) -> Result<(), ConfigError> {
        let bonds = &mut self.bridge_mut(id)?.bonds;
        if bonds.get(name) == bond.as_ref() {
            return Ok(());
        }
        match bond {
            Some(bond) => drop(bonds.insert(name.into(), bond)),
            None => drop(bonds.remove(name)),
        }
        self.publish_later();
        self.bridge_changed(id.0);
        Ok(())
    }

    /// Packets and bytes that a patch or tunnel port has received and sent; None for other ports.
    /// Counts are kept by number: a port that is added again under its number continues them.
    pub fn patch_counters(&self, id: BridgeId, of_port: OfPort) -> Option<[(u64, u64); 2]> {
        let b = self.bridge(id).ok()?;
        let base = *b.patch_counts.get(&of_port)?;
        let spec = b.ports.get(&of_port)?;
        if spec.patch_peer.is_none() && spec.tunnel.is_none() {
            return None;
        }
        Some([base, base + 1].map(|id| self.slots.count(id)).map(|c| (c.packets, c.bytes)))
    }

    /// The name of a patch port's peer if it has no usable one: a peer is a patch port, too, and
    /// names this port as its own. None for other ports.
    pub fn missing_peer(&self, id: BridgeId, of_port: Option<OfPort>) -> Option<&str> {
        let peer = self.port(id, of_port?)?.patch_peer.as_deref()?;
        let published = self.published();
        let joined = published.bridge(id.0)?.port(of_port?)?.peer.is_some();
        (!joined).then_some(peer)
    }

    /// A port's present properties.
    pub fn port(&self, id: BridgeId, of_port: OfPort) -> Option<&PortSpec> {
        self.bridge(id).ok()?.ports.get(&of_port)
    }

    /// All ports of a bridge, by ascending number.
    pub fn ports(&self, id: BridgeId) -> impl Iterator<Item = &PortSpec> {
        self.bridge(id).ok().into_iter().flat_map(|b| b.ports.values())
    }

    /// Descriptions of a bridge's ports for OpenFlow.
    pub fn port_descs(&self, id: BridgeId) -> Vec<PortDesc> {
        self.ports(id).map(|p| *describe(p)).collect()
    }

    /// Executes a port-mod. The caller reads the port's new `config` to configure the device.
    pub fn port_mod(&mut self, id: BridgeId, m: &PortMod) -> Result<(), OfError> {
        let b = self.of_bridge(id)?;
        let mut spec = b.ports.get(&m.port).cloned().ok_or(OfError::PortModBadPort)?;
        if m.hw_addr != spec.hw_addr {
            return Err(OfError::PortModBadHwAddr);
        }
        let mask = m.mask & CONFIGURABLE;
        let config = spec.config & !mask | m.config & mask;
        if config != spec.config {
            spec.config = config;
            self.put_port(id, spec, MODIFIED).map_err(|_| OfError::PortModBadPort)?;
        }
        Ok(())
    }
}
