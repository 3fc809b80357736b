//! LLDP of one interface: what it says when, and what its neighbours said.

use super::LldpConf;
use crate::budget::Budget;
use ofproto::Gate;
use std::fmt::Write;
use wire::{LldpAssignment, LldpElement, LldpId, LldpRefusal, LldpSelf, LldpUnit, Mac, read_lldp};

/// Between two data units, and how long each holds: as ovs-vswitchd.
const INTERVAL_MS: u64 = 5000;
const TTL_S: u16 = 120;
/// Data units that are heard at once, and how long each takes to be allowed again. A neighbour
/// sends one each 30 s, or four in as many seconds.
const HEARD_BURST: u64 = 16;
const HEARD_PRICE_MS: u64 = 250;
/// Neighbours that are known at once: one, but for links that several systems share.
const NEIGHBOURS_MAX: usize = 8;
/// Refusals that the log has at once, and how long each takes to be allowed again.
const SAID_BURST: u64 = 10;
const SAID_PRICE_MS: u64 = 6000;

/// What was counted, in `autoattach/statistics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sent: u64,
    received: u64,
    discarded: u64,
    unrecognized: u64,
    aged_out: u64,
    inserted: u64,
    deleted: u64,
    dropped: u64,
}

/// What a neighbour said last.
struct Neighbour {
    chassis: LldpId,
    port: LldpId,
    description: Vec<u8>,
    element: Option<LldpElement>,
    assignments: Vec<LldpAssignment>,
    /// Until when it holds, ms.
    until: u64,
}

/// LLDP of one interface. Times are milliseconds of one clock.
pub struct Agent {
    conf: LldpConf,
    gate: Gate,
    neighbours: Vec<Neighbour>,
    counts: Counts,
    /// When a data unit is sent next.
    next: u64,
    hears: Budget,
    says: Budget,
}

impl Agent {
    /// Says what it is at once.
    pub fn new(conf: LldpConf, now: u64) -> Agent {
        Agent {
            conf,
            gate: Gate::default(),
            neighbours: Vec::new(),
            counts: Counts::default(),
            next: now,
            hears: Budget::full(HEARD_BURST, now),
            says: Budget::full(SAID_BURST, now),
        }
    }

    /// What the database asks for.
    pub fn conf(&self) -> &LldpConf {
        &self.conf
    }

    /// The database asks for something else, which the next data unit says.
    pub fn configure(&mut self, conf: LldpConf) {
        self.conf = conf;
    }

    /// Whether its data units are handed over to the control side.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// True if neighbours may send one more data unit. The port's worker drops others.
    pub fn hears(&mut self, now: u64) -> bool {
        let hears = self.hears.has(now, HEARD_PRICE_MS);
        self.gate.set(hears);
        hears
    }

    /// A frame has come in; why it is none, if the log is to have that.
    pub fn receive(&mut self, frame: &[u8], now: u64) -> Option<LldpRefusal> {
        self.hears.spend();
        self.counts.received += 1;
        let (read, unrecognized) = read_lldp(frame);
        self.counts.unrecognized += unrecognized;
        match read {
            Ok(unit) => {
                self.take(unit, now);
                None
            }
            Err(refusal) => {
                self.counts.discarded += 1;
                let says = self.says.has(now, SAID_PRICE_MS);
                self.says.spend();
                says.then_some(refusal)
            }
        }
    }

    /// Remembers what a neighbour says.
    fn take(&mut self, unit: LldpUnit, now: u64) {
        let LldpUnit { chassis, port, ttl, description, element, assignments, .. } = unit;
        let known = self.neighbours.iter().position(|n| n.chassis == chassis && n.port == port);
        if ttl == 0 {
            if let Some(at) = known {
                self.neighbours.remove(at);
                self.counts.deleted += 1;
            }
            return;
        }
        let until = now + u64::from(ttl) * 1000;
        let new = Neighbour { chassis, port, description, element, assignments, until };
        match known {
            Some(at) => self.neighbours[at] = new,
            None if self.neighbours.len() >= NEIGHBOURS_MAX => self.counts.dropped += 1,
            None => {
                self.counts.inserted += 1;
                self.neighbours.push(new);
            }
        }
    }

