//! Datapath ports of interfaces: what they may bring and be sent, and their end.

use super::State;
use crate::closing;
use crate::config::{IfaceConf, QosConf};
use crate::ports::{egress, policing};
use crate::{tunnel_options, vlog};
use datapath::Policing;
use flow::PortNo;

const MODULE: &str = "bridge";

impl State {
    /// Limits what an interface's port may bring, and be sent, to what is configured.
    pub fn police(&mut self, conf: &IfaceConf, no: Option<PortNo>) {
        let no = no.filter(|_| !tunnel_options::is_tunnel(&conf.kind));
        self.police_egress(conf, no);
        let policing = policing(conf);
        match no {
            Some(no) => drop(self.dp.set_policing(no, policing)),
            None if policing == Policing::default() => {}
            None => vlog::warn!(
                MODULE,
                "interface {}: ingress_policing is ignored: a port of type {} has no receive queue",
                conf.name,
                conf.kind
            ),
        }
    }

    fn police_egress(&mut self, conf: &IfaceConf, no: Option<PortNo>) {
        let egress = egress(conf);
        let name = &conf.name;
        match (&conf.qos, no) {
            (Some(QosConf::EgressPolicer { .. }), None) => vlog::warn!(
                MODULE,
                "interface {name}: qos is ignored: a port of type {} has no transmit queue",
                conf.kind
            ),
            (Some(QosConf::EgressPolicer { cir, cbs }), _) if egress.is_none() => vlog::err!(
                MODULE,
                "Failed to set QoS type egress-policer on port {name}: Invalid argument \
                 (cir={cir}, cbs={cbs}: both must be positive numbers)"
            ),
            _ => {}
        }
        if let Some(no) = no {
            let _ = self.dp.set_egress(no, egress);
        }
    }

    /// Closes interfaces' ports, but for those that other tunnels use too; packets in flight to
    /// them become named drops.
    pub fn close_ports(&mut self, all: impl IntoIterator<Item = PortNo>) {
        let mut closing = Vec::new();
        for no in all {
            if !self.tunnels.released(no) {
                continue;
            }
            match self.dp.del_port(no) {
                Ok(mut port) => {
                    drop(port.set_persistent(false));
                    closing.push(port);
                }
                Err(e) => vlog::warn!(MODULE, "closing port: {e}"),
            }
        }
        closing::close(closing);
    }
}
