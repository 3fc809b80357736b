//! The emulated copy engine under DPDK's own test of dmadev drivers.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn engine() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/engine/build.sh");
    let out = Command::new(script).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())
}

/// What `dmadev_autotest` says of an engine with these arguments (and of DPDK's skeleton, which it
/// makes itself).
fn autotest(args: &str) -> String {
    let mut c = Command::new("dpdk-test");
    c.args(["--lcores=0@0,1@0", "--no-huge", "--no-shconf", "-m", "256", "--no-pci"]);
    c.args(["--no-telemetry", "-d"]).arg(engine());
    c.args(["--vdev", &format!("dma_weftemu0,{args}")]);
    let mut child =
        c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"dmadev_autotest\nquit\n").unwrap();
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
}

#[test]
fn it_passes_dpdks_own_test() {
    for args in ["mode=thread,check=1", "mode=lazy,check=1", "mode=lazy,wq=64,latency=0,gbps=1000"]
    {
        let said = autotest(args);
        assert!(said.contains("Test OK") && said.contains("dma_weftemu0"), "{args}: {said}");
        assert!(said.contains("DMA Dev 0: Running error handling Tests"), "{args}: {said}");
    }
}

/// The test notices an engine that fails: it is one that can be failed.
#[test]
fn an_engine_with_errors_fails_it() {
    assert!(autotest("mode=lazy,error=7").contains("Test Failed"));
}

#[test]
fn arguments_are_checked() {
    for args in ["mode=fast", "wq=0", "latency=-1", "desc=31", "unknown=1", "gbps=x"] {
        let said = autotest(args);
        assert!(!said.contains("dmadev instance 0 [dma_weftemu0]"), "{args}: {said}");
    }
}
