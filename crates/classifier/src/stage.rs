//! The order in which a subtable compares a key, in stages: metadata, L2, L3, L4.
//!
//! If a lookup finds after a stage that no rule agrees so far, it leaves the bits of later stages
//! wildcarded: a packet that matches no rule because of its port does not depend on its addresses.

use flow::{Key, Mask, at};

/// Number of stages.
pub(crate) const STAGES: usize = 4;

/// Bits of one word that are compared together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub word: u8,
    pub mask: u64,
}

/// Byte ranges of the stages after the first. Bytes in none of them are metadata.
const L2: &[(usize, usize)] = &[(at::ETH_DST, at::IP_SRC), (at::VLAN1, at::IN_PORT)];
const L3: &[(usize, usize)] =
    &[(at::IP_SRC, at::TP_SRC), (at::PROTO, at::TCP_FLAGS), (at::IPV6_SRC, at::TUN_DST)];
const L4: &[(usize, usize)] = &[(at::TP_SRC, at::PROTO), (at::TCP_FLAGS, at::VLAN1)];

fn region(ranges: &[(usize, usize)]) -> Mask {
    let mut mask = Key::ZERO;
    for (from, to) in ranges {
        mask.bytes_mut()[*from..*to].fill(0xff);
    }
    mask
}

/// The significant bits of `mask` in the order of stages, and where each stage that is not empty
/// ends.
pub(crate) fn steps(mask: &Mask) -> (Box<[Step]>, Box<[usize]>) {
    let (l2, l3, l4) = (region(L2), region(L3), region(L4));
    let mut meta = Key { words: [!0; flow::WORDS] };
    for later in [&l2, &l3, &l4] {
        meta.words.iter_mut().zip(&later.words).for_each(|(m, l)| *m &= !l);
    }
    let (mut steps, mut ends) = (Vec::new(), Vec::new());
    for stage in [meta, l2, l3, l4] {
        let part = mask.masked(&stage);
        let before = steps.len();
        steps.extend(
            (0..flow::WORDS)
                .filter(|i| part.words[*i] != 0)
                .map(|i| Step { word: i as u8, mask: part.words[i] }),
        );
        if steps.len() > before {
            ends.push(steps.len());
        }
    }
    if ends.is_empty() {
        ends.push(0);
    }
    (steps.into(), ends.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::Field;

    #[test]
    fn steps_cover_the_mask_once() {
        let mut mask = Key::ZERO;
        for f in [Field::TcpDst, Field::Ipv4Src, Field::IpProto, Field::EthType, Field::InPort] {
            f.unwildcard(&mut mask);
        }
        let (steps, ends) = steps(&mask);
        let mut sum = Key::ZERO;
        for s in &steps {
            assert_eq!(sum.words[s.word as usize] & s.mask, 0);
            sum.words[s.word as usize] |= s.mask;
        }
        assert_eq!(sum, mask);
        assert_eq!(&*ends, [1, 2, 4, 5]);
    }

    #[test]
    fn catch_all_has_one_empty_stage() {
        let (steps, ends) = steps(&Key::ZERO);
        assert!(steps.is_empty());
        assert_eq!(&*ends, [0]);
    }
}
