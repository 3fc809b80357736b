//! Packets of protocols that the switch itself speaks on a port: they are taken before the tables
//! see them.

use crate::fields::VLAN_PRESENT;
use crate::published::PortView;
use crate::translate::effects::{BfdContext, CfmContext, LacpContext, LldpContext};
use crate::translate::xlate::Xlate;
use crate::types::{BfdFilter, BridgeId, CfmFilter, Gate};
use action::{Op, Punt, PuntClass};
use flow::{Field, Key, Mask, at, frag};
use std::any::Any;
use std::sync::Arc;
use telemetry::Drop;
use wire::{
    CCM_EXTENDED_MAC, CCM_MAC, ETH_CFM, ETH_IPV4, ETH_LLDP, ETH_SLOW, IP_UDP, LLDP_FRAME_BYTES_MAX,
};

/// The first bytes of addresses that switches do not forward, and how many of these there are.
const RESERVED_MAC: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];
const RESERVED_MACS_COUNT: u8 = 16;
/// Bits of a tag: the VLAN id, and the same with the bit that says that there is a tag.
const VLAN_ID: u16 = 0xfff;
const VLAN_BITS: u16 = VLAN_PRESENT | VLAN_ID;
/// Bytes of an LACP packet that are examined: Ethernet with two tags, and 110 bytes of LACP.
const LACP_BYTES_MAX: u16 = 132;
/// UDP port of BFD control packets (RFC 5881, section 4).
const BFD: u16 = 3784;
/// Bytes of a BFD packet that are examined: Ethernet with two tags, the longest IPv4 header, UDP,
/// and 24 bytes.
const BFD_BYTES_MAX: u16 = 128;
/// Bytes of a continuity check message of CFM that are examined: Ethernet with two tags, and 75
/// bytes.
const CFM_BYTES_MAX: u16 = 97;

impl Xlate<'_, '_> {
    /// Punts a packet of a protocol that the switch speaks on the port; false: it is not one.
    pub(super) fn take_special(&mut self, p: &PortView) -> bool {
        self.take_cfm(p)
            || self.take_bfd(p)
            || self.take_lacp(p)
            || self.take_bpdu(p)
            || self.take_lldp(p)
    }

    fn take_lacp(&mut self, p: &PortView) -> bool {
        // Every decision depends on the Ethertype anyway.
        let slow = self.key.u16(at::ETH_TYPE) == ETH_SLOW;
        let Some(lacp) = p.spec.lacp.as_ref().filter(|_| slow && self.is_of_this_link()) else {
            return false;
        };
        let context = LacpContext { bridge: BridgeId(self.bridge.id), port: p.spec.of_port };
        self.hand_over(LACP_BYTES_MAX, lacp.gate.clone(), Box::new(context));
        true
    }

    /// True if the packet is from the other end of the link. A switch in between would not forward
    /// a packet to a reserved address (IEEE 802.1Q, table 8-1); a packet in a VLAN or to another
    /// address may be from any host.
    fn is_of_this_link(&mut self) -> bool {
        Field::EthDst.unwildcard(&mut self.wc);
        self.wc.set_u16(at::VLAN, self.wc.u16(at::VLAN) | VLAN_BITS);
        let dst: [u8; 6] = self.key.get(at::ETH_DST);
        let is_reserved = dst[..5] == RESERVED_MAC && dst[5] < RESERVED_MACS_COUNT;
        is_reserved && self.key.u16(at::VLAN) & VLAN_ID == 0
    }

    fn take_bfd(&mut self, p: &PortView) -> bool {
        let Some(filter) = p.spec.oam.bfd.as_ref().filter(|filter| self.is_bfd(filter)) else {
            return false;
        };
        let context = BfdContext { bridge: BridgeId(self.bridge.id), port: p.spec.of_port };
        self.hand_over(BFD_BYTES_MAX, filter.gate.clone(), Box::new(context));
        true
    }

