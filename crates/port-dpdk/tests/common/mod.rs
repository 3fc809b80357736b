//! EAL and its pools, once per test process, on hugepages if the machine has free ones.

use dpdk::{Eal, EalConfig, Pools};
use port::PortConfig;
use port_dpdk::Devices;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Everything DPDK logged so far.
#[allow(dead_code)]
pub fn log() -> String {
    LOG.lock().unwrap().join("\n")
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Every warning of a port so far.
#[allow(dead_code)]
pub fn warnings() -> String {
    WARNINGS.lock().unwrap().join("\n")
}

static DEVICES: LazyLock<Devices> = LazyLock::new(|| {
    let log = Some((|_: u32, line: &str| LOG.lock().unwrap().push(line.into())) as fn(u32, &str));
    let config = EalConfig { log, pci: true, ..Default::default() };
    let pools = Arc::new(Pools::new(Eal::init(&config).expect("EAL starts")).expect("pools"));
    let warn = |line: &str| WARNINGS.lock().unwrap().push(line.into());
    let mut devices = Devices::new(pools, dir());
    devices.warn = Some(Arc::new(warn));
    devices
});

/// The test process's devices.
pub fn devices() -> &'static Devices {
    &DEVICES
}

/// A directory of this process, which the first call makes.
pub fn dir() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("weft-port-dpdk-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A configuration for `name` of type `kind`.
pub fn config(name: &str, kind: &str, options: &[(&str, &str)]) -> PortConfig {
    let options = options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    PortConfig { name: name.into(), kind: kind.into(), options, n_txq: 2, ..Default::default() }
}

/// Removes a directory when dropped, whatever happens to the test.
pub struct Cleanup(pub PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}