    /// Forgets neighbours of which nothing was heard for as long as they said.
    pub fn expire(&mut self, now: u64) {
        let before = self.neighbours.len();
        self.neighbours.retain(|n| n.until > now);
        self.counts.aged_out += (before - self.neighbours.len()) as u64;
    }

    /// The data unit that is to be sent now, if one is, and how many mappings it leaves out.
    pub fn transmit(&mut self, iface: &str, mac: Mac, now: u64) -> Option<(Vec<u8>, usize)> {
        if self.next > now {
            return None;
        }
        self.next = now + INTERVAL_MS;
        self.counts.sent += 1;
        let LldpConf { name, description, assignments } = self.conf.clone();
        let assignments: Vec<_> = assignments.into_iter().collect();
        let (all, port) = (assignments.len(), iface.into());
        let own = LldpSelf { mac, port, ttl: TTL_S, name, description, assignments };
        let (frame, said) = own.write();
        Some((frame, all - said))
    }

    /// When it is to be run next.
    pub fn wake(&self, now: u64) -> u64 {
        let hears = self.hears.next(HEARD_PRICE_MS);
        let ends = self.neighbours.iter().map(|n| n.until);
        ends.chain(hears).chain([self.next]).min().unwrap_or(now)
    }

    /// The servers of Auto Attach among the neighbours.
    pub fn show_servers(&self) -> String {
        let mut out = String::new();
        for n in &self.neighbours {
            let Some(element) = &n.element else { continue };
            let LldpElement { mac, connection, reserved: (reserved, last) } = element;
            // As ovs-vswitchd has the system in memory.
            let (connection, reserved) = (connection.to_ne_bytes(), reserved.to_ne_bytes());
            let system = [&mac[..], &connection, &reserved, last].concat();
            if system.iter().all(|b| *b == 0) {
                continue;
            }
            let description = match &n.description[..] {
                [] => "<None>".into(),
                text => printable(text),
            };
            for (what, value) in [
                ("Id", bytes_text(&n.chassis.value)),
                ("Descr", description),
                ("System Id", bytes_text(&system)),
            ] {
                let _ = writeln!(out, "  Auto Attach Primary Server {what}: {value}");
            }
        }
        out
    }

    /// The mappings, and what neighbours say of them.
    pub fn show_isids(&self) -> String {
        let mut out = format!("{:<8} {:<4} {:<11} {:<8}\n", "I-SID", "VLAN", "Source", "Status");
        out += "-------- ---- ----------- --------\n";
        for (isid, vlan) in &self.conf.assignments {
            let mut said = self.neighbours.iter().rev().flat_map(|n| &n.assignments);
            let status = said.find(|a| a.isid == *isid).map(|a| a.status);
            let text = status.map_or("Pending", status_text);
            let _ = writeln!(out, "{isid:<8} {vlan:<4} {:<11} {text:<11}", "Switch");
        }
        out
    }

    /// What was counted.
    pub fn show_statistics(&self) -> String {
        let c = &self.counts;
        let all = [
            ("tx", c.sent),
            ("rx", c.received),
            ("rx discarded", c.discarded),
            ("rx unrecognized", c.unrecognized),
            ("ageout", c.aged_out),
            ("insert", c.inserted),
            ("delete", c.deleted),
            ("drop", c.dropped),
        ];
        all.iter().map(|(what, n)| format!("  {what} cnt: {n}\n")).collect()
    }
}

/// What a neighbour says of a mapping (draft-unbehagen-lldp-spb), in ovs-vswitchd's words.
fn status_text(status: u8) -> &'static str {
    match status {
        2 => "Active",
        3 => "Reject (Generic)",
        4 => "Reject (AA resources unavailable)",
        6 => "Reject (Invalid)",
        8 => "Reject (VLAN resources unavailable)",
        9 => "Reject (Application interaction issue)",
        _ => "Undefined",
    }
}

/// Bytes in hexadecimal, with colons between them.
fn bytes_text(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

/// A neighbour's text, without what a terminal would act on.
fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
