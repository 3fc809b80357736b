//! A real Linux guest: Debian's kernel under qemu (software emulation, so that it runs anywhere),
//! with a virtio-net device over vhost-user. Commands run inside through a second serial line.
//!
//! `scripts/deps.sh test` unpacks the kernel; everything else is made here, in a directory that
//! goes with the guest.

use super::guest::spawn;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where `scripts/deps.sh` puts the kernel and its modules.
const KERNEL: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../guest-kernel");
/// The modules of a virtio-net device on PCI, each after those that it needs.
const MODULES: &str = "virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
                       failover net_failover virtio_net";
/// What the guest does: drivers, then one command a line until the line is closed. A command comes
/// behind its length, as a serial line loses characters while its machine waits for a CPU.
const INIT: &str = r#"#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for m in @MODULES@; do insmod /modules/$m.ko; done
ip link set lo up
stty raw -echo -F /dev/ttyS1
exec </dev/ttyS1 >/dev/ttyS1 2>&1
echo ready
while read -r length line; do
    [ "${#line}" = "$length" ] || { echo "=== again"; continue; }
    sh -c "$line"; echo "=== $?"
done
poweroff -f
"#;
/// A boot takes six seconds on an idle machine.
const BOOT: Duration = Duration::from_secs(120);
/// A command inside, or one of the monitor's.
const ANSWER: Duration = Duration::from_secs(60);
/// MiB of memory that a guest starts with.
pub const MEMORY: usize = 192;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// What is to be started.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// The vhost-user socket, which the guest makes (the port is a `dpdkvhostuserclient`).
    pub socket: &'a Path,
    /// Its last byte of MAC address.
    pub mac: u8,
    /// Queue pairs.
    pub queues: usize,
    /// More properties of the device, such as `packed=on`.
    pub device: &'a str,
    /// It waits on this socket for another guest's state.
    pub incoming: Option<&'a Path>,
}

/// A guest; gone when dropped.
pub struct Linux {
    child: Child,
    dir: PathBuf,
    control: BufReader<UnixStream>,
    monitor: BufReader<UnixStream>,
}

impl Linux {
    /// Boots a guest whose port the switch serves.
    pub fn start(machine: Machine) -> Linux {
        let mut linux = Linux::launch(machine);
        linux.control.get_ref().set_read_timeout(Some(BOOT)).unwrap();
        let mut line = String::new();
        while line.trim_end() != "ready" {
            line.clear();
            let read = linux.control.read_line(&mut line);
            assert!(matches!(read, Ok(1..)), "{read:?}: {}", linux.console());
        }
        linux.control.get_ref().set_read_timeout(Some(ANSWER)).unwrap();
        linux
    }

    /// Starts qemu. A guest with `incoming` answers as soon as it has taken over the other's state.
    pub fn launch(machine: Machine) -> Linux {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weft-linux-{}-{n}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        initramfs(&dir);
        let child = spawn(&mut qemu(&dir, machine), 0).expect("qemu-system-x86_64 starts");
        let control = BufReader::new(connect(&dir.join("control")));
        let mut linux =
            Linux { child, control, monitor: BufReader::new(connect(&dir.join("qmp"))), dir };
        linux.qmp("qmp_capabilities", Value::Object(Default::default()));
        linux
    }

    /// Runs a line of shell inside; what it said, and whether it went well.
    pub fn try_run(&mut self, line: &str) -> Result<String, String> {
        let line = line.trim();
        loop {
            writeln!(self.control.get_mut(), "{} {line}", line.len()).unwrap();
            let (said, code) = self.answer(line);
            match code.as_str() {
                "again" => {}
                "0" => return Ok(said),
                _ => return Err(said),
            }
        }
    }

    /// What a command said, and how it ended.
    fn answer(&mut self, line: &str) -> (String, String) {
        let mut said = String::new();
        loop {
            let from = said.len();
            let read = self.control.read_line(&mut said);
            assert!(matches!(read, Ok(1..)), "{line}: {read:?} after {said}\n{}", self.console());
            if let Some(code) = said[from..].strip_prefix("=== ") {
                let code = code.trim().to_string();
                said.truncate(from);
                return (said, code);
            }
        }
    }

    /// Runs a line of shell inside; what it said.
    ///
    /// # Panics
    /// When it fails.
    pub fn run(&mut self, line: &str) -> String {
        self.try_run(line).unwrap_or_else(|said| panic!("in the guest: {line}: {said}"))
    }

