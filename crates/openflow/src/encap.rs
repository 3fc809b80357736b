//! Headers that are put in front of packets and taken off, NXAST_RAW_ENCAP and NXAST_RAW_DECAP.

use crate::action_types::nxast;
use crate::fields::Bytes;
use crate::fields_out::Put;
use crate::prereq::eth;
use crate::{Action, OfError, Version, packet_type};
use wire::{NSH_LEN, NSH_LEN_MAX, NSH_MD1, NSH_MD2};

/// The class of NSH's properties, and their types in it.
const NSH_PROPERTIES: u16 = 4;
const MD_TYPE: u8 = 1;
const TLV: u8 = 2;

/// What an encap puts in front of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// An Ethernet header.
    Ethernet,
    /// An MPLS label stack entry.
    Mpls,
    /// An MPLS label stack entry of a multicast packet.
    MplsMulticast,
    /// A network service header (RFC 8300).
    Nsh(Vec<NshProperty>),
}

/// A property of a network service header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NshProperty {
    /// The type of its metadata, 1 or 2; the last one counts. Without one it is 1.
    MdType(u8),
    /// A context header of metadata of type 2; with type 1 it has no effect.
    Tlv {
        /// Metadata class.
        class: u16,
        /// Its type in the class.
        kind: u8,
        /// Its value, at most [`Header::TLV_BYTES_MAX`] bytes.
        value: Vec<u8>,
    },
}

impl NshProperty {
    /// Bytes that it takes in the header.
    fn context_bytes(&self) -> usize {
        match self {
            NshProperty::MdType(_) => 0,
            NshProperty::Tlv { value, .. } => 4 + value.len().next_multiple_of(4),
        }
    }
}

impl Header {
    /// The most bytes of a context header's value: what its length field has room for.
    pub const TLV_BYTES_MAX: usize = 127;

    /// The packet type of what begins with it.
    pub fn packet_type(&self) -> u32 {
        match self {
            Header::Ethernet => packet_type::ETHERNET,
            Header::Mpls => packet_type::of_ethertype(eth::MPLS),
            Header::MplsMulticast => packet_type::of_ethertype(eth::MPLS_MCAST),
            Header::Nsh(_) => packet_type::of_ethertype(eth::NSH),
        }
    }

    /// As in `encap(...)`, without properties.
    pub fn name(&self) -> &'static str {
        match self {
            Header::Ethernet => "ethernet",
            Header::Mpls => "mpls",
            Header::MplsMulticast => "mpls_mc",
            Header::Nsh(_) => "nsh",
        }
    }

    /// A network service header with these properties. Errors: `ActBadEdProp` where a header has no
    /// room for them, or their type of metadata is not known.
    pub fn nsh(properties: Vec<NshProperty>) -> Result<Header, OfError> {
        let fits = |p: &NshProperty| match p {
            NshProperty::MdType(kind) => matches!(*kind, NSH_MD1 | NSH_MD2),
            NshProperty::Tlv { value, .. } => value.len() <= Header::TLV_BYTES_MAX,
        };
        let bytes: usize = properties.iter().map(NshProperty::context_bytes).sum();
        let all_fit = properties.iter().all(fits) && bytes <= NSH_LEN_MAX - NSH_LEN;
        if all_fit { Ok(Header::Nsh(properties)) } else { Err(OfError::ActBadEdProp) }
    }
}

/// Errors: `ActBadHeaderType` for headers that are not supported, and those of properties.
pub(crate) fn decode_encap(b: Bytes) -> Result<Action, OfError> {
    if b.u32(12) == packet_type::of_ethertype(eth::NSH) {
        return Ok(Action::Encap(Header::nsh(decode_properties(b.from(16))?)?));
    }
    let all = [Header::Ethernet, Header::Mpls, Header::MplsMulticast];
    let found = all.into_iter().find(|h| h.packet_type() == b.u32(12));
    let header = found.ok_or(OfError::ActBadHeaderType)?;
    no_properties(b)?;
    Ok(Action::Encap(header))
}

/// Reads properties, each of which is padded to a multiple of eight bytes.
///
/// Errors: `ActBadLen` for one that does not end inside, `ActBadEdProp` for one of a wrong length,
/// `ActUnknownEdProp` for one that is not of NSH.
fn decode_properties(mut rest: &[u8]) -> Result<Vec<NshProperty>, OfError> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let head: &[u8; 8] = rest.first_chunk().ok_or(OfError::ActBadLen)?;
        let (len, size) = (usize::from(head[3]), usize::from(head[3]).next_multiple_of(8));
        if len < 4 || size > rest.len() {
            return Err(OfError::ActBadLen);
        }
        let class = u16::from_be_bytes([head[0], head[1]]);
        all.push(match (class, head[2]) {
            (NSH_PROPERTIES, MD_TYPE) if len <= 8 => NshProperty::MdType(head[4]),
            (NSH_PROPERTIES, TLV) if len == 8 + usize::from(head[7]).next_multiple_of(8) => {
                let value = rest[8..8 + usize::from(head[7])].to_vec();
                let class = u16::from_be_bytes([head[4], head[5]]);
                NshProperty::Tlv { class, kind: head[6], value }
            }
            (NSH_PROPERTIES, MD_TYPE | TLV) => return Err(OfError::ActBadEdProp),
            _ => return Err(OfError::ActUnknownEdProp),
        });
        rest = &rest[size..];
    }
    Ok(all)
}

