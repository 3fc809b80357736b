//! The mask under which a decision is stored: it has all bits of the decision's own mask.

use crate::batch::keys::{PWORDS, Words};
use crate::parse::scalar::{ARP, IPV6, RARP};
use flow::at;

/// All bits of lines 0 to 3 except a megaflow's payload.
pub(crate) const FULL: Words = {
    let mut m = [u64::MAX; PWORDS];
    m[7] = 0;
    m
};

/// Bytes of line 0 whose masks are not widened to whole bytes: exact values of these would multiply
/// megaflows.
const EXACT_BYTES: [usize; 8] = [
    at::VLAN,
    at::VLAN + 1,
    at::VLAN1,
    at::VLAN1 + 1,
    at::TCP_FLAGS,
    at::TCP_FLAGS + 1,
    at::CT_STATE,
    at::FLAGS,
];

/// [`EXACT_BYTES`], as bits of a key's words.
const EXACT_BITS: Words = {
    let mut words = [0; PWORDS];
    let mut i = 0;
    while i < EXACT_BYTES.len() {
        let mut one = [0; 8];
        one[EXACT_BYTES[i] % 8] = 0xff;
        words[EXACT_BYTES[i] / 8] |= u64::from_ne_bytes(one);
        i += 1;
    }
    words
};

/// The word with 0xff for every byte that is not zero.
fn whole_bytes(word: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high = (((word & LOW) + LOW) | word) & !LOW;
    (high >> 7) * 0xff
}

fn bytes(words: &Words) -> &[u8; PWORDS * 8] {
    // SAFETY: plain memory of the same size.
    unsafe { &*words.as_ptr().cast() }
}

fn bytes_mut(words: &mut Words) -> &mut [u8; PWORDS * 8] {
    // SAFETY: as above; every pattern is valid.
    unsafe { &mut *words.as_mut_ptr().cast() }
}

/// The mask of a megaflow that matches on nothing but the input port and the recirculation id.
pub(crate) const PORT_ONLY: Words = {
    let mut line = [0u8; 64];
    let mut i = 0;
    while i < 4 {
        line[at::RECIRC + i] = 0xff;
        i += 1;
    }
    (line[at::IN_PORT], line[at::IN_PORT + 1]) = (0xff, 0xff);
    let mut words = [0; PWORDS];
    let mut w = 0;
    while w < 8 {
        let (bytes, _) = line.split_at(8 * w + 8);
        words[w] = u64::from_ne_bytes(*bytes.last_chunk().expect("eight bytes"));
        w += 1;
    }
    words
};

/// A decision's mask with the bits that every megaflow has (in_port, recirculation id), and without
/// line 1 where an exact Ethertype implies that it is zero.
pub(crate) fn exact(mask: &Words, key: &Words) -> Words {
    let mut out = *mask;
    out[7] = 0;
    let b = bytes_mut(&mut out);
    b[at::IN_PORT..at::IN_PORT + 2].fill(0xff);
    b[at::RECIRC..at::RECIRC + 4].fill(0xff);
    let (b, k) = (bytes(&out), bytes(key));
    let eth_type = u16::from_be_bytes([k[at::ETH_TYPE], k[at::ETH_TYPE + 1]]);
    let exact = b[at::ETH_TYPE] & b[at::ETH_TYPE + 1] == 0xff;
    if exact && !matches!(eth_type, IPV6 | ARP | RARP) {
        out[8..16].fill(0);
    }
    out
}

/// Widens a mask to whole bytes, so that there are fewer different masks: prefixes become multiples
/// of eight bits; L4 ports likewise.
pub(crate) fn whole_bytes_mask(mask: &Words) -> Words {
    let mut out = *mask;
    let b = bytes_mut(&mut out);
    for port in [at::TP_SRC, at::TP_DST] {
        if b[port] | b[port + 1] != 0 {
            b[port..port + 2].fill(0xff);
        }
    }
    for (word, kept) in out.iter_mut().zip(&EXACT_BITS) {
        *word |= whole_bytes(*word) & !kept;
    }
    out
}

/// True if each bit of `a` is set in `b`.
pub(crate) fn subset(a: &Words, b: &Words) -> bool {
    a.iter().zip(b).all(|(a, b)| a & !b == 0)
}

/// Number of bits that are set.
pub(crate) fn weight(m: &Words) -> u32 {
    m.iter().map(|w| w.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_whole_except_the_kept_ones() {
        let mut m = [0; PWORDS];
        let b = bytes_mut(&mut m);
        (b[at::IP_DST + 1], b[at::VLAN], b[at::TP_DST], b[at::IPV6_SRC + 9]) =
            (0x10, 0x0f, 1, 0x80);
        let out = whole_bytes_mask(&exact(&m, &[0; PWORDS]));
        let b = bytes(&out);
        assert_eq!((b[at::IP_DST + 1], b[at::VLAN], b[at::IPV6_SRC + 9]), (0xff, 0x0f, 0xff));
        assert_eq!([b[at::TP_DST], b[at::TP_DST + 1], b[at::IN_PORT], b[at::RECIRC]], [0xff; 4]);
        assert_eq!(weight(&out), 8 + 4 + 8 + 16 + 16 + 32);
        assert!(subset(&m, &out));
    }
}
