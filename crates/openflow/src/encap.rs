//! Headers that are put in front of packets and taken off, NXAST_RAW_ENCAP and NXAST_RAW_DECAP.

use crate::action_types::nxast;
use crate::fields::Bytes;
use crate::fields_out::Put;
use crate::prereq::eth;
use crate::{Action, OfError, Version, packet_type};

/// What an encap puts in front of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// An Ethernet header.
    Ethernet,
    /// An MPLS label stack entry.
    Mpls,
    /// An MPLS label stack entry of a multicast packet.
    MplsMulticast,
}

impl Header {
    /// The packet type of what begins with it.
    pub fn packet_type(self) -> u32 {
        match self {
            Header::Ethernet => packet_type::ETHERNET,
            Header::Mpls => packet_type::of_ethertype(eth::MPLS),
            Header::MplsMulticast => packet_type::of_ethertype(eth::MPLS_MCAST),
        }
    }

    /// As in `encap(...)`.
    pub fn name(self) -> &'static str {
        match self {
            Header::Ethernet => "ethernet",
            Header::Mpls => "mpls",
            Header::MplsMulticast => "mpls_mc",
        }
    }
}

/// Errors: `ActBadHeaderType` for headers that are not supported (NSH), `ActUnknownEdProp` for
/// properties, of which those that are supported have none.
pub(crate) fn decode_encap(b: Bytes) -> Result<Action, OfError> {
    let all = [Header::Ethernet, Header::Mpls, Header::MplsMulticast];
    let found = all.into_iter().find(|h| h.packet_type() == b.u32(12));
    let header = found.ok_or(OfError::ActBadHeaderType)?;
    no_properties(b)?;
    Ok(Action::Encap(header))
}

/// Errors: `ActUnknownEdProp` for properties.
pub(crate) fn decode_decap(b: Bytes) -> Result<Action, OfError> {
    no_properties(b)?;
    Ok(Action::Decap(Some(b.u32(12)).filter(|kind| *kind != packet_type::NEXT_HEADER)))
}

fn no_properties(b: Bytes) -> Result<(), OfError> {
    if b.from(16).is_empty() { Ok(()) } else { Err(OfError::ActUnknownEdProp) }
}

/// Writes either; versions before 1.3 have none.
pub(crate) fn encode(put: &mut Put, action: &Action) {
    let (kind, packet_type) = match action {
        Action::Encap(header) => (nxast::RAW_ENCAP, header.packet_type()),
        Action::Decap(inner) => (nxast::RAW_DECAP, inner.unwrap_or(packet_type::NEXT_HEADER)),
        _ => return,
    };
    if put.version >= Version::V13 {
        put.nx(kind, |nx| nx.zeros(2).u32(packet_type));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::decode_actions;

    /// As Open vSwitch's ofp-actions tests have them: vendor, 0x2320, length, a type, the rest.
    fn nicira(kind: u16, rest: &[u8]) -> Vec<u8> {
        let len = 10 + rest.len() as u8;
        [&[0xff, 0xff, 0, len, 0, 0, 0x23, 0x20][..], &kind.to_be_bytes(), rest].concat()
    }

    fn read(rest: &[u8]) -> Result<Vec<Action>, OfError> {
        decode_actions(Version::V13, &nicira(46, rest))
    }

    #[test]
    fn encap_is_read_with_what_is_supported_only() {
        assert_eq!(read(&[0, 0, 0, 1, 0x88, 0x47]), Ok(vec![Action::Encap(Header::Mpls)]));
        assert_eq!(read(&[0, 0, 0, 1, 0x88, 0x48]), Ok(vec![Action::Encap(Header::MplsMulticast)]));
        assert_eq!(read(&[0; 6]), Ok(vec![Action::Encap(Header::Ethernet)]));
        let nsh_md_type = [0, 4, 1, 5, 1, 0, 0, 0];
        let with = |head: [u8; 6]| [&head[..], &nsh_md_type].concat();
        assert_eq!(read(&with([0, 0, 0, 1, 0x89, 0x4f])), Err(OfError::ActBadHeaderType));
        assert_eq!(read(&[0, 0, 0, 1, 8, 0]), Err(OfError::ActBadHeaderType));
        assert_eq!(read(&with([0, 0, 0, 1, 0x88, 0x47])), Err(OfError::ActUnknownEdProp));
        let old = decode_actions(Version::V12, &nicira(46, &[0; 6]));
        assert_eq!(old, Err(OfError::ActBadExpType));
    }

    #[test]
    fn decap_keeps_what_is_inside() {
        for (wire, inner) in [
            ([0, 0, 0xff, 0xfe], None),
            ([0, 0, 0, 0], Some(packet_type::ETHERNET)),
            ([0, 1, 8, 0], Some(packet_type::of_ethertype(eth::IP))),
        ] {
            let bytes = nicira(47, &[&[0, 0][..], &wire].concat());
            let actions = decode_actions(Version::V13, &bytes).unwrap();
            assert_eq!(actions, [Action::Decap(inner)]);
            let mut again = Vec::new();
            crate::actions_out::encode_actions(Version::V13, &actions, &mut again);
            assert_eq!(again, bytes);
        }
    }
}
