//! `encap` and `decap`: between actions a packet may be bare, that is without an Ethernet header.
//!
//! `packet_type` in the key says that a packet is bare. Its addresses in the key are zero then,
//! lookups find only flows that match on the packet type or on no header, and no port takes the
//! packet but that of a tunnel. In memory it keeps an Ethernet header, of which only the type is
//! valid, so every operation works on it as on any packet. A header is really added or removed only
//! where a whole frame is the payload of an MPLS label stack entry, and in front of a tunnel's
//! header.
//!
//! `packet_type` in `base` says whether the packet came in with its Ethernet header, or operations
//! have added one.

use crate::fields::{self, VLAN_PRESENT};
use crate::published::PortView;
use crate::translate::state::Headers;
use crate::translate::xlate::Xlate;
use crate::tunnel::{PacketMode, TunnelSpec};
use action::Op;
use flow::{Field, at, flag};
use openflow::{Header, packet_type};
use telemetry::Drop;
use wire::{ETH_IPV6, ETH_NSH};

/// Bytes of an Ethernet header without tags.
pub(super) const ETHERNET_BYTES: u16 = 14;

/// The label of the first entry: explicit null for IPv4 and all other packets; then that for IPv6
/// (RFC 3032).
const LABEL_NULL: u32 = 0;
const LABEL_NULL_IPV6: u32 = 2;
/// The TTL of the first label stack entry, as in OVS.
const TTL: u32 = 64;
/// Bottom of stack, in a label stack entry.
const BOTTOM: u32 = 0x100;

/// OVS's text of a frame that has an Ethernet header already.
const FRAMED: &str =
    "Dropping packet as encap(ethernet) is not supported for packet type ethernet.";
/// OVS's text of a tagged frame that cannot lose its Ethernet header.
const TAGGED: &str = "Dropping packet, cannot decap Ethernet if VLAN is present.";

impl Xlate<'_, '_> {
    /// True if the packet, as the actions made it, begins with an Ethernet header.
    pub(super) fn is_ethernet(&self) -> bool {
        self.packet_type() == packet_type::ETHERNET
    }

    fn packet_type(&self) -> u32 {
        self.key.u32(at::PACKET_TYPE)
    }

    /// Bytes in front of the packet that are only in memory.
    pub(super) fn unseen_bytes(&self) -> u16 {
        if self.is_ethernet() { 0 } else { ETHERNET_BYTES }
    }

    /// True if the packet has an Ethernet header, which it needs for NORMAL. Other outputs of the
    /// packet continue.
    pub(super) fn may_switch(&mut self) -> bool {
        self.needs_ethernet("the packet has no Ethernet header, skipping output")
    }

    /// True if the packet is of a type that the port takes: all but tunnels take frames only.
    pub(super) fn is_taken(&mut self, p: &PortView) -> bool {
        let frames = |t: &TunnelSpec| t.mode == PacketMode::LegacyL2;
        let why = "Trying to send non-Ethernet packet through legacy L2 port. Dropping packet.";
        !p.spec.tunnel.as_ref().is_none_or(frames) || self.needs_ethernet(why)
    }

    fn needs_ethernet(&mut self, why: &str) -> bool {
        if !self.is_ethernet() {
            self.trace_warning(|| why.into());
            self.answer.decision.drop.get_or_insert(Drop::PacketType);
        }
        self.is_ethernet()
    }

    pub(super) fn encap(&mut self, header: &Header) {
        if let Header::Nsh(properties) = header {
            return self.encap_nsh(properties);
        }
        match (packet_type::ethertype(header.packet_type()), self.is_ethernet()) {
            (Some(ethertype), true) => self.encap_frame(ethertype),
            (Some(ethertype), false) => self.encap_mpls(ethertype),
            (None, _) => self.encap_ethernet(),
        }
    }

    /// Adds an Ethernet header, whose addresses are zero until they are set.
    fn encap_ethernet(&mut self) {
        if packet_type::ethertype(self.packet_type()).is_none() {
            return self.unsupported(FRAMED);
        }
        if self.key.u16(at::ETH_TYPE) == ETH_NSH {
            // What was written so far is inside, as in OVS.
            self.commit();
        }
        if self.own_headers() != Some(Headers::Nsh) {
            Field::EthSrc.unwildcard(&mut self.wc);
            Field::EthDst.unwildcard(&mut self.wc);
        }
        self.clear_addresses();
        self.key.set_u32(at::PACKET_TYPE, packet_type::ETHERNET);
    }

