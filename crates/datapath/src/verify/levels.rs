//! Which levels workers may use: the CPU must have their instructions, and kernels must agree with
//! their twins.

use super::parse_kernels;
use crate::cpu::Level;
use crate::lookup::compare;
use std::sync::OnceLock;

/// Environment variable that forces a level.
pub const LEVEL_VARIABLE: &str = "WEFT_LEVEL";

/// True if this CPU has the instructions of the level. AVX-512 must also have agreed with its twins
/// on a corpus, because it has not run on every kind of machine.
pub fn is_available(level: Level) -> bool {
    static AGREES: OnceLock<bool> = OnceLock::new();
    let agrees = || parse_kernels::agrees(level) && compare::agrees(level);
    level.detected() && (level < Level::Avx512 || *AGREES.get_or_init(agrees))
}

/// The level that workers use by default: that of `WEFT_LEVEL` if this CPU has it, else AVX2 or
/// scalar. AVX-512 is not the default, as it gains nothing where it was measured
/// (docs/decisions/0005).
pub fn preferred_level() -> Level {
    static PREFERRED: OnceLock<Level> = OnceLock::new();
    *PREFERRED.get_or_init(|| {
        let forced = std::env::var(LEVEL_VARIABLE).ok().and_then(|v| Level::named(&v));
        let default = if is_available(Level::Avx2) { Level::Avx2 } else { Level::Scalar };
        forced.filter(|l| is_available(*l)).unwrap_or(default)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_that_is_asked_for_is_used() {
        let asked = std::env::var(LEVEL_VARIABLE).ok();
        let best = is_available(Level::Avx2).then_some(Level::Avx2);
        let expected = asked.map_or(best.unwrap_or_default().name().into(), |name| name);
        assert_eq!(
            preferred_level().name(),
            expected,
            "a CPU that lacks what {LEVEL_VARIABLE} says"
        );
    }
}
