//! Guests: `dpdk-testpmd` on virtio-user, which sends back what it gets.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// What a guest's device is like.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Packed rings rather than split ones.
    pub packed: bool,
    /// Queue pairs.
    pub queues: usize,
    /// The guest makes the socket (the port is a `dpdkvhostuserclient`).
    pub server: bool,
}

/// A guest; killed when dropped.
pub struct Guest {
    child: Child,
    prefix: String,
}

/// Makes sure that a child does not outlive a test that is killed, and gives it this `nice` value:
/// what polls all the time is to let the switch and the tools go first.
pub(super) fn tie(command: &mut Command, nice: i32) {
    let prepare = move || {
        // SAFETY: these change attributes of the calling process, the child.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
        }
        Ok(())
    };
    // SAFETY: only makes system calls, which a child may.
    unsafe { command.pre_exec(prepare) };
}

impl Guest {
    /// Starts one; `mode` is testpmd's: `macswap`, `io`, ...
    pub fn start(socket: &Path, ring: Ring, mode: &str) -> Guest {
        let Ring { packed, queues, server } = ring;
        let vdev = format!(
            "net_virtio_user0,path={},queues={queues},packed_vq={},server={}",
            socket.display(),
            u8::from(packed),
            u8::from(server)
        );
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("weft-e2e-{}-{n}", std::process::id());
        let mut command = Command::new("dpdk-testpmd");
        tie(&mut command, 15);
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
        let child = command.spawn().expect("dpdk-testpmd (Debian: dpdk-dev) starts");
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
