//! Network service headers (RFC 8300) that actions put in front of packets and remove. What
//! `encap.rs` says of packets without an Ethernet header holds for these, too: one that begins with
//! a network service header has an Ethernet header in memory only.

use crate::translate::state::Headers;
use crate::translate::xlate::Xlate;
use action::{Op, Payload};
use flow::{Field, Key, at, flag};
use openflow::{NshProperty, packet_type};
use wire::{
    ETH_NSH, NSH_ETHERNET, NSH_LEN, NSH_MD1, NSH_MD1_LEN, nsh_ethertype, nsh_flags_and_ttl,
    nsh_protocol,
};

/// TTL of a new header, as in OVS.
const TTL: u8 = 63;
/// Service index of a new header, as in OVS.
const SERVICE_INDEX: u8 = 255;

impl Xlate<'_, '_> {
    /// Puts a header in front of the packet, whose fields later actions may write.
    pub(super) fn encap_nsh(&mut self, properties: &[NshProperty]) {
        let ethertype = packet_type::ethertype(self.key.u32(at::PACKET_TYPE));
        let protocol = match ethertype {
            None => Some(NSH_ETHERNET),
            Some(ethertype) => nsh_protocol(ethertype),
        };
        let Some(protocol) = protocol else {
            let kind = self.type_text();
            return self.unsupported(&format!(
                "Dropping packet as encap(nsh) is not supported for packet type {kind}"
            ));
        };
        self.commit();
        let payload = match (ethertype, self.base.u32(at::PACKET_TYPE)) {
            (None, _) => Payload::Frame,
            (_, packet_type::ETHERNET) => Payload::Popped,
            _ => Payload::Bare,
        };
        self.begin_own(Headers::Nsh);
        // Nothing was read of the new header.
        self.wc.bytes_mut()[at::IP_SRC..at::VLAN1].fill(0);
        self.wc.bytes_mut()[at::IPV6_SRC..at::TUN_DST].fill(0);
        self.clear_layers();
        self.clear_addresses();
        self.clear_tags();
        let (md_type, contexts) = metadata(properties);
        self.key.set_u16(at::ETH_TYPE, ETH_NSH);
        self.key.set(at::NSH_FLAGS, [0, TTL, md_type, protocol]);
        self.key.set_u8(at::NSH_SI, SERVICE_INDEX);
        self.key.set_u32(at::PACKET_TYPE, packet_type::of_ethertype(ETH_NSH));
        (self.packet.layers.hidden, self.packet.layers.labels, self.packet.layers.was_mpls) =
            (0, 0, false);
        self.base = self.key;
        let header = [&[0; NSH_LEN][..], &contexts].concat();
        let header = written(&self.key, &header);
        self.op(Op::PushNsh { payload, header });
    }

    /// Removes the header. The packet inside is not known before it is parsed, so the remaining
    /// actions wait for that.
    pub(super) fn decap_nsh(&mut self) {
        Field::NshNp.unwildcard(&mut self.wc);
        let protocol = self.key.u8(at::NSH_NP);
        let inner = match (protocol, nsh_ethertype(protocol)) {
            (NSH_ETHERNET, _) => packet_type::ETHERNET,
            (_, Some(ethertype)) => packet_type::of_ethertype(ethertype),
            (_, None) => {
                return self.unsupported(&format!(
                    "Dropping packet as NSH next protocol {protocol} is not supported"
                ));
            }
        };
        self.commit();
        let framed = self.base.u32(at::PACKET_TYPE) == packet_type::ETHERNET;
        // The fields stay as they are: no table looks at them any more. But a trace shows them.
        if let Some(ethertype) = nsh_ethertype(protocol).filter(|e| *e != ETH_NSH) {
            self.clear_layers();
            self.key.set_u16(at::ETH_TYPE, ethertype);
        }
        self.key.set_u32(at::PACKET_TYPE, inner);
        self.begin_inside();
        self.op(Op::PopNsh { framed });
    }

    /// A header that was just put there takes the change itself.
    pub(super) fn set_nsh(&mut self) -> bool {
        let contexts = at::NSH_C..at::NSH_C + 16;
        if self.key.bytes()[contexts.clone()] != self.base.bytes()[contexts.clone()] {
            Field::NshMdtype.unwildcard(&mut self.wc);
            if self.key.u8(at::NSH_MDTYPE) != NSH_MD1 {
                // There are no contexts to write.
                let old = &self.base.bytes()[contexts.clone()];
                self.key.bytes_mut()[contexts].copy_from_slice(old);
            }
        }
        if self.wants_ethernet() {
            // What follows that header is written behind it, as in OVS.
            return false;
        }
        let key = self.key;
        match self.last_op() {
            // Neither type of metadata nor next protocol can be written.
            Some(Op::PushNsh { header, .. }) if header[2..4] == key.get::<2>(at::NSH_MDTYPE) => {
                *header = written(&key, header);
                true
            }
            _ => false,
        }
    }

    fn clear_tags(&mut self) {
        self.key.set_u16(at::VLAN, 0);
        self.key.set_u16(at::VLAN1, 0);
        let tags = flag::VLAN_88A8 | flag::VLAN1_88A8;
        self.key.set_u8(at::FLAGS, self.key.u8(at::FLAGS) & !tags);
    }
}

/// The type of a header's metadata, and its context headers; those of type 1 begin as zeros.
fn metadata(properties: &[NshProperty]) -> (u8, Vec<u8>) {
    let kind = |p: &NshProperty| match p {
        NshProperty::MdType(kind) => Some(*kind),
        NshProperty::Tlv { .. } => None,
    };
    let md_type = properties.iter().rev().find_map(kind).unwrap_or(NSH_MD1);
    if md_type == NSH_MD1 {
        return (md_type, vec![0; 16]);
    }
    let mut contexts = Vec::new();
    for p in properties {
        if let NshProperty::Tlv { class, kind, value } = p {
            contexts.extend(class.to_be_bytes());
            contexts.extend([*kind, value.len() as u8]);
            contexts.extend(value);
            contexts.resize(contexts.len().next_multiple_of(4), 0);
        }
    }
    (md_type, contexts)
}

/// The header with the fields of a key.
fn written(key: &Key, old: &[u8]) -> Box<[u8]> {
    let mut header: Box<[u8]> = old.into();
    let [flags, ttl, md_type, protocol] = key.get::<4>(at::NSH_FLAGS);
    let base = nsh_flags_and_ttl(flags, ttl) | (header.len() / 4) as u16;
    header[..2].copy_from_slice(&base.to_be_bytes());
    header[2..4].copy_from_slice(&[md_type, protocol]);
    header[4..NSH_LEN].copy_from_slice(&key.get::<4>(at::NSH_SPI));
    if md_type == NSH_MD1 {
        header[NSH_LEN..NSH_MD1_LEN].copy_from_slice(&key.get::<16>(at::NSH_C));
    }
    header
}
