//! LACP on the interfaces of one port (IEEE 802.1AX-2008, section 5.4), as ovs-vswitchd speaks it.
//!
//! Each end of a link says what it is and what it has heard of the other. Links whose other ends
//! are one system, with one key, are *attached*: they may carry packets when the other end says
//! that it sees it so too.

use super::pdu::{Info, Pdu, state};
use crate::budget::Budget;
use ofproto::Gate;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Between two packets, to a partner that wants to hear often.
const FAST_MS: u64 = 1000;
/// Milliseconds between packets to a partner that asks for slow ones.
const SLOW_MS: u64 = 30_000;
/// A partner that says much more than it may is not heard: it may send three packets a second (IEEE
/// 802.1AX-2008, section 5.4.16). Twice as many are taken, one each so many milliseconds, after so
/// many at once.
const PDU_MS: u64 = 166;
const PDUS_BURST: u64 = 16;
/// LACPDUs that may be lost before a partner counts as gone.
const LOST_PDUS_MAX: u64 = 3;

/// How a port speaks LACP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// Begins; else it answers only.
    pub active: bool,
    /// Wants to hear every second.
    pub fast: bool,
    pub system_id: [u8; 6],
    pub system_priority: u16,
    /// Where no partner answers, interfaces may carry packets as in an active-backup bond.
    pub fallback_ab: bool,
}

/// An interface's own settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberConf {
    pub port_id: u16,
    pub priority: u16,
    /// 0: the port id of the port's first interface.
    pub key: u16,
}

/// What is known of a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Current,
    /// The partner was not heard for too long, and is asked once more.
    Expired,
    /// Defaults are used: no partner answers.
    Defaulted,
}

impl Status {
    fn text(self) -> &'static str {
        match self {
            Status::Current => "current",
            Status::Expired => "expired",
            Status::Defaulted => "defaulted",
        }
    }
}

/// What `lacp/show-stats` prints.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    bad: u64,
    markers: u64,
    expired: u64,
    defaulted: u64,
    carrier_changes: u64,
}

#[derive(Debug)]
struct Member {
    conf: MemberConf,
    status: Status,
    attached: bool,
    carrier: bool,
    partner: Info,
    /// What the partner knows of this end.
    known: Info,
    /// When the partner counts as silent.
    silent_at: u64,
    send_at: u64,
    /// Packets that are still taken.
    budget: Budget,
    /// Whether its packets are handed over to the control side.
    gate: Gate,
    counts: Counts,
}

impl Member {
    fn may_enable(&self, fallback_ab: bool) -> bool {
        let partner = self.partner.state & state::SYNCHRONIZED != 0;
        self.attached && (partner || fallback_ab && self.status == Status::Defaulted)
    }

    fn hears(&mut self, now: u64) -> bool {
        let heard = self.budget.has(now, PDU_MS);
        self.gate.set(heard);
        heard
    }

    fn expire(&mut self, now: u64) {
        self.status = Status::Expired;
        self.partner.state = self.partner.state & !state::SYNCHRONIZED | state::TIMEOUT;
        self.silent_at = now + LOST_PDUS_MAX * FAST_MS;
    }
}

/// LACP on one port.
#[derive(Debug)]
pub struct Lacp {
    conf: Conf,
    members: BTreeMap<String, Member>,
    /// The interface whose key all have.
    key_member: Option<String>,
    negotiated: bool,
    /// What decides about attachment changed.
    dirty: bool,
    /// Said already; again when it was not so for a while.
    looped: bool,
}

impl Lacp {
    /// LACP without interfaces.
    pub fn new(conf: Conf) -> Lacp {
        let (members, key_member) = (BTreeMap::new(), None);
        Lacp { conf, members, key_member, negotiated: false, dirty: true, looped: false }
    }

    /// Changes the port's settings.
    pub fn configure(&mut self, conf: Conf) {
        self.dirty |= self.conf != conf;
        self.conf = conf;
    }

