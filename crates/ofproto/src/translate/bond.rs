//! Bonds in NORMAL: which packets their interfaces may receive, and by which interfaces packets
//! leave.

use crate::published::{Bundle, PortView};
use crate::translate::xlate::Xlate;
use crate::types::{BondAdmission, BondOutput};
use action::Op;
use flow::{Field, PortNo, at};
use wire::ETH_ARP;

impl<'a> Xlate<'a, '_> {
    /// True if a packet to `dst` in a VLAN of the bridge may enter by this interface of its port.
    pub(super) fn bond_admits(
        &mut self,
        from: &Bundle,
        input: &PortView,
        dst: [u8; 6],
        vlan: u16,
    ) -> bool {
        let Some(bond) = &from.bond else { return true };
        self.look_at_ports();
        let admission = bond.admits.get(&input.spec.of_port).copied().unwrap_or_default();
        let enters = match admission {
            BondAdmission::Nothing => false,
            BondAdmission::Unicast => dst[0] & 1 == 0,
            BondAdmission::All => true,
        };
        if !enters {
            self.trace_detail(|| "bonding refused admissibility, dropping".into());
            return false;
        }
        let moved = bond.drops_moved && self.is_known_elsewhere(input, vlan);
        if moved && !self.is_gratuitous_arp(dst) {
            self.trace_detail(|| "SLB bond thinks this packet looped back, dropping".into());
            return false;
        }
        true
    }

    fn is_known_elsewhere(&self, input: &PortView, vlan: u16) -> bool {
        let src = self.key.get(at::ETH_SRC);
        let known = self.bridge.macs.find(self.guard(), vlan, src);
        let known = known.and_then(|port| self.bridge.port(port));
        known.is_some_and(|p| p.bundle != input.bundle)
    }

    /// True for a broadcast ARP packet in which a host announces its own address: it says where the
    /// host is now.
    fn is_gratuitous_arp(&mut self, dst: [u8; 6]) -> bool {
        if self.key.u16(at::ETH_TYPE) != ETH_ARP || dst != [0xff; 6] {
            return false;
        }
        Field::ArpSpa.unwildcard(&mut self.wc);
        Field::ArpTpa.unwildcard(&mut self.wc);
        Field::ArpSpa.get(&self.key) == Field::ArpTpa.get(&self.key)
    }

    /// Sends the packet, as it is, to the interface of a bond that it leaves by.
    pub(super) fn output_member(&mut self, b: &'a Bundle) {
        let bridge = self.bridge;
        if b.bond.is_some() || b.ports.len() > 1 {
            self.look_at_ports();
        }
        match b.bond.as_ref().map(|bond| bond.output) {
            Some(BondOutput::Nowhere) => {}
            Some(BondOutput::Member(port)) => self.output_port(port, 0),
            Some(BondOutput::Spread(no)) => self.output_spread(b, no),
            None => {
                let live = |p: &&u32| bridge.port(**p).is_some_and(|p| p.live());
                if let Some(port) = b.ports.iter().find(live).or(b.ports.first()) {
                    self.output_port(*port, 0);
                }
            }
        }
    }

    /// Sends the packet to a number that stands for all interfaces of a bond: the datapath chooses
    /// one for each packet.
    fn output_spread(&mut self, b: &'a Bundle, no: PortNo) {
        if !self.spend(1) {
            return;
        }
        let first = b.ports.first().and_then(|p| self.bridge.port(*p));
        let tos = first.and_then(|p| self.mark_dscp(p));
        self.commit();
        if !matches!(self.mirror.snaplen, 0 | 0xffff) {
            self.op(Op::Truncate(self.mirror.snaplen.into()));
        }
        self.op(Op::Output(no));
        if let Some(first) = first {
            self.export_sent(first);
            self.mirror_sent(first);
        }
        self.unmark_dscp(tos);
    }
}
