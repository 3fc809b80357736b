//! The daemon as a process: pidfile, background, control socket, log; by the stock tools.

mod sandbox;

use sandbox::{Sandbox, is_alive, kill, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

#[test]
fn stock_tools_find_and_drive_it() {
    let s = Sandbox::new();
    let pid = s.start_detached("-vvconn -vofproto_dpif");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(s.vsctl("get interface br0 ofport"), "65534");
    assert_eq!(s.vsctl("get open_vswitch . cur_cfg"), s.vsctl("get open_vswitch . next_cfg"));
    assert!(s.appctl_ok("version").starts_with("ovs-vswitchd (Open vSwitch) "));
    assert!(s.appctl_ok("list-commands").starts_with("The available commands are:\n"));
    s.appctl_ok("vlog/set bridge:file:dbg");
    let levels = s.appctl_ok("vlog/list");
    assert!(levels.contains("\nbridge             OFF        OFF        DBG\n"), "{levels}");
    assert!(levels.contains("\nvconn              OFF        DBG        DBG\n"), "{levels}");
    let unknown = s.appctl("nonsense");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&unknown.stderr).starts_with("\"nonsense\" is not a valid command")
    );
    s.vsctl("del-br br0");
    s.appctl_ok("exit --cleanup");
    wait_for("the daemon to end", || !is_alive(pid));
    assert!(!s.path("ovs-vswitchd.pid").exists());
    assert!(!s.path(&format!("ovs-vswitchd.{pid}.ctl")).exists());
}

/// What an idle daemon uses, with much room for what it reserves growing.
const RESIDENT_KB_MAX: u64 = 2 << 20;

/// What ovs-vswitchd's own test suite allows on standard error at a start, as
/// `module|LEVEL|beginning`.
const ALLOWED: [&str; 3] =
    ["ovs_numa|INFO|Discovered ", "vlog|INFO|opened log file", "reconnect|INFO|"];

#[test]
fn a_start_in_the_background_says_no_more_than_ovs_vswitchd() {
    let s = Sandbox::new();
    let mut weftd = s.command(env!("CARGO_BIN_EXE_weftd"));
    weftd.args(
        "--enable-dummy --disable-system --disable-system-route --detach --no-chdir".split(' '),
    );
    weftd.args("--pidfile --log-file -vvconn -vofproto_dpif -vunixctl".split(' '));
    let output = weftd.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let text = |line: &str| line.splitn(3, '|').nth(2).unwrap_or(line).to_string();
    let odd = |line: &&str| !ALLOWED.iter().any(|ok| text(line).starts_with(ok));
    assert_eq!(said.lines().filter(odd).collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(s.log().contains("|dpdk|INFO|DPDK "), "the log has it all:\n{}", s.log());
}

#[test]
fn log_lines_have_the_usual_layout_and_reopen_after_rotation() {
    let s = Sandbox::new();
    s.start_detached("");
    let log = s.log();
    let first: Vec<_> = log.lines().next().unwrap().splitn(5, '|').collect();
    assert_eq!(&first[1..4], ["00001", "vlog", "INFO"]);
    assert_eq!(first[0].len(), "2026-01-01T12:00:00.000Z".len());
    fs::rename(s.path("ovs-vswitchd.log"), s.path("old.log")).unwrap();
    s.appctl_ok("vlog/reopen");
    assert!(s.log().contains("|vlog|INFO|opened log file "));
}

#[test]
fn a_live_pidfile_refuses_and_a_stale_one_is_replaced() {
    let s = Sandbox::new();
    let pid = s.start_detached("");
    for options in ["", "--detach"] {
        let second = s.weftd(options).output().unwrap();
        assert_eq!(second.status.code(), Some(1));
        let text = format!("already running as pid {pid}, aborting\n");
        assert!(String::from_utf8_lossy(&second.stderr).ends_with(&text), "{second:?}");
    }
    kill(pid, libc::SIGKILL);
    wait_for("the daemon to end", || !is_alive(pid));
    assert_eq!(s.pid(), pid);
    assert_ne!(s.start_detached(""), pid);
    s.appctl_ok("version");
}

#[test]
fn the_parent_tells_of_an_early_failure() {
    let s = Sandbox::new();
    let failed = s.weftd("--detach --unixctl=/nonexistent/socket").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("/nonexistent/socket"));
    assert!(!s.path("ovs-vswitchd.pid").exists());
}

#[test]
fn termination_by_signal_is_clean() {
    let s = Sandbox::new();
    let pid = s.start_detached("");
    kill(pid, libc::SIGTERM);
    wait_for("the daemon to end", || !is_alive(pid));
    assert!(!s.path("ovs-vswitchd.pid").exists());
    assert!(!s.path(&format!("ovs-vswitchd.{pid}.ctl")).exists());
}

