/// Random numbers from a seed (xorshift), so that what a test sends can be sent again. The seed is
/// not zero.
pub struct Noise(pub u64);

impl Default for Noise {
    fn default() -> Noise {
        Noise(0x9e37_79b9_7f4a_7c15)
    }
}

impl Noise {
    /// Any number; its upper bits are the better ones.
    #[allow(clippy::should_implement_trait)] // Never ends, and no test iterates.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`, which is not zero.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 11) % n as u64) as usize
    }

    /// `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}
