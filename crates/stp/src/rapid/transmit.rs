//! BPDUs that are sent (17.26).

use super::{HELLO_MS, Rstp};
use crate::Role;
use crate::bpdu::{Bpdu, Config, Rst, RstRole, from_ms};

impl Rstp {
    /// Sends what a port has to say, if it may; false: nothing.
    pub(super) fn transmit(&mut self, number: u16, now: u64) -> bool {
        let hold = self.conf.hold_count;
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if !port.enabled || !port.is_settled() || port.role != port.selected_role {
            return false;
        }
        let tells = now < port.tc_until;
        if now >= port.hello_at {
            port.hello_at = now + HELLO_MS;
            port.new_info |= port.role == Role::Designated || port.role == Role::Root && tells;
        }
        if !port.new_info || port.tx_count >= hold {
            return false;
        }
        port.new_info = false;
        let offer = port.designated_priority;
        let times = port.designated_times;
        let config = Config {
            topology_change: tells,
            topology_change_ack: false,
            root: offer.root,
            cost: offer.cost,
            bridge: offer.bridge,
            port: offer.port,
            message_age: from_ms(times.message_age),
            max_age: from_ms(times.max_age),
            hello_time: from_ms(times.hello),
            forward_delay: from_ms(times.forward_delay),
        };
        let role = match port.role {
            Role::Root => RstRole::Root,
            Role::Designated => RstRole::Designated,
            Role::Alternate | Role::Backup => RstRole::Alternate,
            Role::Disabled => return false,
        };
        let bpdu = match (port.send_rstp, port.role) {
            (true, _) => Bpdu::Rst(Rst {
                config,
                role,
                proposal: port.proposing,
                agreement: port.agree,
                learning: port.learning,
                forwarding: port.forwarding,
            }),
            (false, Role::Designated) => {
                Bpdu::Config(Config { topology_change_ack: port.tc_ack, ..config })
            }
            (false, Role::Root) if tells => Bpdu::TopologyChange,
            (false, _) => return true,
        };
        port.tc_ack = false;
        port.tx_count += 1;
        port.sent += 1;
        self.out.bpdus.push((number, bpdu));
        true
    }
}
