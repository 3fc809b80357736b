//! IPFIX (RFC 7011): what was sampled of flows, aggregated, with Open vSwitch's choice of elements.

mod counts;
mod elements;
mod sample;
mod template;

pub use sample::{Interface, IpfixSample, Packet, Tunnel};

use crate::bytes::Put;
use counts::{FlowCounts, Totals};
use sample::SampleClass;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use template::Shape;

/// The port of collectors (IANA).
pub const PORT: u16 = 4739;
/// Flows that a cache has at most, whatever `cache_max_flows` says: about 100 MB.
pub const FLOWS_MAX: u32 = 1 << 17;

/// Bytes of a message, at most: an Ethernet frame of 1,500 has room for it, and for IPv6 and UDP.
const MESSAGE_BYTES_MAX: usize = 1400;
/// Messages that wait to be sent; when there are more, records are lost. The caller takes them
/// about each millisecond.
const MESSAGES_MAX: usize = 4096;
/// Observation domains that have a sequence of their own; others share one.
const DOMAINS_MAX: usize = 4096;
const VERSION: u16 = 10;
const TEMPLATE_SET: u16 = 2;
const OPTIONS_TEMPLATE_SET: u16 = 3;
/// Templates are repeated after so long, as they may get lost (RFC 5101, section 10.3.6).
const TEMPLATE_INTERVAL_MS: u64 = 600_000;

/// Columns of table `IPFIX` that all of its exporters have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpfixSettings {
    /// `cache_active_timeout`: flows are reported after so many milliseconds.
    pub active_ms: u64,
    /// `cache_max_flows`.
    pub flows_max: u32,
    /// `other_config:virtual_obs_id`.
    pub virtual_id: Option<String>,
}

/// The time: of the caller's clock, ms, and since 1970, s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Milliseconds of the caller's clock.
    pub ms: u64,
    /// Since 1970.
    pub wall_s: u32,
}

/// What an exporter has done, as `ovs-ofctl dump-ipfix-bridge` prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExporterStats {
    /// Flows that came into the cache.
    pub flows: u64,
    /// Flows that are in the cache now.
    pub current_flows: u64,
    /// Packets that were sampled.
    pub packets: u64,
    /// Sampled packets of IPv4 that a template describes.
    pub ipv4: u64,
    /// Sampled packets of IPv6 that a template describes.
    pub ipv6: u64,
    /// Sampled packets of IP that no template describes.
    pub errors: u64,
    /// Sampled packets of IPv4 that no template describes.
    pub ipv4_errors: u64,
    /// Sampled packets of IPv6 that no template describes.
    pub ipv6_errors: u64,
}

/// Why a flow leaves the cache: `flowEndReason` (RFC 5102, section 5.11.3).
#[derive(Clone, Copy)]
enum End {
    Active = 2,
    Forced = 4,
    Full = 5,
}

/// What tells flows apart: domain, template and the first part of the record. In front of it is its
/// hash, so that hardly ever more than that is compared.
type Key = (u64, Rc<(u32, Shape, Vec<u8>)>);

#[derive(Default)]
struct Domain {
    /// Data records so far.
    sequence: u32,
    /// When the templates were sent.
    templates_ms: Option<u64>,
}

/// Data sets of one domain that wait for more.
#[derive(Default)]
struct Open {
    domain: u32,
    records: u32,
    sets: Vec<u8>,
}

/// An exporter: that of a bridge's own samples, or of a collector set.
pub struct Exporter {
    settings: IpfixSettings,
    /// Tells it from other exporters of the process.
    id: u32,
    hasher: RandomState,
    /// A tree: a table that is hashed anew as it grows would stop the caller for 600 ms.
    flows: BTreeMap<Key, FlowCounts>,
    /// The flows, those that began first.
    order: VecDeque<Key>,
    totals: Totals,
    domains: BTreeMap<u32, Domain>,
    open: Open,
    ready: Vec<Vec<u8>>,
    stats: ExporterStats,
    /// Records that found no place among the messages.
    lost: u64,
}

impl Exporter {
    /// An exporter without flows.
    pub fn new(settings: IpfixSettings, id: u32) -> Self {
        Exporter {
            settings,
            id,
            hasher: RandomState::new(),
            flows: BTreeMap::new(),
            order: VecDeque::new(),
            totals: Totals::default(),
            domains: BTreeMap::new(),
            open: Open::default(),
            ready: Vec::new(),
            stats: ExporterStats::default(),
            lost: 0,
        }
    }

    /// What the exporter has done.
    pub fn stats(&self) -> ExporterStats {
        ExporterStats { current_flows: self.flows.len() as u64, ..self.stats }
    }

    /// Records that found no place among the messages.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// A packet was sampled. A flow that there is no room for ends the one that began first.
    pub fn sample(&mut self, sample: &IpfixSample<'_>, now: Now) {
        self.count(sample.class());
        let counts = self.totals.add(sample, now.ms);
        let parts = (sample.domain, sample.shape(), sample.key());
        let key: Key = (self.hasher.hash_one(&parts), Rc::new(parts));
        if let Some(known) = self.flows.get_mut(&key) {
            return known.aggregate(counts);
        }
        self.stats.flows += 1;
        self.flows.insert(key.clone(), counts);
        self.order.push_back(key);
        if self.flows.len() > self.settings.flows_max.min(FLOWS_MAX) as usize {
            self.end_first(End::Full, now);
        }
    }

