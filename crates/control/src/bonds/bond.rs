//! A port of several interfaces: which of them are enabled, which is active, and which carries
//! what, as in ovs-vswitchd. Time and the state of links come from outside; what follows is read
//! from here.

use super::balance::{Buckets, Load};
use super::lacp::mac_text;
use ofproto::{BondAdmission, BondOutput, BondSpec};
use openflow::OfPort;
use std::collections::BTreeMap;
use std::fmt::Write;

/// `bond_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    ActiveBackup,
    BalanceSlb,
    BalanceTcp,
}

impl Mode {
    pub fn text(self) -> &'static str {
        match self {
            Mode::ActiveBackup => "active-backup",
            Mode::BalanceSlb => "balance-slb",
            Mode::BalanceTcp => "balance-tcp",
        }
    }
}

/// State of LACP on a bond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LacpStatus {
    #[default]
    Off,
    Configured,
    Negotiated,
}

impl LacpStatus {
    fn text(self) -> &'static str {
        match self {
            LacpStatus::Off => "off",
            LacpStatus::Configured => "configured",
            LacpStatus::Negotiated => "negotiated",
        }
    }
}

/// A bond's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    pub mode: Mode,
    pub updelay_ms: u64,
    pub downdelay_ms: u64,
    /// Between two rebalancings; 0: none.
    pub rebalance_ms: u64,
    pub basis: u32,
    pub primary: Option<String>,
    /// Packets to groups are taken from all interfaces.
    pub all_active: bool,
    pub fallback_ab: bool,
}

#[derive(Debug)]
struct Member {
    of_port: OfPort,
    mac: [u8; 6],
    /// Its link is up, and no protocol says otherwise.
    up: bool,
    enabled: bool,
    /// When it is enabled or disabled, if its link stays as it is.
    switches_at: Option<u64>,
}

/// What is known of an interface.
pub struct MemberState {
    pub enabled: bool,
    pub active: bool,
    /// Its link is up, and no protocol says otherwise.
    pub up: bool,
    /// Buckets of the bond that it has; 0 where packets are not spread.
    pub buckets: usize,
    /// What they sent lately.
    pub bytes: u64,
}

/// A bond.
#[derive(Debug)]
pub struct Bond {
    conf: Conf,
    lacp: LacpStatus,
    members: BTreeMap<String, Member>,
    active: Option<String>,
    active_mac: [u8; 6],
    pub buckets: Buckets,
    rebalance_at: u64,
    /// Lines for the log.
    log: Vec<String>,
    /// Another interface carries packets than before.
    announcement_due: bool,
}

impl Bond {
    /// A bond without interfaces. `active_mac`: the address of the interface that was active last.
    pub fn new(conf: Conf, active_mac: [u8; 6], now: u64) -> Bond {
        Bond {
            rebalance_at: now + conf.rebalance_ms,
            conf,
            lacp: LacpStatus::Off,
            members: BTreeMap::new(),
            active: None,
            active_mac,
            buckets: Buckets::default(),
            log: Vec::new(),
            announcement_due: false,
        }
    }

    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// Changes the settings; loads count from the beginning.
    pub fn configure(&mut self, conf: Conf, now: u64) {
        if self.conf != conf {
            self.rebalance_at = now + conf.rebalance_ms;
            self.buckets = Buckets::default();
            self.conf = conf;
        }
    }

    /// Adds an interface, or changes what is known of it.
    pub fn set_member(&mut self, name: &str, of_port: OfPort, mac: [u8; 6]) {
        let new = Member { of_port, mac, up: false, enabled: false, switches_at: None };
        let m = self.members.entry(name.into()).or_insert(new);
        (m.of_port, m.mac) = (of_port, mac);
    }

