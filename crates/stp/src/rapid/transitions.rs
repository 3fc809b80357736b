//! What a port does in its role, and the states that follow (17.29, 17.30).

use super::{MIGRATE_MS, Port, Rstp};
use crate::Role;

impl Rstp {
    /// One step of a port in its role; false: there is none.
    pub(super) fn change_role(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.selected && port.selected_role != port.role {
            port.begin_role(now);
            return true;
        }
        if !port.is_settled() {
            return false;
        }
        match port.role {
            Role::Disabled => port.rest(),
            Role::Root => self.lead(number, now),
            Role::Designated => port.serve(now),
            Role::Alternate | Role::Backup => self.wait(number, now),
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
        self.ports.iter().all(|(n, p)| *n == number || now >= p.rr_until)
    }

    fn for_all(&mut self, act: impl Fn(&mut Port)) {
        self.steps += self.ports.len() as u64;
        self.ports.values_mut().for_each(act);
    }

    /// Answers a proposal: others close first, then the port agrees.
    fn agree(&mut self, number: u16) -> bool {
        let all_synced = self.all_synced(number);
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if all_synced && !port.agree || port.proposed && port.agree {
            (port.proposed, port.sync) = (false, false);
            (port.agree, port.new_info) = (true, true);
            return true;
        }
        if port.proposed && !port.agree {
            port.proposed = false;
            self.for_all(|p| p.sync = true);
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
        if !port.forward && !port.re_root {
            self.for_all(|p| p.re_root = true);
            return true;
        }
        let rerooted = rapid && now >= port.rb_until && self.all_rerooted(number, now);
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.re_root && port.forward {
            port.re_root = false;
            return true;
        }
        port.open(rerooted || now >= port.fd_until, now)
    }

    /// A port that another one does better than.
    fn wait(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        if port.learning || port.forwarding {
            return false;
        }
        if port.sync || port.re_root || !port.synced {
            (port.sync, port.re_root, port.synced) = (false, false, true);
            port.rr_until = now;
            return true;
        }
        self.agree(number)
    }
}

impl Port {
    fn begin_role(&mut self, now: u64) {
        self.role = self.selected_role;
        match self.role {
            Role::Root => self.rr_until = now + self.designated_times.forward_delay,
            Role::Designated => {}
            Role::Disabled | Role::Alternate | Role::Backup => {
                (self.learn, self.forward) = (false, false);
                self.synced = false;
            }
        }
        self.keep_timers(now);
    }

    /// Timers that begin anew as long as a role lasts.
    pub(super) fn keep_timers(&mut self, now: u64) {
        let delay = self.designated_times.forward_delay;
        match self.role {
            Role::Root => self.rr_until = now + delay,
            Role::Disabled => self.fd_until = now + self.designated_times.max_age,
            Role::Alternate => self.fd_until = now + self.wait_ms(),
            Role::Backup => {
                self.fd_until = now + self.wait_ms();
                self.rb_until = now + 2 * self.designated_times.hello;
            }
            Role::Designated => {}
        }
    }

    /// A port whose link is down.
    fn rest(&mut self) -> bool {
        if self.learning || self.forwarding || self.synced && !self.sync && !self.re_root {
            return false;
        }
        (self.synced, self.sync, self.re_root) = (true, false, false);
        self.rr_until = 0;
        true
    }

    /// Learns, then forwards, if that is allowed now.
    fn open(&mut self, allowed: bool, now: u64) -> bool {
        if !allowed || self.forward {
            return false;
        }
        if self.learn {
            self.forward = true;
            self.fd_until = now;
        } else {
            self.learn = true;
            self.fd_until = now + self.wait_ms();
        }
        true
    }

    /// A port by which its network reaches the root.
    fn serve(&mut self, now: u64) -> bool {
        if !self.forward && !self.agreed && !self.proposing && !self.oper_edge {
            self.proposing = true;
            let p2p = self.conf.point_to_point;
            let delay = if p2p { MIGRATE_MS } else { self.designated_times.max_age };
            self.edge_delay_until = now + delay;
            self.new_info = true;
            return true;
        }
        let closed = !self.learning && !self.forwarding;
        let done = closed || self.agreed || self.oper_edge;
        if done && !self.synced || self.sync && self.synced {
            self.rr_until = now;
            (self.synced, self.sync) = (true, false);
            return true;
        }
        let retired = now >= self.rr_until;
        if retired && self.re_root {
            self.re_root = false;
            return true;
        }
        let must_close = self.sync && !self.synced || self.re_root && !retired || self.disputed;
        if must_close && !self.oper_edge && (self.learn || self.forward) {
            (self.learn, self.forward, self.disputed) = (false, false, false);
            self.fd_until = now + self.wait_ms();
            return true;
        }
        let free = (retired || !self.re_root) && !self.sync;
        let opens = self.open(free && (now >= self.fd_until || self.agreed || self.oper_edge), now);
        if opens && self.forward {
            self.agreed = self.send_rstp;
        }
        opens
    }

    /// What is decided is done (17.30).
    pub(super) fn change_state(&mut self) -> bool {
        let (learning, forwarding) = (self.learn, self.learn && self.forward);
        let changed = (self.learning, self.forwarding) != (learning, forwarding);
        (self.learning, self.forwarding) = (learning, forwarding);
        changed
    }
}
