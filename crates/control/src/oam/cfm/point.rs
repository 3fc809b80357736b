//! A maintenance point of CFM (IEEE 802.1ag), as ovs-vswitchd 3.1 has it: it sends continuity check
//! messages, and looks every 3.5 intervals at which remote points it heard. Pure: times are
//! arguments, in milliseconds of one clock.

use super::ccm::{Ccm, Refusal};
use super::cfm_conf::{CfmConf, Vlan};
use crate::budget::Budget;
use crate::vlog::Level;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Remote points that are known at a time.
const REMOTES_COUNT_MAX: usize = 256;
/// Messages that may come at once, and in one interval, but at most one each millisecond.
const BURST_COUNT: u64 = 256;
/// Messages that may come at once again after too many came.
const AGAIN_COUNT: u64 = 16;
/// Looks at remote points after which the share of messages that came is reckoned, and messages
/// that came in that time from a point that lost none.
const HEALTH_CHECKS: u8 = 6;
const HEALTH_MESSAGES: u32 = HEALTH_CHECKS as u32 * 7 / 2;
/// In demand mode one message in as many intervals is needed beside data.
const DEMAND_COUNT: u64 = 100;

/// Reasons for a fault: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u8);

impl Faults {
    const RECV: Faults = Faults(1);
    const RDI: Faults = Faults(2);
    const MAID: Faults = Faults(4);
    const LOOPBACK: Faults = Faults(8);
    const OVERFLOW: Faults = Faults(16);
    const OVERRIDE: Faults = Faults(32);

    fn add(&mut self, other: Faults) {
        self.0 |= other.0;
    }

    /// As `Interface.cfm_fault_status` has them.
    pub fn names(self) -> Vec<&'static str> {
        let names = ["recv", "rdi", "maid", "loopback", "overflow", "override"];
        names
            .into_iter()
            .enumerate()
            .filter(|(i, _)| self.0 >> i & 1 != 0)
            .map(|(_, n)| n)
            .collect()
    }
}

/// What the database has of an interface with CFM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `cfm_fault_status`.
    pub faults: Faults,
    /// `cfm_remote_opstate`; None: not extended.
    pub remote_up: Option<bool>,
    /// `cfm_flap_count`.
    pub flaps: u64,
    /// `cfm_health`, percent.
    pub health: Option<u32>,
    /// `cfm_remote_mpids`.
    pub remotes: Vec<u64>,
}

impl Status {
    /// True if nothing gets through.
    pub fn is_faulty(&self) -> bool {
        self.faults != Faults::default() || self.remote_up == Some(false)
    }
}

/// A remote maintenance point.
struct Remote {
    /// A message came since the last look.
    heard: bool,
    up: bool,
    seq: u32,
    /// Good messages since health was reckoned.
    healthy: u32,
    /// When the last message came.
    last: u64,
}

/// A line for the log.
pub type Note = (Level, String);

/// An interface's maintenance point.
pub struct MaintenancePoint {
    conf: CfmConf,
    remotes: BTreeMap<u64, Remote>,
    /// As of the last look, but for `faults_heard`, which messages said since then.
    status: Status,
    faults_heard: Faults,
    /// Whether there is a fault, as `cfm/set-fault` has it.
    forced: Option<bool>,
    remote_up: bool,
    /// Looks since health was reckoned.
    checks: u8,
    /// True after the first look.
    booted: bool,
    seq: u32,
    next_tx: u64,
    last_tx: Option<u64>,
    next_check: u64,
    /// Packets that the interface had received at the last look, and until when they can stand for
    /// messages (demand mode).
    received: u64,
    demand_until: u64,
    budget: Budget,
    notes: Vec<Note>,
}

impl MaintenancePoint {
    /// A point that has heard nothing. `received`: packets that the interface received so far, for
    /// demand mode.
    pub fn new(conf: CfmConf, now: u64, received: u64) -> MaintenancePoint {
        MaintenancePoint {
            next_check: now + conf.check_ms(),
            conf,
            remotes: BTreeMap::new(),
            status: Status::default(),
            faults_heard: Faults::default(),
            forced: None,
            remote_up: true,
            checks: 0,
            booted: false,
            seq: 0,
            next_tx: now,
            last_tx: None,
            received,
            demand_until: 0,
            budget: Budget::full(BURST_COUNT, now),
            notes: Vec::new(),
        }
    }

    /// Its settings.
    pub fn conf(&self) -> &CfmConf {
        &self.conf
    }

