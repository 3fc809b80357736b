//! `--standby`: a daemon that gets ready beside the switch that runs, and the start that makes it
//! the switch.

mod sandbox;

use sandbox::{Sandbox, is_alive, kill, wait_for};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A database of a switch whose hugepages no other process has.
fn sandbox() -> Sandbox {
    let s = Sandbox::new();
    s.vsctl("--no-wait set open . other_config:dpdk-extra=--no-huge");
    s
}

/// Starts a process that stands by; its id.
fn stand_by(s: &Sandbox) -> u32 {
    let output = s.weftd("--detach --standby").output().unwrap();
    assert!(output.status.success(), "{output:?}\n{}", s.log());
    let ready = "vswitchd|INFO|standing by until";
    let log = s.log();
    let said = log.lines().filter(|line| line.contains(ready)).count();
    assert!(said > 0 && s.path("weft-standby.sock").exists(), "{log}");
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let here = fs::read_link(entry.path().join("cwd")).ok()? == s.dir.canonicalize().ok()?;
        (here && words.ends_with(b"--standby\0")).then_some(pid)
    });
    pids.max().expect("a process that stands by")
}

#[test]
fn it_becomes_the_switch_when_the_next_one_is_started() {
    let s = sandbox();
    let first = s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    let next = stand_by(&s);
    // The switch that runs is not disturbed, and can be configured.
    assert_eq!(s.pid(), first);
    assert!(!s.path(&format!("ovs-vswitchd.{next}.ctl")).exists());
    s.vsctl("add-port br0 p1 -- set interface p1 type=dummy");
    s.appctl_ok("exit");
    wait_for("the first to end", || !is_alive(first));
    assert_eq!(s.start_detached(""), next, "{}", s.log());
    assert!(!s.path("weft-standby.sock").exists());
    assert_eq!(s.vsctl("get interface p1 ofport"), "1");
    assert!(s.appctl_ok("version").contains("Weft"));
    kill(next, libc::SIGTERM);
    wait_for("it to end", || !is_alive(next));
    assert!(!s.path("ovs-vswitchd.pid").exists());
}

#[test]
fn a_start_with_other_words_or_a_dead_process_does_without() {
    let s = sandbox();
    let next = stand_by(&s);
    let other = s.start_detached("-vbridge:file:dbg");
    assert_ne!(other, next);
    wait_for("the one that stood by to end", || !is_alive(next));
    assert!(s.log().contains("the daemon is started with other arguments"), "{}", s.log());
    s.appctl_ok("exit");
    wait_for("the other to end", || !is_alive(other));

    let next = stand_by(&s);
    kill(next, libc::SIGKILL);
    wait_for("it to be gone", || !is_alive(next));
    assert_ne!(s.start_detached(""), next);
}

#[test]
fn options_of_dpdk_decide() {
    let s = sandbox();
    let next = stand_by(&s);
    s.vsctl("--no-wait set open . other_config:dpdk-extra=--vdev=net_null0");
    wait_for("it to end", || !is_alive(next));
    let refused = s.weftd("--detach --standby").output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("'--vdev=net_null0' in dpdk-extra"), "{said}");
    for with in ["--detach --monitor", ""] {
        let refused = s.weftd(with).arg("--standby").output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{with}");
    }
}

#[test]
fn it_belongs_to_who_starts_it() {
    let s = sandbox();
    let next = stand_by(&s);
    let mut starter = s.command("prlimit");
    let weftd = s.weftd("--detach");
    starter.args(["--nofile=777:888"]).arg(weftd.get_program()).args(weftd.get_args());
    let output = starter.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(s.pid(), next, "{}", s.log());
    let limits = fs::read_to_string(format!("/proc/{next}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["777", "888"]);

    s.appctl_ok("exit");
    wait_for("it to end", || !is_alive(next));
    let next = stand_by(&s);
    let mut nicer = s.command("nice");
    nicer.args(["-n", "1"]).arg(weftd.get_program()).args(weftd.get_args());
    assert!(nicer.status().unwrap().success());
    assert_ne!(s.pid(), next);
    assert!(s.log().contains("the daemon is started with another nice value: "), "{}", s.log());
}

/// Whoever connects and does not say a command line, or not within a second, ends what stands by
/// and delays no start: the next one becomes the switch.
#[test]
fn who_connects_has_a_second_and_few_bytes() {
    let s = sandbox();
    let connect = || UnixStream::connect(s.path("weft-standby.sock")).unwrap();
    type Deed = fn(UnixStream) -> UnixStream;
    let silent: Deed = |stream| stream;
    let slow: Deed = |mut stream| {
        // A byte now and then, so that no single read waits long.
        let end = Instant::now() + Duration::from_secs(4);
        while Instant::now() < end && stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
        stream
    };
    let long: Deed = |mut stream| {
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
        stream
    };
    for (what, deed, said) in [
        ("silent", silent, "who asks does not come to an end"),
        ("slow", slow, "who asks does not come to an end"),
        ("long", long, "who asks says too much"),
    ] {
        let next = stand_by(&s);
        let held = deed(connect());
        let start = Instant::now();
        wait_for("it to end", || !is_alive(next));
        assert!(start.elapsed() < Duration::from_secs(3), "{what}: {:?}", start.elapsed());
        assert!(s.log().contains(&format!("standing by no more: {said}")), "{what}: {}", s.log());
        let pid = s.start_detached("");
        assert_ne!(pid, next, "{what}");
        drop(held);
        s.appctl_ok("exit");
        wait_for("the switch to end", || !is_alive(pid));
    }
}
