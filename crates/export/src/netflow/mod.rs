//! NetFlow version 5: IPv4 flows of one bridge, with what they had until they end, are idle, or are
//! active for long.

mod v5;

use crate::Traffic;
use std::collections::{BTreeMap, VecDeque};
use v5::FlowRecord;

/// Flows that are kept: OVS's default for cached flows (`flow-limit`, 200,000), and some room for
/// those that ended just now. About 30 MB.
pub const FLOWS_MAX: usize = 1 << 18;
/// A flow without packets for so long has ended: OVS's default for cached flows (`max-idle`).
const IDLE_MS: u64 = 10_000;
/// What an `active_timeout` of 0 stands for, as in OVS.
const ACTIVE_DEFAULT_MS: u64 = 600_000;
/// Records that one flow's traffic may take, as their counters have 32 bits: OVS's bound for a
/// counter that cannot be true.
const SPLIT_RECORDS_MAX: u64 = 176;

/// Output interfaces that stand for no single port; OVS's numbers.
pub mod output {
    /// The packets were flooded.
    pub const FLOOD: u16 = u16::MAX;
    /// The flow's packets went to several ports.
    pub const MULTI: u16 = u16::MAX - 1;
    /// The flow's packets went nowhere.
    pub const DROP: u16 = u16::MAX - 2;
}

/// What packets of one flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpFlow {
    /// OpenFlow port.
    pub in_port: u16,
    /// IPv4 source.
    pub src: [u8; 4],
    /// IPv4 destination.
    pub dst: [u8; 4],
    /// Protocol of IP.
    pub proto: u8,
    /// TOS.
    pub tos: u8,
    /// Source and destination port; ICMP's type and code.
    pub ports: (u16, u16),
}

/// Columns of table `NetFlow`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetFlowSettings {
    /// `engine_type`.
    pub engine_type: u8,
    /// `engine_id`.
    pub engine_id: u8,
    /// `add_id_to_interface`.
    pub add_id_to_interface: bool,
    /// How often active flows are reported; 0 for never.
    pub active_ms: u64,
}

impl NetFlowSettings {
    /// The timeout of a column `active_timeout`, s: 0 is the default, -1 none.
    pub fn active_ms(seconds: i64) -> u64 {
        match u64::try_from(seconds) {
            Ok(0) => ACTIVE_DEFAULT_MS,
            Ok(s) => s.saturating_mul(1000),
            Err(_) => 0,
        }
    }
}

/// What is known of a flow.
struct State {
    output: u16,
    tcp_flags: u8,
    traffic: Traffic,
    /// The first packet of those that no record has reported; None: there is none.
    created_ms: Option<u64>,
    /// The last record, or the beginning.
    reported_ms: u64,
}

/// The exporter of one bridge.
pub struct Exporter {
    settings: NetFlowSettings,
    /// When it was made.
    boot_ms: u64,
    /// Records so far.
    sequence: u32,
    /// A tree: a table that is hashed anew as it grows would stop the caller for 300 ms.
    flows: BTreeMap<IpFlow, State>,
    /// All flows, those that were looked at longest ago first.
    round: VecDeque<IpFlow>,
    /// How many of them are to be looked at in this round.
    due: usize,
    /// The datagram that is not full.
    open: Vec<u8>,
    /// Datagrams to be sent.
    ready: Vec<Vec<u8>>,
}

