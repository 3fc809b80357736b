//! Who is root, which ports lead where, and what they do about it (IEEE 802.1D-1998, 8.6.8 to
//! 8.6.13).

use super::{Stp, Vector};
use crate::PortState;

impl Stp {
    /// Chooses the root, the ports that lead to it, and the states that follow.
    pub(super) fn choose(&mut self, now: u64) {
        let enabled = self.enabled();
        self.choose_root(&enabled);
        for number in &enabled {
            self.choose_designated(*number);
        }
        for number in enabled {
            self.choose_state(number, now);
        }
    }

    fn choose_root(&mut self, enabled: &[u16]) {
        let own = self.conf.id;
        let ways = enabled.iter().filter(|n| !self.is_designated(**n)).filter_map(|number| {
            let port = self.ports.get(number)?;
            let cost = port.designated.cost.saturating_add(port.conf.path_cost.into());
            let way = Vector { cost, ..port.designated };
            (port.designated.root < own).then_some((way, port.id, *number))
        });
        let best = ways.min();
        self.root_port = best.map(|(_, _, number)| number);
        (self.root, self.root_cost) = best.map_or((own, 0), |(way, _, _)| (way.root, way.cost));
    }

    /// The port is its network's if this bridge offers the better way, or no other bridge knows
    /// the root (8.6.10).
    fn choose_designated(&mut self, number: u16) {
        let Some(port) = self.ports.get(&number) else { return };
        let stale = port.designated.root != self.root;
        if stale || self.is_designated(number) || self.own(port.id) <= port.designated {
            self.become_designated(number);
        }
    }

    pub(super) fn become_designated(&mut self, number: u16) {
        let Some(id) = self.ports.get(&number).map(|p| p.id) else { return };
        let own = self.own(id);
        if let Some(port) = self.ports.get_mut(&number) {
            port.designated = own;
        }
    }

    fn choose_state(&mut self, number: u16, now: u64) {
        let leads = self.root_port == Some(number);
        let designated = self.is_designated(number);
        let Some(port) = self.ports.get_mut(&number) else { return };
        if designated {
            port.message_age.stop();
        } else {
            (port.pending, port.acknowledges) = (false, false);
        }
        if (leads || designated) && port.state == PortState::Blocking {
            port.state = PortState::Listening;
            port.forward_delay.start(now);
        } else if !leads && !designated && port.state != PortState::Blocking {
            let forwarded = matches!(port.state, PortState::Learning | PortState::Forwarding);
            port.state = PortState::Blocking;
            port.forward_delay.stop();
            if forwarded {
                self.change_topology(now);
            }
        }
    }
}
