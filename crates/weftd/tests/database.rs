//! The database dialogue with a real ovsdb-server that comes and goes, and with a false one.

mod sandbox;

use sandbox::{Sandbox, is_alive, kill, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_restart_of_the_server_converges() {
    let mut s = Sandbox::new();
    s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    s.kill_server();
    s.wait_for_log("connection closed by peer");
    s.start_server();
    s.vsctl("add-br br1 -- set bridge br1 datapath_type=dummy");
    assert_eq!(s.vsctl("get interface br1 ofport"), "65534");
    assert_eq!(s.vsctl("get interface br0 ofport"), "65534");
}

#[test]
fn a_restart_of_the_daemon_converges() {
    let s = Sandbox::new();
    let pid = s.start_detached("");
    kill(pid, libc::SIGKILL);
    wait_for("the daemon to end", || !is_alive(pid));
    s.vsctl("--no-wait add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(s.vsctl("get interface br0 ofport"), "[]");
    s.start_detached("");
    wait_for("ofport", || s.vsctl("get interface br0 ofport") == "65534");
}

#[test]
fn a_daemon_that_is_first_waits_for_the_server() {
    let mut s = Sandbox::without_server();
    s.start("");
    s.wait_for_log("connection attempt failed (No such file or directory)");
    s.start_server();
    s.vsctl("--no-wait init");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(s.vsctl("get interface br0 ofport"), "65534");
}

#[test]
fn an_empty_database_is_waited_for() {
    let mut s = Sandbox::without_server();
    s.start_server();
    s.start_detached("");
    s.vsctl("--no-wait init");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(s.vsctl("get interface br0 ofport"), "65534");
}

#[test]
fn names_are_not_paths() {
    let s = Sandbox::new();
    s.start_detached("");
    s.vsctl("--no-wait add-br a/b -- set bridge a/b datapath_type=dummy");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    s.wait_for_log("ignoring bridge with invalid name 'a/b'");
    let file = s.path("file");
    fs::write(&file, "kept").unwrap();
    s.vsctl(&format!("set-controller br0 punix:{}", file.display()));
    s.wait_for_log("Not adding Unix domain socket controller");
    assert_eq!(fs::read_to_string(file).unwrap(), "kept");
}

#[test]
fn the_lock_keeps_a_second_daemon_off() {
    let mut s = Sandbox::new();
    let first = s.start_detached("");
    s.start("--pidfile=second.pid --unixctl=second.ctl --log-file=second.log");
    let log = |s: &Sandbox| fs::read_to_string(s.path("second.log")).unwrap_or_default();
    wait_for("the second to give way", || log(&s).contains("another ovs-vswitchd process"));
    s.appctl_ok("exit");
    wait_for("the first to end", || !is_alive(first));
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(s.vsctl("get interface br0 ofport"), "65534");
}

#[test]
fn a_server_that_talks_nonsense_is_left_and_tried_again() {
    let mut s = Sandbox::without_server();
    let path = s.path("db.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let pid = s.start("");
    let update = r#"{"id":null,"method":"update3","params":[0,"x",{"Bridge":5}]}"#;
    for nonsense in ["\0\u{1}garbage", "{\"id\":1,\"result\":{},\"error\":null}", update] {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(nonsense.as_bytes());
        // The daemon closes its end unless the message could be ignored.
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    assert!(is_alive(pid));
    drop(listener);
    fs::remove_file(&path).unwrap();
    s.start_server();
    s.vsctl("--no-wait init");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert!(is_alive(pid));
}

#[test]
fn missing_columns_and_tables_do_no_harm() {
    let mut s = Sandbox::without_server();
    let text = fs::read_to_string("/usr/share/openvswitch/vswitch.ovsschema").unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tables = schema["tables"].as_object_mut().unwrap();
    tables["Open_vSwitch"]["columns"].as_object_mut().unwrap().remove("dpdk_version");
    tables["Open_vSwitch"]["columns"].as_object_mut().unwrap().remove("datapaths");
    tables.remove("Datapath");
    tables.remove("CT_Zone");
    tables.remove("CT_Timeout_Policy");
    tables["Interface"]["columns"].as_object_mut().unwrap().remove("link_resets");
    fs::write(s.path("old.schema"), schema.to_string()).unwrap();
    fs::remove_file(s.path("conf.db")).unwrap();
    let made = s.command("ovsdb-tool").args(["create", "conf.db", "old.schema"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    s.start_server();
    let init = r#"["Open_vSwitch",{"op":"insert","table":"Open_vSwitch","row":{}}]"#;
    let socket = format!("unix:{}", s.path("db.sock").display());
    let insert = s.command("ovsdb-client").args(["transact", &socket, init]).output().unwrap();
    assert!(insert.status.success(), "{insert:?}");
    s.start_detached("");
    let bump = r#"["Open_vSwitch",{"op":"update","table":"Open_vSwitch","where":[],"row":{"next_cfg":9}}]"#;
    s.command("ovsdb-client").args(["transact", &socket, bump]).output().unwrap();
    let select = r#"["Open_vSwitch",{"op":"select","table":"Open_vSwitch","where":[],"columns":["cur_cfg"]}]"#;
    wait_for("cur_cfg", || {
        let output =
            s.command("ovsdb-client").args(["transact", &socket, select]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("\"cur_cfg\":9")
    });
}

/// Clock ticks that the thread of a process with this name has had, or the main thread (None).
fn ticks(pid: u32, thread: Option<&str>) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let is_it = |task: &fs::DirEntry| match thread {
        None => task.file_name().into_string().unwrap() == pid.to_string(),
        Some(name) => fs::read_to_string(task.path().join("comm")).unwrap().trim() == name,
    };
    let task = tasks.into_iter().find(is_it).expect("the thread").path();
    let stat = fs::read_to_string(task.join("stat")).unwrap();
    let numbers = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    numbers.map(|n| n.parse::<u64>().unwrap()).sum()
}

/// However much the server says at once, another thread than the one that answers everybody reads
/// it.
#[test]
fn very_much_from_the_server_costs_the_control_thread_little() {
    const QUEUES: usize = 20_000;
    let s = Sandbox::new();
    let pid = s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert!(s.log().contains("|reconnect|INFO|"), "without the name of its thread");
    let before = [None, Some("database")].map(|thread| ticks(pid, thread));
    let queue = |i| {
        format!(
            r#"{{"op":"insert","table":"Queue","uuid-name":"q{i}",
                 "row":{{"other_config":["map",[["max-rate","{i}"]]]}}}},"#
        )
    };
    let queues: String = (0..QUEUES).map(queue).collect();
    let listed: Vec<_> = (0..QUEUES).map(|i| format!(r#"[{i},["named-uuid","q{i}"]]"#)).collect();
    let request = format!(
        r#"{{"id":1,"method":"transact","params":["Open_vSwitch",{queues}
           {{"op":"insert","table":"QoS","uuid-name":"qos",
             "row":{{"type":"linux-htb","queues":["map",[{}]]}}}},
           {{"op":"update","table":"Port","where":[],"row":{{"qos":["named-uuid","qos"]}}}}]}}"#,
        listed.join(",")
    );
    let mut socket = UnixStream::connect(s.path("db.sock")).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    while !reply.ends_with("\"error\":null}") {
        let mut part = [0; 1 << 16];
        let n = socket.read(&mut part).unwrap();
        assert!(n > 0, "{reply}");
        reply.push_str(std::str::from_utf8(&part[..n]).unwrap());
    }
    assert!(reply.contains(r#"{"count":1}"#), "{reply}");
    s.vsctl("set bridge br0 other_config:mac-aging-time=77");
    let after = [None, Some("database")].map(|thread| ticks(pid, thread));
    let [control, database] = std::array::from_fn(|i| after[i] - before[i]);
    assert!(database >= 20 && control < database / 3, "{control} and {database} ticks");
}

/// Stands between the daemon and the server. While it lies it changes a few bytes of what the
/// server says, from the first answer on or only in later updates; soon after a lie it hangs up.
struct Liar {
    lies: Arc<AtomicBool>,
    lied: Arc<AtomicU32>,
}

impl Liar {
    fn start(at: PathBuf, server: PathBuf) -> Liar {
        let listener = UnixListener::bind(&at).unwrap();
        let liar = Liar { lies: Arc::new(AtomicBool::new(true)), lied: Arc::default() };
        let (lies, lied) = (liar.lies.clone(), liar.lied.clone());
        std::thread::spawn(move || {
            for (seed, daemon) in (1u64..).zip(listener.incoming().flatten()) {
                let Ok(server) = UnixStream::connect(&server) else { continue };
                let (mut from, mut to) = (daemon.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                pass_on(server, daemon, seed, &lies, &lied);
            }
        });
        liar
    }
}

fn pass_on(mut from: UnixStream, mut to: UnixStream, n: u64, lies: &AtomicBool, lied: &AtomicU32) {
    let mut noise = testkit::Noise((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut buffer = [0; 1 << 16];
    let honest_until = Instant::now() + Duration::from_millis(400 * (n % 2));
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let text = &mut buffer[..n];
        if lies.load(Ordering::Relaxed) && Instant::now() > honest_until {
            for _ in 0..1 + noise.below(4) {
                // Mostly still JSON: what is inside a string or a number changes.
                let at = noise.below(n);
                let like = b"0123456789abcdefxyz-_ []{}\",:";
                let plain = text[at].is_ascii_alphanumeric();
                text[at] = like[noise.below(if plain { 19 } else { like.len() })];
            }
            lied.fetch_add(1, Ordering::Relaxed);
            from.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        }
        if to.write_all(text).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(std::net::Shutdown::Both), from.shutdown(std::net::Shutdown::Both));
}

#[test]
fn a_server_that_lies_is_survived_and_the_truth_wins() {
    let mut s = Sandbox::new();
    let liar = Liar::start(s.path("liar.sock"), s.path("db.sock"));
    let pid = s.start(&format!("unix:{}", s.path("liar.sock").display()));
    let start = Instant::now();
    for round in 0.. {
        s.vsctl("--no-wait -- --may-exist add-br br0 -- set bridge br0 datapath_type=dummy");
        let port = format!("p{}", round % 7);
        s.vsctl(&format!(
            "--no-wait -- --may-exist add-port br0 {port} -- set interface {port} type=dummy \
             ofport_request={} -- set bridge br0 other_config:mac-aging-time={}",
            1 + round % 9,
            15 + round
        ));
        s.vsctl(&format!("--no-wait -- --if-exists del-port p{}", (round + 4) % 7));
        std::thread::sleep(Duration::from_millis(50));
        assert!(is_alive(pid), "{}", s.log());
        if liar.lied.load(Ordering::Relaxed) > 12 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(90), "{}", s.log());
    }
    liar.lies.store(false, Ordering::Relaxed);
    // What was believed meanwhile goes with a fresh look at the database.
    s.kill_server();
    s.start_server();
    s.vsctl("add-port br0 honest -- set interface honest type=dummy");
    wait_for("the truth", || s.vsctl("get interface honest ofport") != "[]");
    let ports = s.vsctl("list-ports br0");
    assert_eq!(s.appctl_ok("dpctl/show").matches("port ").count(), ports.lines().count() + 1);
    assert!(is_alive(pid));
}
