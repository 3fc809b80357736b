//! `weft demo`: whatever ends it, nothing of it is left.

mod lab;

use lab::*;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use testkit::privileged;

/// A terminal; dropping it closes it.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The demonstration on a terminal of its own (`script`), in namespaces of its own: its bridges and
/// network namespaces have names that this machine may use.
fn demonstration(folder: &Path) -> Terminal {
    let weft = Path::new(env!("CARGO_BIN_EXE_weftd")).with_file_name("weft");
    let shell = format!(
        "mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && \
         exec script -qefc '{} demo' {}/screen",
        weft.display(),
        folder.display()
    );
    let log = File::create(folder.join("log")).unwrap();
    let child = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", &shell])
        .env("TMPDIR", folder)
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    Terminal(child)
}

/// Processes that name the folder in their arguments.
fn processes(folder: &Path) -> String {
    let out = Command::new("pgrep").arg("-af").arg(folder).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn nothing_is_left_when_its_terminal_is_closed() {
    if !privileged() {
        return;
    }
    let _turn = turn();
    let folder = tempfile::Builder::new().prefix("weft-demo-").tempdir().unwrap();
    let screen = || std::fs::read_to_string(folder.path().join("screen")).unwrap_or_default();
    let terminal = demonstration(folder.path());
    wait_for("the demonstration to run", || screen().contains("Ctrl-C stops it"));
    let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
    let folders: Vec<_> = entries.map(|e| e.path()).filter(|p| p.is_dir()).collect();
    drop(terminal);
    let [switch] = &folders[..] else { panic!("{folders:?}") };
    wait_for("the demonstration to end", || {
        !switch.exists() && processes(folder.path()).is_empty()
    });
}