    /// A command of qemu's monitor (QMP); what it returns.
    pub fn qmp(&mut self, execute: &str, arguments: Value) -> Value {
        let command = serde_json::json!({"execute": execute, "arguments": arguments});
        writeln!(self.monitor.get_mut(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            self.monitor.read_line(&mut line).expect("qemu's monitor answers");
            let mut answer: Value = serde_json::from_str(&line).expect("JSON");
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if let Some(value) = answer.get_mut("return") {
                return value.take();
            }
        }
    }

    /// Stops without a word, as by SIGKILL.
    pub fn kill(self) {}

    /// What kernel and qemu wrote, and for what qemu's threads wait in the kernel.
    fn console(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        format!("{}{}{}", read("console"), read("stderr"), self.threads().unwrap_or_default())
    }

    /// A line for each thread of qemu: its name, for what it waits, and `/proc/PID/stat`.
    fn threads(&self) -> std::io::Result<String> {
        let mut lines = String::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let dir = task?.path();
            let read = |name: &str| fs::read_to_string(dir.join(name));
            lines += &format!("{}: {}: {}", read("comm")?.trim(), read("wchan")?, read("stat")?);
        }
        Ok(lines)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the guest's console: {}", self.console());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn qemu(dir: &Path, machine: Machine) -> Command {
    let Machine { socket, mac, queues, device, incoming } = machine;
    let at = |name: &str| dir.join(name).display().to_string();
    let server = |name: &str| format!("socket,id={name},path={},server=on,wait=off", at(name));
    let mut c = Command::new("qemu-system-x86_64");
    c.args(["-accel", "tcg", "-cpu", "max", "-nodefaults", "-no-user-config", "-no-reboot"]);
    c.args(["-display", "none", "-machine", "q35,memory-backend=m"]);
    c.args(["-m", &format!("{MEMORY},slots=2,maxmem=1G")]);
    c.args(["-object", &format!("memory-backend-memfd,id=m,size={MEMORY}M,share=on")]);
    c.args(["-kernel", &format!("{KERNEL}/vmlinuz"), "-initrd", &at("initramfs")]);
    // Emulated timers are too late for the kernel's check of them on a busy machine.
    let kernel = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable";
    c.args(["-append", &format!("{kernel} memhp_default_state=online")]);
    c.args(["-chardev", &server("control"), "-chardev", &server("qmp")]);
    c.args(["-serial", &format!("file:{}", at("console")), "-serial", "chardev:control"]);
    c.args(["-mon", "chardev=qmp,mode=control"]);
    c.args(["-chardev", &format!("socket,id=vhu,path={},server=on", socket.display())]);
    c.args(["-netdev", &format!("vhost-user,id=net,chardev=vhu,queues={queues}")]);
    // Without vectors: emulation and MSI-X crash together on vhost-user.
    let mq = if queues > 1 { "on" } else { "off" };
    let more = if device.is_empty() { String::new() } else { format!(",{device}") };
    let mac = format!("02:00:00:00:00:{mac:02x}");
    let nic = "virtio-net-pci,netdev=net,vectors=0,romfile=";
    c.args(["-device", &format!("{nic},mac={mac},mq={mq}{more}")]);
    c.args(["-smp", &queues.to_string()]);
    if let Some(path) = incoming {
        c.args(["-incoming", &format!("unix:{}", path.display())]);
    }
    c.stdin(Stdio::null()).stdout(Stdio::null());
    c.stderr(fs::File::create(dir.join("stderr")).unwrap());
    c
}

/// A socket that qemu makes soon.
fn connect(path: &Path) -> UnixStream {
    let end = Instant::now() + ANSWER;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER)).unwrap();
                return stream;
            }
            Err(e) => assert!(Instant::now() < end, "{}: {e}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// busybox, iperf3 with its libraries, the modules and `INIT`, as an archive.
fn initramfs(dir: &Path) {
    let root = dir.join("root");
    for sub in ["bin", "dev", "proc", "sys", "tmp", "modules"] {
        fs::create_dir_all(root.join(sub)).unwrap();
    }
    let copy = |from: &Path, to: &str| {
        let to = root.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap_or_else(|e| {
            panic!("{}: {e} (scripts/deps.sh test)", from.display());
        });
    };
    copy(Path::new("/bin/busybox"), "bin/busybox");
    symlink("busybox", root.join("bin/sh")).unwrap();
    copy(Path::new("/usr/bin/iperf3"), "bin/iperf3");
    for library in libraries("/usr/bin/iperf3") {
        copy(Path::new(&library), library.trim_start_matches('/'));
    }
    for module in MODULES.split_whitespace() {
        copy(&Path::new(KERNEL).join(format!("{module}.ko")), &format!("modules/{module}.ko"));
    }
    fs::write(root.join("init"), INIT.replace("@MODULES@", MODULES)).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let pack = "find . | cpio -o -H newc --quiet > ../initramfs";
    let packed = Command::new("sh").args(["-c", pack]).current_dir(&root).status().expect("sh");
    assert!(packed.success(), "cpio packs");
    fs::remove_dir_all(&root).unwrap();
}

/// The libraries that a program loads.
fn libraries(program: &str) -> Vec<String> {
    let out = Command::new("ldd").arg(program).output().expect("ldd");
    let text = String::from_utf8(out.stdout).expect("text");
    text.split_whitespace().filter(|w| w.starts_with('/')).map(Into::into).collect()
}
