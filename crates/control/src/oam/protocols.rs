//! The sessions of all protocols that watch a path.

use super::{bfd, cfm, lldp};
use crate::oam::wakeups::Wakeups;
use ofproto::OamFilters;

/// The sessions of all protocols.
#[derive(Default)]
pub struct Protocols {
    /// Sessions of BFD.
    pub bfd: bfd::sessions::Sessions,
    /// Points of CFM.
    pub cfm: cfm::points::Points,
    /// Agents of LLDP.
    pub lldp: lldp::agents::Agents,
}

impl Protocols {
    /// The packets that a port is to take for its sessions.
    pub fn filters(&self, iface: &str) -> OamFilters {
        OamFilters {
            bfd: self.bfd.filter(iface),
            cfm: self.cfm.filter(iface),
            lldp: self.lldp.filter(iface),
        }
    }

    /// True if a session is to be run.
    pub fn is_due(&self, now: u64) -> bool {
        self.wakeups().iter().any(|w| w.next(now).is_some())
    }

    /// When sessions of each protocol are to be run.
    pub fn wakeups(&self) -> [&Wakeups; 3] {
        [&self.bfd.wakeups, &self.cfm.wakeups, &self.lldp.wakeups]
    }

    /// True if an interface has sessions, and none reports that packets get through.
    pub fn is_faulty(&self, iface: &str) -> bool {
        let all = [self.bfd.forwards(iface), self.cfm.forwards(iface)];
        all.iter().any(Option::is_some) && !all.contains(&Some(true))
    }
}
