//! Keyed hashes of tuples. Attackers choose tuples, so the key is random: NH of UMAC (RFC 4418,
//! section 5.2) with 64-bit words, whose collisions are as rare as a random key's can be.

use crate::tuple::{Tuple, number};
use std::hash::{BuildHasher, RandomState};

/// The key of the hashes of one table.
pub struct Secret([u64; 9]);

impl Secret {
    /// A random key.
    pub fn random() -> Self {
        Secret(std::array::from_fn(|i| RandomState::new().hash_one(i)))
    }

    /// A key that is always the same: twins must hash alike.
    pub fn fixed() -> Self {
        Secret(std::array::from_fn(|i| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(2 * i as u64 + 1)))
    }

    #[inline]
    fn pair(&self, a: u64, b: u64, at: usize) -> u128 {
        u128::from(a.wrapping_add(self.0[at])) * u128::from(b.wrapping_add(self.0[at + 1]))
    }

    #[inline]
    fn fold(&self, sum: u128) -> u64 {
        let mixed = u128::from(sum as u64 ^ (sum >> 64) as u64) * u128::from(self.0[8] | 1);
        mixed as u64 ^ (mixed >> 64) as u64
    }

    /// The hash of a tuple, which is also that of its reverse.
    #[inline]
    pub fn hash(&self, t: &Tuple) -> u32 {
        let (proto, zone) = (u64::from(t.proto), u64::from(t.zone));
        let a = (t.src, t.sport);
        let b = (t.dst, t.dport);
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        if !t.v6 {
            let end = |(addr, port): (u128, u16)| (addr as u64) << 16 | u64::from(port);
            return self.hash_ends(end(a), end(b), zone, proto);
        }
        let ports = u64::from(a.1) << 32 | u64::from(b.1) << 48;
        let sum = self
            .pair(a.0 as u64, b.0 as u64, 0)
            .wrapping_add(self.pair(ports | zone << 8 | proto, 0, 2))
            .wrapping_add(self.pair((a.0 >> 64) as u64, (b.0 >> 64) as u64, 4));
        (self.fold(sum) >> 32) as u32
    }

    /// [`Secret::hash`] of an IPv4 tuple of a protocol with ports: addresses and ports, the
    /// source's in the upper half; zone and protocol.
    #[inline(always)]
    pub fn hash_v4(&self, addrs: u64, ports: u32, zone_proto: u32) -> u32 {
        let a = addrs >> 32 << 16 | u64::from(ports >> 16);
        let b = addrs << 32 >> 16 | u64::from(ports & 0xffff);
        self.hash_ends(
            a.min(b),
            a.max(b),
            u64::from(zone_proto >> 16),
            u64::from(zone_proto >> 8 & 0xff),
        )
    }

    /// The hash of the ends of an IPv4 tuple, each an address (upper 32 of 48 bits) and a port, the
    /// lesser one first.
    #[inline(always)]
    fn hash_ends(&self, a: u64, b: u64, zone: u64, proto: u64) -> u32 {
        (self.fold(self.pair(a << 16 | zone, b << 16 | proto, 0)) >> 32) as u32
    }

    /// The hash of a tuple in its direction: that of its reverse differs.
    pub fn hash_directed(&self, t: &Tuple) -> u64 {
        let rest = u64::from(t.sport) << 48
            | u64::from(t.dport) << 32
            | u64::from(t.zone) << 8
            | u64::from(t.proto);
        let sum = self
            .pair(t.src as u64, t.dst as u64, 0)
            .wrapping_add(self.pair((t.src >> 64) as u64, rest, 2))
            .wrapping_add(self.pair((t.dst >> 64) as u64, 0, 4));
        self.fold(sum)
    }

    /// The hash of a tuple and of the addresses that it is translated to.
    pub fn hash_translation(&self, t: &Tuple, nat: &action::Nat) -> u64 {
        let (src, dst) = nat.addresses.map_or((0, 0), |(a, b)| (number(&a), number(&b)));
        let range = Tuple { src, dst, ..Tuple::default() };
        self.hash_directed(t) ^ self.hash_directed(&range).rotate_left(1)
    }
}
