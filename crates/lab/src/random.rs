//! Random choices that a seed repeats.

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator: one seed gives the same numbers on every machine.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// One of the choices, as often as its weight says. There is at least one weight above 0.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u32, T)]) -> T {
        let mut left = self.below(choices.iter().map(|c| c.0).sum());
        for (weight, choice) in choices {
            match left.checked_sub(*weight) {
                None => return *choice,
                Some(rest) => left = rest,
            }
        }
        unreachable!("a number below the sum of all weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_weights_count() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.weighted(&[(3, 'a'), (0, 'b'), (1, 'c')])).collect::<String>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(!draw(1).contains('b'));
        assert!((680..820).contains(&draw(1).matches('a').count()));
    }
}
