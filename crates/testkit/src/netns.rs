//! Network namespaces without names, and cables between them.

use crate::Result;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// A network namespace that lives as long as this value and the processes in it. It has `lo` up,
/// and an IPv6 that speaks only when spoken to (no autoconfiguration, no duplicate detection).
pub struct Netns(File);

const QUIET_IPV6: [(&str, &str); 5] = [
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("dad_transmits", "0"),
    ("router_solicitations", "0"),
    ("addr_gen_mode", "1"),
];

impl Netns {
    /// A fresh namespace.
    ///
    /// # Errors
    /// Without the privilege to make one.
    pub fn new() -> Result<Netns> {
        let thread = std::thread::spawn(make);
        let ns = Netns(thread.join().map_err(|_| "the namespace's thread died")??);
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// The path under which other tools (`ip link set ... netns PATH`) find it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let fd = self.0.as_raw_fd();
        // SAFETY: setns is a plain system call, allowed between fork and exec; the descriptor is
        // open in the child until exec.
        unsafe {
            command.pre_exec(move || match libc::setns(fd, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        command
    }

    /// Runs `words` inside and waits; its standard output.
    ///
    /// # Errors
    /// The command line and what it wrote to standard error, if it fails.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        let (program, args) = words.split_first().ok_or("nothing to run")?;
        let mut command = self.command(program);
        command.args(args);
        output(command)
    }

    /// `ip ARGS` inside, arguments separated by spaces.
    ///
    /// # Errors
    /// As [`Netns::exec`].
    pub fn ip(&self, args: &str) -> Result<String> {
        let mut words = vec!["ip"];
        words.extend(args.split_whitespace());
        self.exec(&words)
    }

    /// Runs `f` on a thread that is inside; what it makes there (sockets, ports) stays there.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            let inside = s.spawn(|| {
                // SAFETY: changes the namespace of this thread only.
                let ret = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(ret, 0, "setns: {}", std::io::Error::last_os_error());
                f()
            });
            inside.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }

    /// Asks `to` for an echo (ICMP or ICMPv6) from inside, again every 50 ms until `wait_max` is
    /// over; how long the successful try took. Give it seconds: the kernel repeats a lost question
    /// for the neighbour only after one.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn ping(&self, to: IpAddr, wait_max: Duration) -> Result<Duration> {
        let end = Instant::now() + wait_max;
        loop {
            let start = Instant::now();
            match self.run(|| echo(to)) {
                Ok(()) => return Ok(start.elapsed()),
                Err(e) if Instant::now() > end => return Err(format!("no answer from {to}: {e}")),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(50).saturating_sub(start.elapsed()))
                }
            }
        }
    }

    /// Makes a device leave nothing to its adapter, as peers without software offloads need it.
    ///
    /// # Errors
    /// As [`Netns::exec`].
    pub fn offloads_off(&self, dev: &str) -> Result<()> {
        self.exec(&["ethtool", "-K", dev, "tx", "off", "rx", "off", "tso", "off", "gso", "off"])
            .map(drop)
    }

    /// Switches IPv6 off on a device: not a single frame of its own.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn ipv6_off(&self, dev: &str) -> Result<()> {
        let path = format!("/proc/sys/net/ipv6/conf/{dev}/disable_ipv6");
        self.run(|| std::fs::write(&path, "1")).map_err(|e| format!("{path}: {e}"))
    }
}

/// One echo request and its answer, through the kernel's ping socket: it fills in identifier and
/// checksum and hands over only answers to us.
fn echo(to: IpAddr) -> std::io::Result<()> {
    let (domain, proto, kind) = match to {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP, 8),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6, 128),
    };
    // SAFETY: plain numbers; the descriptor that is returned is ours.
    let socket = unsafe {
        match libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, proto) {
            -1 => return Err(std::io::Error::last_os_error()),
            fd => UdpSocket::from_raw_fd(fd),
        }
    };
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    socket.connect(SocketAddr::new(to, 0))?;
    socket.send(&[kind, 0, 0, 0, 0, 0, 0, 1, 0x77])?;
    socket.recv(&mut [0; 64]).map(drop)
}

/// Runs on a thread of its own, whose namespace it changes.
fn make() -> Result<File> {
    // SAFETY: affects the calling thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("unshare: {}", std::io::Error::last_os_error()));
    }
    for (key, value) in QUIET_IPV6 {
        // A kernel without IPv6 is quiet enough.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/default/{key}"), value);
    }
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    File::open("/proc/thread-self/ns/net").map_err(|e| format!("opening the namespace: {e}"))
}

/// Lays a cable (a veth pair) from a device name in one namespace to one in another (or the same)
/// and brings both ends up; returns when both carry packets.
///
/// # Errors
/// What `ip` says.
pub fn veth(a: (&Netns, &str), b: (&Netns, &str)) -> Result<()> {
    let path = b.0.path();
    a.0.ip(&format!("link add {} type veth peer name {} netns {path}", a.1, b.1))?;
    a.0.ip(&format!("link set {} up", a.1))?;
    b.0.ip(&format!("link set {} up", b.1))?;
    [a, b].into_iter().try_for_each(|(ns, dev)| carries(ns, dev))
}

/// Waits for a link that is being brought up: the kernel drops what is sent before it has noticed,
/// silently, which is up to a second later.
fn carries(ns: &Netns, dev: &str) -> Result<()> {
    for _ in 0..300 {
        let link = ns.ip(&format!("-o link show {dev}"))?;
        if link.contains("state UP") && !link.contains("qdisc noop ") {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err(format!("{dev} does not come up"))
}

/// Runs a command to its end; standard output, or an error with standard error in it.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(format!("{command:?}: {}: {}", out.status, said.trim()))
}