impl Exporter {
    /// An exporter without flows.
    pub fn new(settings: NetFlowSettings, now_ms: u64) -> Self {
        Exporter {
            settings,
            boot_ms: now_ms,
            sequence: 0,
            flows: BTreeMap::new(),
            round: VecDeque::new(),
            due: 0,
            open: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Takes over new settings.
    pub fn configure(&mut self, settings: NetFlowSettings) {
        self.settings = settings;
    }

    /// Packets of a flow went to `output`. With no packets: its first one is counted later. A flow
    /// that there is no room for ends the one that was looked at longest ago.
    pub fn update(&mut self, flow: &IpFlow, output: u16, tcp_flags: u8, traffic: Traffic) {
        if !self.flows.contains_key(flow) {
            if self.flows.len() >= FLOWS_MAX {
                self.due = self.due.saturating_sub(1);
                self.end_first(traffic.used_ms);
            }
            let state = State {
                output,
                tcp_flags: 0,
                traffic: Traffic::default(),
                created_ms: Some(traffic.used_ms),
                reported_ms: traffic.used_ms,
            };
            self.flows.insert(*flow, state);
            self.round.push_back(*flow);
        }
        let Some(mut state) = self.flows.remove(flow) else { return };
        if state.output != output {
            self.report(flow, &mut state, traffic.used_ms);
            state.output = output;
        }
        if traffic.packets > 0 {
            state.created_ms.get_or_insert(traffic.used_ms);
        }
        state.traffic.packets += traffic.packets;
        state.traffic.bytes += traffic.bytes;
        state.traffic.used_ms = state.traffic.used_ms.max(traffic.used_ms);
        state.tcp_flags |= tcp_flags;
        self.flows.insert(*flow, state);
    }

    /// Begins a look at all flows.
    pub fn begin(&mut self) {
        self.due = self.round.len();
    }

    /// Looks at `left` flows more, and takes as many from that as it looked at: reports those that
    /// are active for long, and of those that are idle, which go. True: there are more.
    pub fn run(&mut self, now_ms: u64, left: &mut usize) -> bool {
        let n = self.due.min(*left);
        (self.due, *left) = (self.due - n, *left - n);
        for _ in 0..n {
            let Some(flow) = self.round.pop_front() else { break };
            let Some(mut state) = self.flows.remove(&flow) else { continue };
            let idle = now_ms.saturating_sub(state.traffic.used_ms) >= IDLE_MS;
            let active = self.settings.active_ms;
            let old = active != 0 && now_ms.saturating_sub(state.reported_ms) >= active;
            if idle || old {
                self.report(&flow, &mut state, now_ms);
            }
            if !idle {
                self.flows.insert(flow, state);
                self.round.push_back(flow);
            }
        }
        self.due > 0
    }

    /// Ends `left` flows, and takes as many from that as it ended. True: there are more.
    pub fn finish(&mut self, now_ms: u64, left: &mut usize) -> bool {
        self.due = 0;
        while *left > 0 && !self.round.is_empty() {
            *left -= 1;
            self.end_first(now_ms);
        }
        !self.round.is_empty()
    }

    /// Ends the flow that was looked at longest ago.
    fn end_first(&mut self, now_ms: u64) {
        if let Some(flow) = self.round.pop_front()
            && let Some(mut state) = self.flows.remove(&flow)
        {
            self.report(&flow, &mut state, now_ms);
        }
    }

    /// How many datagrams are full.
    pub fn full(&self) -> usize {
        self.ready.len()
    }

    /// Datagrams to be sent; `wall`: seconds and nanoseconds since 1970.
    pub fn take(&mut self, wall: (u32, u32)) -> Vec<Vec<u8>> {
        if !self.open.is_empty() {
            self.ready.push(std::mem::take(&mut self.open));
        }
        self.ready.iter_mut().for_each(|datagram| v5::stamp(datagram, wall));
        std::mem::take(&mut self.ready)
    }

    /// Records what a flow had; several records where the counters of one are too small.
    fn report(&mut self, flow: &IpFlow, state: &mut State, now_ms: u64) {
        let mut left = std::mem::take(&mut state.traffic);
        state.traffic.used_ms = left.used_ms;
        let flags = std::mem::take(&mut state.tcp_flags);
        let since = |ms: u64| ms.saturating_sub(self.boot_ms) as u32;
        let created_ms = state.created_ms.take().unwrap_or(left.used_ms);
        let times = (since(created_ms), since(left.used_ms.max(created_ms)));
        state.reported_ms = now_ms;
        let largest = u64::from(u32::MAX);
        let records = left.bytes.max(left.packets).div_ceil(largest);
        if records > SPLIT_RECORDS_MAX {
            return;
        }
        for n in (1..=records).rev() {
            let (packets, bytes) = (left.packets / n, left.bytes / n);
            left.packets -= packets;
            left.bytes -= bytes;
            let traffic = Traffic { packets, bytes, used_ms: left.used_ms };
            let record = FlowRecord { output: state.output, tcp_flags: flags, traffic, times };
            self.add(flow, &record, now_ms);
        }
    }

    fn add(&mut self, flow: &IpFlow, record: &FlowRecord, now_ms: u64) {
        if self.open.is_empty() {
            let uptime_ms = now_ms.saturating_sub(self.boot_ms) as u32;
            self.open = v5::begin(&self.settings, uptime_ms, self.sequence);
        }
        self.sequence = self.sequence.wrapping_add(1);
        let count = v5::add(&mut self.open, &self.settings, flow, record);
        if count >= v5::RECORDS_MAX {
            self.ready.push(std::mem::take(&mut self.open));
        }
    }
}

#[cfg(test)]
#[path = "netflow_tests.rs"]
mod tests;
