//! The keyed hash of masked words: multiply and fold, with a secret per process.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Two secret words; the multiplier is odd, and has bits in both halves.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    seed: u64,
    factor: u64,
}

impl Secret {
    /// The process's secret, drawn once from the system's randomness.
    pub fn get() -> Secret {
        static SECRET: OnceLock<Secret> = OnceLock::new();
        *SECRET.get_or_init(|| {
            let draw = |n: u64| RandomState::new().hash_one(n);
            Secret { seed: draw(1), factor: draw(2) | 0x8000_0001_0000_0001 }
        })
    }

    /// The hash of no words.
    #[inline]
    pub fn start(self) -> u64 {
        self.seed
    }

    /// Extends the hash `h` by `word`.
    #[inline]
    pub fn mix(self, h: u64, word: u64) -> u64 {
        let product = u128::from(h ^ word) * u128::from(self.factor);
        (product as u64 ^ (product >> 64) as u64).wrapping_add(self.seed)
    }
}
