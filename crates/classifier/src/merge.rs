//! Which subtable a rule is in when there are many masks: one with a coarser mask, which rules of
//! several masks share (the merged tuples of TupleMerge, Daly et al. 2019).
//!
//! A lookup costs a probe per subtable, and sets of five-tuple rules have thousands of masks. A
//! rule may be under any mask that its own mask contains: then its chain has rules of several
//! masks, which a lookup compares one by one. A rule whose chain is full goes to the next finer
//! mask.

use flow::{Mask, at};

/// Subtables up to which every mask has its own.
pub(crate) const UNMERGED_SUBTABLES_MAX: usize = 8;
/// Rules in a chain from which on it takes no rule of another mask.
pub(crate) const MERGED_CHAIN_RULES_MAX: usize = 24;

/// Prefix lengths that a coarse mask keeps of IPv4 addresses, by level.
const V4: [&[u32]; 3] = [&[24, 16, 8], &[32, 24, 16, 8], &[32, 28, 24, 20, 16, 12, 8, 4]];
/// Prefix lengths that a coarse mask keeps of IPv6 addresses, by level.
const V6: [&[u32]; 3] = [&[64, 48, 32, 16], &[128, 64, 48, 32, 16], &[128, 96, 64, 56, 48, 32, 16]];

/// The masks under which a rule with this mask may be, coarsest first.
pub(crate) fn coarser_masks(mask: &Mask) -> [Mask; 3] {
    [0, 1, 2].map(|level| coarse(mask, level))
}

fn coarse(mask: &Mask, level: usize) -> Mask {
    let mut out = *mask;
    for at in [at::IP_SRC, at::IP_DST] {
        let bits = cut(mask.u32(at).leading_ones(), V4[level]);
        out.set_u32(at, u32::MAX.checked_shl(32 - bits).unwrap_or(0));
    }
    for at in [at::IPV6_SRC, at::IPV6_DST] {
        let whole = u128::from(mask.u64(at)) << 64 | u128::from(mask.u64(at + 8));
        let bits = cut(whole.leading_ones(), V6[level]);
        let cut = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        out.set_u64(at, (cut >> 64) as u64);
        out.set_u64(at + 8, cut as u64);
    }
    for at in [at::TP_SRC, at::TP_DST] {
        let bits = mask.u16(at).leading_ones();
        let keep = [0, bits / 16 * 16, bits / 4 * 4][level];
        out.set_u16(at, u16::MAX.checked_shl(16 - keep).unwrap_or(0));
    }
    if level == 0 {
        out.set_u8(at::PROTO, 0);
        out.set_u16(at::TCP_FLAGS, 0);
    }
    out
}

/// The longest of these lengths that is not longer than `length`.
fn cut(length: u32, of: &[u32]) -> u32 {
    of.iter().copied().find(|l| *l <= length).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::Field;

    #[test]
    fn coarser_masks_get_finer_and_never_exceed_the_mask() {
        for (src, dst, port) in [(32, 32, 16), (31, 7, 9), (0, 24, 0), (13, 29, 16)] {
            let mut mask = Mask::ZERO;
            mask.set_u32(at::IP_SRC, u32::MAX.checked_shl(32 - src).unwrap_or(0));
            mask.set_u32(at::IP_DST, u32::MAX.checked_shl(32 - dst).unwrap_or(0));
            mask.set_u16(at::TP_DST, u16::MAX.checked_shl(16 - port).unwrap_or(0));
            Field::Ipv6Dst.unwildcard(&mut mask);
            Field::IpProto.unwildcard(&mut mask);
            let steps = coarser_masks(&mask);
            assert!(steps[0].subset_of(&steps[1]));
            assert!(steps[1].subset_of(&steps[2]));
            assert!(steps[2].subset_of(&mask));
        }
    }
}
