/// Random numbers from a seed, the same on every run: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
/// Unlike those of [`crate::Noise`], neighbouring seeds have nothing in common.
pub struct Rng(u64);

impl Rng {
    /// Starts from any seed.
    pub fn new(seed: u64) -> Rng {
        // Not next to each other, or the numbers of one seed would be those of the next one,
        // shifted.
        Rng(Rng(seed).next())
    }

    /// Any number.
    #[allow(clippy::should_implement_trait)] // Never ends, and no test iterates.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True in `n` of a hundred cases.
    pub fn percent(&mut self, n: usize) -> bool {
        self.below(100) < n
    }

    /// One of these, which are not none.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// An index, each as often as its weight says.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (i, w) in weights.iter().enumerate() {
            match left.checked_sub(*w) {
                Some(rest) => left = rest,
                None => return i,
            }
        }
        0
    }
}
