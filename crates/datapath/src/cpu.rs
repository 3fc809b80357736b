//! Which instructions the kernels of a worker use.

use std::sync::OnceLock;

/// An instruction set; kernels of all levels give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Plain Rust: the twin of all others.
    #[default]
    Scalar,
    /// AVX2, BMI1, BMI2.
    Avx2,
    /// AVX-512 F, BW, VL, VBMI.
    Avx512,
}

/// Environment variable that forces a level.
pub const LEVEL_VARIABLE: &str = "WEFT_LEVEL";

impl Level {
    /// All, slowest first.
    pub const ALL: [Level; 3] = [Level::Scalar, Level::Avx2, Level::Avx512];

    /// As people write it.
    pub fn name(self) -> &'static str {
        ["scalar", "avx2", "avx512"][self as usize]
    }

    /// The level of that name.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|l| l.name() == name)
    }

    /// Has this CPU what the level needs? AVX-512 must also have agreed with its twins on a
    /// corpus, because it has not run on every kind of machine.
    pub fn available(self) -> bool {
        static AGREES: OnceLock<bool> = OnceLock::new();
        let agrees = || crate::parse::agrees(self) && crate::lookup::agrees(self);
        self.detected() && (self < Level::Avx512 || *AGREES.get_or_init(agrees))
    }

    /// Has this CPU the instructions?
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

    /// What workers use unless they are told otherwise: `WEFT_LEVEL` if this CPU has it, else AVX2
    /// or scalar. AVX-512 is never the default: no machine of ours has measured it.
    pub fn preferred() -> Level {
        static PREFERRED: OnceLock<Level> = OnceLock::new();
        *PREFERRED.get_or_init(|| {
            let forced = std::env::var(LEVEL_VARIABLE).ok().and_then(|v| Level::named(&v));
            let default = if Level::Avx2.available() { Level::Avx2 } else { Level::Scalar };
            forced.filter(|l| l.available()).unwrap_or(default)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_that_is_asked_for_is_used() {
        let asked = std::env::var(LEVEL_VARIABLE).ok();
        let best = Level::Avx2.available().then_some(Level::Avx2);
        let expected = asked.map_or(best.unwrap_or_default().name().into(), |name| name);
        assert_eq!(
            Level::preferred().name(),
            expected,
            "a CPU that lacks what {LEVEL_VARIABLE} says"
        );
    }
}