    fn count(&mut self, class: SampleClass) {
        let s = &mut self.stats;
        s.packets += 1;
        match class {
            SampleClass::Ipv4 => s.ipv4 += 1,
            SampleClass::Ipv6 => s.ipv6 += 1,
            SampleClass::Ipv4Other => (s.errors, s.ipv4_errors) = (s.errors + 1, s.ipv4_errors + 1),
            SampleClass::Ipv6Other => (s.errors, s.ipv6_errors) = (s.errors + 1, s.ipv6_errors + 1),
            SampleClass::NoIp => {}
        }
    }

    /// Reports `left` flows that are due, and takes as many from that as it reported. True: there
    /// are more.
    pub fn run(&mut self, now: Now, left: &mut usize) -> bool {
        while *left > 0 {
            let first = self.order.front().and_then(|key| self.flows.get(key));
            let due = |c: &FlowCounts| now.ms.saturating_sub(c.start_ms) >= self.settings.active_ms;
            if !first.is_some_and(due) {
                return false;
            }
            self.end_first(End::Active, now);
            *left -= 1;
        }
        true
    }

    /// Reports `left` flows, and takes as many from that as it reported. True: there are more.
    pub fn finish(&mut self, now: Now, left: &mut usize) -> bool {
        while *left > 0 && !self.order.is_empty() {
            self.end_first(End::Forced, now);
            *left -= 1;
        }
        !self.order.is_empty()
    }

    /// Messages to be sent that have no room for more.
    pub fn take_full(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.ready)
    }

    /// Messages to be sent.
    pub fn take(&mut self, now: Now) -> Vec<Vec<u8>> {
        self.close(now);
        std::mem::take(&mut self.ready)
    }

    /// The flow that began first leaves the cache, and is reported.
    fn end_first(&mut self, why: End, now: Now) {
        let Some(key) = self.order.pop_front() else {
            return;
        };
        let Some(counts) = self.flows.remove(&key) else {
            return;
        };
        let (domain, shape, first) = &*key.1;
        let mut record = first.clone();
        if let Some(id) = &self.settings.virtual_id {
            sample::text(&mut record, id.as_bytes());
        }
        counts.write(&mut record, *shape, why as u8, now.ms);
        self.add(*domain, shape.id(), &record, now);
    }

    fn add(&mut self, domain: u32, template: u16, record: &[u8], now: Now) {
        let full = self.open.sets.len() + 20 + record.len() > MESSAGE_BYTES_MAX;
        if full || self.open.domain != domain {
            self.close(now);
        }
        self.open.domain = domain;
        self.send_templates(domain, now);
        set(&mut self.open.sets, template, record);
        self.open.records += 1;
    }

    /// Makes a message of what waits.
    fn close(&mut self, now: Now) {
        let Open { domain, records, sets } = std::mem::take(&mut self.open);
        if records > 0 {
            self.message(domain, records, &sets, now);
        }
    }

    fn message(&mut self, domain: u32, records: u32, sets: &[u8], now: Now) {
        let sequence = &mut self.domain(domain).sequence;
        let before = *sequence;
        *sequence = before.wrapping_add(records);
        if self.ready.len() >= MESSAGES_MAX {
            self.lost += u64::from(records);
            return;
        }
        let mut out = Vec::with_capacity(16 + sets.len());
        out.u16(VERSION);
        out.u16(16 + sets.len() as u16);
        out.u32(now.wall_s);
        out.u32(before);
        out.u32(domain);
        out.extend(sets);
        self.ready.push(out);
    }

    fn domain(&mut self, domain: u32) -> &mut Domain {
        let known = self.domains.contains_key(&domain) || self.domains.len() < DOMAINS_MAX;
        self.domains.entry(if known { domain } else { 0 }).or_default()
    }

    /// Sends the templates, and what is to be said of the exporter itself, to a domain that had
    /// none for long.
    fn send_templates(&mut self, domain: u32, now: Now) {
        let sent = &mut self.domain(domain).templates_ms;
        if sent.is_some_and(|at| now.ms.saturating_sub(at) < TEMPLATE_INTERVAL_MS) {
            return;
        }
        *sent = Some(now.ms);
        let virtual_id = self.settings.virtual_id.is_some();
        let mut templates = Vec::new();
        for record in template::shapes().map(|s| s.template(virtual_id)) {
            if 20 + templates.len() + record.len() > MESSAGE_BYTES_MAX {
                self.templates(domain, TEMPLATE_SET, &std::mem::take(&mut templates), now);
            }
            templates.extend(record);
        }
        self.templates(domain, TEMPLATE_SET, &templates, now);
        self.templates(domain, OPTIONS_TEMPLATE_SET, &template::exporter_template(), now);
        let mut own = Vec::new();
        own.u32(self.id);
        own.extend(self.stats.errors.to_be_bytes());
        let mut data = Vec::new();
        set(&mut data, template::EXPORTER_TEMPLATE, &own);
        self.message(domain, 1, &data, now);
    }

    fn templates(&mut self, domain: u32, kind: u16, records: &[u8], now: Now) {
        let mut sets = Vec::new();
        set(&mut sets, kind, records);
        self.message(domain, 0, &sets, now);
    }
}

/// Adds a set of records.
fn set(out: &mut Vec<u8>, id: u16, records: &[u8]) {
    out.u16(id);
    out.u16(4 + records.len() as u16);
    out.extend(records);
}

#[cfg(test)]
#[path = "ipfix_tests.rs"]
mod tests;
