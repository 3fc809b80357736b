//! `weft demo`: a private switch, five namespaces, a vhost-user guest and a VXLAN tunnel, with
//! traffic to watch.

use crate::dirs::Dirs;
use crate::netns::Host;
use crate::run::run;
use crate::say::say;
use crate::view::{self, View};
use crate::{stop, top, up};
use anyhow::{Context, Result, bail, ensure};
use std::io::IsTerminal;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Seconds between two looks at the switch.
const SHOWN_SECONDS: f64 = 1.0;

/// Everything the demonstration made; dropping it removes all of it.
struct Stage {
    dirs: Dirs,
    hosts: Vec<Host>,
    guest: Option<Child>,
    /// Removed with everything in it, last.
    _dir: TempDir,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(g) = &mut self.guest {
            let _ = g.kill();
            let _ = g.wait();
        }
        self.hosts.clear();
        up::down_quietly(&self.dirs);
    }
}

/// True if this network namespace has the device; /sys may show another namespace's.
fn device_exists(name: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["link", "show", "dev", name]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs until Ctrl-C, or for `seconds`.
pub fn demo(seconds: Option<u64>) -> Result<()> {
    stop::on_signals();
    for bridge in ["br0", "br1", "br2"] {
        ensure!(
            !device_exists(bridge),
            "this machine has a network device {bridge} already, of another switch or of a \
             demonstration that was killed"
        );
    }
    let tag = std::process::id() % 10_000;
    // The name cannot be foreseen: no other user can have put links there.
    let dir = tempfile::Builder::new().prefix("weft-").tempdir().context("a directory")?;
    let mut stage =
        Stage { dirs: Dirs::private(dir.path()), hosts: Vec::new(), guest: None, _dir: dir };
    up::up(&stage.dirs)?;
    two_hosts(&mut stage, tag)?;
    hosts_behind_guest(&mut stage, tag)?;
    kernel_behind_tunnel(&mut stage, tag)?;
    say(&format!("\n{}", hints(&stage).join("\n")))?;
    say("\nCtrl-C stops it and removes everything.\n")?;
    watch(&stage, seconds)
}

/// br0: two namespaces on a learning switch.
fn two_hosts(stage: &mut Stage, tag: u32) -> Result<()> {
    let dirs = stage.dirs.clone();
    vsctl(&dirs, "add-br br0 -- set bridge br0 datapath_type=netdev")?;
    for (i, name) in ["a", "b"].iter().enumerate() {
        let (ns, port) = (format!("weft-{name}-{tag}"), format!("w{name}{tag}"));
        stage.hosts.push(Host::new(&dirs, &ns, &port, &format!("10.0.0.{}/24", i + 1))?);
        vsctl(&dirs, &format!("add-port br0 {port}"))?;
    }
    say("\nTwo namespaces through br0 (NORMAL):")?;
    say(&stage.hosts[0].exec("ping -c 3 -i 0.2 10.0.0.2")?)?;
    Ok(())
}

/// br1: two namespaces whose only way to each other is through a vhost-user guest.
fn hosts_behind_guest(stage: &mut Stage, tag: u32) -> Result<()> {
    let dirs = stage.dirs.clone();
    vsctl(&dirs, "add-br br1 -- set bridge br1 datapath_type=netdev fail-mode=secure")?;
    for (i, name) in ["c", "d"].iter().enumerate() {
        let (ns, port) = (format!("weft-{name}-{tag}"), format!("w{name}{tag}"));
        stage.hosts.push(Host::new(&dirs, &ns, &port, &format!("10.1.0.{}/24", i + 1))?);
        vsctl(
            &dirs,
            &format!("add-port br1 {port} -- set interface {port} ofport_request={}", i + 1),
        )?;
        let (vhu, sock) = (format!("vhu{i}"), dirs.run.join(format!("vhu{i}")));
        vsctl(
            &dirs,
            &format!(
                "add-port br1 {vhu} -- set interface {vhu} type=dpdkvhostuserclient \
                 options:vhost-server-path={} ofport_request={}",
                sock.display(),
                i + 11
            ),
        )?;
    }
    for flow in [
        "in_port=1,actions=11",
        "in_port=11,actions=1",
        "in_port=2,actions=12",
        "in_port=12,actions=2",
    ] {
        run(&dirs, "ovs-ofctl", &["add-flow", "br1", flow])?;
    }
    stage.guest = Some(start_guest(&dirs)?);
    say("\nTwo namespaces through br1 and a vhost-user guest (testpmd):")?;
    let pings = ping(&stage.hosts[2], "10.1.0.2").context("the guest does not forward")?;
    say(&pings)?;
    Ok(())
}

/// What ping says of three packets, once there is an answer (a guest starts, a next hop is asked
/// for).
fn ping(from: &Host, to: &str) -> Result<String> {
    let end = Instant::now() + Duration::from_secs(20);
    while from.exec(&format!("ping -c 1 -W 1 {to}")).is_err()
        && Instant::now() < end
        && !stop::is_asked()
    {}
    from.exec(&format!("ping -c 3 -i 0.2 {to}"))
}

/// The first three bytes of a network for documentation (RFC 5737) that nothing on this machine
/// uses.
fn unused_network(dirs: &Dirs) -> Result<&'static str> {
    for net in ["192.0.2", "198.51.100", "203.0.113"] {
        let prefix = format!("{net}.0/24");
        let routes = ["-4", "route", "show", "table", "all", "root", &prefix];
        if run(dirs, "ip", &routes)?.trim().is_empty() {
            return Ok(net);
        }
    }
    bail!("this machine uses all networks for documentation (RFC 5737)")
}

