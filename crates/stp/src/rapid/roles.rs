//! Which port has which role (17.21.25, 17.28).

use super::{InfoIs, Rstp, Times, Vector};
use crate::AGE_PER_BRIDGE_MS;
use crate::TreeRole;

impl Rstp {
    /// Chooses all roles anew, if what some port knows has changed.
    pub(super) fn select_roles(&mut self) -> bool {
        if !self.ports.values().any(|p| p.is.reselect) {
            return false;
        }
        self.steps += 3 * self.ports.len() as u64;
        self.choose_root();
        let (root, times, own) = (self.root, self.root_times, self.conf.id);
        let hello = self.conf.times().hello;
        for (number, port) in &mut self.ports {
            port.is.reselect = false;
            let (priority, id) = (port.priority, port.id);
            port.designated_priority =
                Vector { root: root.root, cost: root.cost, bridge: own, port: id };
            port.designated_times = Times { hello, ..times };
            let better = port.designated_priority < priority;
            let (role, update) = match port.info_is {
                InfoIs::Disabled => (TreeRole::Disabled, false),
                InfoIs::Aged => (TreeRole::Designated, true),
                InfoIs::Mine => {
                    let same =
                        priority == port.designated_priority && port.times == port.designated_times;
                    (TreeRole::Designated, !same)
                }
                InfoIs::Received if self.root_port == Some(*number) => (TreeRole::Root, false),
                InfoIs::Received if better => (TreeRole::Designated, true),
                InfoIs::Received if priority.bridge == own => (TreeRole::Backup, false),
                InfoIs::Received => (TreeRole::Alternate, false),
            };
            port.selected_role = role;
            port.is.update_info = update;
            port.is.selected = true;
        }
        true
    }

    pub(super) fn choose_root(&mut self) {
        let own = self.conf.id;
        let ways = self.ports.iter().filter_map(|(number, port)| {
            let received = port.info_is == InfoIs::Received && port.priority.bridge != own;
            let cost = port.priority.cost.saturating_add(port.conf.path_cost);
            let way = Vector { cost, ..port.priority };
            received.then_some((way, port.id, *number))
        });
        let this = Vector { root: own, cost: 0, bridge: own, port: 0 };
        let best = ways.min().filter(|(way, ..)| *way < this);
        self.root_port = best.map(|(_, _, number)| number);
        self.root = best.map_or(this, |(way, ..)| way);
        let times = self.root_port.and_then(|number| self.ports.get(&number)).map(|p| p.times);
        self.root_times = match times {
            None => self.conf.times(),
            Some(times) => Times { message_age: times.message_age + AGE_PER_BRIDGE_MS, ..times },
        };
    }
}
