//! Which mask a decision is stored under: never wider than the decision's own.

use super::store::PWORDS;
use crate::parse::{ARP, IPV6, RARP};
use flow::at;

/// A packet-side mask or key as words.
pub(crate) type Words = [u64; PWORDS];

/// All bits of lines 0..3 except a rule's payload.
pub(crate) const FULL: Words = {
    let mut m = [u64::MAX; PWORDS];
    m[7] = 0;
    m
};

/// Bytes of line 0 whose bits are kept as they are: there an exact mask would multiply flows.
const KEEP: [usize; 8] = [
    at::VLAN,
    at::VLAN + 1,
    at::VLAN1,
    at::VLAN1 + 1,
    at::TCP_FLAGS,
    at::TCP_FLAGS + 1,
    at::CT_STATE,
    at::FLAGS,
];

fn bytes(words: &Words) -> &[u8; PWORDS * 8] {
    // SAFETY: plain memory of the same size.
    unsafe { &*words.as_ptr().cast() }
}

fn bytes_mut(words: &mut Words) -> &mut [u8; PWORDS * 8] {
    // SAFETY: as above; every pattern is valid.
    unsafe { &mut *words.as_mut_ptr().cast() }
}

/// Makes masks alike: bytes that are looked at in part are taken whole (prefixes become multiples of
/// eight bits), likewise L4 ports; line 1 goes when an exact Ethertype implies that it is zero.
/// in_port and recirculation id always count.
pub(crate) fn quantise(mask: &Words, key: &Words) -> Words {
    let mut out = *mask;
    out[7] = 0;
    let b = bytes_mut(&mut out);
    for port in [at::TP_SRC, at::TP_DST] {
        if b[port] | b[port + 1] != 0 {
            b[port..port + 2].fill(0xff);
        }
    }
    b[at::IN_PORT..at::IN_PORT + 2].fill(0xff);
    b[at::RECIRC..at::RECIRC + 2].fill(0xff);
    for (i, byte) in b.iter_mut().enumerate() {
        if *byte != 0 && !KEEP.contains(&i) {
            *byte = 0xff;
        }
    }
    let k = bytes(key);
    let eth_type = u16::from_be_bytes([k[at::ETH_TYPE], k[at::ETH_TYPE + 1]]);
    let exact = b[at::ETH_TYPE] & b[at::ETH_TYPE + 1] == 0xff;
    if exact && !matches!(eth_type, IPV6 | ARP | RARP) {
        out[8..16].fill(0);
    }
    out
}

/// Does `a` look at no bit that `b` does not look at?
pub(crate) fn subset(a: &Words, b: &Words) -> bool {
    a.iter().zip(b).all(|(a, b)| a & !b == 0)
}

/// Bits set.
pub(crate) fn weight(m: &Words) -> u32 {
    m.iter().map(|w| w.count_ones()).sum()
}
