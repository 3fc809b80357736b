//! What tests of hardware offload share.

use super::appctl;
use std::path::PathBuf;
use std::process::Command;
use testkit::Switch;

/// The lab's generator, which is the emulated adapter too: the plug-in's file, built if it is not
/// there.
pub fn generator() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/generator/build.sh");
    let out = Command::new(script).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())
}

/// The reasons of `offload/show` add up to the number of megaflows: each megaflow has one.
pub fn reasons_add_up(sw: &Switch) {
    let all = appctl(sw, "offload/show");
    let (_, list) = all.split_once("megaflows: ").unwrap();
    let mut lines = list.lines();
    let total: u64 = lines.next().unwrap().parse().unwrap();
    let sum: u64 =
        lines.map(|l| l.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(total, sum, "{all}");
}
