//! Network namespaces for the demonstration, removed when dropped.

use crate::dirs::Dirs;
use crate::run::{quietly, run};
use anyhow::Result;

/// A named namespace joined to the switch by a veth pair.
pub struct Host {
    dirs: Dirs,
    /// Namespace name.
    pub name: String,
    /// The switch's end of the veth pair.
    pub port: String,
}

impl Host {
    /// Namespace `name` with address `addr` on `eth0`, whose other end is `port` here.
    pub fn new(dirs: &Dirs, name: &str, port: &str, addr: &str) -> Result<Self> {
        let ip = |args: &str| run(dirs, "ip", &args.split(' ').collect::<Vec<_>>());
        ip(&format!("netns add {name}"))?;
        let host = Host { dirs: dirs.clone(), name: name.into(), port: port.into() };
        ip(&format!("link add {port} type veth peer name eth0 netns {name}"))?;
        ip(&format!("-n {name} addr add {addr} dev eth0"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("link set {port} up"))?;
        Ok(host)
    }

    /// Runs a command inside.
    pub fn exec(&self, command: &str) -> Result<String> {
        let line = format!("netns exec {} {command}", self.name);
        run(&self.dirs, "ip", &line.split(' ').collect::<Vec<_>>())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        quietly(&self.dirs, "ip", &["link", "del", &self.port]);
        quietly(&self.dirs, "ip", &["netns", "del", &self.name]);
    }
}
