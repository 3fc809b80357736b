//! Guests that send back what they get: `dpdk-testpmd` on virtio-user, and the lab's, which are
//! only rings and so light that many of them fit on a core.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// What a guest's device is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    /// Packed rings rather than split ones.
    pub packed: bool,
    /// Queue pairs.
    pub queues: usize,
    /// The guest makes the socket (the port is a `dpdkvhostuserclient`).
    pub server: bool,
    /// More of virtio-user's options, such as `mrg_rxbuf=0`.
    pub device: &'static str,
    /// The switch leaves the rings to DPDK's library.
    pub library: bool,
}

/// A guest; killed when dropped.
pub struct Guest {
    child: Child,
    prefix: String,
}

/// Starts a guest that does not outlive a test that is killed. What polls all the time has a `nice`
/// value that lets the switch and the tools go first; and a session with that value, because a
/// kernel that shares cores among sessions (autogroup) looks at `nice` only within one.
pub(super) fn spawn(command: &mut Command, nice: i32) -> std::io::Result<Child> {
    let prepare = move || {
        // SAFETY: these change attributes of the calling process, the child.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
            libc::setsid();
        }
        Ok(())
    };
    // SAFETY: only makes system calls, which a child may.
    let child = unsafe { command.pre_exec(prepare) }.spawn()?;
    let _ = std::fs::write(format!("/proc/{}/autogroup", child.id()), nice.to_string());
    Ok(child)
}

impl Guest {
    /// Starts one; `mode` is testpmd's: `macswap`, `io`, ...
    pub fn start(socket: &Path, ring: Ring, mode: &str) -> Guest {
        let Ring { packed, queues, server, device, .. } = ring;
        let mut vdev = format!(
            "net_virtio_user0,path={},queues={queues},packed_vq={},server={}",
            socket.display(),
            u8::from(packed),
            u8::from(server)
        );
        if !device.is_empty() {
            vdev = format!("{vdev},{device}");
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("weft-e2e-{}-{n}", std::process::id());
        let mut command = Command::new("dpdk-testpmd");
        command
            .args(["--no-pci", "--no-huge", "-m", "256", "--no-shconf", "--no-telemetry"])
            .args(["-l", "0,1", "--file-prefix", &prefix, "--vdev", &vdev, "--"])
            .args([&format!("--forward-mode={mode}"), "--port-topology=loop", "--auto-start"])
            .args(["--no-mlockall", "--no-flush-rx", "--total-num-mbufs=4096"])
            .args(["--rxd=256", "--txd=256"])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = spawn(&mut command, 15).expect("dpdk-testpmd (Debian: dpdk-dev) starts");
        Guest { child, prefix }
    }

    /// SIGKILL, whatever it is doing.
    pub fn kill(self) {}
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(format!("/var/run/dpdk/{}", self.prefix));
    }
}

/// Many guests in one process (`lab/guests/bare.c`), one for each socket; killed when dropped.
pub struct BareGuests(Child);

impl BareGuests {
    /// Starts them; the ports are `dpdkvhostuserclient`.
    pub fn start(sockets: &[PathBuf], packed: bool) -> BareGuests {
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/guests/build.sh");
        let built = Command::new(build).output().expect("lab/guests/build.sh");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let beside = String::from_utf8(built.stdout).unwrap();
        let mut c = Command::new(Path::new(beside.trim()).with_file_name("bare-guests"));
        let counters = sockets[0].with_extension("counters");
        c.args([if packed { "packed" } else { "split" }, "echo"]).arg(counters).args(sockets);
        BareGuests(spawn(c.stdout(Stdio::null()), 5).expect("the lab's guests"))
    }
}

impl Drop for BareGuests {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
