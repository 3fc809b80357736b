//! sFlow version 5: samples of packets and of counters of one bridge.

mod counters;
mod flow;
mod xdr;

pub use counters::{Block, EthernetCounters, Lacp};
pub use counters::{InterfaceCounters, ProcessCounters, SwitchCounters, UNKNOWN};
pub use flow::{FlowSample, Output, Tunnel};

use std::net::IpAddr;
use xdr::Xdr;

/// The port of collectors (IANA).
pub const PORT: u16 = 6343;
/// Columns `sampling`, `polling` and `header` where they are empty, as in OVS.
pub const SAMPLING_DEFAULT: u32 = 400;
/// See [`SAMPLING_DEFAULT`]; seconds.
pub const POLLING_DEFAULT_S: u32 = 30;
/// See [`SAMPLING_DEFAULT`]; bytes.
pub const HEADER_DEFAULT_BYTES: u16 = 128;

/// Bytes of a datagram, at most, but for one with a single sample: sFlow's default for receivers
/// (`sFlowRcvrMaximumDatagramSize`).
const DATAGRAM_BYTES_MAX: usize = 1400;
/// Datagrams that wait to be sent; when there are more, samples are lost. The caller takes them
/// about each millisecond.
const DATAGRAMS_MAX: usize = 1024;
const VERSION: u32 = 5;
/// Kinds of samples.
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;
/// The source of packet samples of a bridge, as in OVS: a physical entity with a number.
const ENTITY_CLASS: u32 = 2;
const ENTITY_INDEX_MIN: u32 = 1000;
/// How often counters are looked at, and datagrams that are not full are sent.
const TICK_MS: u64 = 1000;

/// What an agent is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SflowSettings {
    /// The address by which collectors know it.
    pub agent: IpAddr,
    /// Tells it from other bridges' agents with this address.
    pub sub_agent: u32,
    /// One packet of so many is sampled.
    pub sampling: u32,
    /// Seconds between two samples of the same counters; 0: there are none.
    pub polling_s: u32,
    /// Bytes of a packet that are sent, at most.
    pub header_bytes: u16,
}

/// Where counters come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An interface, by its ifIndex.
    Interface(u32),
    /// The switch as a whole.
    Switch,
}

/// Counters that are sampled by turns.
struct Poller {
    source: Source,
    sequence: u32,
    /// Ticks until the next sample.
    ticks: u32,
}

/// The agent of one bridge.
pub struct Agent {
    settings: SflowSettings,
    boot_ms: u64,
    next_tick_ms: u64,
    /// Datagrams so far.
    sequence: u32,
    /// Packet samples so far.
    samples: u32,
    /// Packets that samples were taken of.
    pool: u32,
    /// Packets that should have been samples and are not.
    drops: u32,
    /// The switch first, then interfaces by descending index, as in OVS.
    pollers: Vec<Poller>,
    /// Samples of the datagram that is not full, and how many there are.
    open: Vec<u8>,
    open_count: u32,
    ready: Vec<Vec<u8>>,
    /// Samples that found no place.
    lost: u64,
}

impl Agent {
    /// An exporter without interfaces.
    pub fn new(settings: SflowSettings, now_ms: u64) -> Self {
        let mut agent = Agent {
            settings,
            boot_ms: now_ms,
            next_tick_ms: now_ms + TICK_MS,
            sequence: 0,
            samples: 0,
            pool: 0,
            drops: 0,
            pollers: Vec::new(),
            open: Vec::new(),
            open_count: 0,
            ready: Vec::new(),
            lost: 0,
        };
        agent.set_interfaces(std::iter::empty());
        agent
    }

    /// The settings that the agent was made with.
    pub fn settings(&self) -> &SflowSettings {
        &self.settings
    }

    /// Samples that found no place.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// These interfaces have counters; those that had some before go on as they were.
    pub fn set_interfaces(&mut self, indices: impl Iterator<Item = u32>) {
        let mut sources: Vec<_> = indices.map(Source::Interface).collect();
        sources.push(Source::Switch);
        sources.sort_by(|a, b| b.cmp(a));
        sources.dedup();
        let mut old = std::mem::take(&mut self.pollers);
        let interval = self.settings.polling_s.max(1);
        let new = |source| {
            let spread = match source {
                Source::Interface(index) => index % interval,
                Source::Switch => 0,
            };
            Poller { source, sequence: 0, ticks: 1 + spread }
        };
        for source in sources {
            let known = old.iter().position(|p| p.source == source);
            let poller = known.map_or_else(|| new(source), |at| old.swap_remove(at));
            self.pollers.push(poller);
        }
    }

