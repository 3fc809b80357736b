//! `weft trace` beside a running switch: what it captures of every kind of port, read by tshark,
//! and what it says when something is wrong.

mod lab;

use lab::*;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::{Netns, Switch, privileged, veth};

/// Cargo builds it next to the daemon (with the workspace's tests, or `cargo build -p weft`).
fn weft() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_weftd")).with_file_name("weft")
}

/// `weft trace` at work; killed when dropped.
struct Trace {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Trace {
    /// Starts one and waits until it traces, or says why not.
    fn start(mut command: Command) -> Result<Trace, String> {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        if line.starts_with("weft: tracing ") {
            return Ok(Trace { child, said });
        }
        said.read_to_string(&mut line).unwrap();
        assert!(!child.wait().unwrap().success() && line.lines().count() == 1, "{line}");
        Err(line)
    }

    fn of(sw: &Switch, args: &[&str]) -> Result<Trace, String> {
        let mut c = sw.command(weft().to_str().unwrap());
        c.arg("trace").args(args);
        Trace::start(c)
    }

    /// Causes traffic until it ends; whether it ended well, and what it said.
    fn watch(mut self, mut traffic: impl FnMut()) -> (bool, String) {
        let mut success = None;
        wait_within("the end of the trace", 3 * WAIT_TIME_MAX, || {
            traffic();
            success = self.child.try_wait().unwrap().map(|status| status.success());
            success.is_some()
        });
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        (success.unwrap(), text)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
}

/// Port, comment, length and captured length of each packet of a capture.
fn read(capture: &Path) -> Vec<[String; 4]> {
    let mut c = Command::new("tshark");
    let fields = ["frame.interface_name", "frame.comment", "frame.len", "frame.cap_len"];
    c.arg("-r").arg(capture).args(["-T", "fields"]).args(fields.iter().flat_map(|f| ["-e", f]));
    let out = c.output().expect("tshark");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let packet = |line: &str| {
        let fields: Vec<String> = line.split('\t').map(Into::into).collect();
        fields.try_into().unwrap_or_else(|_| panic!("{line}"))
    };
    text.lines().map(packet).collect()
}

/// Hosts 1 and 2 on br0, whose own address is 10.0.0.254, and host 9 behind its tunnel vx.
fn with_tunnel(f: impl FnOnce(&Switch, &Netns, &[Netns; 2])) {
    if !privileged() {
        return;
    }
    let (_turn, ns, peer) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let hosts = [host_on(&ns, &sw, 1), host_on(&ns, &sw, 2)];
    veth((&ns, "nic0"), (&peer, "eth0")).unwrap();
    add_bridge(&sw, "br-phy");
    vsctl(&sw, "add-port br-phy nic0");
    for (dev, address) in [("br-phy", "10.1.1.1/24"), ("br0", "10.0.0.254/24")] {
        ns.ip(&format!("addr add {address} dev {dev}")).unwrap();
        ns.ip(&format!("link set {dev} up")).unwrap();
    }
    peer.ip("addr add 10.1.1.2/24 dev eth0").unwrap();
    let device = "local 10.1.1.2 remote 10.1.1.1 dstport 4789";
    peer.ip(&format!("link add vx type vxlan id 42 {device}")).unwrap();
    peer.ip("addr add 10.0.0.9/24 dev vx").unwrap();
    peer.ip("link set vx mtu 1400 up").unwrap();
    let options = "options:key=42 options:remote_ip=10.1.1.2";
    vsctl(&sw, &format!("add-port br0 vx -- set interface vx type=vxlan {options}"));
    ping(&hosts[0], 9);
    f(&sw, &ns, &hosts);
}

/// What is traced, what causes its packets, their port, and what their comments have.
type Expected<'a> = (&'a str, &'a dyn Fn(), &'a str, &'a [&'a str]);