    /// Other settings. `received` as in [`MaintenancePoint::new`].
    pub fn configure(&mut self, conf: CfmConf, now: u64, received: u64) {
        let old = std::mem::replace(&mut self.conf, conf);
        if self.conf.demand && !old.demand {
            self.received = received;
        }
        if self.conf.interval != old.interval {
            self.next_tx = now;
            self.next_check = now + self.conf.check_ms();
        }
    }

    /// True if the remote points may send one more message.
    pub fn hears(&mut self, now: u64) -> bool {
        self.budget.has(now, self.price())
    }

    /// Milliseconds for each message.
    fn price(&self) -> u64 {
        (self.conf.interval.ms / BURST_COUNT).max(1)
    }

    /// Takes a message.
    pub fn receive(&mut self, frame: &[u8], now: u64) {
        self.budget.spend();
        match Ccm::read(frame, self.conf.extended) {
            Ok(ccm) => self.hear(ccm, now),
            Err(why @ Refusal::Maid(_)) => {
                self.faults_heard.add(Faults::MAID);
                self.note(Level::Warn, why.to_string());
            }
            Err(why) => self.note(Level::Info, why.to_string()),
        }
    }

    /// As in OVS a wrong interval is no fault, but worth a warning.
    fn hear(&mut self, ccm: Ccm, now: u64) {
        let mpid = ccm.mpid;
        let interval = self.conf.interval;
        if ccm.interval != interval.number {
            let text = "received a CCM with an unexpected interval";
            self.note(Level::Warn, format!("{text} ({}) from RMP {mpid}", ccm.interval));
        } else if ccm.interval == 0 && u64::from(ccm.interval_ms) != interval.ms {
            let text = "received a CCM with an unexpected extended interval";
            self.note(Level::Warn, format!("{text} ({}ms) from RMP {mpid}", ccm.interval_ms));
        }
        if self.remotes.len() >= REMOTES_COUNT_MAX && !self.remotes.contains_key(&mpid) {
            self.faults_heard.add(Faults::OVERFLOW);
            return self.note(Level::Warn, format!("dropped CCM with MPID {mpid}"));
        }
        let mut faults = Faults::default();
        if ccm.rdi {
            faults.add(Faults::RDI);
        }
        if mpid == self.conf.mpid {
            faults.add(Faults::LOOPBACK);
            self.note(Level::Warn, format!("received CCM with local MPID {mpid}"));
        }
        let is_good = faults == Faults::default();
        self.faults_heard.add(faults);
        if is_good && self.conf.demand {
            self.demand_until = now + DEMAND_COUNT * self.conf.interval.ms;
        }
        let new = Remote { heard: true, up: true, seq: 0, healthy: 0, last: now };
        let remote = self.remotes.entry(mpid).or_insert(new);
        let before = std::mem::replace(&mut remote.seq, ccm.seq);
        (remote.heard, remote.up, remote.last) = (true, !ccm.down, now);
        remote.healthy += u32::from(is_good);
        if before != 0 && ccm.seq != before.wrapping_add(1) {
            let text = "detected sequence numbers which indicate possible connectivity problems";
            let text = format!("(mpid {mpid}) {text} (previous {before}) (current {})", ccm.seq);
            self.note(Level::Warn, text);
        }
    }

