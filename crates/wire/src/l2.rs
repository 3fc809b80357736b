//! Ethernet, VLAN tags, ARP.

use crate::field::{get, header};
use crate::{ARP_LEN, ETH_LEN, ETH_QINQ, ETH_VLAN, Mac, VLAN_LEN};

header! {
    /// An Ethernet header without tags (IEEE 802.3).
    Ethernet, ETH_LEN, {
        /// Destination address.
        dst set_dst: Mac, 0;
        /// Source address.
        src set_src: Mac, 6;
        /// Length or type; the first tag's TPID when tagged.
        ethertype set_ethertype: u16, 12;
    }
}

impl<B: AsRef<[u8]>> Ethernet<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= ETH_LEN
    }
}

/// One VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority (3 bits), DEI (1 bit), VLAN id (12 bits).
    pub tci: u16,
}

impl VlanTag {
    /// VLAN id, 0..4096.
    #[inline]
    pub fn vid(self) -> u16 {
        self.tci & 0xfff
    }

    /// Priority code point, 0..8.
    #[inline]
    pub fn pcp(self) -> u8 {
        (self.tci >> 13) as u8
    }

    /// The four bytes as they stand behind the addresses.
    #[inline]
    pub fn to_bytes(self) -> [u8; 4] {
        let (p, t) = (self.tpid.to_be_bytes(), self.tci.to_be_bytes());
        [p[0], p[1], t[0], t[1]]
    }
}

/// The VLAN tag whose TPID stands at byte `at` of the frame (12, 16, ...), if there is a whole one.
#[inline]
pub fn vlan_at(frame: &[u8], at: usize) -> Option<VlanTag> {
    let raw = frame.get(at..at + VLAN_LEN)?;
    let tpid: u16 = get(raw, 0);
    matches!(tpid, ETH_VLAN | ETH_QINQ).then(|| VlanTag { tpid, tci: get(raw, 2) })
}

/// Where the network header of a frame starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L3 {
    /// The Ethertype behind the last tag.
    pub ethertype: u16,
    /// Offset of the network header from the start of the frame.
    pub at: usize,
    /// How many VLAN tags were skipped.
    pub tags: usize,
}

/// Skips all VLAN tags; None when the frame ends inside the Ethernet header or a tag.
pub fn l3(frame: &[u8]) -> Option<L3> {
    let (mut at, mut tags) = (12, 0);
    loop {
        let ethertype: u16 = get(frame.get(at..at + 2)?, 0);
        if !matches!(ethertype, ETH_VLAN | ETH_QINQ) {
            return Some(L3 { ethertype, at: at + 2, tags });
        }
        at += VLAN_LEN;
        tags += 1;
    }
}

header! {
    /// ARP for Ethernet and IPv4 (RFC 826).
    Arp, ARP_LEN, {
        /// Hardware type, 1 for Ethernet.
        htype set_htype: u16, 0;
        /// Protocol type, 0x0800.
        ptype set_ptype: u16, 2;
        /// Bytes of a hardware address, 6.
        hlen set_hlen: u8, 4;
        /// Bytes of a protocol address, 4.
        plen set_plen: u8, 5;
        /// Operation.
        op set_op: u16, 6;
        /// Sender hardware address.
        sha set_sha: Mac, 8;
        /// Sender protocol address.
        spa set_spa: [u8; 4], 14;
        /// Target hardware address.
        tha set_tha: Mac, 18;
        /// Target protocol address.
        tpa set_tpa: [u8; 4], 24;
    }
}

impl<B: AsRef<[u8]>> Arp<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= ARP_LEN
    }

    /// True if it is ARP between Ethernet and IPv4, by its types and lengths.
    #[inline]
    pub fn is_ethernet_ipv4(&self) -> bool {
        self.bytes()[..6] == [0, 1, 8, 0, 6, 4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_fields() {
        let mut raw = [0u8; 14];
        let mut e = Ethernet::new(&mut raw).unwrap();
        e.set_dst([1, 2, 3, 4, 5, 6]);
        e.set_ethertype(0x0800);
        assert_eq!((e.dst(), e.ethertype()), ([1, 2, 3, 4, 5, 6], 0x0800));
        assert_eq!(raw[12..], [8, 0]);
        assert!(Ethernet::new(&raw[..13]).is_none());
    }

    #[test]
    fn tags_are_skipped_and_truncation_is_seen() {
        let mut f = vec![0u8; 12];
        f.extend([0x88, 0xa8, 0x20, 5, 0x81, 0, 0, 7, 8, 0]);
        assert_eq!(l3(&f), Some(L3 { ethertype: 0x0800, at: 22, tags: 2 }));
        let outer = vlan_at(&f, 12).unwrap();
        assert_eq!((outer.vid(), outer.pcp(), outer.to_bytes()), (5, 1, [0x88, 0xa8, 0x20, 5]));
        assert_eq!(vlan_at(&f, 20), None);
        for cut in 0..f.len() {
            assert_eq!(l3(&f[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn arp_kind() {
        let mut raw = [0u8; 28];
        assert!(!Arp::new(&raw).unwrap().is_ethernet_ipv4());
        raw[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        assert!(Arp::new(&raw).unwrap().is_ethernet_ipv4());
        assert!(Arp::new(&raw[..27]).is_none());
    }
}
