//! The instruction sets that a worker's kernels use.

/// An instruction set. Kernels of all levels give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// No special instructions: the twin of all others.
    #[default]
    Scalar,
    /// AVX2, BMI1, BMI2.
    Avx2,
    /// AVX-512 F, BW, VL, VBMI.
    Avx512,
}

impl Level {
    /// All levels, slowest first.
    pub const ALL: [Level; 3] = [Level::Scalar, Level::Avx2, Level::Avx512];

    /// The level's name in configuration and output.
    pub fn name(self) -> &'static str {
        ["scalar", "avx2", "avx512"][self as usize]
    }

    /// The level with this name.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|l| l.name() == name)
    }

    /// True if this CPU has the level's instructions.
    pub(crate) fn detected(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => has_avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
}
