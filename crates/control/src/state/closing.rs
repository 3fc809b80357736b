//! Datapath ports of interfaces: what they may bring, and their end.

use super::State;
use crate::closing;
use crate::config::IfaceConf;
use crate::ports::policing;
use crate::{tunnel_options, vlog};
use datapath::Policing;
use flow::PortNo;

const MODULE: &str = "bridge";

impl State {
    /// Limits what an interface's port may bring to what is configured.
    pub fn police(&mut self, conf: &IfaceConf, no: Option<PortNo>) {
        let policing = policing(conf);
        match no.filter(|_| !tunnel_options::is_tunnel(&conf.kind)) {
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
