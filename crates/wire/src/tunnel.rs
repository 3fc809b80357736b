//! MPLS label stack entries (RFC 3032) and VXLAN (RFC 7348).

use crate::VXLAN_LEN;
use crate::field::header;

/// One MPLS label stack entry, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MplsLse(pub u32);

impl MplsLse {
    /// An entry of its parts (label: low 20 bits, tc: low 3 bits).
    #[inline]
    pub fn new(label: u32, tc: u8, bos: bool, ttl: u8) -> Self {
        let low = u32::from(tc & 7) << 9 | u32::from(bos) << 8 | u32::from(ttl);
        MplsLse((label & 0xf_ffff) << 12 | low)
    }

    /// The entry at the start of `b`; None when cut short.
    #[inline]
    pub fn read(b: &[u8]) -> Option<Self> {
        b.first_chunk().map(|raw| MplsLse(u32::from_be_bytes(*raw)))
    }

    /// The four bytes on the wire.
    #[inline]
    pub fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// Label, 20 bits.
    #[inline]
    pub fn label(self) -> u32 {
        self.0 >> 12
    }

    /// Traffic class, 3 bits.
    #[inline]
    pub fn tc(self) -> u8 {
        (self.0 >> 9) as u8 & 7
    }

    /// True if the entry is the bottom of the stack.
    #[inline]
    pub fn bos(self) -> bool {
        self.0 & 0x100 != 0
    }

    /// Time to live.
    #[inline]
    pub fn ttl(self) -> u8 {
        self.0 as u8
    }
}

header! {
    /// A VXLAN header.
    Vxlan, VXLAN_LEN, {
        /// Flags and reserved bits of the first word; 0x08000000: the VNI is valid.
        flags set_flags: u32, 0;
        /// VNI (24 bits) and a reserved byte.
        vni_word set_vni_word: u32, 4;
    }
}

impl<B: AsRef<[u8]>> Vxlan<B> {
    /// The flag that says that the VNI is valid.
    pub const VALID: u32 = 0x0800_0000;

    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= VXLAN_LEN
    }

    /// Network identifier; None when the flag says that there is none.
    #[inline]
    pub fn vni(&self) -> Option<u32> {
        (self.flags() & Self::VALID != 0).then(|| self.vni_word() >> 8)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Vxlan<B> {
    /// Writes the whole header for a network identifier (its low 24 bits).
    #[inline]
    pub fn set_vni(&mut self, vni: u32) {
        self.set_flags(Self::VALID);
        self.set_vni_word(vni << 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lse_parts() {
        let e = MplsLse::new(0xabcde, 5, true, 64);
        assert_eq!((e.label(), e.tc(), e.bos(), e.ttl()), (0xabcde, 5, true, 64));
        assert_eq!(e.to_bytes(), [0xab, 0xcd, 0xeb, 0x40]);
        assert_eq!(MplsLse::read(&e.to_bytes()), Some(e));
        assert_eq!(MplsLse::read(&[0; 3]), None);
    }

    #[test]
    fn vxlan_header() {
        let mut raw = [0u8; 8];
        assert_eq!(Vxlan::new(&raw).unwrap().vni(), None);
        Vxlan::new(&mut raw).unwrap().set_vni(0x123456);
        assert_eq!(raw, [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(Vxlan::new(&raw).unwrap().vni(), Some(0x123456));
    }
}
