//! What `--enable-dummy` puts in the place of datapaths and devices.

use super::desired::{Desired, IfaceConf};
use crate::daemon::Dummy;

impl Desired {
    /// Makes dummies of the bridges and interfaces whose type a level of `--enable-dummy` replaces,
    /// as ovs-vswitchd does: patch ports and tunnels stay what they are.
    pub fn put_dummies(&mut self, level: Option<Dummy>) {
        let replaces_all = match level {
            None | Some(Dummy::Available) => return,
            Some(Dummy::System) => false,
            Some(Dummy::Override) => true,
        };
        for bridge in &mut self.bridges {
            if replaces_all || bridge.datapath_type == "system" {
                bridge.datapath_type = "dummy".into();
            }
            for iface in bridge.ports.iter_mut().flat_map(|port| &mut port.interfaces) {
                if is_replaced(iface, replaces_all) {
                    iface.kind = "dummy".into();
                }
            }
        }
    }
}

/// Internal ports are not: they are as their bridge's datapath is.
fn is_replaced(iface: &IfaceConf, replaces_all: bool) -> bool {
    match iface.kind.as_str() {
        "system" => true,
        kind => replaces_all && (kind == "tap" || port_dpdk::KINDS.contains(&kind)),
    }
}
