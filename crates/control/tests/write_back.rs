//! The client against a real ovsdb-server: what is written arrives, and what the server refuses
//! keeps back nothing else.

use control::config::{Change, Desired, InterfaceStatus, OvsdbClient, Status, Target};
use ovsdb::Uuid;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

struct Server {
    dir: PathBuf,
    child: Child,
}

impl Server {
    /// A server with bridge br0, its schema changed by `change`.
    fn start(name: &str, change: impl Fn(&mut serde_json::Value)) -> Self {
        let dir = std::env::temp_dir().join(format!("write-back-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut schema = serde_json::from_str(&fs::read_to_string(SCHEMA).unwrap()).unwrap();
        change(&mut schema);
        fs::write(dir.join("schema"), schema.to_string()).unwrap();
        let run = |program: &str, args: &[&str]| {
            let output = Command::new(program).current_dir(&dir).args(args).output().unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
        };
        run("ovsdb-tool", &["create", "conf.db", "schema"]);
        let child = Command::new("ovsdb-server")
            .current_dir(&dir)
            .args(["conf.db", "--remote=punix:db.sock", "--unixctl=ctl", "-vconsole:off"])
            .env("OVS_RUNDIR", &dir)
            .spawn()
            .unwrap();
        let db = format!("--db=unix:{}", dir.join("db.sock").display());
        run("ovs-vsctl", &[&db, "--retry", "--timeout=10", "--no-wait", "init"]);
        run("ovs-vsctl", &[&db, "--no-wait", "add-br", "br0"]);
        Self { dir, child }
    }

    fn client(&self) -> OvsdbClient {
        let target = Target::parse("unix:db.sock", &self.dir).unwrap();
        OvsdbClient::new(target, "test")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A full status of br0's interface and the acknowledgement.
fn status(client: &OvsdbClient, next_cfg: i64) -> (Uuid, Status) {
    let (uuid, _) = client.replica().rows("Interface").next().unwrap();
    let report = InterfaceStatus {
        ofport: Some(65534),
        mac_in_use: Some([2, 0, 0, 0, 0, 1]),
        mtu: Some(1500),
        ifindex: Some(7),
        admin_up: Some(true),
        link_up: Some(false),
        link_speed: Some(10_000_000_000),
        full_duplex: Some(true),
        link_resets: Some(3),
        status: BTreeMap::from([("driver_name".into(), "tun".into())]),
        statistics: Some(BTreeMap::from([("rx_packets".into(), 5)])),
        ..InterfaceStatus::default()
    };
    let mut status = Status::default();
    status.interfaces.insert(uuid, report);
    status.switch.cur_cfg = Some(next_cfg);
    (uuid, status)
}

async fn next(client: &mut OvsdbClient) -> Change {
    tokio::time::timeout(Duration::from_secs(10), client.next()).await.expect("a change in time")
}

async fn write_and_wait(client: &mut OvsdbClient) -> Uuid {
    let Change::Config(desired) = next(client).await else { panic!("no configuration") };
    assert_eq!(desired.bridges[0].name, "br0");
    let (uuid, status) = status(client, desired.next_cfg);
    client.write(status.clone());
    assert_eq!(next(client).await, Change::Written, "own writes are no new configuration");
    assert_eq!(
        client.replica().singleton("Open_vSwitch").unwrap().1.int("cur_cfg"),
        desired.next_cfg
    );
    uuid
}

#[tokio::test(flavor = "current_thread")]
async fn all_columns_arrive_and_only_differences_are_sent() {
    let server = Server::start("all", |_| {});
    let mut client = server.client();
    let uuid = write_and_wait(&mut client).await;
    assert_eq!(client.reads(), 1, "nothing is read from what the daemon writes");
    let row = client.replica().row("Interface", uuid).unwrap();
    assert_eq!((row.int("ofport"), row.str("mac_in_use")), (65534, "02:00:00:00:00:01"));
    assert_eq!((row.str("link_state"), row.str("duplex")), ("down", "full"));
    assert_eq!(row.str_map("status")["driver_name"], "tun");
    let (_, again) = status(&client, 0);
    let same = Status { switch: Default::default(), ..again };
    assert!(same.diff(client.replica()).is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn a_refused_value_keeps_back_no_other() {
    let server = Server::start("refused", |schema| {
        let duplex = &mut schema["tables"]["Interface"]["columns"]["duplex"]["type"]["key"];
        duplex["enum"] = serde_json::json!(["set", ["half", "other"]]);
    });
    let mut client = server.client();
    let uuid = write_and_wait(&mut client).await;
    let row = client.replica().row("Interface", uuid).unwrap();
    assert_eq!((row.opt_int("ofport"), row.opt_str("duplex")), (Some(65534), None));
}

/// A client writes one column again and again, as fast as the server takes it.
fn write_all_the_time(path: PathBuf, end: Arc<AtomicBool>) -> u64 {
    let mut server = UnixStream::connect(path).unwrap();
    let (mut n, mut answer) = (0, [0; 4096]);
    while !end.load(Ordering::Relaxed) {
        n += 1;
        let map = serde_json::json!(["map", [["n", n.to_string()]]]);
        let update = serde_json::json!({"op": "update", "table": "Interface",
            "where": [["name", "==", "br0"]], "row": {"other_config": map}});
        let params = serde_json::json!(["Open_vSwitch", update]);
        let message = serde_json::json!({"id": n, "method": "transact", "params": params});
        server.write_all(message.to_string().as_bytes()).unwrap();
        assert!(server.read(&mut answer).unwrap() > 0);
    }
    n
}

/// Whoever writes often has the configuration read for a part of the time.
#[tokio::test(flavor = "current_thread")]
async fn many_writes_cause_few_reads() {
    const PORTS: usize = 500;
    let server = Server::start("many", |_| {});
    let ports = (0..PORTS).map(|i| format!("-- add-port br0 p{i}")).collect::<Vec<_>>().join(" ");
    let db = format!("--db=unix:{}", server.dir.join("db.sock").display());
    let all = ports.split(' ').collect::<Vec<_>>();
    let added = Command::new("ovs-vsctl").args([&db, "--no-wait"]).args(all).status();
    assert!(added.unwrap().success());
    let mut client = server.client();
    let end = Arc::new(AtomicBool::new(false));
    let Change::Config(first) = next(&mut client).await else { panic!("no configuration") };
    assert_eq!(first.bridges[0].interfaces().count(), PORTS + 1);
    let (path, ended) = (server.dir.join("db.sock"), end.clone());
    let writer = std::thread::spawn(move || write_all_the_time(path, ended));
    let (start, before, mut reading) = (Instant::now(), client.reads(), Duration::ZERO);
    while start.elapsed() < Duration::from_secs(3) {
        let Change::Config(_) = next(&mut client).await else { continue };
        // As long as it takes now.
        let begin = Instant::now();
        assert!(Desired::read(client.replica(), &mut Default::default()).is_some());
        reading += begin.elapsed();
    }
    let (reads, lasted) = (client.reads() - before, start.elapsed());
    end.store(true, Ordering::Relaxed);
    let writes = writer.join().unwrap();
    println!("{writes} writes, {reads} reads of {:?} in {lasted:?}", reading / reads as u32);
    assert!(reads > 3 && writes > 5 * reads, "{writes} writes, {reads} reads");
    assert!(reading < lasted / 2, "{reading:?} of {lasted:?}");
}