/// br0 goes on behind a VXLAN tunnel, whose other end is the kernel of a fifth namespace; br2 is
/// the network in between.
fn kernel_behind_tunnel(stage: &mut Stage, tag: u32) -> Result<()> {
    let dirs = stage.dirs.clone();
    vsctl(&dirs, "add-br br2 -- set bridge br2 datapath_type=netdev")?;
    let (ns, port) = (format!("weft-e-{tag}"), format!("we{tag}"));
    let net = unused_network(&dirs)?;
    let peer = Host::new(&dirs, &ns, &port, &format!("{net}.2/24"))?;
    vsctl(&dirs, &format!("add-port br2 {port}"))?;
    for args in [&*format!("addr add {net}.1/24 dev br2"), "link set br2 up"] {
        run(&dirs, "ip", &args.split_whitespace().collect::<Vec<_>>())?;
    }
    for args in [
        &*format!("link add vx0 type vxlan id 42 local {net}.2 remote {net}.1 dstport 4789"),
        "addr add 10.0.0.9/24 dev vx0",
        "link set vx0 mtu 1450 up",
    ] {
        peer.exec(&format!("ip {args}"))?;
    }
    stage.hosts.push(peer);
    vsctl(
        &dirs,
        &format!(
            "add-port br0 vx0 -- set interface vx0 type=vxlan options:remote_ip={net}.2 options:key=42"
        ),
    )?;
    say("\nA namespace on br0, and the kernel's own vxlan device behind a tunnel over br2:")?;
    say(&ping(&stage.hosts[0], "10.0.0.9").context("the tunnel's peer does not answer")?)?;
    for args in [["ovs/route/lookup", &format!("{net}.2")].as_slice(), &["tnl/neigh/show"]] {
        say(&run(&dirs, "ovs-appctl", args)?)?;
    }
    Ok(())
}

/// A guest with two virtio devices that forwards between them.
fn start_guest(dirs: &Dirs) -> Result<Child> {
    let dev = |i: u32| {
        let sock = dirs.run.join(format!("vhu{i}"));
        format!("--vdev=net_virtio_user{i},path={},server=1,queues=1", sock.display())
    };
    let prefix = format!("--file-prefix=weft-guest-{}", std::process::id());
    let log = std::fs::File::create(dirs.log.join("guest.log"))?;
    Command::new("dpdk-testpmd")
        // The switch polls on the last core; the guest forwards on the first.
        .args([
            "-l",
            "0,1",
            "--main-lcore=1",
            "--no-pci",
            "--no-huge",
            "-m",
            "256",
            "--no-telemetry",
            &prefix,
        ])
        .args([dev(0), dev(1)])
        .args([
            "--",
            "--forward-mode=io",
            "--auto-start",
            "--no-mlockall",
            "--total-num-mbufs=8192",
        ])
        .args(["--stats-period=60"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("dpdk-testpmd: is it installed? (scripts/deps.sh run)")
}

/// What to try in another terminal.
fn hints(stage: &Stage) -> Vec<String> {
    let mut all = vec!["The switch is running. In another terminal:".to_string()];
    all.push(format!("  export OVS_RUNDIR={}", stage.dirs.run.display()));
    for command in [
        "ovs-vsctl show",
        "ovs-ofctl dump-flows br1",
        "ovs-appctl dpctl/dump-flows",
        "ovs-appctl dpif-netdev/pmd-rxq-show",
        "ovs-appctl weft/state drops",
        "ovs-appctl ofproto/trace br1 in_port=1,icmp",
        "ovs-appctl ofproto/trace br0 in_port=1,icmp      # into the tunnel",
    ] {
        all.push(format!("  {command}"));
    }
    for h in &stage.hosts {
        all.push(format!("  ip netns exec {} bash        # port {}", h.name, h.port));
    }
    all
}

/// Keeps pings going on both bridges and through the tunnel, and shows the switch meanwhile: live
/// on a terminal, else in a line per second.
fn watch(stage: &Stage, seconds: Option<u64>) -> Result<()> {
    let end = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let ended = || stop::is_asked() || end.is_some_and(|e| Instant::now() >= e);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended() {
                for (from, to) in [(0, "10.0.0.2"), (2, "10.1.0.2"), (0, "10.0.0.9")] {
                    let _ = stage.hosts[from].exec(&format!("ping -q -c 5 -i 0.1 -W 1 {to}"));
                }
            }
        });
        let shown = match std::io::stdout().is_terminal() {
            true => top::run(&stage.dirs, SHOWN_SECONDS, &hints(stage), &ended),
            false => tell(&stage.dirs, &ended),
        };
        stop::ask();
        shown
    })
}

/// A line per second.
fn tell(dirs: &Dirs, ended: &dyn Fn() -> bool) -> Result<()> {
    let mut before = view::look(dirs, false)?;
    while !ended() {
        std::thread::sleep(Duration::from_secs_f64(SHOWN_SECONDS));
        let after = view::look(dirs, false)?;
        say(&top::summary(&View::between(&before, &after)))?;
        before = after;
    }
    Ok(())
}

fn vsctl(dirs: &Dirs, line: &str) -> Result<()> {
    let args: Vec<&str> = std::iter::once("--timeout=20").chain(line.split_whitespace()).collect();
    run(dirs, "ovs-vsctl", &args).map(drop)
}
