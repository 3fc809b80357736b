//! The datapath ports that tunnels share.

use flow::PortNo;
use std::collections::BTreeMap;

/// A datapath port that tunnels share.
#[derive(Clone, Debug)]
pub struct TunnelPort {
    /// Datapath number.
    pub no: PortNo,
    /// Type of its tunnels.
    pub kind: String,
    /// The UDP port that it listens on; 0: it listens for GRE or ERSPAN.
    pub udp: u16,
    /// Interfaces that use it.
    pub users: usize,
}

/// Datapath ports of tunnels by name.
#[derive(Default)]
pub struct TunnelPorts(pub(crate) BTreeMap<String, TunnelPort>);

impl TunnelPorts {
    /// All tunnels' datapath ports with their names, ascending.
    pub fn all(&self) -> impl Iterator<Item = (&String, &TunnelPort)> {
        self.0.iter()
    }

    /// The name of a tunnels' datapath port.
    pub fn name(&self, no: PortNo) -> Option<String> {
        self.0.iter().find(|(_, p)| p.no == no).map(|(name, _)| name.clone())
    }

    /// The type of a datapath port's tunnels.
    pub fn kind(&self, no: PortNo) -> Option<&str> {
        self.0.values().find(|p| p.no == no).map(|p| p.kind.as_str())
    }

    /// The number of the datapath port of this name.
    pub fn number(&self, name: &str) -> Option<PortNo> {
        self.0.get(name).map(|p| p.no)
    }

    /// Takes note that an interface gives its datapath port up; true if the port has to be closed.
    pub fn released(&mut self, no: PortNo) -> bool {
        let Some(name) = self.name(no) else { return true };
        let port = self.0.get_mut(&name).expect("it was just found");
        port.users -= 1;
        let last = port.users == 0;
        if last {
            self.0.remove(&name);
        }
        last
    }
}

/// The name of a datapath port: that of the kernel's device in OVS.
pub(crate) fn port_name(kind: &str, udp: u16) -> String {
    match kind {
        "geneve" => format!("genev_sys_{udp}"),
        "vxlan" | "gtpu" => format!("{kind}_sys_{udp}"),
        _ => format!("{kind}_sys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_closed_with_its_last_user() {
        let port = TunnelPort { no: 7, kind: "vxlan".into(), udp: 4789, users: 2 };
        let mut p = TunnelPorts([(port_name("vxlan", 4789), port)].into());
        assert_eq!(p.name(7).as_deref(), Some("vxlan_sys_4789"));
        assert!(!p.released(7) && p.released(7) && p.name(7).is_none());
        assert!(p.released(3), "not a tunnel's");
    }
}
