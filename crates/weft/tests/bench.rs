//! `weft bench` as people meet it: what it says to wrong words, and that Ctrl-C leaves nothing
//! behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn bench(words: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_weft"));
    c.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).arg("bench").args(words);
    c.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_words_get_one_sentence() {
    for (words, sentence) in [
        (vec!["run", "nonesuch"], "no experiment 'nonesuch'; there are: generator, quick"),
        (vec!["run", "quick", "--systems", "vpp"], "no system 'vpp'; there are: testpmd-io"),
        (vec!["run", "quick", "--case", "nonesuch"], "no case of quick has 'nonesuch' in its name"),
        (vec!["compare", "/nonesuch", "/nonesuch"], "/nonesuch"),
    ] {
        let out = bench(&words).output().unwrap();
        assert!(!out.status.success());
        let said = said(&out);
        assert!(said.contains(sentence), "{said}");
        assert!(said.trim().lines().count() <= 4, "{said}");
    }
}

/// Processes that have the word in their command line or environment.
fn processes_with(word: &str) -> Vec<PathBuf> {
    let has = |dir: &Path| {
        let read = |name| std::fs::read(dir.join(name)).unwrap_or_default();
        let text = [read("cmdline"), read("environ")].concat();
        text.windows(word.len()).any(|w| w == word.as_bytes())
    };
    let all = Path::new("/proc").read_dir().unwrap().flatten().map(|e| e.path());
    all.filter(|p| has(p)).collect()
}

fn wait_for(child: &mut Child, what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("{what}: the run ended first, {status}");
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run that forwards, ended by a signal: what it said, when nothing of it is left.
fn ended_by(signal: i32) -> String {
    let words = ["run", "generator", "-n", "1", "-s", "60", "--case", "one flow"];
    let temporary = tempfile::tempdir().unwrap();
    let mut child = bench(&words).env("TMPDIR", temporary.path()).spawn().unwrap();
    let made = || temporary.path().read_dir().unwrap().flatten().map(|e| e.path()).next();
    let counters = || made().is_some_and(|dir| dir.join("run/sink.counters").exists());
    wait_for(&mut child, "packets", counters);
    // SAFETY: no memory; the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
    let out = child.wait_with_output().unwrap();
    // Of a run that was killed, others clean up a moment later.
    let word = temporary.path().to_string_lossy().into_owned();
    let left = || made().is_some() || !processes_with(&word).is_empty();
    let began = Instant::now();
    while left() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "signal {signal} leaves something behind"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    said(&out)
}

#[test]
fn however_it_ends_nothing_is_left_behind() {
    let testpmd = Path::new("/usr/bin/dpdk-testpmd").exists();
    if !testkit::privileged() || !testkit::available(testpmd, "the package dpdk-dev") {
        return;
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let said = ended_by(signal);
        assert!(said.contains("interrupted"), "{said}");
    }
    let said = ended_by(libc::SIGKILL);
    assert!(said.lines().all(|line| line.contains("about")), "only how long it takes: {said}");
}
