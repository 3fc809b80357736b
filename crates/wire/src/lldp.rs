//! LLDP data units (IEEE 802.1AB-2009) with the elements of Auto Attach
//! (draft-unbehagen-lldp-spb): read from any bytes, and written.

use crate::{ETH_LLDP, LLDP_MAC, Mac};

/// Bytes of a frame that are read at most: two tags, and the longest payload of Ethernet.
pub const LLDP_FRAME_BYTES_MAX: usize = 1522;

/// Types of TLVs (IEEE 802.1AB-2009, table 8-1).
mod tlv {
    pub const END: u8 = 0;
    pub const CHASSIS: u8 = 1;
    pub const PORT: u8 = 2;
    pub const TTL: u8 = 3;
    pub const NAME: u8 = 5;
    pub const DESCRIPTION: u8 = 6;
    pub const CAPABILITIES: u8 = 7;
    pub const ADDRESS: u8 = 8;
    pub const OWN: u8 = 127;
}

/// The organization of Auto Attach's TLVs, and their subtypes.
const AUTO_ATTACH: [u8; 3] = [0x00, 0x04, 0x0d];
const ELEMENT: u8 = 11;
const ASSIGNMENTS: u8 = 12;
/// Bytes of the digest in these, which is zero here.
const DIGEST_BYTES: usize = 32;
/// Bytes in front of what these TLVs have: organization, subtype, digest.
const HEAD_BYTES: usize = 3 + 1 + DIGEST_BYTES;
/// Bytes of an element, and of an assignment.
const ELEMENT_BYTES: usize = 14;
const ASSIGNMENT_BYTES: usize = 5;
/// The longest value of a TLV, and of one that is a text or an identifier.
const VALUE_BYTES_MAX: usize = 511;
const TEXT_BYTES_MAX: usize = 255;
/// Assignments in one TLV.
const ASSIGNMENTS_MAX: usize = (VALUE_BYTES_MAX - HEAD_BYTES) / ASSIGNMENT_BYTES;
/// Subtypes: a chassis by its MAC address, a port by its interface's name.
const CHASSIS_BY_MAC: u8 = 4;
const PORT_BY_NAME: u8 = 5;
/// The kind of an element: a virtual switch that is a client.
const VIRTUAL_SWITCH: u16 = 14;
/// The capability of a bridge.
const BRIDGE: [u8; 2] = [0, 4];

/// Who a chassis or a port is: a subtype, and what it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LldpId {
    /// 1 to 7.
    pub subtype: u8,
    /// One to 255 bytes.
    pub value: Vec<u8>,
}

/// An element of Auto Attach: a system, and how it is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LldpElement {
    /// The system's address.
    pub mac: Mac,
    /// How it is connected: 0 by a single link.
    pub connection: u16,
    /// Bits without meaning.
    pub reserved: (u16, [u8; 2]),
}

/// A service (I-SID) that a VLAN is assigned to, and what the other end says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LldpAssignment {
    /// 2: active; 3 and more: rejected.
    pub status: u8,
    /// 12 bits.
    pub vlan: u16,
    /// 24 bits.
    pub isid: u32,
}

/// What a data unit says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LldpUnit {
    /// The sender.
    pub chassis: LldpId,
    /// Its port.
    pub port: LldpId,
    /// Seconds for which this holds; 0: it does not hold any more.
    pub ttl: u16,
    /// The sender's name.
    pub name: Vec<u8>,
    /// The sender's description.
    pub description: Vec<u8>,
    /// The sender's element of Auto Attach.
    pub element: Option<LldpElement>,
    /// What is assigned to the VLANs of the link.
    pub assignments: Vec<LldpAssignment>,
}

/// Why a data unit is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LldpRefusal {
    /// The frame is no LLDP frame, or not to the address of the nearest bridge.
    NoLldp,
    /// A TLV ends behind the frame.
    Cut,
    /// A TLV, by its name, has too few bytes.
    Short(&'static str),
    /// A TLV, by its name, has too many bytes, or a number of them that cannot be.
    Length(&'static str),
    /// The first three TLVs are not chassis, port and TTL, or one of these comes again.
    Order,
    /// A chassis or port of an unknown kind.
    Subtype,
    /// A mandatory TLV is missing.
    Missing,
}

impl std::fmt::Display for LldpRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LldpRefusal::NoLldp => write!(f, "frame that is not to LLDP's address"),
            LldpRefusal::Cut => write!(f, "frame too short for a TLV"),
            LldpRefusal::Short(name) => write!(f, "{name} TLV too short"),
            LldpRefusal::Length(name) => write!(f, "{name} TLV of a wrong length"),
            LldpRefusal::Order => write!(f, "chassis, port and TTL not as the first TLVs, once"),
            LldpRefusal::Subtype => write!(f, "unknown subtype of an identifier"),
            LldpRefusal::Missing => write!(f, "frame without a mandatory TLV"),
        }
    }
}

