//! Fields and subfields as arguments of actions, written.

use crate::action_types::{NICIRA, VENDOR, act11, nxast};
use crate::oxm::{Oxm, port_to_10, put_tun_metadata};
use crate::prereq::VLAN_PRESENT;
use crate::{Subfield, Version};
use flow::{Field, TunMetadata};

/// Writes the parts of actions.
pub(crate) struct Put<'a> {
    pub version: Version,
    pub out: &'a mut Vec<u8>,
}

/// The form of a subfield's field in an action. Where the low 16 bits of an input port do, NXM's.
pub(crate) fn form(version: Version, s: Subfield) -> Oxm {
    match s.field {
        Field::InPort if s.ofs + s.bits <= 16 => Oxm::of(Version::V10, s.field),
        Field::InPort => Oxm::of(Version::V15, s.field),
        field => Oxm::of(version, field),
    }
}

/// The next run of ones in `mask`, at most 64 bits: (offset, bits).
fn segment(mask: u128) -> (u32, u32) {
    let ofs = mask.trailing_zeros();
    (ofs, (mask >> ofs).trailing_ones().min(64))
}

fn ones(bits: u32) -> u128 {
    u128::MAX >> (128 - bits)
}

impl Put<'_> {
    /// Appends an action whose body `fill` writes; pads it and sets its length.
    pub fn action(&mut self, head: &[u8], fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.out.len();
        self.out.extend(head);
        fill(self.out);
        let len = (self.out.len() - start).next_multiple_of(8);
        self.out.resize(start + len, 0);
        self.out[start + 2..start + 4].copy_from_slice(&(len as u16).to_be_bytes());
    }

    /// A standard action.
    pub fn standard(&mut self, kind: u16, body: &[u8]) {
        let [a, b] = kind.to_be_bytes();
        self.action(&[a, b, 0, 0], |out| {
            out.extend(body);
            out.resize(out.len() + 4usize.saturating_sub(body.len()), 0);
        });
    }

    /// A vendor's action.
    pub fn vendor(&mut self, vendor: u32, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
        let (v, k) = (vendor.to_be_bytes(), kind.to_be_bytes());
        let t = VENDOR.to_be_bytes();
        self.action(&[t[0], t[1], 0, 0, v[0], v[1], v[2], v[3], k[0], k[1]], fill);
    }

    /// A Nicira action.
    pub fn nicira(&mut self, kind: u16, body: &[u8]) {
        self.vendor(NICIRA, kind, |out| out.extend(body));
    }

    /// Sets bits of a field: OpenFlow's set-field (a mask is for 1.5 only).
    pub fn set_field(&mut self, field: Field, value: u128, mask: u128) {
        let oxm = Put::written_form(self.version, field);
        let [a, b] = act11::SET_FIELD.to_be_bytes();
        self.action(&[a, b, 0, 0], |out| put_entry(oxm, value, mask, out));
    }

    /// Sets a tunnel option: set-field has no mask before 1.5.
    pub fn set_tun_metadata(&mut self, t: &TunMetadata) {
        let standard = self.version >= Version::V15
            || (self.version >= Version::V12 && t.is_exact() && !t.mask.is_empty());
        if standard {
            let [a, b] = act11::SET_FIELD.to_be_bytes();
            self.action(&[a, b, 0, 0], |out| put_tun_metadata(t, out));
        } else {
            self.vendor(NICIRA, nxast::REG_LOAD2, |out| put_tun_metadata(t, out));
        }
    }

    /// Sets a whole field.
    pub fn set_whole(&mut self, field: Field, value: u128) {
        self.set_field(field, value, field.full());
    }

    /// An input port is written in NXM's form only, which set-field takes.
    fn written_form(version: Version, field: Field) -> Oxm {
        match field {
            Field::InPort => Oxm::of(Version::V10, field),
            _ => Oxm::of(version, field),
        }
    }

    /// Sets bits of a field by Nicira's loads: one for each run of bits.
    pub fn load_field(&mut self, field: Field, value: u128, mask: u128) {
        let oxm = Put::written_form(Version::V10, field);
        if oxm.class.experimenter().is_some() {
            return self.vendor(NICIRA, nxast::REG_LOAD2, |out| put_entry(oxm, value, mask, out));
        }
        let mut rest = match field {
            Field::IpTos if mask == 0xfc => 0xff,
            // A load has the twelve bits of the id: where they are set there is a tag.
            Field::VlanVid => mask & !u128::from(VLAN_PRESENT),
            _ => mask,
        };
        while rest != 0 {
            let (ofs, bits) = segment(rest);
            let dst = Subfield { field, ofs: ofs as u16, bits: bits as u16 };
            self.reg_load(dst, ((value >> ofs) & ones(bits)) as u64);
            rest &= !(ones(bits) << ofs);
        }
    }

    /// Nicira's load of a value into a subfield.
    fn reg_load(&mut self, dst: Subfield, value: u64) {
        let oxm = Oxm::of(Version::V10, dst.field);
        if oxm.class.experimenter().is_some() {
            let entry = (u128::from(value) << dst.ofs, ones(dst.bits.into()) << dst.ofs);
            let masked = dst.bits < 8 * u16::from(oxm.bytes);
            return self
                .vendor(NICIRA, nxast::REG_LOAD2, |out| put_masked(oxm, entry, masked, out));
        }
        let (dst, value) = match dst.field {
            Field::ArpOp if dst.ofs == 0 && dst.bits == 8 => (Subfield { bits: 16, ..dst }, value),
            Field::InPort => (
                Subfield { bits: dst.bits.min(16 - dst.ofs.min(15)), ..dst },
                u64::from(port_to_10(value as u32)),
            ),
            _ => (dst, value),
        };
        self.nx(nxast::REG_LOAD, |nx| nx.ofs_bits(dst).id(Version::V10, dst).u64(value));
    }

    /// A load as the version has it: Nicira's up to 1.4, a masked set-field in 1.5.
    pub fn load(&mut self, dst: Subfield, value: u64) {
        if self.version < Version::V15 {
            return self.reg_load(dst, value);
        }
        if let Field::TunMetadata(i) = dst.field {
            return self.set_tun_metadata(&TunMetadata::subfield(i, dst.ofs, dst.bits, value));
        }
        let mut mask = ones(dst.bits.into()) << dst.ofs;
        let mut value = u128::from(value) << dst.ofs;
        if dst.field == Field::VlanVid {
            // Set-field wants the present bit, and a flow that loads here has a tag.
            mask |= u128::from(VLAN_PRESENT);
            value |= u128::from(VLAN_PRESENT);
        }
        let oxm = Put::written_form(self.version, dst.field);
        let [a, b] = act11::SET_FIELD.to_be_bytes();
        // As in OVS the mask of a load is there unless it fills the field's bytes.
        let masked = mask.count_ones() < 8 * u32::from(oxm.bytes);
        self.action(&[a, b, 0, 0], |out| put_masked(oxm, (value, mask), masked, out));
    }

    /// A Nicira action with a body of parts.
    pub fn nx(&mut self, kind: u16, fill: impl FnOnce(Nx) -> Nx) {
        self.vendor(NICIRA, kind, |out| {
            fill(Nx(out));
        });
    }
}

