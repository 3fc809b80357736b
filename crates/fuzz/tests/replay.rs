//! Every target over its seeds, and over copies of them with changed, lost and doubled bytes. The
//! changes are the same each time, unless `WEFT_FUZZ_SEED` says otherwise; `WEFT_FUZZ_RUNS` says
//! how many for each target.

use fuzz::{FuzzTarget, TARGETS};
use testkit::Noise;

/// Changed copies for each target: seconds in a debug build.
const RUNS: usize = 1500;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// One to eight changes.
fn change(noise: &mut Noise, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = seeds[noise.below(seeds.len())].clone();
    for _ in 0..1 + noise.below(8) {
        let at = noise.below(data.len() + 1).min(data.len().saturating_sub(1));
        match noise.below(7) {
            0 if !data.is_empty() => data[at] = noise.next() as u8,
            1 if !data.is_empty() => data[at] ^= 1 << noise.below(8),
            2 if !data.is_empty() => data[at] = [0, 1, 0x7f, 0x80, 0xff][noise.below(5)],
            3 => data.truncate(at),
            4 => {
                let n = 1 + noise.below(16);
                let more = noise.bytes(n);
                data.splice(at..at, more);
            }
            5 => {
                let other = &seeds[noise.below(seeds.len())];
                let from = noise.below(other.len() + 1);
                data.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let end = (at + 1 + noise.below(32)).min(data.len());
                let piece = data[at.min(end)..end].to_vec();
                data.splice(at..at, piece);
            }
        }
    }
    data
}

fn replay(target: &FuzzTarget) {
    let seeds = target.seeds();
    assert!(!seeds.is_empty(), "{}", target.name);
    seeds.iter().for_each(|s| (target.run)(s));
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ setting("WEFT_FUZZ_SEED", 0) as u64);
    for _ in 0..setting("WEFT_FUZZ_RUNS", RUNS) {
        let data = change(&mut noise, &seeds);
        let again = || eprintln!("{}: {}", target.name, testkit::to_hex(&data));
        let failed = Failed(again);
        (target.run)(&data);
        std::mem::forget(failed);
    }
}

/// Says which input it was when a target panics.
struct Failed<F: FnMut()>(F);

impl<F: FnMut()> Drop for Failed<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

macro_rules! replays {
    ($($name:ident $target:literal)*) => {
        $(#[test]
        fn $name() {
            replay(FuzzTarget::find($target).expect("a target"));
        })*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!([$($target),*].len(), TARGETS.len());
        }
    };
}

replays! {
    openflow "openflow"
    parse "parse"
    tunnel "tunnel"
    ring_split "ring-split"
    ring_packed "ring-packed"
    vhost_user "vhost-user"
    memif "memif"
    json "json"
    netlink "netlink"
    connections "connections"
    gso "gso"
    lldp "lldp"
    action_text "action-text"
}

#[test]
fn seeds_are_small() {
    for target in &TARGETS {
        let bytes: usize = target.seeds().iter().map(Vec::len).sum();
        assert!(bytes < 16_000, "{}: {bytes}", target.name);
    }
}
