//! Flows as the generator reads them from a file: `struct record` in lab/generator/weftgen.h.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// A set of flows: one per combination of the bits that are 1 in `wild_*`. Numbers are in host byte
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// IPv4 source; bits of `wild_src` are 0.
    pub src: u32,
    /// IPv4 destination.
    pub dst: u32,
    /// Source port (high half) and destination port.
    pub ports: u32,
    /// Bits of the source that differ from flow to flow.
    pub wild_src: u32,
    /// Bits of the destination that are wildcarded.
    pub wild_dst: u32,
    /// Bits of the ports that are wildcarded.
    pub wild_ports: u32,
    /// Low 24 bits of the destination MAC, behind 02:00:00.
    pub dmac: u32,
    /// 6 (TCP) or 17 (UDP).
    pub protocol: u32,
}

/// What a packet of one flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// IPv4 source.
    pub src: u32,
    /// IPv4 destination.
    pub dst: u32,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Low 24 bits of the destination MAC.
    pub dmac: u32,
    /// 6 or 17.
    pub protocol: u8,
}

impl Template {
    /// The flow of that number: the twin of `write_record` in lab/generator/frame.c.
    pub fn flow(&self, number: u32) -> Flow {
        let spread =
            |multiplier: u32, wild: u32| number.wrapping_mul(multiplier).rotate_right(16) & wild;
        let ports = self.ports | spread(0xc2b2_ae35, self.wild_ports);
        Flow {
            src: self.src | spread(0x9e37_79b1, self.wild_src),
            dst: self.dst | spread(0x85eb_ca6b, self.wild_dst),
            sport: (ports >> 16) as u16,
            dport: ports as u16,
            dmac: self.dmac,
            protocol: self.protocol as u8,
        }
    }

    fn words(&self) -> [u32; 8] {
        let t = self;
        [t.src, t.dst, t.ports, t.wild_src, t.wild_dst, t.wild_ports, t.dmac, t.protocol]
    }
}

/// A table of flows: what the generator's argument `table` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// Flow f below `flows` belongs to template f mod n.
    pub seen: Vec<Template>,
    /// Flows that were never seen before (argument `new`) belong to these, if there are any.
    pub new: Vec<Template>,
}

impl FlowTable {
    /// The flow of a number, when the generator has `flows` of them.
    ///
    /// # Panics
    /// The table is empty.
    pub fn flow(&self, number: u32, flows: u32) -> Flow {
        let from = if number >= flows && !self.new.is_empty() { &self.new } else { &self.seen };
        from[number as usize % from.len()].flow(number)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut bytes = b"weftflow".to_vec();
        bytes.extend((self.seen.len() as u32).to_ne_bytes());
        bytes.extend((self.new.len() as u32).to_ne_bytes());
        bytes.resize(64, 0);
        for template in self.seen.iter().chain(&self.new) {
            template.words().iter().for_each(|w| bytes.extend(w.to_ne_bytes()));
        }
        fs::write(path, bytes).with_context(|| path.display().to_string())
    }
}
