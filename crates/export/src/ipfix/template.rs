//! Templates: one for each combination of protocols, as Open vSwitch has them.

use super::elements::*;
use crate::bytes::Put;

/// Templates have numbers from here on (RFC 7011, section 3.4.1). The first is that of the
/// exporter's own counters.
pub(super) const EXPORTER_TEMPLATE: u16 = 256;
const FIRST_TEMPLATE: u16 = EXPORTER_TEMPLATE + 1;
/// Bit of an element's number: the number of an enterprise follows.
const ENTERPRISE_BIT: u16 = 0x8000;

/// Network layer of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum L3 {
    Other,
    Ipv4,
    Ipv6,
}

/// Transport layer of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum L4 {
    Other,
    Tcp,
    Udp,
    Sctp,
    Icmp,
}

/// What kind of packets a template is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Shape {
    pub vlan: bool,
    pub l3: L3,
    pub l4: L4,
    pub tunnel: bool,
    pub egress: bool,
}

const L3S: [L3; 3] = [L3::Other, L3::Ipv4, L3::Ipv6];
const L4S: [L4; 5] = [L4::Other, L4::Tcp, L4::Udp, L4::Sctp, L4::Icmp];

/// All shapes, by their templates' numbers.
pub(super) fn shapes() -> impl Iterator<Item = Shape> {
    let all = [false, true].into_iter().flat_map(|vlan| L3S.map(|l3| (vlan, l3)));
    let all = all.flat_map(|(vlan, l3)| {
        let l4s = if l3 == L3::Other { &L4S[..1] } else { &L4S[..] };
        l4s.iter().map(move |l4| (vlan, l3, *l4))
    });
    all.flat_map(|(vlan, l3, l4)| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(tunnel, egress)| Shape {
            vlan,
            l3,
            l4,
            tunnel,
            egress,
        })
    })
}

impl Shape {
    /// The number of its template.
    pub fn id(self) -> u16 {
        // Eleven pairs of network and transport layer, four shapes each.
        let l4 = match (self.l3, self.l4) {
            (L3::Other, _) => 0,
            (L3::Ipv4, l4) => 1 + l4 as u16,
            (L3::Ipv6, l4) => 6 + l4 as u16,
        };
        let pair = u16::from(self.vlan) * 11 + l4;
        FIRST_TEMPLATE + pair * 4 + u16::from(self.tunnel) * 2 + u16::from(self.egress)
    }

    /// The elements of its template.
    pub fn elements(self, virtual_id: bool) -> Vec<Element> {
        let ip = self.l3 != L3::Other;
        let addresses = if self.l3 == L3::Ipv6 { IPV6 } else { IPV4 };
        let transport = match (self.l4, self.l3) {
            (L4::Other, _) => &[],
            (L4::Icmp, L3::Ipv6) => ICMP6,
            (L4::Icmp, _) => ICMP4,
            _ => PORTS,
        };
        let parts = [
            (true, COMMON),
            (true, INGRESS),
            (self.egress, EGRESS),
            (self.vlan, VLAN),
            (ip, IP),
            (ip, addresses),
            (ip, transport),
            (self.tunnel, TUNNEL),
            (virtual_id, VIRTUAL),
            (true, COUNTS),
            (ip, IP_COUNTS),
            (self.l4 == L4::Tcp, TCP_COUNTS),
        ];
        parts
            .iter()
            .filter(|(there, _)| *there)
            .flat_map(|(_, part)| part.iter().copied())
            .collect()
    }

    /// Its template record.
    pub fn template(self, virtual_id: bool) -> Vec<u8> {
        let elements = self.elements(virtual_id);
        let mut out = Vec::new();
        out.u16(self.id());
        out.u16(elements.len() as u16);
        elements.iter().for_each(|e| e.describe(&mut out));
        out
    }
}

/// The options template record of the exporter's own counters.
pub(super) fn exporter_template() -> Vec<u8> {
    let mut out = Vec::new();
    out.u16(EXPORTER_TEMPLATE);
    out.u16(EXPORTER.len() as u16);
    // The first element says what they are about.
    out.u16(1);
    EXPORTER.iter().for_each(|e| e.describe(&mut out));
    out
}

impl Element {
    fn describe(self, out: &mut Vec<u8>) {
        match self.enterprise {
            0 => {
                out.u16(self.id);
                out.u16(self.bytes);
            }
            enterprise => {
                out.u16(self.id | ENTERPRISE_BIT);
                out.u16(self.bytes);
                out.u32(enterprise);
            }
        }
    }
}