/// Bytes that are left.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
}

/// Reads a frame, with the Ethernet header and perhaps one tag. Also returns the number of TLVs
/// that are not understood.
pub fn read_lldp(frame: &[u8]) -> (Result<LldpUnit, LldpRefusal>, u64) {
    let (mut unit, mut unknown) = (LldpUnit::default(), 0);
    let read = read_tlvs(frame, &mut unit, &mut unknown);
    (read.map(|()| unit), unknown)
}

fn read_tlvs(frame: &[u8], unit: &mut LldpUnit, unknown: &mut u64) -> Result<(), LldpRefusal> {
    let mut rest = Bytes(&frame[..frame.len().min(LLDP_FRAME_BYTES_MAX)]);
    payload(&mut rest).ok_or(LldpRefusal::NoLldp)?;
    for n in 1.. {
        if rest.0.is_empty() {
            break;
        }
        let head = rest.u16().ok_or(LldpRefusal::Cut)?;
        let (kind, len) = ((head >> 9) as u8, usize::from(head & 0x1ff));
        let value = rest.take(len).ok_or(LldpRefusal::Cut)?;
        let first = matches!(kind, tlv::CHASSIS | tlv::PORT | tlv::TTL);
        if n <= 3 && usize::from(kind) != n || n > 3 && first {
            return Err(LldpRefusal::Order);
        }
        match kind {
            tlv::END if len == 0 => return Ok(()),
            tlv::END => return Err(LldpRefusal::Length("End")),
            _ => read_tlv(kind, value, unit, unknown)?,
        }
    }
    Err(LldpRefusal::Missing)
}

/// Leaves the TLVs of a frame.
fn payload(frame: &mut Bytes<'_>) -> Option<()> {
    let dst: Mac = frame.array()?;
    frame.take(6)?;
    let mut ethertype = frame.u16()?;
    if ethertype == crate::ETH_VLAN {
        frame.take(2)?;
        ethertype = frame.u16()?;
    }
    (dst == LLDP_MAC && ethertype == ETH_LLDP).then_some(())
}

fn read_tlv(
    kind: u8,
    value: &[u8],
    unit: &mut LldpUnit,
    unknown: &mut u64,
) -> Result<(), LldpRefusal> {
    match kind {
        tlv::CHASSIS => unit.chassis = read_id(value)?,
        tlv::PORT => unit.port = read_id(value)?,
        tlv::TTL => unit.ttl = Bytes(value).u16().ok_or(LldpRefusal::Short("TTL"))?,
        tlv::NAME => unit.name = value.to_vec(),
        tlv::DESCRIPTION => unit.description = value.to_vec(),
        tlv::CAPABILITIES if value.len() < 4 => {
            return Err(LldpRefusal::Short("System capabilities"));
        }
        tlv::ADDRESS => read_address(value)?,
        tlv::OWN => read_own(value, unit, unknown)?,
        4 | tlv::CAPABILITIES => {}
        _ => *unknown += 1,
    }
    Ok(())
}

fn read_id(value: &[u8]) -> Result<LldpId, LldpRefusal> {
    const NAME: &str = "Port/Chassis Id";
    match *value {
        [] | [_] => Err(LldpRefusal::Short(NAME)),
        [0 | 8.., ..] => Err(LldpRefusal::Subtype),
        [_, ref value @ ..] if value.len() > TEXT_BYTES_MAX => Err(LldpRefusal::Length(NAME)),
        [subtype, ref value @ ..] => Ok(LldpId { subtype, value: value.to_vec() }),
    }
}

/// A management address is looked at for its lengths only.
fn read_address(value: &[u8]) -> Result<(), LldpRefusal> {
    const NAME: &str = "Management address";
    let mut rest = Bytes(value);
    let [len] = rest.array().ok_or(LldpRefusal::Short(NAME))?;
    if !(1..=32).contains(&len) {
        return Err(LldpRefusal::Length(NAME));
    }
    let behind = usize::from(len) + 5;
    rest.take(behind).map(|_| ()).ok_or(LldpRefusal::Short(NAME))
}

