//! A five-tuple match.

use crate::flows::{Flow, Template};
use std::fmt;
use std::net::Ipv4Addr;

/// What one rule matches. Masks have 1-bits where the value counts; values are 0 elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// IPv4 source and mask.
    pub src: (u32, u32),
    /// IPv4 destination and mask.
    pub dst: (u32, u32),
    /// TCP or UDP source port and mask.
    pub sport: (u16, u16),
    /// Destination port and mask.
    pub dport: (u16, u16),
    /// 6 or 17; nothing: any, and ports do not count.
    pub protocol: Option<u8>,
}

/// Where addresses are drawn from when a rule leaves all their bits open: 48.0.0.0/4 to 16.0.0.0/4.
const SRC_NET: u32 = 0x3000_0000;
const DST_NET: u32 = 0x1000_0000;
const NET: u32 = 0xf000_0000;

/// A prefix's mask.
pub fn prefix(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

impl Match {
    /// True if a packet of this flow matches.
    pub fn hits(&self, flow: &Flow) -> bool {
        flow.src & self.src.1 == self.src.0
            && flow.dst & self.dst.1 == self.dst.0
            && flow.sport & self.sport.1 == self.sport.0
            && flow.dport & self.dport.1 == self.dport.0
            && self.protocol.is_none_or(|p| p == flow.protocol)
    }

    /// Flows that match. Bits that the rule leaves open differ; an address that is open altogether
    /// stays in its /4.
    pub fn template(&self) -> Template {
        let address = |(value, mask): (u32, u32), net| (value | net & !mask, !mask & !NET);
        let (src, wild_src) = address(self.src, SRC_NET);
        let (dst, wild_dst) = address(self.dst, DST_NET);
        let pair = |s: u16, d: u16| u32::from(s) << 16 | u32::from(d);
        Template {
            src,
            dst,
            ports: pair(self.sport.0, self.dport.0),
            wild_src,
            wild_dst,
            wild_ports: pair(!self.sport.1, !self.dport.1),
            dmac: 0,
            protocol: u32::from(self.protocol.unwrap_or(17)),
        }
    }
}

fn write_port(f: &mut fmt::Formatter, name: &str, (value, mask): (u16, u16)) -> fmt::Result {
    match mask {
        0 => Ok(()),
        u16::MAX => write!(f, ",{name}={value}"),
        _ => write!(f, ",{name}={value:#x}/{mask:#x}"),
    }
}

fn write_address(f: &mut fmt::Formatter, name: &str, (value, mask): (u32, u32)) -> fmt::Result {
    match mask.leading_ones() {
        0 => Ok(()),
        bits => write!(f, ",{name}={}/{bits}", Ipv4Addr::from(value)),
    }
}

/// As `ovs-ofctl` reads it.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self.protocol {
            Some(6) => "tcp",
            Some(_) => "udp",
            None => "ip",
        })?;
        write_address(f, "nw_src", self.src)?;
        write_address(f, "nw_dst", self.dst)?;
        write_port(f, "tp_src", self.sport)?;
        write_port(f, "tp_dst", self.dport)
    }
}