    /// Adds an interface or changes its settings.
    pub fn set_member(&mut self, name: &str, conf: MemberConf, now: u64) {
        let begins = self.conf.active || self.negotiated;
        let member = self.members.entry(name.into()).or_insert_with(|| Member {
            conf: MemberConf::default(),
            status: Status::Defaulted,
            attached: false,
            carrier: false,
            partner: Info::default(),
            known: Info::default(),
            silent_at: 0,
            send_at: 0,
            budget: Budget::full(PDUS_BURST, now),
            gate: Gate::default(),
            counts: Counts::default(),
        });
        self.key_member.get_or_insert_with(|| name.into());
        if member.conf != conf {
            member.conf = conf;
            self.dirty = true;
            if begins {
                member.expire(now);
            }
        }
    }

    /// Only these interfaces are left.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let before = self.members.len();
        self.members.retain(|name, _| keep(name));
        self.dirty |= self.members.len() != before;
        let members = &self.members;
        self.key_member = self.key_member.take().filter(|name| members.contains_key(name));
        if self.key_member.is_none() {
            self.key_member = members.keys().next().cloned();
        }
    }

    /// An interface's link is up or down.
    pub fn set_carrier(&mut self, name: &str, up: bool, now: u64) {
        let Some(m) = self.members.get_mut(name).filter(|m| m.carrier != up) else { return };
        m.carrier = up;
        m.counts.carrier_changes += 1;
        if m.status == Status::Current || self.conf.active {
            m.expire(now);
            self.dirty = true;
        }
    }

    /// True if the interface's share has room for a packet that comes now. Otherwise the packet
    /// side drops such packets.
    pub fn hears(&mut self, name: &str, now: u64) -> bool {
        self.members.get_mut(name).is_some_and(|m| m.hears(now))
    }

    /// What hands packets of an interface over.
    pub fn gate(&self, name: &str) -> Option<&Gate> {
        self.members.get(name).map(|m| &m.gate)
    }

    /// A packet came in. What the log should say of it.
    pub fn receive(&mut self, name: &str, pdu: &Pdu, now: u64) -> Option<&'static str> {
        let period = if self.conf.fast { FAST_MS } else { SLOW_MS };
        let m = self.members.get_mut(name)?;
        m.counts.received += 1;
        m.budget.spend();
        let (actor, partner) = match pdu {
            Pdu::Lacp { actor, partner } => (actor, partner),
            Pdu::Marker => {
                m.counts.markers += 1;
                return None;
            }
            Pdu::Bad => {
                m.counts.bad += 1;
                return Some("received an unparsable LACP PDU.");
            }
        };
        if !m.carrier {
            return Some("carrier state is DOWN, dropping received LACP PDU.");
        }
        self.dirty |= m.status != Status::Current || m.partner != *actor;
        m.status = Status::Current;
        m.silent_at = now + LOST_PDUS_MAX * period;
        (m.known, m.partner) = (*partner, *actor);
        None
    }

    /// Lets time pass. True: what [`Lacp::may_enable`] says may have changed.
    pub fn run(&mut self, now: u64) -> bool {
        for m in self.members.values_mut() {
            m.hears(now);
        }
        for m in self.members.values_mut().filter(|m| now >= m.silent_at) {
            match m.status {
                Status::Current => {
                    m.expire(now);
                    m.counts.expired += 1;
                }
                Status::Expired => {
                    (m.status, m.partner) = (Status::Defaulted, Info::default());
                    m.counts.defaulted += 1;
                }
                Status::Defaulted => continue,
            }
            self.dirty = true;
        }
        let dirty = std::mem::take(&mut self.dirty);
        if dirty {
            self.attach();
        }
        dirty
    }

    /// What is to be sent now: interface, what it says of itself and of its partner.
    pub fn transmit(&mut self, now: u64) -> Vec<(String, Info, Info)> {
        let names: Vec<String> = self.members.keys().cloned().collect();
        let mut out = Vec::new();
        for name in names {
            let actor = self.actor(&self.members[&name]);
            let Some(m) = self.members.get_mut(&name) else { continue };
            let speaks = m.carrier && (self.conf.active || m.status != Status::Defaulted);
            if !speaks || now < m.send_at && as_sent(&actor) == as_sent(&m.known) {
                continue;
            }
            m.known = actor;
            m.counts.sent += 1;
            let fast = m.partner.state & state::TIMEOUT != 0;
            m.send_at = now + if fast { FAST_MS } else { SLOW_MS };
            out.push((name, actor, m.partner));
        }
        out
    }

    /// True if the interface may carry packets.
    pub fn may_enable(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|m| m.may_enable(self.conf.fallback_ab))
    }

    /// `Interface.lacp_current`.
    pub fn is_current(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|m| m.status == Status::Current)
    }

    /// True if at least one interface is attached.
    pub fn is_negotiated(&self) -> bool {
        self.negotiated
    }

    /// A link leads back to this port; true once for each time that it begins.
    pub fn take_loop(&mut self) -> bool {
        let own = |m: &Member| m.partner.sys_id == self.conf.system_id;
        let looped = self.members.values().any(own);
        !std::mem::replace(&mut self.looped, looped) && looped
    }

    fn actor(&self, m: &Member) -> Info {
        let mut state = 0;
        let mut set = |on: bool, bit: u8| state |= if on { bit } else { 0 };
        set(self.conf.active, state::ACTIVITY);
        set(self.conf.fast, state::TIMEOUT);
        set(self.members.len() > 1, state::AGGREGATION);
        set(m.attached, state::SYNCHRONIZED);
        set(m.attached || !self.negotiated, state::COLLECTING | state::DISTRIBUTING);
        set(m.status == Status::Defaulted, state::DEFAULTED);
        set(m.status == Status::Expired, state::EXPIRED);
        Info {
            sys_priority: self.conf.system_priority,
            sys_id: self.conf.system_id,
            key: self.key(),
            port_priority: m.conf.priority,
            port_id: m.conf.port_id,
            state,
        }
    }

    fn key(&self) -> u16 {
        let member = self.key_member.as_ref().and_then(|name| self.members.get(name));
        member.map_or(0, |m| if m.conf.key == 0 { m.conf.port_id } else { m.conf.key })
    }

    /// How a link ranks, by what the system of the higher priority says of it; less is better.
    fn rank(&self, m: &Member) -> impl Ord + use<> {
        let own = (self.conf.system_priority, self.conf.system_id);
        let first = match own < (m.partner.sys_priority, m.partner.sys_id) {
            true => self.actor(m),
            false => m.partner,
        };
        (first.sys_priority, first.sys_id, first.port_priority, first.port_id)
    }

    /// Decides which interfaces are attached: those whose partner is that of the best one. An
    /// interface that works keeps its partner from being left for another.
    fn attach(&mut self) {
        let fallback = self.conf.fallback_ab;
        let working = self.members.values().filter(|m| m.status == Status::Current && m.attached);
        let working = working.min_by_key(|m| self.rank(m)).map(|m| m.partner.sys_id);
        let fits = |m: &Member| {
            let silent = m.status == Status::Defaulted;
            let own_loop = m.partner.sys_id == self.conf.system_id;
            !silent && !own_loop && working.is_none_or(|id| id == m.partner.sys_id)
        };
        let syncs = |m: &Member| m.partner.state & state::SYNCHRONIZED != 0;
        let candidates = self.members.values().filter(|m| fits(m));
        let lead = candidates.min_by_key(|m| (!syncs(m), self.rank(m)));
        let lead = lead.map(|m| (m.partner.key, m.partner.sys_id));
        let attached: Vec<bool> = self
            .members
            .values()
            .map(|m| match lead {
                Some(lead) => fits(m) && (m.partner.key, m.partner.sys_id) == lead,
                None => fallback && m.status == Status::Defaulted,
            })
            .collect();
        self.negotiated = lead.is_some();
        self.members.values_mut().zip(attached).for_each(|(m, attached)| m.attached = attached);
    }

    /// `lacp/show` of a port of this name.
    pub fn show(&self, name: &str) -> String {
        let status = if self.conf.active { "active" } else { "passive" };
        let negotiated = if self.negotiated { " negotiated" } else { "" };
        let key = match &self.key_member {
            Some(_) => self.key().to_string(),
            None => "none".into(),
        };
        let mut out = format!(
            "---- {name} ----\n  status: {status}{negotiated}\n  sys_id: {}\n  \
             sys_priority: {}\n  aggregation key: {key}\n  lacp_time: {}\n",
            mac_text(self.conf.system_id),
            self.conf.system_priority,
            if self.conf.fast { "fast" } else { "slow" },
        );
        for (name, m) in &self.members {
            let attached = if m.attached { "attached" } else { "detached" };
            let _ = write!(
                out,
                "\nmember: {name}: {} {attached}\n  port_id: {}\n  port_priority: {}\n  \
                 may_enable: {}\n\n{}\n{}",
                m.status.text(),
                m.conf.port_id,
                m.conf.priority,
                m.may_enable(self.conf.fallback_ab),
                info_text("actor", &self.actor(m)),
                info_text("partner", &m.partner),
            );
        }
        out
    }

    /// What sFlow tells of an interface (IEEE 802.1AX-2008, section 6.3.3); the partner's state as
    /// it is configured is not known.
    pub fn sflow_counters(&self, name: &str) -> Option<export::sflow::Lacp> {
        let m = self.members.get(name)?;
        let configured = state::ACTIVITY | state::TIMEOUT | state::AGGREGATION;
        let own = self.actor(m);
        Some(export::sflow::Lacp {
            systems: [own.sys_id, m.partner.sys_id],
            group: own.key.into(),
            states: [own.state & configured, own.state, 0, m.partner.state],
            pdus: [m.counts.received as u32, m.counts.bad as u32, m.counts.sent as u32],
        })
    }

    /// `lacp/show-stats` of a port of this name.
    pub fn show_stats(&self, name: &str) -> String {
        let mut out = format!("---- {name} statistics ----\n");
        for (name, m) in &self.members {
            let c = &m.counts;
            let _ = write!(
                out,
                "\nmember: {name}:\n  TX PDUs: {}\n  RX PDUs: {}\n  RX Bad PDUs: {}\n  \
                 RX Marker Request PDUs: {}\n  Link Expired: {}\n  Link Defaulted: {}\n  \
                 Carrier Status Changed: {}\n",
                c.sent, c.received, c.bad, c.markers, c.expired, c.defaulted, c.carrier_changes
            );
        }
        out
    }
}

/// What of it a partner hears of at once when it changes (IEEE 802.1AX-2008, section 5.4.9).
fn as_sent(info: &Info) -> Info {
    let bits = state::ACTIVITY | state::TIMEOUT | state::AGGREGATION | state::SYNCHRONIZED;
    Info { state: info.state & bits, ..*info }
}

/// `aa:bb:cc:dd:ee:ff`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn info_text(who: &str, i: &Info) -> String {
    let set = (0..8).filter(|bit| i.state >> bit & 1 != 0).map(|bit| state::NAMES[bit]);
    let states: String = set.map(|name| format!(" {name}")).collect();
    format!(
        "  {who} sys_id: {}\n  {who} sys_priority: {}\n  {who} port_id: {}\n  \
         {who} port_priority: {}\n  {who} key: {}\n  {who} state:{states}\n",
        mac_text(i.sys_id),
        i.sys_priority,
        i.port_id,
        i.port_priority,
        i.key
    )
}

#[cfg(test)]
#[path = "lacp_tests.rs"]
mod tests;
