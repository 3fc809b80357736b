//! Front-ends that do all they may not, beside a port whose guest carries traffic: nothing of it is
//! to be noticed there.
//!
//! What they do comes from three seeds in turn. `WEFT_HOSTILE_SECONDS` says how long each of the
//! tests lasts that attack over and over (`hostile_clients_*`, `hostile_servers_*`); a summary is
//! printed.

mod attacks;
mod behaviours;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/engine.rs"]
mod engine;
mod sieges;
mod world;

use common::*;
use engine::{Faults, SlowEngine};
use packet::{HeapPool, Packet, Pool};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::Noise;
use vhost_user::{Claim, Config, Mode, OFFLOADS, Rx, Seat, SeatState, Socket, Tx, Violation};

/// Longer than a busy machine takes for anything here.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// The core that the polling thread says it has.
const SEAT: usize = 1;

type Port = Socket<HeapPool>;

/// The packets of all ports, as DPDK's are.
static POOL: LazyLock<Arc<HeapPool>> = LazyLock::new(Arc::default);

fn dir() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("weft-vhost-user-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// One test at a time, as descriptors and memory are counted; what it left in the directory is
/// removed.
struct Alone(Option<MutexGuard<'static, ()>>);

fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    Alone(Some(ONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(dir());
        self.0 = None;
    }
}

fn path(name: &str) -> String {
    dir().join(name).to_str().unwrap().to_string()
}

fn open(name: &str, mode: Mode) -> Port {
    open_with(name, mode, false)
}

fn open_with(name: &str, mode: Mode, offloads: bool) -> Port {
    let config = Config {
        path: path(name),
        mode,
        n_txq: 1,
        tx_retries: 8,
        offloads,
        on_change: None,
        warn: Some(Arc::new(|line| println!("log: {line}"))),
        info: None,
    };
    let claim = Claim::new(&config.path, mode).unwrap();
    Socket::open(&config, POOL.clone(), claim).unwrap()
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_TIME_MAX, "{what}: timeout");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn seconds() -> Option<Duration> {
    let seconds = std::env::var("WEFT_HOSTILE_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number of seconds")))
}