fn put_entry(oxm: Oxm, value: u128, mask: u128, out: &mut Vec<u8>) {
    let full = match oxm.field {
        Field::IpTos => 0xfc,
        f => f.full(),
    };
    put_masked(oxm, (value, mask), mask & full != full, out);
}

fn put_masked(oxm: Oxm, (value, mask): (u128, u128), masked: bool, out: &mut Vec<u8>) {
    oxm.put_header(masked, out);
    oxm.put_value(value & mask, out);
    if masked {
        oxm.put_mask(mask, out);
    }
}

/// Appends the parts of a body one after the other.
pub(crate) struct Nx<'a>(&'a mut Vec<u8>);

impl<'a> Nx<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Nx(out)
    }
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    pub fn u8(self, v: u8) -> Self {
        self.bytes(&[v])
    }
    pub fn u16(self, v: u16) -> Self {
        self.bytes(&v.to_be_bytes())
    }
    pub fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_be_bytes())
    }
    pub fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_be_bytes())
    }
    pub fn zeros(self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }
    /// Offset and width in Nicira's packed form.
    pub fn ofs_bits(self, s: Subfield) -> Self {
        self.u16(s.ofs << 6 | (s.bits - 1))
    }
    /// The bare header of a subfield's field.
    pub fn id(self, version: Version, s: Subfield) -> Self {
        form(version, s).put_header(false, self.0);
        self
    }
}
