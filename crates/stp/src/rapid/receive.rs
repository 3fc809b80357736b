//! BPDUs that come in, and what a port makes of them (17.22 to 17.25, 17.27).

use super::{InfoIs, MIGRATE_MS, Migration, Port, Rstp, Times, Vector};
use crate::bpdu::{Bpdu, Refusal, Rst, RstRole, to_ms};

/// A BPDU's age grows by this at each bridge.
const AGE_PER_BRIDGE_MS: u64 = 1000;

impl Rstp {
    /// A BPDU came in on a port, whose link is up. Error: what the log says of it.
    pub fn receive(
        &mut self,
        number: u16,
        bpdu: Result<Bpdu, Refusal>,
        now: u64,
    ) -> Result<(), String> {
        let (own, rapid) = (self.conf.id, !self.conf.stp_only);
        let Some(port) = self.ports.get_mut(&number).filter(|p| p.enabled) else { return Ok(()) };
        let good = bpdu.map_err(|refusal| refusal.to_string()).and_then(|bpdu| match &bpdu {
            Bpdu::Config(c) | Bpdu::Rst(Rst { config: c, .. }) if c.message_age >= c.max_age => {
                Err(format!(
                    "received BPDU with message age ({}) greater than max age ({})",
                    c.message_age, c.max_age
                ))
            }
            Bpdu::Config(c) | Bpdu::Rst(Rst { config: c, .. })
                if (c.bridge, c.port) == (own, port.id) =>
            {
                Err("received a BPDU of its own".into())
            }
            _ => Ok(bpdu),
        });
        let bpdu = match good {
            Ok(bpdu) => bpdu,
            Err(text) => {
                port.errors += 1;
                return Err(text);
            }
        };
        port.received += 1;
        port.oper_edge = false;
        port.edge_delay_until = now + MIGRATE_MS;
        match bpdu {
            Bpdu::Rst(_) => port.received_rstp = true,
            Bpdu::Config(_) | Bpdu::TopologyChange => port.received_stp = true,
        }
        // What was said before takes effect first.
        self.settle(now);
        let Some(port) = self.ports.get_mut(&number) else { return Ok(()) };
        match bpdu {
            Bpdu::Rst(rst) => port.hear(&rst, rapid, now),
            Bpdu::Config(config) => {
                port.received_tc_ack |= config.topology_change_ack;
                port.hear(&Rst::of_config(config), false, now);
            }
            Bpdu::TopologyChange => port.received_tcn = true,
        }
        self.settle(now);
        Ok(())
    }
}

impl Port {
    /// What the port knows is from nobody any more.
    pub(super) fn forget(&mut self) {
        (self.proposing, self.proposed) = (false, false);
        (self.agree, self.agreed) = (false, false);
        self.info_until = 0;
    }

    /// Speaks RSTP if the bridge does, for a while whatever it hears.
    pub(super) fn check_protocol(&mut self, rapid: bool, now: u64) {
        self.migration = Migration::CheckingRstp;
        self.send_rstp = rapid;
        self.migrate_until = now + MIGRATE_MS;
    }

    /// The protocol that the port speaks follows what it hears (17.24).
    pub(super) fn migrate(&mut self, rapid: bool, now: u64) -> bool {
        let over = now >= self.migrate_until;
        match self.migration {
            Migration::CheckingRstp | Migration::SelectingStp if over => {
                self.migration = Migration::Sensing;
                (self.received_rstp, self.received_stp) = (false, false);
            }
            Migration::Sensing if rapid && !self.send_rstp && self.received_rstp => {
                self.check_protocol(rapid, now);
            }
            Migration::Sensing if self.send_rstp && self.received_stp => {
                self.migration = Migration::SelectingStp;
                self.send_rstp = false;
                self.migrate_until = now + MIGRATE_MS;
            }
            _ => return false,
        }
        true
    }

    /// A port that hears no bridge may be an edge (17.25).
    pub(super) fn detect_edge(&mut self, now: u64) -> bool {
        let silent = now >= self.edge_delay_until && self.conf.auto_edge && self.proposing;
        let finds = self.enabled && !self.oper_edge && silent && self.send_rstp;
        self.oper_edge |= finds;
        finds
    }

    /// What the port knows has become too old, or this bridge's word takes its place (17.27).
    pub(super) fn take_info(&mut self, now: u64) -> bool {
        if self.info_is == InfoIs::Received && now >= self.info_until && !self.update_info {
            self.info_is = InfoIs::Aged;
            (self.reselect, self.selected) = (true, false);
            return true;
        }
        let usable = self.info_is != InfoIs::Disabled;
        if !usable || !self.selected || !self.update_info {
            return false;
        }
        (self.proposing, self.proposed) = (false, false);
        let better = self.info_is == InfoIs::Mine && self.designated_priority <= self.priority;
        self.agreed &= better;
        self.synced &= self.agreed;
        (self.priority, self.times) = (self.designated_priority, self.designated_times);
        self.update_info = false;
        self.info_is = InfoIs::Mine;
        self.new_info = true;
        true
    }

    /// A neighbour says what it knows. `rapid`: agreements count.
    fn hear(&mut self, rst: &Rst, rapid: bool, now: u64) {
        let said = Rstp::vector(rst);
        let c = &rst.config;
        let times = Times {
            message_age: to_ms(c.message_age),
            max_age: to_ms(c.max_age),
            forward_delay: to_ms(c.forward_delay),
            hello: to_ms(c.hello_time).max(1000),
        };
        let known = self.priority;
        let same = said == known && times == self.times;
        let renews = (said.bridge, said.port) == (known.bridge, known.port);
        match rst.role {
            RstRole::Designated if same && self.info_is == InfoIs::Received => {
                self.hear_again(rst, rapid, now);
            }
            RstRole::Designated if said < known || renews && !same => {
                self.hear_better(rst, (said, times), rapid, now);
            }
            RstRole::Designated if said > known && rst.learning => {
                (self.agreed, self.disputed) = (false, true);
            }
            RstRole::Root | RstRole::Alternate if said >= known => {
                self.hear_agreement(rst, rapid);
                self.received_tc |= c.topology_change;
            }
            _ => {}
        }
    }

    fn hear_better(&mut self, rst: &Rst, (said, times): (Vector, Times), rapid: bool, now: u64) {
        (self.agreed, self.proposing) = (false, false);
        self.proposed |= rst.proposal;
        self.received_tc |= rst.config.topology_change;
        self.agree &= self.info_is == InfoIs::Received && said <= self.priority;
        self.hear_agreement(rst, rapid);
        self.synced &= self.agreed;
        (self.priority, self.times) = (said, times);
        self.renew(now);
        self.info_is = InfoIs::Received;
        self.update_info = false;
        (self.reselect, self.selected) = (true, false);
    }

    fn hear_again(&mut self, rst: &Rst, rapid: bool, now: u64) {
        self.proposed |= rst.proposal;
        self.received_tc |= rst.config.topology_change;
        self.hear_agreement(rst, rapid);
        self.renew(now);
    }

    /// Three hellos may be lost (17.21.23).
    fn renew(&mut self, now: u64) {
        let young = self.times.message_age + AGE_PER_BRIDGE_MS <= self.times.max_age;
        self.info_until = if young { now + 3 * self.times.hello } else { now };
    }

    fn hear_agreement(&mut self, rst: &Rst, rapid: bool) {
        self.agreed = rapid && self.conf.point_to_point && rst.agreement;
        self.proposing &= !self.agreed;
    }
}