    /// True if a message has to be sent.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.next_tx
    }

    /// The frame to be sent now by an interface with address `mac`; `random` chooses a VLAN.
    pub fn transmit(&mut self, now: u64, mac: [u8; 6], random: u16) -> Vec<u8> {
        let CfmConf { mpid, interval, extended, up, vlan, pcp, .. } = self.conf;
        self.next_tx = now + interval.ms;
        self.seq = self.seq.wrapping_add(1);
        let late = self.last_tx.replace(now).map_or(0, |last| now.saturating_sub(last));
        if late > interval.ms * 3 / 2 {
            let (ms, seq) = (interval.ms, self.seq);
            let text = format!("long delay of {late}ms (expected {ms}ms) sending CCM seq {seq}");
            self.note(Level::Info, text);
        }
        let ccm = Ccm {
            seq: self.seq,
            mpid,
            rdi: self.booted && self.remotes.is_empty(),
            interval: interval.number,
            interval_ms: if interval.number == 0 { interval.ms as u16 } else { 0 },
            down: extended && !up,
        };
        let id = match vlan {
            Vlan::Id(id) => id,
            Vlan::Random => random & 0xfff,
        };
        ccm.frame(mac, id | u16::from(pcp) << 13, extended)
    }

    /// Looks at the remote points if it is time to. `received` as in [`MaintenancePoint::new`].
    pub fn check(&mut self, now: u64, received: u64) {
        if now < self.next_check {
            return;
        }
        self.reckon_health();
        let by_data = self.conf.demand
            && self.remotes.len() == 1
            && received > self.received
            && now < self.demand_until;
        self.received = received;
        self.forget_silent(now, by_data);
        let mut faults = std::mem::take(&mut self.faults_heard);
        if self.remotes.is_empty() {
            faults.add(Faults::RECV);
        }
        let before = std::mem::replace(&mut self.status.faults, faults);
        if faults != before {
            let text = |f: Faults| f.names().join(" ");
            let text = format!("CFM faults changed from [{}] to [{}].", text(before), text(faults));
            self.note(Level::Info, text);
            self.status.flaps += u64::from([before, faults].contains(&Faults::default()));
        }
        self.booted = true;
        self.next_check = now + self.conf.check_ms();
    }

    /// Forgets remote points that were not heard, unless data stands for messages. What the others
    /// say of themselves counts.
    fn forget_silent(&mut self, now: u64, by_data: bool) {
        let silent = self.remotes.iter().filter(|(_, r)| !r.heard);
        let silent: Vec<_> = silent.map(|(mpid, r)| (*mpid, now.saturating_sub(r.last))).collect();
        for (mpid, ms) in silent {
            let text = format!("Received no CCM from RMP {mpid} in the last {ms}ms");
            self.note(Level::Info, text);
            if !by_data {
                self.remotes.remove(&mpid);
            }
        }
        self.status.remotes.clear();
        let mut any = None;
        for (mpid, remote) in self.remotes.iter_mut().filter(|(_, r)| r.heard) {
            remote.heard = false;
            any = Some(any.unwrap_or(true) && remote.up);
            self.status.remotes.push(*mpid);
        }
        self.remote_up = any.unwrap_or(self.remote_up);
    }

    /// Works out the share of messages that came, if it is time to: of no remote point 0, of
    /// several unknown.
    fn reckon_health(&mut self) {
        if self.checks == HEALTH_CHECKS {
            self.checks = 0;
            self.status.health = match self.remotes.len() {
                0 => Some(0),
                1 => self.remotes.values_mut().next().map(|remote| {
                    (std::mem::take(&mut remote.healthy) * 100 / HEALTH_MESSAGES).min(100)
                }),
                _ => None,
            };
        }
        self.checks += 1;
    }

    /// When a message is due, remote points are to be looked at, or messages are heard again.
    pub fn wake(&self) -> u64 {
        let at = self.next_tx.min(self.next_check);
        self.budget.next(self.price() * AGAIN_COUNT).map_or(at, |heard| at.min(heard))
    }

    /// Overrides whether there is a fault.
    pub fn force(&mut self, forced: Option<bool>) {
        self.forced = forced;
    }

    fn note(&mut self, level: Level, text: String) {
        self.notes.push((level, text));
    }

    /// Lines for the log since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    fn faults(&self) -> Faults {
        match self.forced {
            Some(true) => Faults::OVERRIDE,
            Some(false) => Faults::default(),
            None => self.status.faults,
        }
    }

    /// The point's state for the database.
    pub fn status(&self) -> Status {
        let remote_up = self.conf.extended.then_some(self.remote_up);
        Status { faults: self.faults(), remote_up, ..self.status.clone() }
    }

    /// What `cfm/show` prints.
    pub fn show(&self, now: u64) -> String {
        let mut text = format!("MPID {}:", self.conf.mpid);
        text.push_str(if self.conf.extended { " extended" } else { "" });
        text.push_str(if self.forced.is_some() { " fault_override\n" } else { "\n" });
        let mut put = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name}: {value}");
        };
        let word = |up: bool| if up { "up" } else { "down" };
        let until = |at: u64| format!("{}ms", at as i64 - now as i64);
        if self.faults() != Faults::default() {
            put("fault", &self.faults().names().join(" "));
        }
        let health = self.status.health.map_or("undefined".into(), |h| h.to_string());
        put("average health", &health);
        put("opstate", word(self.conf.up));
        put("remote_opstate", word(self.remote_up));
        put("interval", &format!("{}ms", self.conf.interval.ms));
        put("next CCM tx", &until(self.next_tx));
        put("next fault check", &until(self.next_check));
        for (mpid, remote) in &self.remotes {
            let (heard, up) = (remote.heard, word(remote.up));
            let _ =
                write!(text, "Remote MPID {mpid}\n  recv since check: {heard}\n  opstate: {up}\n");
        }
        text
    }
}

#[cfg(test)]
#[path = "point_tests.rs"]
mod tests;
