//! BPDUs that come in, and what a port makes of them (17.22 to 17.25, 17.27).

use super::{InfoIs, MIGRATE_MS, Migration, Rstp, RstpPort, Times, Vector};
use crate::AGE_PER_BRIDGE_MS;
use crate::bpdu::{Bpdu, Refusal, Rst, RstRole, to_ms};

impl Rstp {
    /// A BPDU came in on a port, whose link is up; visits that port only. What follows is done by
    /// the next [`Rstp::run`]; of several BPDUs on one port before it, the last one counts. Error:
    /// what the log says of it.
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
                port.counts.errors += 1;
                return Err(text);
            }
        };
        port.counts.received += 1;
        port.is.oper_edge = false;
        port.until.edge_delay = now + MIGRATE_MS;
        match bpdu {
            Bpdu::Rst(_) => port.rcvd.rstp = true,
            Bpdu::Config(_) | Bpdu::TopologyChange => port.rcvd.stp = true,
        }
        while port.migrate(rapid, now) {}
        match bpdu {
            Bpdu::Rst(rst) => port.receive_info(&rst, rapid, now),
            Bpdu::Config(config) => {
                port.rcvd.tc_ack |= config.topology_change_ack;
                port.receive_info(&Rst::of_config(config), false, now);
            }
            Bpdu::TopologyChange => port.rcvd.tcn = true,
        }
        Ok(())
    }
}

impl RstpPort {
    /// What the port knows holds no more.
    pub(super) fn forget_info(&mut self) {
        (self.is.proposing, self.is.proposed) = (false, false);
        (self.is.agree, self.is.agreed) = (false, false);
        self.until.info = 0;
    }

    /// Speaks RSTP if the bridge does, for a while whatever it hears.
    pub(super) fn check_protocol(&mut self, rapid: bool, now: u64) {
        self.migration = Migration::CheckingRstp;
        self.is.send_rstp = rapid;
        self.until.migrate = now + MIGRATE_MS;
    }

    /// The protocol that the port speaks follows what it hears (17.24).
    pub(super) fn migrate(&mut self, rapid: bool, now: u64) -> bool {
        let over = now >= self.until.migrate;
        match self.migration {
            Migration::CheckingRstp | Migration::SelectingStp if over => {
                self.migration = Migration::Sensing;
                (self.rcvd.rstp, self.rcvd.stp) = (false, false);
            }
            Migration::Sensing if rapid && !self.is.send_rstp && self.rcvd.rstp => {
                self.check_protocol(rapid, now);
            }
            Migration::Sensing if self.is.send_rstp && self.rcvd.stp => {
                self.migration = Migration::SelectingStp;
                self.is.send_rstp = false;
                self.until.migrate = now + MIGRATE_MS;
            }
            _ => return false,
        }
        true
    }

    /// A port that hears no bridge may be an edge (17.25).
    pub(super) fn detect_edge(&mut self, now: u64) -> bool {
        let silent = now >= self.until.edge_delay && self.conf.auto_edge && self.is.proposing;
        let finds = self.enabled && !self.is.oper_edge && silent && self.is.send_rstp;
        self.is.oper_edge |= finds;
        finds
    }

    /// What the port knows has become too old, or this bridge's word takes its place (17.27).
    pub(super) fn take_info(&mut self, now: u64) -> bool {
        if self.info_is == InfoIs::Received && now >= self.until.info && !self.is.update_info {
            self.info_is = InfoIs::Aged;
            (self.is.reselect, self.is.selected) = (true, false);
            return true;
        }
        let usable = self.info_is != InfoIs::Disabled;
        if !usable || !self.is.selected || !self.is.update_info {
            return false;
        }
        (self.is.proposing, self.is.proposed) = (false, false);
        let better = self.info_is == InfoIs::Mine && self.designated_priority <= self.priority;
        self.is.agreed &= better;
        self.is.synced &= self.is.agreed;
        (self.priority, self.times) = (self.designated_priority, self.designated_times);
        self.is.update_info = false;
        self.info_is = InfoIs::Mine;
        self.is.new_info = true;
        true
    }

    /// A neighbour says what it knows. `rapid`: agreements count.
    fn receive_info(&mut self, rst: &Rst, rapid: bool, now: u64) {
        let message_priority = Rstp::vector(rst);
        let c = &rst.config;
        let times = Times {
            message_age: to_ms(c.message_age),
            max_age: to_ms(c.max_age),
            forward_delay: to_ms(c.forward_delay),
            hello: to_ms(c.hello_time).max(1000),
        };
        let port_priority = self.priority;
        let same = message_priority == port_priority && times == self.times;
        let renews = (message_priority.bridge, message_priority.port)
            == (port_priority.bridge, port_priority.port);
        match rst.role {
            RstRole::Designated if same && self.info_is == InfoIs::Received => {
                self.repeated_designated(rst, rapid, now);
            }
            RstRole::Designated if message_priority < port_priority || renews && !same => {
                self.superior_designated(rst, (message_priority, times), rapid, now);
            }
            RstRole::Designated if message_priority > port_priority && rst.learning => {
                (self.is.agreed, self.is.disputed) = (false, true);
            }
            RstRole::Root | RstRole::Alternate if message_priority >= port_priority => {
                self.record_agreement(rst, rapid);
                self.rcvd.tc |= c.topology_change;
            }
            _ => {}
        }
    }

    fn superior_designated(
        &mut self,
        rst: &Rst,
        (message_priority, times): (Vector, Times),
        rapid: bool,
        now: u64,
    ) {
        (self.is.agreed, self.is.proposing) = (false, false);
        self.is.proposed |= rst.proposal;
        self.rcvd.tc |= rst.config.topology_change;
        self.is.agree &= self.info_is == InfoIs::Received && message_priority <= self.priority;
        self.record_agreement(rst, rapid);
        self.is.synced &= self.is.agreed;
        (self.priority, self.times) = (message_priority, times);
        self.renew(now);
        self.info_is = InfoIs::Received;
        self.is.update_info = false;
        (self.is.reselect, self.is.selected) = (true, false);
    }

    fn repeated_designated(&mut self, rst: &Rst, rapid: bool, now: u64) {
        self.is.proposed |= rst.proposal;
        self.rcvd.tc |= rst.config.topology_change;
        self.record_agreement(rst, rapid);
        self.renew(now);
    }

    /// Three hellos may be lost (17.21.23).
    fn renew(&mut self, now: u64) {
        let young = self.times.message_age + AGE_PER_BRIDGE_MS <= self.times.max_age;
        self.until.info = if young { now + 3 * self.times.hello } else { now };
    }

    fn record_agreement(&mut self, rst: &Rst, rapid: bool) {
        self.is.agreed = rapid && self.conf.point_to_point && rst.agreement;
        self.is.proposing &= !self.is.agreed;
    }
}
