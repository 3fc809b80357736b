//! A sampled packet on the wire: `flow_sample` and its records (sFlow version 5; tunnels: "sFlow
//! Tunnel Structures").

use super::xdr::Xdr;
use std::net::IpAddr;

/// Records.
const HEADER: u32 = 1;
const SWITCH: u32 = 1001;
const MPLS: u32 = 1006;
const TUNNEL4_OUT: u32 = 1023;
const TUNNEL4_IN: u32 = 1024;
const VNI_OUT: u32 = 1029;
const VNI_IN: u32 = 1030;

const HEADER_IS_ETHERNET: u32 = 1;
/// Bytes of the FCS, which is part of a frame's length and stripped from its bytes.
const FCS_BYTES: u32 = 4;
/// Bits of an output that say what it is.
const OUTPUT_IS_DROPPED: u32 = 1 << 30;
const OUTPUT_IS_SEVERAL: u32 = 2 << 30;
/// Why it was dropped: that is not known.
const REASON_UNKNOWN: u32 = 256;
/// Bit of a label stack entry: it is the last one.
const BOTTOM_OF_STACK: u32 = 0x100;

/// Where a sampled packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The packet was dropped.
    Dropped,
    /// The packet goes to one interface, by its ifIndex.
    Interface(u32),
    /// The packet goes to so many ports of which no ifIndex is known, or to several.
    Ports(u32),
}

/// An outer header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Protocol of IP.
    pub proto: u8,
    /// IPv4 source.
    pub src: [u8; 4],
    /// IPv4 destination.
    pub dst: [u8; 4],
    /// Source and destination port, if known.
    pub ports: (u16, u16),
    /// TOS.
    pub tos: u8,
    /// VNI or key; 0: none.
    pub id: u32,
}

/// A packet that was sampled.
#[derive(Clone, Debug)]
pub struct FlowSample<'a> {
    /// ifIndex of the input interface; 0: not known.
    pub input: u32,
    /// Where the packet went.
    pub output: Output,
    /// The packet's first bytes.
    pub header: &'a [u8],
    /// All of its bytes.
    pub len: usize,
    /// VLAN and priority as it came, and as it went.
    pub vlans: [(u16, u8); 2],
    /// The header that was taken away.
    pub tunnel_in: Option<Tunnel>,
    /// The header that was put in front.
    pub tunnel_out: Option<Tunnel>,
    /// MPLS label stack entries as it went, outermost first.
    pub labels: &'a [u32],
}

impl FlowSample<'_> {
    pub(super) fn write(&self, x: &mut Xdr, header_bytes_max: usize) {
        x.u32(self.input);
        x.u32(match self.output {
            Output::Dropped => OUTPUT_IS_DROPPED | REASON_UNKNOWN,
            Output::Interface(index) => index & (OUTPUT_IS_DROPPED - 1),
            Output::Ports(n) => OUTPUT_IS_SEVERAL | n & (OUTPUT_IS_DROPPED - 1),
        });
        let vni = |t: Option<Tunnel>| u32::from(t.is_some_and(|t| t.id != 0));
        let tunnels = [self.tunnel_in, self.tunnel_out];
        let tunnels = tunnels.iter().map(|t| u32::from(t.is_some()) + vni(*t)).sum::<u32>();
        x.u32(2 + tunnels + u32::from(!self.labels.is_empty()));
        x.record(SWITCH, |x| {
            for (vlan, priority) in self.vlans {
                x.u32(vlan.into());
                x.u32(priority.into());
            }
        });
        x.record(HEADER, |x| {
            x.u32(HEADER_IS_ETHERNET);
            x.u32(self.len as u32 + FCS_BYTES);
            x.u32(FCS_BYTES);
            x.bytes(&self.header[..self.header.len().min(header_bytes_max)]);
        });
        if !self.labels.is_empty() {
            x.record(MPLS, |x| write_labels(x, self.labels));
        }
        write_tunnel(x, self.tunnel_out, TUNNEL4_OUT, VNI_OUT);
        write_tunnel(x, self.tunnel_in, TUNNEL4_IN, VNI_IN);
    }
}

/// No next hop, nothing of what came, and the labels as they went.
fn write_labels(x: &mut Xdr, labels: &[u32]) {
    x.address(IpAddr::from([0; 4]));
    x.u32(0);
    x.u32(labels.len() as u32);
    for (i, label) in labels.iter().enumerate() {
        let last = i + 1 == labels.len();
        x.u32(label & !BOTTOM_OF_STACK | if last { BOTTOM_OF_STACK } else { 0 });
    }
}

fn write_tunnel(x: &mut Xdr, tunnel: Option<Tunnel>, kind: u32, vni: u32) {
    let Some(t) = tunnel else { return };
    x.record(kind, |x| {
        // The outer packet's length is not known.
        x.u32(0);
        x.u32(t.proto.into());
        x.fixed(&t.src);
        x.fixed(&t.dst);
        x.u32(t.ports.0.into());
        x.u32(t.ports.1.into());
        x.u32(0);
        x.u32(t.tos.into());
    });
    if t.id != 0 {
        x.record(vni, |x| x.u32(t.id));
    }
}
