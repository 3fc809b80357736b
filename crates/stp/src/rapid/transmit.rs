//! BPDUs that are sent (17.26).

use super::{HELLO_MS, Rstp};
use crate::TreeRole;
use crate::bpdu::{Bpdu, Config, Rst, RstRole, from_ms};

impl Rstp {
    /// Sends what a port has to say, if it may; false: nothing.
    pub(super) fn transmit(&mut self, number: u16, now: u64) -> bool {
        let hold = self.conf.hold_count;
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if !port.enabled || !port.is_settled() || port.role != port.selected_role {
            return false;
        }
        let tells = now < port.until.tc;
        if now >= port.until.hello {
            port.until.hello = now + HELLO_MS;
            port.is.new_info |=
                port.role == TreeRole::Designated || port.role == TreeRole::Root && tells;
        }
        if !port.is.new_info || port.counts.tx_count >= hold {
            return false;
        }
        port.is.new_info = false;
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
            TreeRole::Root => RstRole::Root,
            TreeRole::Designated => RstRole::Designated,
            TreeRole::Alternate | TreeRole::Backup => RstRole::Alternate,
            TreeRole::Disabled => return false,
        };
        let bpdu = match (port.is.send_rstp, port.role) {
            (true, _) => Bpdu::Rst(Rst {
                config,
                role,
                proposal: port.is.proposing,
                agreement: port.is.agree,
                learning: port.is.learning,
                forwarding: port.is.forwarding,
            }),
            (false, TreeRole::Designated) => {
                Bpdu::Config(Config { topology_change_ack: port.rcvd.owes_tc_ack, ..config })
            }
            (false, TreeRole::Root) if tells => Bpdu::TopologyChange,
            (false, _) => return true,
        };
        port.rcvd.owes_tc_ack = false;
        port.counts.tx_count += 1;
        port.counts.sent += 1;
        self.out.bpdus.push((number, bpdu));
        true
    }
}
