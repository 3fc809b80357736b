//! What a port does in its role, and the states that follow (17.29, 17.30).

use super::{MIGRATE_MS, Rstp, RstpPort};
use crate::TreeRole;

impl Rstp {
    /// One step of a port in its role; false: there is none.
    pub(super) fn change_role(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.is.selected && port.selected_role != port.role {
            port.begin_role(now);
            return true;
        }
        if !port.is_settled() {
            return false;
        }
        match port.role {
            TreeRole::Disabled => port.rest(),
            TreeRole::Root => self.lead(number, now),
            TreeRole::Designated => port.serve(now),
            TreeRole::Alternate | TreeRole::Backup => self.wait(number, now),
        }
    }

    /// All other ports have done what the tree asks of them.
    fn all_synced(&self, number: u16) -> bool {
        let own = self.ports.get(&number).is_some_and(|p| !p.is_ready());
        self.unready == usize::from(own)
    }

    /// No other port was root lately.
    fn all_rerooted(&mut self, number: u16, now: u64) -> bool {
        self.steps += self.ports.len() as u64;
        self.ports.iter().all(|(n, p)| *n == number || now >= p.until.rr)
    }

    fn for_all(&mut self, act: impl Fn(&mut RstpPort)) {
        self.steps += self.ports.len() as u64;
        self.ports.values_mut().for_each(act);
    }

    /// Answers a proposal: others close first, then the port agrees.
    fn agree(&mut self, number: u16) -> bool {
        let all_synced = self.all_synced(number);
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if all_synced && !port.is.agree || port.is.proposed && port.is.agree {
            (port.is.proposed, port.is.sync) = (false, false);
            (port.is.agree, port.is.new_info) = (true, true);
            return true;
        }
        if port.is.proposed && !port.is.agree {
            port.is.proposed = false;
            self.for_all(|p| p.is.sync = true);
            return true;
        }
        false
    }

    /// A port that leads to the root.
    fn lead(&mut self, number: u16, now: u64) -> bool {
        if self.agree(number) {
            return true;
        }
        let rapid = !self.conf.stp_only;
        let Some(port) = self.ports.get(&number) else { return false };
        if !port.is.forward && !port.is.re_root {
            self.for_all(|p| p.is.re_root = true);
            return true;
        }
        let rerooted = rapid && now >= port.until.rb && self.all_rerooted(number, now);
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.is.re_root && port.is.forward {
            port.is.re_root = false;
            return true;
        }
        port.open(rerooted || now >= port.until.fd, now)
    }

    /// A port that another one does better than.
    fn wait(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.is.learning || port.is.forwarding {
            return false;
        }
        if port.is.sync || port.is.re_root || !port.is.synced {
            (port.is.sync, port.is.re_root, port.is.synced) = (false, false, true);
            port.until.rr = now;
            return true;
        }
        self.agree(number)
    }
}

impl RstpPort {
    fn begin_role(&mut self, now: u64) {
        self.role = self.selected_role;
        match self.role {
            TreeRole::Root => self.until.rr = now + self.designated_times.forward_delay,
            TreeRole::Designated => {}
            TreeRole::Disabled | TreeRole::Alternate | TreeRole::Backup => {
                (self.is.learn, self.is.forward) = (false, false);
                self.is.synced = false;
            }
        }
        self.keep_timers(now);
    }

    /// Timers that begin anew as long as a role lasts.
    pub(super) fn keep_timers(&mut self, now: u64) {
        let delay = self.designated_times.forward_delay;
        match self.role {
            TreeRole::Root => self.until.rr = now + delay,
            TreeRole::Disabled => self.until.fd = now + self.designated_times.max_age,
            TreeRole::Alternate => self.until.fd = now + self.wait_ms(),
            TreeRole::Backup => {
                self.until.fd = now + self.wait_ms();
                self.until.rb = now + 2 * self.designated_times.hello;
            }
            TreeRole::Designated => {}
        }
    }

    /// A port whose link is down.
    fn rest(&mut self) -> bool {
        if self.is.learning
            || self.is.forwarding
            || self.is.synced && !self.is.sync && !self.is.re_root
        {
            return false;
        }
        (self.is.synced, self.is.sync, self.is.re_root) = (true, false, false);
        self.until.rr = 0;
        true
    }

    /// Learns, then forwards, if that is allowed now.
    fn open(&mut self, allowed: bool, now: u64) -> bool {
        if !allowed || self.is.forward {
            return false;
        }
        if self.is.learn {
            self.is.forward = true;
            self.until.fd = now;
        } else {
            self.is.learn = true;
            self.until.fd = now + self.wait_ms();
        }
        true
    }

    /// A port by which its network reaches the root.
    fn serve(&mut self, now: u64) -> bool {
        if !self.is.forward && !self.is.agreed && !self.is.proposing && !self.is.oper_edge {
            self.is.proposing = true;
            let p2p = self.conf.point_to_point;
            let delay = if p2p { MIGRATE_MS } else { self.designated_times.max_age };
            self.until.edge_delay = now + delay;
            self.is.new_info = true;
            return true;
        }
        let closed = !self.is.learning && !self.is.forwarding;
        let done = closed || self.is.agreed || self.is.oper_edge;
        if done && !self.is.synced || self.is.sync && self.is.synced {
            self.until.rr = now;
            (self.is.synced, self.is.sync) = (true, false);
            return true;
        }
        let retired = now >= self.until.rr;
        if retired && self.is.re_root {
            self.is.re_root = false;
            return true;
        }
        let must_close =
            self.is.sync && !self.is.synced || self.is.re_root && !retired || self.is.disputed;
        if must_close && !self.is.oper_edge && (self.is.learn || self.is.forward) {
            (self.is.learn, self.is.forward, self.is.disputed) = (false, false, false);
            self.until.fd = now + self.wait_ms();
            return true;
        }
        let free = (retired || !self.is.re_root) && !self.is.sync;
        let opens =
            self.open(free && (now >= self.until.fd || self.is.agreed || self.is.oper_edge), now);
        if opens && self.is.forward {
            self.is.agreed = self.is.send_rstp;
        }
        opens
    }

    /// What is decided is done (17.30).
    pub(super) fn change_state(&mut self) -> bool {
        let (learning, forwarding) = (self.is.learn, self.is.learn && self.is.forward);
        let changed = (self.is.learning, self.is.forwarding) != (learning, forwarding);
        (self.is.learning, self.is.forwarding) = (learning, forwarding);
        changed
    }
}
