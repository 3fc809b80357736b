//! Changes of the topology (17.31).

use super::{Port, Rstp, Topology};
use crate::Role;

impl Rstp {
    /// One step of a port; false: there is none.
    pub(super) fn run_topology(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        let serves = matches!(port.role, Role::Root | Role::Designated);
        let heard = port.received_tc || port.received_tcn || port.received_tc_ack || port.tc_prop;
        match port.topology {
            Topology::Inactive if port.learn => {
                port.topology = Topology::Learning;
                port.hear_no_change();
            }
            Topology::Inactive => return false,
            Topology::Learning if serves && port.forward && !port.oper_edge => {
                port.topology = Topology::Active;
                self.begin_change(number, now);
                (self.out.changed, self.out.flush) = (true, true);
                self.propagate(number);
            }
            Topology::Learning if !serves && !port.learn && !port.learning && !heard => {
                port.topology = Topology::Inactive;
                (port.tc_until, port.tc_ack) = (now, false);
                self.out.flush = true;
            }
            Topology::Learning => {
                port.hear_no_change();
                return heard;
            }
            Topology::Active if !serves || port.oper_edge => port.topology = Topology::Learning,
            Topology::Active => return self.hear_change(number, now),
        }
        true
    }

    /// What a port hears while it carries traffic.
    fn hear_change(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.received_tcn || port.received_tc {
            let notified = port.received_tcn;
            (port.received_tcn, port.received_tc) = (false, false);
            port.tc_ack |= notified && port.role == Role::Designated;
            if notified {
                self.begin_change(number, now);
            }
            self.propagate(number);
        } else if port.tc_prop {
            port.tc_prop = false;
            self.begin_change(number, now);
            self.out.flush = true;
        } else if port.received_tc_ack {
            (port.tc_until, port.received_tc_ack) = (now, false);
        } else {
            return false;
        }
        true
    }

    /// The port tells its network of a change for a while (17.21.7).
    fn begin_change(&mut self, number: u16, now: u64) {
        let times = self.root_times;
        let Some(port) = self.ports.get_mut(&number).filter(|p| now >= p.tc_until) else { return };
        port.new_info = true;
        port.tc_until = now
            + match port.send_rstp {
                true => times.hello + 1000,
                false => times.max_age + times.forward_delay,
            };
    }

    /// All other ports are to tell their networks.
    pub(super) fn propagate(&mut self, number: u16) {
        self.steps += self.ports.len() as u64;
        for (other, port) in &mut self.ports {
            port.tc_prop |= *other != number;
        }
    }
}

impl Port {
    /// What was heard of changes does not matter to a port that carries no traffic.
    fn hear_no_change(&mut self) {
        (self.received_tc, self.received_tcn) = (false, false);
        (self.received_tc_ack, self.tc_prop) = (false, false);
    }
}
