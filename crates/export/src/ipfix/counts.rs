//! What is counted of a flow, and of all of an exporter.

use super::sample::IpfixSample;
use super::template::{L3, L4, Shape};
use crate::bytes::Put;

/// TCP flags, in the order of the elements that count them: ACK, FIN, PSH, RST, SYN, URG.
const TCP_FLAGS: [u8; 6] = [0x10, 0x01, 0x08, 0x04, 0x02, 0x20];

/// Numbers that grow for as long as the exporter is there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    dropped_packets: u64,
    packets: u64,
    /// In: to one, to a group, to all. Out: to one, to all.
    by_kind: [u64; 5],
    group_packets_out: u64,
    bytes: u64,
    dropped_octets: u64,
    octets: u64,
    octets_squared: u64,
    group_octets_out: u64,
    tcp: [u64; 6],
}

/// What is known of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowCounts {
    pub start_ms: u64,
    end_ms: u64,
    dropped_packets: u64,
    packets: u64,
    group_packets_out: u64,
    bytes: u64,
    dropped_octets: u64,
    octets: u64,
    octets_squared: u64,
    shortest: u64,
    longest: u64,
    group_octets_out: u64,
    totals: Totals,
}

impl Totals {
    /// FlowCounts a sample; what a flow of this sample alone would have.
    pub fn add(&mut self, s: &IpfixSample<'_>, now_ms: u64) -> FlowCounts {
        let (n, shape, ip) = (s.packets, s.shape(), s.packet.ip_bytes());
        let ip = if shape.l3 == L3::Other { 0 } else { ip };
        let dropped = if s.dropped { n } else { 0 };
        let (group, all) = s.packet.is_group();
        let group_out = if group && !all && s.egress { n } else { 0 };
        let kind = match (s.egress, group, all) {
            (false, false, _) => Some(0),
            (false, _, false) => Some(1),
            (false, ..) => Some(2),
            (true, false, _) => Some(3),
            (true, _, true) => Some(4),
            (true, ..) => None,
        };
        kind.into_iter().for_each(|kind| self.by_kind[kind] += n);
        let bytes = n * s.packet.len as u64;
        self.dropped_packets += dropped;
        self.packets += n;
        self.group_packets_out += group_out;
        self.bytes += bytes;
        self.dropped_octets += dropped * ip;
        self.octets += n * ip;
        self.octets_squared = self.octets_squared.wrapping_add(n * ip * ip);
        self.group_octets_out += group_out * ip;
        if shape.l4 == L4::Tcp {
            for (total, flag) in self.tcp.iter_mut().zip(TCP_FLAGS) {
                *total += if s.packet.tcp_flags & flag != 0 { n } else { 0 };
            }
        }
        FlowCounts {
            start_ms: now_ms,
            end_ms: now_ms,
            dropped_packets: dropped,
            packets: n,
            group_packets_out: group_out,
            bytes,
            dropped_octets: dropped * ip,
            octets: n * ip,
            octets_squared: n * ip * ip,
            shortest: ip,
            longest: ip,
            group_octets_out: group_out * ip,
            totals: *self,
        }
    }
}

impl FlowCounts {
    /// Adds what came later.
    pub fn aggregate(&mut self, later: FlowCounts) {
        self.end_ms = later.end_ms;
        self.dropped_packets += later.dropped_packets;
        self.packets += later.packets;
        self.group_packets_out += later.group_packets_out;
        self.bytes += later.bytes;
        self.dropped_octets += later.dropped_octets;
        self.octets += later.octets;
        self.octets_squared = self.octets_squared.wrapping_add(later.octets_squared);
        self.shortest = self.shortest.min(later.shortest);
        self.longest = self.longest.max(later.longest);
        self.group_octets_out += later.group_octets_out;
        self.totals = later.totals;
    }

    /// The rest of the record, in the order of [`super::elements`].
    pub fn write(&self, out: &mut Vec<u8>, shape: Shape, why: u8, now_ms: u64) {
        let t = &self.totals;
        let micros = |ms: u64| {
            u32::try_from(now_ms.saturating_sub(ms).saturating_mul(1000)).unwrap_or(u32::MAX)
        };
        out.u32(micros(self.start_ms));
        out.u32(micros(self.end_ms));
        let mut put = |list: &[u64]| list.iter().for_each(|n| out.extend(n.to_be_bytes()));
        put(&[self.dropped_packets, t.dropped_packets, self.packets, t.packets]);
        put(&t.by_kind);
        put(&[self.group_packets_out, t.group_packets_out, self.bytes, t.bytes]);
        out.u8(why);
        let mut put = |list: &[u64]| list.iter().for_each(|n| out.extend(n.to_be_bytes()));
        if shape.l3 != L3::Other {
            put(&[self.dropped_octets, t.dropped_octets, self.octets, t.octets]);
            put(&[self.octets_squared, t.octets_squared, self.shortest, self.longest]);
            put(&[self.group_octets_out, t.group_octets_out]);
        }
        if shape.l4 == L4::Tcp {
            put(&t.tcp);
        }
    }
}
