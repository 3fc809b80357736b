//! Tunnel interfaces: their datapath ports, and by which device their packets leave.

use crate::config::IfaceConf;
use crate::ports::Iface;
use crate::reconcile::dummy_number;
use crate::state::{Bridge, State};
use crate::tunnel_options::{Options, parse_aloud};
use crate::tunnel_ports::{TunnelPort, port_name};
use crate::vlog;
use datapath::RxAffinity;
use flow::PortNo;
use ofproto::{BridgeId, Switch};
use openflow::port_state;
use std::collections::BTreeMap;

/// A status by name.
type StrMap = BTreeMap<String, String>;

/// Checks a tunnel interface and gives it its datapath port.
pub fn attach(s: &mut State, conf: &IfaceConf) -> Result<PortNo, String> {
    let spec = parse_aloud(conf)?;
    let name = port_name(&conf.kind, spec.dst_port);
    let shared = s.tunnels.number(&name);
    let ids: Vec<BridgeId> = s.ofproto.bridges().map(|(id, _)| id).collect();
    let others = ids.iter().flat_map(|id| s.ofproto.ports(*id));
    let others = others.filter(|p| p.dp_port == shared).filter_map(|p| p.tunnel.as_ref());
    for other in others {
        if other.kind != spec.kind {
            vlog::warn!("netdev", "{}: could not set configuration (File exists)", conf.name);
            return Options(conf).fail(
                "VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port",
            );
        }
        if other.conflicts(&spec) {
            return Err(format!(
                "could not add network device {} to ofproto (File exists)",
                conf.name
            ));
        }
    }
    if let Some(port) = s.tunnels.0.get_mut(&name) {
        port.users += 1;
        return Ok(port.no);
    }
    let port = port::TunnelPort::new(&name, &conf.kind, s.devices.pools.clone());
    let (port, pins) = (Box::new(port), RxAffinity::default());
    let is_dummy = s.bridges.values().any(Bridge::is_dummy);
    let added = match is_dummy.then(|| dummy_number(s, &name)).flatten() {
        Some(no) => s.dp.add_port_at(no, port, pins),
        None => s.dp.add_port(port, pins),
    };
    let no = added.map_err(|e| e.to_string())?;
    let (kind, udp) = (conf.kind.clone(), spec.dst_port);
    s.tunnels.0.insert(name, TunnelPort { no, kind, udp, users: 1 });
    Ok(no)
}

/// Carriers of devices by name, which are looked up among all ports once for many tunnels.
#[derive(Default)]
pub struct Carriers(BTreeMap<String, &'static str>);

impl Carriers {
    fn of(&mut self, ofproto: &Switch, device: &str) -> &'static str {
        self.0.entry(device.into()).or_insert_with(|| {
            let mut all = ofproto.bridges().flat_map(|(id, _)| ofproto.ports(id));
            let port = all.find(|p| p.name == device);
            if port.is_some_and(|p| p.state & port_state::LINK_DOWN != 0) { "down" } else { "up" }
        })
    }
}

/// `Interface.status`: by which device the tunnel's packets leave.
pub fn status(
    ofproto: &Switch,
    bridge: BridgeId,
    iface: &Iface,
    carriers: &mut Carriers,
) -> StrMap {
    let spec = iface.of_port.and_then(|no| ofproto.port(bridge, no));
    let Some(device) = spec.and_then(|spec| ofproto.egress(spec)) else { return StrMap::new() };
    StrMap::from([
        ("tunnel_egress_iface".into(), device.into()),
        ("tunnel_egress_iface_carrier".into(), carriers.of(ofproto, device).into()),
    ])
}