#[test]
fn the_monitor_restarts_it_after_a_crash_and_ends_with_it() {
    let s = Sandbox::new();
    let pid = s.start_detached("--monitor");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap();
    let monitor: u32 = parent.trim().parse().unwrap();
    kill(pid, libc::SIGABRT);
    wait_for("another daemon", || s.pid() != pid && s.appctl("version").status.success());
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    s.appctl_ok("exit");
    wait_for("the monitor to end", || !is_alive(monitor));
    assert!(!s.path("ovs-vswitchd.pid").exists());
}

#[test]
fn the_stock_script_starts_it_under_its_own_name() {
    if !testkit::privileged() {
        return;
    }
    let s = Sandbox::without_server();
    let _ = fs::remove_file(s.path("conf.db"));
    fs::create_dir(s.path("bin")).unwrap();
    let program = s.path("bin/ovs-vswitchd");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weftd"), program).unwrap();
    let path = format!("{}:{}", s.path("bin").display(), std::env::var("PATH").unwrap());
    let ctl = |words: &str| {
        // In a namespace of its own: the script would stop a switch of the machine.
        let mut c = s.command("unshare");
        c.args(["-n", "/usr/share/openvswitch/scripts/ovs-ctl", "--system-id=random"]);
        c.args(["--no-force-corefiles", "--ovs-user=", "--no-mlockall"]);
        for (option, file) in [("--db-file", "conf.db"), ("--db-sock", "db.sock")] {
            c.arg(format!("{option}={}", s.path(file).display()));
        }
        c.env("PATH", &path).env("OVS_SYSCONFDIR", &s.dir).args(words.split(' '));
        c.stdout(fs::File::create(s.path("ctl.txt")).unwrap());
        c.stderr(fs::File::create(s.path("ctl-err.txt")).unwrap());
        let ok = c.status().unwrap().success();
        let text = |name| fs::read_to_string(s.path(name)).unwrap();
        assert!(ok, "{words}: {}{}\n{}", text("ctl.txt"), text("ctl-err.txt"), s.log());
        text("ctl.txt")
    };
    ctl("start");
    let pid = s.pid();
    assert!(ctl("status").contains(&format!("ovs-vswitchd is running with pid {pid}")));
    assert!(ctl("version").contains("ovs-vswitchd (Open vSwitch) 3.1.0"));
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    let ofctl = |words: &str| {
        let out = s.command("ovs-ofctl").args(words.split(' ')).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    ofctl("add-flow br0 priority=7,tcp,actions=drop");
    assert!(ctl("restart").contains("Restoring saved flows."));
    assert_ne!(s.pid(), pid);
    assert!(ofctl("dump-flows br0").contains("priority=7,tcp"), "{}", ofctl("dump-flows br0"));
    let pid = s.pid();
    ctl("stop");
    wait_for("the daemon to end", || !is_alive(pid));
    assert!(!s.path("ovs-vswitchd.pid").exists());
}

/// A machine that promises a large page and has none when it is asked for.
fn without_its_hugepages(s: &Sandbox, options: &str) -> Command {
    let pages = s.path("hugepages/hugepages-1048576kB");
    fs::create_dir_all(&pages).unwrap();
    for (name, n) in [("nr", 1), ("free", 1), ("resv", 0), ("surplus", 0)] {
        fs::write(pages.join(format!("{name}_hugepages")), format!("{n}\n")).unwrap();
    }
    let script = "mount --bind hugepages /sys/kernel/mm/hugepages && exec \"$0\" \"$@\"";
    let weftd = s.weftd(options);
    let mut command = s.command("unshare");
    command.args(["-m", "sh", "-c", script]).arg(weftd.get_program()).args(weftd.get_args());
    command
}

#[test]
fn hugepages_that_are_gone_when_dpdk_takes_them_are_done_without() {
    if !testkit::privileged() {
        return;
    }
    for options in ["--detach", "--detach --monitor"] {
        let s = Sandbox::new();
        let output = without_its_hugepages(&s, options).output().unwrap();
        assert!(output.status.success(), "{output:?}\n{}", s.log());
        let log = s.log();
        assert!(log.contains("starting again without hugepages"), "{log}");
        assert!(log.contains("ready, no hugepages"), "{log}");
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
        assert_eq!(s.vsctl("get interface br0 ofport"), "65534");
        // The process is the one that was started, by name, pidfile and control socket.
        let pid = s.pid();
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "weftd\n");
        s.appctl_ok("exit");
        wait_for("the daemon to end", || !is_alive(pid));
        assert!(!s.path("ovs-vswitchd.pid").exists());
    }
}

