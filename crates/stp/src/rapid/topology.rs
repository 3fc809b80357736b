//! Changes of the topology (17.31).

use super::{Rstp, RstpPort, Topology};
use crate::TreeRole;

impl Rstp {
    /// One step of a port; false: there is none.
    pub(super) fn run_topology(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        let serves = matches!(port.role, TreeRole::Root | TreeRole::Designated);
        let heard = port.rcvd.tc || port.rcvd.tcn || port.rcvd.tc_ack || port.rcvd.tc_prop;
        match port.topology {
            Topology::Inactive if port.is.learn => {
                port.topology = Topology::Learning;
                port.clear_received_changes();
            }
            Topology::Inactive => return false,
            Topology::Learning if serves && port.is.forward && !port.is.oper_edge => {
                port.topology = Topology::Active;
                self.begin_change(number, now);
                (self.out.changed, self.out.flush) = (true, true);
                self.propagate(number);
            }
            Topology::Learning if !serves && !port.is.learn && !port.is.learning && !heard => {
                port.topology = Topology::Inactive;
                (port.until.tc, port.rcvd.owes_tc_ack) = (now, false);
                self.out.flush = true;
            }
            Topology::Learning => {
                port.clear_received_changes();
                return heard;
            }
            Topology::Active if !serves || port.is.oper_edge => port.topology = Topology::Learning,
            Topology::Active => return self.topology_change_received(number, now),
        }
        true
    }

    /// What a port hears while it carries traffic.
    fn topology_change_received(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.rcvd.tcn || port.rcvd.tc {
            let notified = port.rcvd.tcn;
            (port.rcvd.tcn, port.rcvd.tc) = (false, false);
            port.rcvd.owes_tc_ack |= notified && port.role == TreeRole::Designated;
            if notified {
                self.begin_change(number, now);
            }
            self.propagate(number);
        } else if port.rcvd.tc_prop {
            port.rcvd.tc_prop = false;
            self.begin_change(number, now);
            self.out.flush = true;
        } else if port.rcvd.tc_ack {
            (port.until.tc, port.rcvd.tc_ack) = (now, false);
        } else {
            return false;
        }
        true
    }

    /// The port tells its network of a change for a while (17.21.7).
    fn begin_change(&mut self, number: u16, now: u64) {
        let times = self.root_times;
        let Some(port) = self.ports.get_mut(&number).filter(|p| now >= p.until.tc) else { return };
        port.is.new_info = true;
        port.until.tc = now
            + match port.is.send_rstp {
                true => times.hello + 1000,
                false => times.max_age + times.forward_delay,
            };
    }

    /// All other ports are to tell their networks.
    pub(super) fn propagate(&mut self, number: u16) {
        self.steps += self.ports.len() as u64;
        for (other, port) in &mut self.ports {
            port.rcvd.tc_prop |= *other != number;
        }
    }
}

impl RstpPort {
    /// Changes that were received do not matter to a port that carries no traffic.
    fn clear_received_changes(&mut self) {
        (self.rcvd.tc, self.rcvd.tcn) = (false, false);
        (self.rcvd.tc_ack, self.rcvd.tc_prop) = (false, false);
    }
}