fn read_own(value: &[u8], unit: &mut LldpUnit, unknown: &mut u64) -> Result<(), LldpRefusal> {
    let mut rest = Bytes(value);
    let head = rest.array().zip(rest.array());
    let (organization, [subtype]): ([u8; 3], _) = head.ok_or(LldpRefusal::Short("Own"))?;
    match (organization, subtype) {
        (AUTO_ATTACH, ELEMENT) => {
            let element = rest.take(DIGEST_BYTES).and_then(|_| read_element(&mut rest));
            unit.element = Some(element.ok_or(LldpRefusal::Short("ELEMENT"))?);
        }
        (AUTO_ATTACH, ASSIGNMENTS) => {
            const NAME: &str = "ISID_VLAN_ASGNS";
            rest.take(DIGEST_BYTES).ok_or(LldpRefusal::Short(NAME))?;
            let (all, left) = rest.0.as_chunks::<ASSIGNMENT_BYTES>();
            if !left.is_empty() {
                return Err(LldpRefusal::Length(NAME));
            }
            unit.assignments.extend(all.iter().map(read_assignment));
        }
        _ => *unknown += 1,
    }
    Ok(())
}

/// Kind (6 bits), state (6 bits), VLAN of the management (12 bits), 8 bits; then the system.
fn read_element(rest: &mut Bytes<'_>) -> Option<LldpElement> {
    rest.take(4)?;
    let mac = rest.array()?;
    let word = rest.u16()?;
    let reserved = (word & 0x3ff, rest.array()?);
    Some(LldpElement { mac, connection: word >> 13, reserved })
}

fn read_assignment(bytes: &[u8; ASSIGNMENT_BYTES]) -> LldpAssignment {
    let [a, b, c, d, e] = *bytes;
    let word = u16::from_be_bytes([a, b]);
    let isid = u32::from_be_bytes([0, c, d, e]);
    LldpAssignment { status: (word >> 12) as u8, vlan: word & 0xfff, isid }
}

/// What a port of a virtual switch says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LldpSelf {
    /// The port's address, which names the chassis, too.
    pub mac: Mac,
    /// The interface.
    pub port: String,
    /// Seconds for which this holds.
    pub ttl: u16,
    /// The bridge's name, if it has one; 255 bytes of it are said.
    pub name: String,
    /// What it is; 255 bytes of it are said.
    pub description: String,
    /// Services by I-SID (24 bits), with the VLANs (12 bits) that are assigned to them.
    pub assignments: Vec<(u32, u16)>,
}

impl LldpSelf {
    /// A frame that says it, and how many assignments have room in it. It has at most
    /// [`LLDP_FRAME_BYTES_MAX`] bytes less two tags'.
    pub fn write(&self) -> (Vec<u8>, usize) {
        let mut out = [&LLDP_MAC[..], &self.mac, &ETH_LLDP.to_be_bytes()].concat();
        put(&mut out, tlv::CHASSIS, &[&[CHASSIS_BY_MAC], &self.mac]);
        put(&mut out, tlv::PORT, &[&[PORT_BY_NAME], text(&self.port)]);
        put(&mut out, tlv::TTL, &[&self.ttl.to_be_bytes()]);
        if !self.name.is_empty() {
            put(&mut out, tlv::NAME, &[text(&self.name)]);
        }
        if !self.description.is_empty() {
            put(&mut out, tlv::DESCRIPTION, &[text(&self.description)]);
        }
        put(&mut out, tlv::CAPABILITIES, &[&BRIDGE, &BRIDGE]);
        let head = |subtype| [&AUTO_ATTACH[..], &[subtype], &[0; DIGEST_BYTES]].concat();
        // State, VLAN of the management and connection are zero: a single link.
        let mut element = [0; ELEMENT_BYTES];
        element[..2].copy_from_slice(&(VIRTUAL_SWITCH << 10).to_be_bytes());
        element[4..10].copy_from_slice(&self.mac);
        put(&mut out, tlv::OWN, &[&head(ELEMENT), &element]);
        let mut said = 0;
        for some in self.assignments.chunks(ASSIGNMENTS_MAX) {
            let one = |(isid, vlan): &(u32, u16)| {
                let ([_, c, d, e], [a, b]) = (isid.to_be_bytes(), (vlan & 0xfff).to_be_bytes());
                [a, b, c, d, e]
            };
            let value = some.iter().flat_map(one).collect::<Vec<u8>>();
            if out.len() + 2 + HEAD_BYTES + value.len() + 2 > LLDP_FRAME_BYTES_MAX - 8 {
                break;
            }
            put(&mut out, tlv::OWN, &[&head(ASSIGNMENTS), &value]);
            said += some.len();
        }
        put(&mut out, tlv::END, &[]);
        (out, said)
    }
}