    /// Packets that were to be samples and got lost on their way.
    pub fn dropped(&mut self, n: u32) {
        self.drops = self.drops.wrapping_add(n);
    }

    /// A packet was sampled.
    pub fn sample(&mut self, sample: &FlowSample<'_>) {
        self.samples = self.samples.wrapping_add(1);
        self.pool = self.pool.wrapping_add(self.settings.sampling);
        let mut x = Xdr::default();
        let (samples, pool, drops) = (self.samples, self.pool, self.drops);
        x.u32(samples);
        x.u32(self.source(Source::Switch));
        x.u32(self.settings.sampling);
        x.u32(pool);
        x.u32(drops);
        sample.write(&mut x, self.settings.header_bytes.into());
        self.add(FLOW_SAMPLE, x);
    }

    /// Sources whose counters are wanted now, to be given by [`Agent::counters`] in this order;
    /// afterwards [`Agent::flush`] is due. None: nothing is due.
    pub fn tick(&mut self, now_ms: u64) -> Option<Vec<Source>> {
        if now_ms < self.next_tick_ms {
            return None;
        }
        self.next_tick_ms = now_ms + TICK_MS;
        let interval = self.settings.polling_s;
        let mut due = Vec::new();
        for p in self.pollers.iter_mut().filter(|_| interval > 0) {
            p.ticks -= 1;
            if p.ticks == 0 {
                p.ticks = interval;
                due.push(p.source);
            }
        }
        Some(due)
    }

    /// Counters of a source that were asked for.
    pub fn counters(&mut self, source: Source, blocks: &[Block<'_>]) {
        let Some(poller) = self.pollers.iter_mut().find(|p| p.source == source) else { return };
        poller.sequence = poller.sequence.wrapping_add(1);
        let sequence = poller.sequence;
        let mut x = Xdr::default();
        x.u32(sequence);
        x.u32(self.source(source));
        x.u32(blocks.len() as u32);
        blocks.iter().for_each(|b| b.write(&mut x));
        self.add(COUNTERS_SAMPLE, x);
    }

    /// The datagram that is not full is to be sent, too.
    pub fn flush(&mut self, now_ms: u64) {
        if self.open_count > 0 {
            self.close(now_ms);
        }
    }

    /// Datagrams to be sent.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.ready)
    }

    /// The number of a source: its class in eight bits, its index in 24.
    fn source(&self, source: Source) -> u32 {
        match source {
            Source::Interface(index) => index & 0xff_ffff,
            Source::Switch => ENTITY_CLASS << 24 | (ENTITY_INDEX_MIN + self.settings.sub_agent),
        }
    }

    fn header_bytes(&self) -> usize {
        if self.settings.agent.is_ipv4() { 28 } else { 40 }
    }

    fn add(&mut self, kind: u32, sample: Xdr) {
        let bytes = sample.into_bytes();
        if self.header_bytes() + self.open.len() + 8 + bytes.len() > DATAGRAM_BYTES_MAX {
            self.flush(self.next_tick_ms.saturating_sub(TICK_MS));
        }
        let mut x = Xdr::default();
        x.u32(kind);
        x.bytes(&bytes);
        self.open.extend(x.into_bytes());
        self.open_count += 1;
    }

    fn close(&mut self, now_ms: u64) {
        let (samples, count) =
            (std::mem::take(&mut self.open), std::mem::take(&mut self.open_count));
        self.sequence = self.sequence.wrapping_add(1);
        if self.ready.len() >= DATAGRAMS_MAX {
            self.lost += u64::from(count);
            return;
        }
        let mut x = Xdr::default();
        x.u32(VERSION);
        x.address(self.settings.agent);
        x.u32(self.settings.sub_agent);
        x.u32(self.sequence);
        x.u32(now_ms.saturating_sub(self.boot_ms) as u32);
        x.u32(count);
        let mut datagram = x.into_bytes();
        datagram.extend(samples);
        self.ready.push(datagram);
    }
}

#[cfg(test)]
#[path = "sflow_tests.rs"]
mod tests;
