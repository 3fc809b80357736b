//! Datapath ports of interfaces: what they may bring and be sent, and their end.

use super::State;
use crate::config::{IfaceConf, QosConf};
use crate::ports::{egress, policing};
use crate::{offload, qos, tunnel_options, vlog};
use datapath::Policing;
use flow::PortNo;

const MODULE: &str = "bridge";

impl State {
    /// Limits what an interface's port may bring, and be sent, to what is configured.
    pub fn police(&mut self, conf: &IfaceConf, no: Option<PortNo>) {
        let no = no.filter(|_| !tunnel_options::is_tunnel(&conf.kind));
        judge_limits(conf, no.is_some());
        let Some(no) = no else { return };
        let _ = self.dp.set_policing(no, policing(conf));
        let _ = self.dp.set_egress(no, egress(conf));
        offload::look_at_limits(self, no);
    }

    /// Takes interfaces' ports out of the datapath, but for those that other tunnels use too, and
    /// begins to close them; packets in flight to them become named drops.
    pub fn close_ports(&mut self, all: impl IntoIterator<Item = PortNo>) {
        let mut nos = Vec::new();
        for no in all {
            if self.tunnels.released(no) {
                self.bonds.forget_port(no);
                nos.push(no);
            }
        }
        let gates = qos::release(self, &nos);
        let ports = self.dp.del_ports(nos);
        self.closing.close(ports, gates);
    }
}

/// Says in the log which limits of an interface have no effect.
fn judge_limits(conf: &IfaceConf, has_device: bool) {
    let IfaceConf { name, kind, .. } = conf;
    if !has_device && policing(conf) != Policing::default() {
        vlog::warn!(
            MODULE,
            "interface {name}: ingress_policing is ignored: a port of type {kind} has no receive \
             queue"
        );
    }
    let Some(QosConf::EgressPolicer { cir, cbs }) = conf.qos.as_deref() else { return };
    if !has_device {
        vlog::warn!(
            MODULE,
            "interface {name}: qos is ignored: a port of type {kind} has no transmit queue"
        );
    } else if egress(conf).is_none() {
        vlog::err!(
            MODULE,
            "Failed to set QoS type egress-policer on port {name}: Invalid argument (cir={cir}, \
             cbs={cbs}: both must be positive numbers)"
        );
    }
}