#[test]
fn every_kind_of_port_shows_packets_and_what_becomes_of_them() {
    with_tunnel(|sw, ns, [host, _]| {
        let_pmd_threads_sleep(sw);
        let socket = sw.dir().join("guest.sock");
        let guest =
            "add-port br0 guest -- set interface guest type=dpdkvhostuserclient ofport_request=7";
        vsctl(sw, &format!("{guest} options:vhost-server-path={}", socket.display()));
        // It gets what is flooded and sends it back.
        ofctl(sw, "add-flow br0 priority=40000,in_port=7,actions=drop");
        let ring = Ring { queues: 1, server: true, ..Ring::default() };
        let _guest = Guest::start(&socket, ring, "macswap");
        wait_within("the guest", 3 * WAIT_TIME_MAX, || iface(sw, "guest", "link_state") == "up");
        let file = sw.dir().join("capture.pcapng");
        let far = || {
            ping(host, 9);
        };
        let near = || drop(host.exec(&["ping", "-c1", "-W1", "-s1000", "10.0.0.2"]));
        let local = || drop(ns.exec(&["ping", "-c1", "-W1", "10.0.0.1"]));
        // An address that no host has is asked for by broadcast.
        let flooded = || drop(host.exec(&["ping", "-c1", "-W1", "10.0.0.77"]));
        let kernel = "on the kernel ports' thread";
        let traces: [Expected<'_>; 6] = [
            ("v1", &near, "v1", &["in_port: v1 (", kernel, "megaflow: recirc_id(0),in_port(v1)"]),
            ("br0", &local, "br0", &["in_port: br0 (", kernel, "actions: v1"]),
            ("nic0", &far, "nic0", &["in_port: nic0 (", "actions: tnl_pop(vxlan_sys_4789)"]),
            ("vx", &far, "vxlan_sys_4789", &["tunnel(tun_id=0x2a,src=10.1.1.2", "actions: v1"]),
            ("guest", &flooded, "guest", &["on core ", "drop: policy (The flow that matched"]),
            ("icmp,nw_src=10.0.0.1,in_port=v1", &near, "v1", &["in_port(v1)", "actions: v2"]),
        ];
        for (what, traffic, port, words) in traces {
            let path = file.to_str().unwrap();
            let trace = Trace::of(sw, &["-c3", "-s100", "-w", path, what]).unwrap();
            let (success, said) = trace.watch(traffic);
            assert!(success && said.starts_with("weft: 3 packets, which "), "{what}: {said}");
            let packets = read(&file);
            assert_eq!(packets.len(), 3, "{what}");
            for [interface, comment, len, there] in &packets {
                assert_eq!(interface, port, "{what}: {packets:?}");
                let (len, there): (usize, usize) = (len.parse().unwrap(), there.parse().unwrap());
                assert_eq!(there, len.min(100), "{what}: {packets:?}");
                let has = |word: &&str| comment.contains(*word);
                assert!(words.iter().all(has), "{what}: {words:?}: {comment}");
            }
        }
        // Without a file it is text.
        let mut trace = Trace::of(sw, &["-c1", "v1"]).unwrap();
        let mut text = trace.child.stdout.take().unwrap();
        assert!(trace.watch(near).0);
        let mut shown = String::new();
        text.read_to_string(&mut shown).unwrap();
        assert!(shown.starts_with("+0.000000 s, ") && shown.contains("\n  in_port: v1"), "{shown}");
    });
}

#[test]
fn what_is_wrong_is_one_sentence() {
    with_tunnel(|sw, _, [host, _]| {
        vsctl(sw, "add-port br0 p1 -- set interface p1 type=patch options:peer=p2");
        vsctl(sw, "add-port br0 bad -- set interface bad type=system");
        for (args, why) in [
            (&["nonesuch"][..], "there is no port nonesuch, and as a flow: "),
            (&["p1"], "p1 is a patch port"),
            (&["bad"], "bad does not work: "),
            (&["in_port=77"], "in_port=77: no bridge has this port"),
            (&["in_port=local"], "bridges br-phy and br0 have this port; say its name"),
            (&["tcp,tp_dst=x"], "tcp,tp_dst=x: tp_dst: "),
            (&["tcp,reg0=1"], "registers and metadata cannot be traced"),
            (&["-c0", "v1"], "count=0: not a number from 1 to"),
            (&["-r99999", "v1"], "rate=99999: not a number from 1 to 10000"),
            (&["-w/nonesuch/x", "v1"], "cannot write /nonesuch/x: No such file"),
        ] {
            let said = Trace::of(sw, args).err().unwrap_or_default();
            assert!(said.starts_with("weft: ") && said.contains(why), "{args:?}: {said}");
        }
        // One at a time; it ends when its client does, also by force.
        let first = Trace::of(sw, &["v1"]).unwrap();
        let said = Trace::of(sw, &["v2"]).err().unwrap();
        assert!(said.contains("\"v1\" is being traced already"), "{said}");
        first.signal(libc::SIGKILL);
        let mut second = None;
        wait_for("the end of the trace", || {
            second = Trace::of(sw, &["v2"]).ok();
            second.is_some()
        });
        let second = second.unwrap();
        second.signal(libc::SIGINT);
        let (success, said) = second.watch(|| {});
        assert!(success && said.starts_with("weft: "), "{said}");
        // The disk becomes full: what was written before is whole.
        let (full, copy) = (sw.dir().join("full"), sw.dir().join("copy.pcapng"));
        std::fs::create_dir(&full).unwrap();
        let (full, copy) = (full.display(), copy.display());
        let line = format!(
            "mount -t tmpfs -o size=64k none {full} && {} trace -s1000 -w {full}/c v1; rc=$?; \
             cp {full}/c {copy}; exit $rc",
            weft().display()
        );
        let mut c = sw.command("unshare");
        c.args(["-m", "sh", "-c", &line]);
        let trace = Trace::start(c).unwrap();
        let flood = || drop(host.exec(&["ping", "-q", "-c50", "-i0.01", "-s1000", "10.0.0.2"]));
        let (success, said) = trace.watch(flood);
        assert!(!success && said.contains(" has whole: "), "{said}");
        assert!(said.contains("No space left on device") && said.lines().count() == 1, "{said}");
        let n: usize = said.split(' ').nth(2).unwrap().parse().unwrap();
        let packets = read(Path::new(&copy.to_string()));
        assert!(n > 10 && packets.len() == n, "{said}: {}", packets.len());
    });
}

#[test]
fn a_switch_that_is_not_there_or_another_one_is_said() {
    let mut c = Command::new(weft());
    c.args(["trace", "v1"]).env("OVS_RUNDIR", "/nonesuch");
    let said = Trace::start(c).err().unwrap();
    assert!(said.contains("no switch runs here: there is no /nonesuch/"), "{said}");
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let ovs = Switch::start(&ns, testkit::SwitchConfig::oracle()).unwrap();
    let said = Trace::of(&ovs, &["v1"]).err().unwrap();
    assert!(said.contains("it is ovs-vswitchd, or an older weftd"), "{said}");
}
