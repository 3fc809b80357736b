//! A daemon that crashes, in whatever thread, is started again by its monitor, and traffic goes on.

mod lab;

use lab::*;
use testkit::{Netns, Switch, SwitchConfig, privileged};

/// A monitored daemon with two hosts that talk; `crash` gets it and its process, and traffic is
/// there afterwards.
fn survives(crash: impl Fn(&Switch, i32)) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let mut config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    config.args.extend(["--monitor".into(), "--enable-dummy".into()]);
    let sw = Switch::start(&ns, config).unwrap();
    add_bridge(&sw, "br0");
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    ping(&a, 2);
    let old = sw.daemon_pid().unwrap();
    let pinger = Pinger::start(&a, addr(2));
    crash(&sw, old);
    wait_for("another daemon", || sw.daemon_pid().is_some_and(|pid| pid != old));
    ping(&a, 2);
    let (sent, answered) = pinger.stop();
    assert!(answered > 0 && answered <= sent);
    let log = sw.log();
    assert!(log.contains(&format!("1 crashes: pid {old} died, killed (")), "{log}");
    assert!(log.contains(", restarting"), "{log}");
}

#[test]
fn a_panic_of_a_packet_thread_ends_the_process_and_traffic_returns() {
    survives(|sw, _| {
        appctl(sw, "weft/panic-next-thread");
        // The first port to be polled starts a PMD thread. The daemon does not live to confirm
        // that.
        let port = "--no-wait add-port br0 n1 -- set interface n1 type=dummy-pmd";
        vsctl(sw, &format!("{port} -- set open_vswitch . other_config:pmd-cpu-mask=1"));
        wait_for("the panic in the log", || {
            let log = sw.log();
            log.contains("|backtrace(pmd-c00)|EMER|panicked at ")
                && log.contains("asked for by weft/panic-next-thread")
                && log.contains("killed (Aborted)")
        });
    });
}

#[test]
fn a_segmentation_fault_under_traffic_is_survived() {
    survives(|sw, pid| {
        // SAFETY: takes numbers; the process is the daemon of this test.
        unsafe { libc::kill(pid, libc::SIGSEGV) };
        wait_for("the crash in the log", || sw.log().contains("killed (Segmentation fault)"));
    });
}
