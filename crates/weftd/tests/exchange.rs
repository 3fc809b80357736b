//! A Linux guest keeps its connections while ovs-vswitchd and Weft take each other's place: same
//! database, same socket, rings and features as they were negotiated first. The rings are split:
//! ovs-vswitchd 3.1 does not find its place in packed rings after a kill, whoever served them
//! before.

mod lab;

use lab::*;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use testkit::{Netns, Noise, privileged, veth};

const OVS_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Bytes of the file that is fetched: long enough that each exchange falls into a transfer.
const FILE_BYTES: usize = 32 << 20;
const FETCH: &str = "wget -q -O - http://10.0.0.2:8080/blob";
/// A transfer takes 3 s and more; it is interrupted after this time.
const INTO_TRANSFER: Duration = Duration::from_millis(500);
const TRANSFER_MAX: Duration = Duration::from_secs(120);

/// A process that goes when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(peer: &Netns, dir: &Path) -> Process {
    let mut c = peer.command("busybox");
    c.args(["httpd", "-f", "-p", "8080", "-h"]).arg(dir);
    Process(
        c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("busybox (busybox-static)"),
    )
}

/// The MD5 sum of a file, as `md5sum` prints it.
fn sum(path: &Path) -> String {
    let out = std::process::Command::new("md5sum").arg(path).output().unwrap();
    String::from_utf8(out.stdout).unwrap().split(' ').next().unwrap().to_string()
}

#[test]
fn a_guest_stays_while_the_two_take_turns() {
    if !privileged() {
        return;
    }
    let (_turn, ns, peer) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&ns, "v1"), (&peer, "eth0")).unwrap();
    peer.ip("addr add 10.0.0.2/24 dev eth0").unwrap();
    // ovs-vswitchd's packet sockets take no segments and no checksums that are left to the adapter.
    peer.exec(&["ethtool", "-K", "eth0", "tx", "off", "gso", "off"]).unwrap();
    let mut sw = start(&ns);
    let weft = sw.daemon().to_path_buf();
    let ours = sw.dir().join("vhu");
    let extra = "other_config:dpdk-extra=--no-pci --no-huge --legacy-mem --no-shconf -m 512";
    let dpdk = ["set", "open", ".", "other_config:dpdk-init=true", "other_config:pmd-cpu-mask=1"];
    sw.vsctl(&[&dpdk[..], &[extra]].concat()).unwrap();
    vsctl(&sw, "add-br br0 -- set bridge br0 datapath_type=netdev");
    vsctl(&sw, "add-port br0 v1");
    let kind = format!("type=dpdkvhostuserclient options:vhost-server-path={}", ours.display());
    vsctl(&sw, &format!("add-port br0 vhu -- set interface vhu {kind}"));
    let machine = Machine { socket: &ours, mac: 1, queues: 1, device: "", incoming: None };
    let mut guest = Linux::start(machine);
    guest.run("ip link set eth0 up && ip addr add 10.0.0.1/24 dev eth0");
    let reach = "for i in 1 2 3 4 5 6 7 8 9 10; do ping -c 1 -W 2 10.0.0.2 && exit 0; done; exit 1";
    guest.run(reach);
    let files = sw.dir().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("blob"), Noise::default().bytes(FILE_BYTES)).unwrap();
    // Called by this name, its files have the usual ones.
    let ovs = sw.dir().join("ovs-vswitchd");
    std::os::unix::fs::symlink(OVS_DPDK, &ovs).unwrap();
    let (want, _server) = (sum(&files.join("blob")), serve(&peer, &files));
    for (name, daemon) in [("ovs-vswitchd", &ovs), ("weftd", &weft)].repeat(2) {
        // Its memory has no room for the file.
        guest.run(&format!("rm -f /tmp/sum; ({FETCH} | md5sum > /tmp/sum) > /dev/null 2>&1 &"));
        std::thread::sleep(INTO_TRANSFER);
        sw.kill_daemon();
        assert!(guest.try_run("test -s /tmp/sum").is_err(), "the transfer was over too early");
        let since = Instant::now();
        sw.set_daemon(daemon);
        sw.start_daemon().unwrap();
        wait_within("the end of the transfer", TRANSFER_MAX, || {
            guest.try_run("test -s /tmp/sum").is_ok()
        });
        eprintln!("exchange: to {name}: the transfer ended {:?} after the kill", since.elapsed());
        let got = guest.run("cat /tmp/sum");
        assert!(got.starts_with(&want), "{name}: {got} instead of {want}");
        guest.run(reach);
    }
}
