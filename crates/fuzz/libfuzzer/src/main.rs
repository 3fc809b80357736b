//! One target of crate `fuzz` under libFuzzer: `WEFT_FUZZ_TARGET` says which, `WEFT_FUZZ_SEEDS`
//! where its seeds are written to. `scripts/fuzz.sh` builds and runs it.

#![no_main]

use fuzz::FuzzTarget;
use std::sync::OnceLock;

/// Counting what is covered, and the address sanitizer, cost about this much.
const SLOWNESS: u64 = 5;

static TARGET: OnceLock<&FuzzTarget> = OnceLock::new();

fn begin() -> &'static FuzzTarget {
    fuzz::set_slowness(SLOWNESS);
    let name = std::env::var("WEFT_FUZZ_TARGET").expect("WEFT_FUZZ_TARGET names a target");
    let target = FuzzTarget::find(&name).unwrap_or_else(|| panic!("no target {name}"));
    if let Some(dir) = std::env::var_os("WEFT_FUZZ_SEEDS") {
        for (i, seed) in target.seeds().iter().enumerate() {
            let path = std::path::Path::new(&dir).join(format!("seed-{i}"));
            std::fs::write(path, seed).expect("seeds can be written");
        }
    }
    target
}

libfuzzer_sys::fuzz_target!(
    init: { TARGET.get_or_init(begin); },
    |data: &[u8]| (TARGET.get_or_init(begin).run)(data)
);
