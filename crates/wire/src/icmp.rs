//! ICMP (RFC 792), ICMPv6 (RFC 4443), neighbour discovery (RFC 4861).

use crate::field::{header, set};
use crate::{ICMP_LEN, Mac, ND_LEN};

header! {
    /// What ICMP and ICMPv6 have in common. `new` asks for the first four bytes only.
    Icmp, 4, {
        /// Type.
        kind set_kind: u8, 0;
        /// Code.
        code set_code: u8, 1;
        /// Checksum; for ICMPv6 it covers the pseudo header too.
        checksum set_checksum: u16, 2;
    }
}

impl<B: AsRef<[u8]>> Icmp<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= 4
    }

    /// Identifier and sequence number of an echo message; None when cut short.
    pub fn echo(&self) -> Option<(u16, u16)> {
        let b = self.bytes().get(4..ICMP_LEN)?;
        Some((u16::from_be_bytes([b[0], b[1]]), u16::from_be_bytes([b[2], b[3]])))
    }
}

header! {
    /// A neighbour solicitation or advertisement with its options.
    Nd, ND_LEN, {
        /// Type, 135 or 136.
        kind set_kind: u8, 0;
        /// Code, 0.
        code set_code: u8, 1;
        /// Checksum with pseudo header.
        checksum set_checksum: u16, 2;
        /// Router, solicited and override flags (top three bits); the rest is reserved.
        flags set_flags: u32, 4;
        /// Target address.
        target set_target: [u8; 16], 8;
    }
}

impl<B: AsRef<[u8]>> Nd<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= ND_LEN
    }

    /// The options behind the target.
    pub fn options(&self) -> NdOptions<'_> {
        NdOptions { bytes: self.bytes(), at: ND_LEN }
    }

    /// The link-layer address in the first option of type `kind` that holds one.
    pub fn link_layer(&self, kind: u8) -> Option<Mac> {
        self.find(kind).map(|o| o.mac)
    }

    fn find(&self, kind: u8) -> Option<NdOption> {
        self.options().find(|o| o.kind == kind && o.len == 8)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Nd<B> {
    /// Overwrites the link-layer address in the first option of type `kind`; false without one.
    pub fn set_link_layer(&mut self, kind: u8, mac: Mac) -> bool {
        let Some(o) = self.find(kind) else { return false };
        set(self.0.as_mut(), o.at + 2, mac);
        true
    }
}

/// One ND option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdOption {
    /// Type.
    pub kind: u8,
    /// Bytes of the whole option, a multiple of 8, not 0.
    pub len: usize,
    /// Where it starts, from the start of the ICMPv6 header.
    pub at: usize,
    /// The six bytes behind type and length (the address in a link-layer option).
    pub mac: Mac,
}

/// Iterator over ND options; ends at the first one that is empty or cut short.
#[derive(Clone, Debug)]
pub struct NdOptions<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl NdOptions<'_> {
    /// True if the walk reached exactly the end, every option being whole. To be called after the
    /// iteration.
    pub fn complete(&self) -> bool {
        self.at == self.bytes.len()
    }
}

impl Iterator for NdOptions<'_> {
    type Item = NdOption;

    fn next(&mut self) -> Option<NdOption> {
        let rest = self.bytes.get(self.at..)?;
        let len = usize::from(*rest.get(1)?) * 8;
        if len == 0 || len > rest.len() {
            return None;
        }
        let mut mac = [0; 6];
        mac.copy_from_slice(&rest[2..8]);
        let option = NdOption { kind: rest[0], len, at: self.at, mac };
        self.at += len;
        Some(option)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ND_NS, ND_OPT_SLL, ND_OPT_TLL};

    #[test]
    fn link_layer_option_is_found_and_set() {
        let mut raw = vec![0u8; 24];
        raw[0] = ND_NS;
        raw.extend([99, 2]);
        raw.resize(40, 0);
        raw.extend([ND_OPT_SLL, 1, 1, 2, 3, 4, 5, 6]);
        let mut nd = Nd::new(&mut raw).unwrap();
        assert_eq!(nd.link_layer(ND_OPT_SLL), Some([1, 2, 3, 4, 5, 6]));
        assert!(nd.set_link_layer(ND_OPT_SLL, [9; 6]) && !nd.set_link_layer(ND_OPT_TLL, [8; 6]));
        let mut walk = nd.options();
        assert_eq!(walk.by_ref().count(), 2);
        assert!(walk.complete());
        assert_eq!(raw[42..], [9; 6]);
    }

    #[test]
    fn bad_options_end_the_walk() {
        let mut raw = vec![0u8; 24];
        raw.extend([ND_OPT_SLL, 0, 0, 0, 0, 0, 0, 0]);
        let nd = Nd::new(&raw).unwrap();
        let mut walk = nd.options();
        assert!(walk.next().is_none() && !walk.complete());
        raw[25] = 2;
        assert_eq!(Nd::new(&raw).unwrap().link_layer(ND_OPT_SLL), None, "cut short");
    }

    #[test]
    fn echo() {
        assert_eq!(Icmp::new([8, 0, 0, 0, 1, 2, 3, 4]).unwrap().echo(), Some((0x102, 0x304)));
        assert_eq!(Icmp::new([8, 0, 0, 0, 1]).unwrap().echo(), None);
    }
}
