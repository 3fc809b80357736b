//! BPDUs that come in, timers, and changes of the topology (IEEE 802.1D-1998, 8.6 and 8.7).

use super::{HOLD_MS, Stp, Times, Vector};
use crate::PortState;
use crate::bpdu::{Bpdu, Config, Refusal, to_ms};

impl Stp {
    /// A BPDU came in on a port, whose link is up. Error: what the log says of it.
    pub fn receive(
        &mut self,
        number: u16,
        bpdu: Result<Bpdu, Refusal>,
        now: u64,
    ) -> Result<(), String> {
        let Some(port) = self.ports.get_mut(&number).filter(|p| p.state != PortState::Disabled)
        else {
            return Ok(());
        };
        let bpdu = match bpdu {
            Ok(Bpdu::Rst(_)) => Err(Refusal::Type(2)),
            other => other,
        };
        match bpdu {
            Err(_) => port.errors += 1,
            Ok(_) => port.received += 1,
        }
        match bpdu.map_err(|refusal| refusal.to_string())? {
            // Refused above.
            Bpdu::Rst(_) => Ok(()),
            Bpdu::Config(c) if c.message_age >= c.max_age => Err(format!(
                "received config BPDU with message age ({}) greater than max age ({})",
                c.message_age, c.max_age
            )),
            Bpdu::Config(config) => {
                self.receive_config(number, &config, now);
                Ok(())
            }
            Bpdu::TopologyChange => {
                if self.is_designated(number) {
                    self.change_topology(now);
                    self.acknowledge(number, now);
                }
                Ok(())
            }
        }
    }

    fn receive_config(&mut self, number: u16, config: &Config, now: u64) {
        let was_root = self.is_root();
        if !self.supersedes(number, config) {
            if self.is_designated(number) {
                self.send_config(number, now);
            }
            return;
        }
        let Some(port) = self.ports.get_mut(&number) else { return };
        let Config { root, cost, bridge, port: id, .. } = *config;
        port.designated = Vector { root, cost, bridge, port: id };
        port.message_age.start_at_age(now, to_ms(config.message_age));
        self.choose(now);
        self.after_root(was_root, now);
        if self.root_port != Some(number) {
            return;
        }
        self.times = Times {
            max_age: to_ms(config.max_age),
            hello: to_ms(config.hello_time),
            forward_delay: to_ms(config.forward_delay),
        };
        self.topology_change = config.topology_change;
        self.out.flush |= config.topology_change;
        self.send_configs(now);
        if config.topology_change_ack {
            self.change_detected = false;
            self.notify.stop();
        }
    }

    /// True if a configuration is as good as what the port knows, or comes from who said that
    /// (8.6.2.2).
    fn supersedes(&self, number: u16, config: &Config) -> bool {
        let Some(port) = self.ports.get(&number) else { return false };
        let known = port.designated;
        let Config { root, cost, bridge, port: id, .. } = *config;
        let heard = Vector { root, cost, bridge, port: id };
        let renewed = (root, cost, bridge) == (known.root, known.cost, known.bridge)
            && bridge != self.conf.id;
        renewed || heard <= known
    }

    /// This bridge has become root, or is it no more.
    pub(super) fn after_root(&mut self, was_root: bool, now: u64) {
        match (was_root, self.is_root()) {
            (true, false) => {
                self.hello.stop();
                if self.change_detected {
                    self.topology.stop();
                    self.notify_root(now);
                }
            }
            (false, true) => {
                self.times = self.conf.times();
                self.change_topology(now);
                self.notify.stop();
                self.send_configs(now);
                self.hello.start(now);
            }
            _ => {}
        }
    }

    /// The topology changes: the root hears of it, and addresses are to be forgotten (8.6.14).
    pub fn change_topology(&mut self, now: u64) {
        if self.is_root() {
            self.topology_change = true;
            self.topology.start(now);
        } else if !self.change_detected {
            self.notify_root(now);
        }
        self.change_detected = true;
        (self.out.flush, self.out.changed) = (true, true);
    }

    /// Tells the bridge towards the root of a change, and again until it has heard.
    fn notify_root(&mut self, now: u64) {
        self.notify.start(now);
        let Some(root) = self.root_port else { return };
        if let Some(port) = self.ports.get_mut(&root) {
            port.sent += 1;
            self.out.bpdus.push((root, Bpdu::TopologyChange));
        }
    }

    fn acknowledge(&mut self, number: u16, now: u64) {
        if let Some(port) = self.ports.get_mut(&number) {
            port.acknowledges = true;
        }
        self.send_config(number, now);
    }

    /// Lets time pass until `now`.
    pub fn run(&mut self, now: u64) {
        if self.hello.expires(now, self.times.hello) {
            self.send_configs(now);
            self.hello.start(now);
        }
        if self.notify.expires(now, self.conf.times().hello) {
            self.notify_root(now);
        }
        if self.topology.expires(now, self.times.max_age + self.times.forward_delay) {
            (self.change_detected, self.topology_change) = (false, false);
        }
        self.forget_old(now);
        self.advance_states(now);
        for number in self.enabled() {
            let Some(port) = self.ports.get_mut(&number) else { continue };
            if port.hold.expires(now, HOLD_MS) && port.pending {
                self.send_config(number, now);
            }
        }
    }

    /// Who was not heard for too long is forgotten (8.7.2).
    fn forget_old(&mut self, now: u64) {
        let (was_root, max_age) = (self.is_root(), self.times.max_age);
        let mut expired = false;
        for number in self.enabled() {
            let Some(port) = self.ports.get_mut(&number) else { continue };
            if port.message_age.expires(now, max_age) {
                self.become_designated(number);
                expired = true;
            }
        }
        if expired {
            self.choose(now);
            self.after_root(was_root, now);
        }
    }

    /// Ports that have listened or learned for long enough (8.7.4).
    fn advance_states(&mut self, now: u64) {
        let (enabled, delay) = (self.enabled(), self.times.forward_delay);
        let serves = enabled.iter().any(|number| self.is_designated(*number));
        for number in enabled {
            let Some(port) = self.ports.get_mut(&number) else { continue };
            if !port.forward_delay.expires(now, delay) {
                continue;
            }
            if port.state == PortState::Listening {
                port.state = PortState::Learning;
                port.forward_delay.start(now);
            } else {
                port.state = PortState::Forwarding;
                if serves {
                    self.change_topology(now);
                }
            }
        }
    }
}