/// The bytes of a text that fit.
fn text(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

fn put(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(len <= VALUE_BYTES_MAX, "a TLV of {len} bytes");
    out.extend((u16::from(kind) << 9 | len as u16).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> LldpSelf {
        LldpSelf {
            mac: [2, 0, 0, 0, 0, 1],
            port: "eth0".into(),
            ttl: 120,
            name: "host1".into(),
            description: "a switch".into(),
            assignments: vec![(0x123456, 7), (9, 4094)],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (frame, said) = own().write();
        let (read, unknown) = read_lldp(&frame);
        let unit = read.expect("a data unit");
        assert_eq!((said, unknown, unit.ttl), (2, 0, 120));
        assert_eq!((unit.chassis.subtype, &unit.chassis.value[..]), (4, &own().mac[..]));
        assert_eq!((unit.port.subtype, &unit.port.value[..]), (5, &b"eth0"[..]));
        assert_eq!((&unit.name[..], &unit.description[..]), (&b"host1"[..], &b"a switch"[..]));
        assert_eq!(unit.element.map(|e| (e.mac, e.connection)), Some((own().mac, 0)));
        let assigned = |(isid, vlan)| LldpAssignment { status: 0, vlan, isid };
        assert_eq!(
            unit.assignments,
            own().assignments.into_iter().map(assigned).collect::<Vec<_>>()
        );
    }

    #[test]
    fn as_many_assignments_are_said_as_have_room() {
        let assignments = (0..1000).map(|n| (n, n as u16)).collect();
        let long = "x".repeat(1000);
        let own = LldpSelf { assignments, name: long.clone(), description: long, ..own() };
        let (frame, said) = own.write();
        assert!(frame.len() <= 1514, "{}", frame.len());
        let (read, _) = read_lldp(&frame);
        assert_eq!(read.map(|unit| (unit.assignments.len(), unit.name.len())), Ok((said, 255)));
        assert!(said >= ASSIGNMENTS_MAX, "{said}");
    }

    /// Every frame that is cut is refused, and what is behind the end is not read.
    #[test]
    fn a_frame_is_whole_or_refused() {
        let (frame, _) = own().write();
        for len in 0..frame.len() {
            assert!(read_lldp(&frame[..len]).0.is_err(), "{len} bytes");
        }
        let padded = [&frame[..], &[0xff; 40]].concat();
        assert!(read_lldp(&padded).0.is_ok());
        let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        assert!(read_lldp(&tagged).0.is_ok());
        let other = [&[1, 0x80, 0xc2, 0, 0, 0][..], &frame[6..]].concat();
        assert_eq!(read_lldp(&other).0, Err(LldpRefusal::NoLldp));
    }

    #[test]
    fn what_is_wrong_has_a_name() {
        let eth = [&LLDP_MAC[..], &[2; 6], &ETH_LLDP.to_be_bytes()].concat();
        let first: &[(u8, &[u8])] = &[(1, &[4, 1, 2]), (2, &[5, 1]), (3, &[0, 120])];
        let read = |more: &[(u8, &[u8])]| {
            let mut out = eth.clone();
            first.iter().chain(more).for_each(|(kind, value)| put(&mut out, *kind, &[value]));
            put(&mut out, tlv::END, &[]);
            let (read, unknown) = read_lldp(&out);
            read.map(|_| unknown)
        };
        assert_eq!(read(&[]), Ok(0));
        assert_eq!(read(&[(9, &[]), (126, &[1]), (127, &[1, 2, 3, 4])]), Ok(3));
        let short = |name| Err(LldpRefusal::Short(name));
        assert_eq!(read(&[(127, &[0, 4, 13, 12, 1])]), short("ISID_VLAN_ASGNS"));
        assert_eq!(read(&[(127, &[0, 4, 13])]), short("Own"));
        assert_eq!(read(&[(127, &[&[0, 4, 13, 11][..], &[0; 45]].concat())]), short("ELEMENT"));
        let odd = [&[0, 4, 13, 12][..], &[0; 34]].concat();
        assert_eq!(read(&[(127, &odd)]), Err(LldpRefusal::Length("ISID_VLAN_ASGNS")));
        assert_eq!(read(&[(8, &[0])]), Err(LldpRefusal::Length("Management address")));
        assert_eq!(read(&[(8, &[5, 1, 2])]), short("Management address"));
        assert_eq!(read(&[(7, &[0, 4])]), short("System capabilities"));
        assert_eq!(read(&[(3, &[0, 1])]), Err(LldpRefusal::Order));
    }
}