    fn take_cfm(&mut self, p: &PortView) -> bool {
        let Some(filter) = p.spec.oam.cfm.as_ref().filter(|filter| self.is_cfm(filter)) else {
            return false;
        };
        let context = CfmContext { bridge: BridgeId(self.bridge.id), port: p.spec.of_port };
        self.hand_over(CFM_BYTES_MAX, filter.gate.clone(), Box::new(context));
        true
    }

    /// Every frame with LLDP's Ethertype, as ovs-vswitchd does.
    fn take_lldp(&mut self, p: &PortView) -> bool {
        // Every decision depends on the Ethertype anyway.
        let is_lldp = self.key.u16(at::ETH_TYPE) == ETH_LLDP;
        let Some(gate) = p.spec.oam.lldp.as_ref().filter(|_| is_lldp) else { return false };
        let context = LldpContext { bridge: BridgeId(self.bridge.id), port: p.spec.of_port };
        self.hand_over(LLDP_FRAME_BYTES_MAX as u16, gate.clone(), Box::new(context));
        true
    }

    pub(super) fn hand_over(
        &mut self,
        max_len: u16,
        gate: Gate,
        context: Box<dyn Any + Send + Sync>,
    ) {
        self.commit();
        let class = PuntClass::Protocol;
        let punt = Punt { class, max_len, wanted: Some(gate.0), context };
        self.op(Op::Punt(Arc::new(punt)));
        self.answer.decision.drop.get_or_insert(Drop::PuntRate);
    }

    /// True if the packet is one of the port's BFD or CFM.
    pub(super) fn is_oam(&mut self, p: &PortView) -> bool {
        p.spec.oam.cfm.as_ref().is_some_and(|filter| self.is_cfm(filter))
            || p.spec.oam.bfd.as_ref().is_some_and(|filter| self.is_bfd(filter))
    }

    fn is_cfm(&mut self, filter: &CfmFilter) -> bool {
        // Every decision depends on the Ethertype anyway.
        if self.key.u16(at::ETH_TYPE) != ETH_CFM {
            return false;
        }
        Field::EthDst.unwildcard(&mut self.wc);
        let mac = if filter.extended { CCM_EXTENDED_MAC } else { CCM_MAC };
        if self.key.get::<6>(at::ETH_DST) != mac {
            return false;
        }
        !filter.key_zero || self.has_key_zero()
    }

    fn has_key_zero(&mut self) -> bool {
        self.wc.set_u32(at::TUN_ID, !0);
        self.key.u32(at::TUN_ID) == 0
    }

    /// Looks at no more bits than are needed, as ovs-vswitchd does.
    fn is_bfd(&mut self, filter: &BfdFilter) -> bool {
        if let Some(mac) = filter.dst_mac {
            Field::EthDst.unwildcard(&mut self.wc);
            if self.key.get::<6>(at::ETH_DST) != mac {
                return false;
            }
        }
        if self.key.u16(at::ETH_TYPE) != ETH_IPV4 {
            return false;
        }
        self.wc.set_u8(at::PROTO, 0xff);
        let later = self.key.u8(at::FRAG) & frag::LATER != 0;
        if self.key.u8(at::PROTO) != IP_UDP
            || later
            || !is_port(&self.key, &mut self.wc, at::TP_DST, BFD)
        {
            return false;
        }
        if let Some(ip) = filter.dst_ip {
            Field::Ipv4Dst.unwildcard(&mut self.wc);
            if self.key.get::<4>(at::IP_DST) != ip.octets() {
                return false;
            }
        }
        !filter.key_zero || self.has_key_zero()
    }
}

/// True if a key has this port at this place; if not, one bit of the mask tells.
pub(super) fn is_port(key: &Key, wc: &mut Mask, place: usize, port: u16) -> bool {
    let differ = key.u16(place) ^ port;
    let bits = if differ == 0 { 0xffff } else { 0x8000 >> differ.leading_zeros() };
    wc.set_u16(place, wc.u16(place) | bits);
    differ == 0
}