fn encode_properties(properties: &[NshProperty]) -> Vec<u8> {
    let mut out = Vec::new();
    for property in properties {
        out.extend(NSH_PROPERTIES.to_be_bytes());
        match property {
            NshProperty::MdType(kind) => out.extend([MD_TYPE, 5, *kind, 0, 0, 0]),
            NshProperty::Tlv { class, kind, value } => {
                let padded = value.len().next_multiple_of(8);
                out.extend([TLV, 8 + padded as u8]);
                out.extend(class.to_be_bytes());
                out.extend([*kind, value.len() as u8]);
                out.extend(value);
                out.resize(out.len() + padded - value.len(), 0);
            }
        }
    }
    out
}

/// Errors: `ActUnknownEdProp` for properties.
pub(crate) fn decode_decap(b: Bytes) -> Result<Action, OfError> {
    no_properties(b)?;
    Ok(Action::Decap(Some(b.u32(12)).filter(|kind| *kind != packet_type::NEXT_HEADER)))
}

fn no_properties(b: Bytes) -> Result<(), OfError> {
    if b.from(16).is_empty() { Ok(()) } else { Err(OfError::ActUnknownEdProp) }
}

/// Writes one of these actions; versions before 1.3 have none.
pub(crate) fn encode(put: &mut Put, action: &Action) {
    let (kind, packet_type, properties) = match action {
        Action::Encap(Header::Nsh(p)) => {
            (nxast::RAW_ENCAP, packet_type::of_ethertype(eth::NSH), encode_properties(p))
        }
        Action::Encap(header) => (nxast::RAW_ENCAP, header.packet_type(), Vec::new()),
        Action::Decap(inner) => {
            (nxast::RAW_DECAP, inner.unwrap_or(packet_type::NEXT_HEADER), Vec::new())
        }
        Action::DecNshTtl if put.version >= Version::V13 => {
            return put.nicira(nxast::DEC_NSH_TTL, &[]);
        }
        _ => return,
    };
    if put.version >= Version::V13 {
        put.nx(kind, |nx| nx.zeros(2).u32(packet_type).bytes(&properties));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::decode_actions;

    /// As Open vSwitch's ofp-actions tests have them: vendor, 0x2320, length, a type, the rest.
    fn nicira(kind: u16, rest: &[u8]) -> Vec<u8> {
        let len = (10 + rest.len() as u16).to_be_bytes();
        let vendor = [0, 0, 0x23, 0x20];
        [&[0xff, 0xff][..], &len, &vendor, &kind.to_be_bytes(), rest].concat()
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
        let nsh = Action::Encap(Header::Nsh(vec![NshProperty::MdType(1)]));
        assert_eq!(read(&with([0, 0, 0, 1, 0x89, 0x4f])), Ok(vec![nsh]));
        assert_eq!(read(&[0, 0, 0, 1, 8, 0]), Err(OfError::ActBadHeaderType));
        assert_eq!(read(&with([0, 0, 0, 1, 0x88, 0x47])), Err(OfError::ActUnknownEdProp));
        let old = decode_actions(Version::V12, &nicira(46, &[0; 6]));
        assert_eq!(old, Err(OfError::ActBadExpType));
    }

    #[test]
    fn properties_of_nsh_are_bounded_and_read_back() {
        let encap = |properties: &[u8]| read(&[&[0, 0, 0, 1, 0x89, 0x4f][..], properties].concat());
        let tlv = |len: u8, n: u8| {
            let padded = usize::from(n).next_multiple_of(8);
            [&[0, 4, 2, len, 0x10, 0, 10, n][..], &vec![7; padded]].concat()
        };
        let right = |n: u8| tlv(8 + n.next_multiple_of(8), n);
        for properties in
            [vec![], [0, 4, 1, 5, 2, 0, 0, 0].to_vec(), right(4), right(0), right(127)]
        {
            let actions = encap(&properties).unwrap();
            let mut again = Vec::new();
            crate::actions_out::encode_actions(Version::V13, &actions, &mut again);
            let mut zeroed = nicira(46, &[&[0, 0, 0, 1, 0x89, 0x4f][..], &properties].concat());
            if properties.len() > 8 {
                let (from, n) = (24, usize::from(zeroed[23]));
                zeroed[from + n..].fill(0);
            }
            assert_eq!(again, zeroed);
        }
        let wrong = [
            (vec![0, 4, 1, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], OfError::ActBadEdProp),
            (vec![0, 4, 1, 5, 3, 0, 0, 0], OfError::ActBadEdProp),
            (vec![0, 4, 1, 3, 1, 0, 0, 0], OfError::ActBadLen),
            (vec![0, 4, 1, 17, 1, 0, 0, 0], OfError::ActBadLen),
            (vec![0, 4, 3, 8, 1, 0, 0, 0], OfError::ActUnknownEdProp),
            (vec![0, 1, 1, 5, 1, 0, 0, 0], OfError::ActUnknownEdProp),
            (tlv(8, 4), OfError::ActBadEdProp),
            (right(128), OfError::ActBadEdProp),
            ([right(120), right(120)].concat(), OfError::ActBadEdProp),
        ];
        for (properties, error) in wrong {
            assert_eq!(encap(&properties), Err(error), "{properties:?}");
        }
        assert!(
            encap(&[right(120), right(116)].concat()).is_ok(),
            "a header has 244 bytes of them"
        );
        assert_eq!(decode_actions(Version::V13, &nicira(48, &[0; 6])), Ok(vec![Action::DecNshTtl]));
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