    /// Only these interfaces are left.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.members.retain(|name, _| keep(name));
        if self.active.as_deref().is_some_and(|name| !keep(name)) {
            self.active = None;
        }
    }

    /// An interface's link, with what protocols say of it.
    pub fn set_up(&mut self, name: &str, up: bool) {
        self.members.get_mut(name).iter_mut().for_each(|m| m.up = up);
    }

    /// Lets time pass.
    pub fn run(&mut self, lacp: LacpStatus, now: u64) {
        self.lacp = lacp;
        let names: Vec<String> = self.members.keys().cloned().collect();
        names.iter().for_each(|name| self.follow_link(name, now));
        let primary = self.usable_primary();
        let active = self.active.as_deref();
        let is_enabled = active.is_some_and(|name| self.members[name].enabled);
        let prefers = self.conf.mode == Mode::ActiveBackup;
        if !is_enabled || prefers && primary.is_some() && primary.as_deref() != active {
            self.choose_active(now);
        }
        if self.is_balanced() || self.spreads() {
            let enabled = self.members.values().filter(|m| m.enabled).map(|m| m.of_port);
            self.buckets.assign(&enabled.collect::<Vec<_>>());
        }
        if self.is_balanced() && now >= self.rebalance_at {
            self.rebalance_at = now + self.conf.rebalance_ms;
            self.rebalance();
        }
    }

    fn follow_link(&mut self, name: &str, now: u64) {
        let Some(m) = self.members.get_mut(name) else { return };
        let up = m.up;
        if (up == m.enabled) == m.switches_at.is_some() {
            let (state, will) = if up { ("up", "enabled") } else { ("down", "disabled") };
            self.log.push(format!("member {name}: link state {state}"));
            if up == m.enabled {
                m.switches_at = None;
                let not = if up { "disabled" } else { "enabled" };
                self.log.push(format!("member {name}: will not be {not}"));
            } else {
                let delay = if up { self.conf.updelay_ms } else { self.conf.downdelay_ms };
                m.switches_at = Some(now + delay);
                if delay > 0 {
                    let text = format!("will be {will} if it stays {state} for {delay} ms");
                    self.log.push(format!("member {name}: {text}"));
                }
            }
        }
        if m.switches_at.is_some_and(|at| now >= at) {
            self.enable(name, up);
        }
    }

    fn enable(&mut self, name: &str, enabled: bool) {
        let Some(m) = self.members.get_mut(name) else { return };
        m.switches_at = None;
        if std::mem::replace(&mut m.enabled, enabled) != enabled {
            self.announcement_due |= !enabled;
            let text = if enabled { "enabled" } else { "disabled" };
            self.log.push(format!("member {name}: {text}"));
        }
    }

    fn usable_primary(&self) -> Option<String> {
        let name = self.conf.primary.as_ref()?;
        self.members.get(name).filter(|m| m.enabled).map(|_| name.clone())
    }

    fn choose_active(&mut self, now: u64) {
        let before = self.active.clone();
        let enabled = || self.members.iter().filter(|(_, m)| m.enabled);
        let last = || enabled().find(|(_, m)| m.mac == self.active_mac).map(|(n, _)| n.clone());
        let first = || enabled().next().map(|(n, _)| n.clone());
        // All are disabled: the one that would be enabled first is, at once.
        let waiting = || {
            let waits = self.members.iter().filter(|(_, m)| m.up);
            let soonest = waits.filter_map(|(n, m)| Some((m.switches_at?, n))).min();
            soonest.map(|(_, n)| n.clone())
        };
        let chosen = self.usable_primary().or_else(last).or_else(first).or_else(waiting);
        let Some(name) = chosen else {
            self.active = None;
            if before.is_some() {
                self.active_mac = [0; 6];
                self.log.push("all members disabled".into());
            }
            return;
        };
        let m = &self.members[&name];
        self.active_mac = m.mac;
        if m.enabled {
            self.log.push(format!("active member is now {name}"));
        } else {
            let left = m.switches_at.map_or(0, |at| at.saturating_sub(now));
            self.log.push(format!(
                "active member is now {name}, skipping remaining {left} ms updelay \
                 (since no member was enabled)"
            ));
            self.enable(&name, true);
        }
        self.announcement_due = true;
        self.active = Some(name);
    }

    /// LACP is asked for and no partner answers: the bond is one of mode active-backup.
    fn falls_back(&self) -> bool {
        self.conf.fallback_ab && self.lacp == LacpStatus::Configured
    }

    /// True if packets are spread over all interfaces.
    pub fn spreads(&self) -> bool {
        self.conf.mode != Mode::ActiveBackup && !self.falls_back()
    }

    fn is_balanced(&self) -> bool {
        self.conf.rebalance_ms > 0 && self.spreads()
    }

    fn rebalance(&mut self) {
        let enabled: Vec<OfPort> =
            self.members.values().filter(|m| m.enabled).map(|m| m.of_port).collect();
        let name = |port: OfPort| {
            let found = self.members.iter().find(|(_, m)| m.of_port == port);
            found.map_or("?", |(name, _)| name)
        };
        for shift in self.buckets.rebalance(&enabled) {
            let kb = |bytes: u64| bytes / 1024;
            self.log.push(format!(
                "shift {}kB of load (with hash {}) from {} to {} (now carrying {}kB and {}kB \
                 load, respectively)",
                kb(shift.bytes),
                shift.bucket,
                name(shift.from),
                name(shift.to),
                kb(shift.left),
                kb(shift.arrived)
            ));
        }
    }

    /// What the switch half has to know; `number`: the datapath's number of the bond.
    pub fn spec(&self, number: Option<flow::PortNo>) -> BondSpec {
        let admits = self.members.iter().map(|(name, m)| (m.of_port, self.admission(name, m)));
        BondSpec {
            output: self.output(number),
            admits: admits.collect(),
            drops_moved: self.lacp != LacpStatus::Negotiated && self.mode() == Mode::BalanceSlb,
        }
    }

    /// The mode in effect.
    fn mode(&self) -> Mode {
        if self.falls_back() { Mode::ActiveBackup } else { self.conf.mode }
    }

    fn output(&self, number: Option<flow::PortNo>) -> BondOutput {
        let any = self.members.values().any(|m| m.enabled);
        let is_silent = self.lacp == LacpStatus::Configured && !self.conf.fallback_ab;
        let lacks_lacp = self.mode() == Mode::BalanceTcp && self.lacp != LacpStatus::Negotiated;
        if is_silent || lacks_lacp || !any {
            return BondOutput::Nowhere;
        }
        match (self.mode(), number) {
            (Mode::BalanceSlb | Mode::BalanceTcp, Some(no)) => BondOutput::Spread(no),
            _ => self.active_port().map_or(BondOutput::Nowhere, BondOutput::Member),
        }
    }

    fn admission(&self, name: &str, m: &Member) -> BondAdmission {
        let is_active = self.active.as_deref() == Some(name);
        match (self.lacp, self.mode()) {
            // The partner knows of the bond, and sends no packet twice.
            (LacpStatus::Negotiated, _) if m.enabled || m.up => BondAdmission::All,
            (LacpStatus::Negotiated, _) | (_, Mode::BalanceTcp) => BondAdmission::Nothing,
            (LacpStatus::Configured, _) if !self.conf.fallback_ab => BondAdmission::Nothing,
            (_, Mode::ActiveBackup) if is_active => BondAdmission::All,
            (_, Mode::ActiveBackup) => BondAdmission::Nothing,
            (_, Mode::BalanceSlb) if is_active || self.conf.all_active => BondAdmission::All,
            (_, Mode::BalanceSlb) => BondAdmission::Unicast,
        }
    }

    /// All interfaces, by name.
    pub fn member_states(&self) -> impl Iterator<Item = (&str, MemberState)> {
        self.members.iter().map(|(name, m)| {
            let (buckets, bytes) = self.buckets.of(m.of_port);
            let active = self.active.as_ref() == Some(name);
            (name.as_str(), MemberState { enabled: m.enabled, active, up: m.up, buckets, bytes })
        })
    }

    /// Lines for the log since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// True if the other side has to hear that another interface carries packets; once per
    /// change. A partner in LACP knows by itself.
    pub fn take_announcement(&mut self) -> bool {
        let is_plain = self.lacp == LacpStatus::Off || self.falls_back();
        std::mem::take(&mut self.announcement_due) && is_plain && self.active.is_some()
    }

    /// The active interface's OpenFlow port.
    pub fn active_port(&self) -> Option<OfPort> {
        self.active.as_ref().map(|name| self.members[name].of_port)
    }

    /// `Port.bond_active_slave`; None: there is none.
    pub fn active_mac(&self) -> Option<[u8; 6]> {
        self.active.as_ref().map(|_| self.active_mac)
    }

    /// `bond/set-active-member`.
    pub fn set_active(&mut self, name: &str) -> Result<&'static str, &'static str> {
        let m = self.members.get(name).ok_or("no such member")?;
        if !m.enabled {
            return Err("cannot make disabled member active");
        }
        if self.active.as_deref() == Some(name) {
            return Ok("no change");
        }
        (self.active, self.active_mac) = (Some(name.into()), m.mac);
        self.log.push(format!("active member is now {name}"));
        self.announcement_due = true;
        Ok("done")
    }

    /// `bond/enable-member` and `bond/disable-member`; the link's next change decides anew.
    pub fn force(&mut self, name: &str, enabled: bool) -> Result<&'static str, &'static str> {
        self.members.get(name).ok_or("no such member")?;
        self.enable(name, enabled);
        Ok(if enabled { "enabled" } else { "disabled" })
    }

    /// `bond/migrate`.
    pub fn migrate(&mut self, hash: &str, member: &str) -> Result<&'static str, &'static str> {
        if self.conf.mode != Mode::BalanceSlb {
            return Err("not an SLB bond");
        }
        let digits = hash.bytes().all(|b| b.is_ascii_digit());
        let hash = hash.parse::<u32>().ok().filter(|_| digits).ok_or("bad hash")?;
        let m = self.members.get(member).ok_or("no such member")?;
        if !m.enabled {
            return Err("cannot migrate to disabled member");
        }
        self.buckets.migrate(hash as u8, m.of_port);
        Ok("migrated")
    }

    /// A line of `bond/list`.
    pub fn list(&self, name: &str, id: u16) -> String {
        let members: Vec<_> = self.members.keys().map(String::as_str).collect();
        format!("{name}\t{}\t{id}\t{}\n", self.conf.mode.text(), members.join(", "))
    }

    /// `bond/show`; `lb_output`: the bond's id, if it has the action of this name.
    pub fn show(&self, name: &str, id: u16, lb_output: bool, now: u64) -> String {
        let c = &self.conf;
        let recirculates = c.mode == Mode::BalanceTcp && !self.falls_back();
        let or_none = |on: bool| if on { i32::from(id) } else { -1 };
        let yes = if recirculates { "yes" } else { "no" };
        let lb_output = lb_output && recirculates;
        let enabled = if lb_output { "enabled" } else { "disabled" };
        let mut out = format!(
            "---- {name} ----\nbond_mode: {}\nbond may use recirculation: {yes}, Recirc-ID : {}\n\
             bond-hash-basis: {}\nlb_output action: {enabled}, bond-id: {}\n",
            c.mode.text(),
            or_none(recirculates),
            c.basis,
            or_none(lb_output)
        );
        if c.mode == Mode::BalanceSlb {
            let _ = writeln!(out, "all members active: {}", c.all_active);
        }
        let (up, down) = (c.updelay_ms, c.downdelay_ms);
        let _ = writeln!(out, "updelay: {up} ms\ndowndelay: {down} ms");
        if self.is_balanced() {
            let left = self.rebalance_at.saturating_sub(now);
            let _ = writeln!(out, "next rebalance: {left} ms");
        }
        let active = self.active.as_deref().unwrap_or("none");
        let _ = writeln!(
            out,
            "lacp_status: {}\nlacp_fallback_ab: {}\nactive-backup primary: {}\n\
             active member mac: {}({active})",
            self.lacp.text(),
            c.fallback_ab,
            self.primary_text(),
            mac_text(self.active_mac),
        );
        let members = self.members.iter();
        members.for_each(|(name, m)| out += &self.member_text(name, m, now));
        out + "\n"
    }

    fn primary_text(&self) -> String {
        match &self.conf.primary {
            None => "<none>".into(),
            Some(name) if self.members.contains_key(name) => name.clone(),
            Some(name) => format!("{name} (no such member)"),
        }
    }

    fn member_text(&self, name: &str, m: &Member, now: u64) -> String {
        let state = if m.enabled { "enabled" } else { "disabled" };
        let mut out = format!("\nmember {name}: {state}\n");
        if self.active.as_deref() == Some(name) {
            out += "  active member\n";
        }
        if let Some(at) = m.switches_at {
            let which = if m.enabled { "downdelay" } else { "updelay" };
            let _ = writeln!(out, "  {which} expires in {} ms", at.saturating_sub(now));
        }
        let _ = writeln!(out, "  may_enable: {}", m.up);
        if self.is_balanced() {
            for Load { bucket, bytes } in self.buckets.loads(m.of_port) {
                let _ = writeln!(out, "  hash {bucket}: {} kB load", bytes / 1024);
            }
        }
        out
    }
}

#[cfg(test)]
#[path = "bond_tests.rs"]
mod tests;