    /// Adds a label stack entry in front of the whole frame, tags included.
    fn encap_frame(&mut self, ethertype: u16) {
        self.commit();
        let lse = self.bottom_entry();
        self.clear_layers();
        self.clear_addresses();
        self.key.set_u16(at::VLAN, 0);
        self.key.set_u16(at::VLAN1, 0);
        let tags = flag::VLAN_88A8 | flag::VLAN1_88A8;
        self.key.set_u8(at::FLAGS, self.key.u8(at::FLAGS) & !tags);
        self.key.set_u16(at::ETH_TYPE, ethertype);
        self.key.set_u32(at::MPLS, lse);
        self.key.set_u32(at::PACKET_TYPE, packet_type::of_ethertype(ethertype));
        (self.packet.layers.hidden, self.packet.layers.labels, self.packet.layers.was_mpls) =
            (0, 1, false);
        self.begin_own(Headers::Frame);
        self.base = self.key;
        self.base.set_u32(at::PACKET_TYPE, packet_type::ETHERNET);
        self.op(Op::EncapMpls { ethertype, lse, dst: [0; 6], src: [0; 6] });
    }

    fn encap_mpls(&mut self, ethertype: u16) {
        if !self.has_room_for_label("encap MPLS action") {
            return;
        }
        match fields::is_mpls(self.key.u16(at::ETH_TYPE)) {
            true => self.push_mpls(ethertype),
            false => self.push_mpls_entry(ethertype, self.bottom_entry()),
        }
        self.key.set_u32(at::PACKET_TYPE, packet_type::of_ethertype(ethertype));
    }

    fn bottom_entry(&self) -> u32 {
        let label = match self.key.u16(at::ETH_TYPE) {
            ETH_IPV6 => LABEL_NULL_IPV6,
            _ => LABEL_NULL,
        };
        label << 12 | BOTTOM | TTL
    }

    /// Removes the outermost header. `inner`: the packet type behind an MPLS entry, which does not
    /// say that itself.
    pub(super) fn decap(&mut self, inner: Option<u32>) {
        let ethertype = packet_type::ethertype(self.packet_type());
        match (self.is_ethernet(), inner) {
            (true, _) => self.decap_ethernet(),
            _ if ethertype == Some(ETH_NSH) => self.decap_nsh(),
            (false, _) if !ethertype.is_some_and(fields::is_mpls) => {
                let kind = self.type_text();
                self.unsupported(&format!(
                    "Dropping packet as the decap() does not support packet type {kind}"
                ))
            }
            (false, Some(packet_type::ETHERNET)) => self.decap_frame(),
            (false, inner) => {
                let inner = inner.unwrap_or(packet_type::NEXT_HEADER);
                self.pop_mpls(inner as u16, "decap");
                self.key.set_u32(at::PACKET_TYPE, inner);
            }
        }
    }

    fn decap_ethernet(&mut self) {
        self.wc.set_u16(at::VLAN, self.wc.u16(at::VLAN) | VLAN_PRESENT);
        if self.key.u16(at::VLAN) & VLAN_PRESENT != 0 || self.packet.layers.hidden > 0 {
            return self.unsupported(TAGGED);
        }
        let ethertype = self.key.u16(at::ETH_TYPE);
        if ethertype == ETH_NSH {
            // What is left to do is done to the packet with this header, as in OVS.
            self.commit();
        }
        self.clear_addresses();
        self.key.set_u32(at::PACKET_TYPE, packet_type::of_ethertype(ethertype));
    }

    /// The frame inside is not known before it is parsed, so the remaining actions wait for that.
    fn decap_frame(&mut self) {
        if !self.sees_bottom("decap") {
            return;
        }
        self.commit();
        self.clear_layers();
        self.key.set_u16(at::ETH_TYPE, 0);
        self.key.set_u32(at::PACKET_TYPE, packet_type::ETHERNET);
        self.begin_inside();
        self.op(Op::DecapMpls);
    }

    /// Begins with a packet of which only its type is known.
    pub(super) fn begin_inside(&mut self) {
        (self.packet.layers.labels, self.packet.layers.was_mpls) = (0, true);
        self.base = self.key;
        self.end.rest.get_or_insert_default();
    }

    pub(super) fn clear_addresses(&mut self) {
        self.key.bytes_mut()[at::ETH_DST..at::ETH_TYPE].fill(0);
    }

    /// Ends a bucket that cannot be executed on its packet; the packet itself continues.
    pub(super) fn end_alone(&mut self) {
        if let Some(why @ (Drop::PacketType | Drop::TooManyLabels)) = self.end.failed {
            self.end.failed = None;
            self.answer.decision.drop.get_or_insert(why);
            if let Some(r) = self.recorder() {
                r.failed = None;
            }
        }
    }

    /// Drops a packet that cannot be encapsulated or decapsulated. As in OVS, outputs before this
    /// one are dropped too. `why` is OVS's text.
    pub(super) fn unsupported(&mut self, why: &str) {
        self.note_unsupported(why);
        self.fail(Drop::PacketType);
    }

    /// The packet's type as in OVS's texts.
    pub(super) fn type_text(&self) -> String {
        format!("({},0x{:x})", self.packet_type() >> 16, self.packet_type() & 0xffff)
    }
}