/// Memory that is locked is what is used, not what tables may need one day. A daemon that may lock
/// some only says so and locks none: what it maps later would fail otherwise, and with it the
/// daemon.
#[test]
fn memory_is_locked_where_all_of_it_may_be() {
    if !testkit::privileged() {
        return;
    }
    let kilobytes = |pid: u32, what: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let limit = "--memlock=4194304:4194304";
    let without = "setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock";
    for (before, all) in [(format!("prlimit {limit} {without}"), false), (String::new(), true)] {
        let s = Sandbox::new();
        let weftd = s.weftd("--detach --mlockall");
        let words: Vec<_> = before.split_whitespace().map(Into::into).collect();
        let words: Vec<std::ffi::OsString> = [
            words,
            vec![weftd.get_program().to_owned()],
            weftd.get_args().map(Into::into).collect(),
        ]
        .concat();
        let output = s.command(&words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{before}: {output:?}\n{}", s.log());
        let why = "mlockall failed: this process may lock 4194304 bytes and not all";
        assert_eq!(s.log().contains(why), !all, "{before}: {}", s.log());
        let (locked, used) = (kilobytes(s.pid(), "VmLck:"), kilobytes(s.pid(), "VmRSS:"));
        assert_eq!(locked > 0, all, "{before}");
        assert!(used < RESIDENT_KB_MAX, "{before}: {used} kB are used");
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
        s.appctl_ok("version");
        s.appctl_ok("exit");
    }
}

/// Clients that say nothing, stop in the middle of a request, or do not read answers hold no place
/// that another client wants.
#[test]
fn clients_that_hang_make_room_for_others() {
    /// As many as are served at once, and some more.
    const CLIENTS: usize = 80;
    let s = Sandbox::new();
    let pid = s.start_detached("");
    let path = s.path(&format!("ovs-vswitchd.{pid}.ctl"));
    let request = b"{\"id\":7,\"method\":\"list-commands\",\"params\":[]}";
    let many = request.repeat(500);
    for said in [&b""[..], &request[..20], &many] {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = UnixStream::connect(&path).unwrap();
            client.set_nonblocking(true).unwrap();
            let _ = client.write(said);
            clients.push(client);
        }
        let what = String::from_utf8_lossy(&said[..said.len().min(30)]).into_owned();
        // None is let in, as with ovs-vswitchd, while 64 wait to be let in.
        (0..3).for_each(|_| wait_for(&what, || s.appctl("version").status.success()));
    }
}

#[test]
fn nonsense_on_the_control_socket_harms_its_own_connection_only() {
    let s = Sandbox::new();
    let pid = s.start_detached("");
    let path = s.path(&format!("ovs-vswitchd.{pid}.ctl"));
    let connect = || {
        let socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    };
    let mut good = connect();
    let mut noise = testkit::Noise::default();
    for length in [1usize, 10, 1000, 100_000] {
        let _ = connect().write_all(&noise.bytes(length));
    }
    for text in ["{\"id\":1}", "[]", "{]", "{\"id\":1,\"method\":\"version\",\"params\":[3]}", "x"]
    {
        let mut socket = connect();
        socket.write_all(text.as_bytes()).unwrap();
        assert_eq!(socket.read(&mut [0; 100]).unwrap_or(0), 0, "{text}");
    }
    let half = connect();
    (&half).write_all(b"{\"id\":0,\"met").unwrap();
    good.write_all(b"{\"id\":7,\"method\":\"version\",\"params\":[]}").unwrap();
    let mut answer = [0; 500];
    let length = good.read(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer[..length]).contains("Open vSwitch"));
    assert!(is_alive(pid));
}

/// Numbers that nothing can be made of are refused, or taken as far as they go, and the daemon goes
/// on.
#[test]
fn huge_numbers_in_commands_for_test_suites_are_survived() {
    let mut s = Sandbox::new();
    s.start("");
    s.wait_for_log("ready");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    s.vsctl("add-port br0 p1 -- set interface p1 type=dummy");
    let receive = |len: &str| {
        s.appctl(&format!("netdev-dummy/receive p1 0102030405060708090a0b0c1234 --len {len}"))
    };
    assert!(receive("65535").status.success());
    assert!(!receive("9223372036854775807").status.success());
    assert!(!s.appctl(&format!("time/warp {}", u64::MAX)).status.success());
    assert!(!s.appctl("time/warp 4398046511104 1").status.success(), "too many steps");
    for _ in 0..4 {
        s.appctl_ok("time/warp 4398046511104");
    }
    s.appctl_ok("time/warp 1000");
}
