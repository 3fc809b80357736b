//! The directories of Open vSwitch, from the environment or the usual ones.

use crate::vlog::PROGRAM;
use std::env;
use std::path::{Path, PathBuf};

/// Where sockets, logs and configuration are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    /// `OVS_RUNDIR`: sockets and pidfiles.
    pub run: PathBuf,
    /// `OVS_LOGDIR`: log files.
    pub log: PathBuf,
    /// `OVS_DBDIR`: databases.
    pub db: PathBuf,
    /// `OVS_SYSCONFDIR`: configuration files, in its subdirectory `openvswitch`.
    pub sysconf: PathBuf,
}

impl Dirs {
    /// The directories of this process.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let sysconf = lookup("OVS_SYSCONFDIR");
        let beside = sysconf.as_ref().map(|dir| dir.join("openvswitch"));
        Self {
            run: lookup("OVS_RUNDIR").unwrap_or_else(|| "/var/run/openvswitch".into()),
            log: lookup("OVS_LOGDIR").unwrap_or_else(|| "/var/log/openvswitch".into()),
            db: lookup("OVS_DBDIR").or(beside).unwrap_or_else(|| "/etc/openvswitch".into()),
            sysconf: sysconf.unwrap_or_else(|| "/etc".into()),
        }
    }

    /// The database's usual socket.
    pub fn database(&self) -> String {
        format!("unix:{}", self.run.join("db.sock").display())
    }

    /// The pidfile: `file`, or the usual name, below the run directory unless absolute.
    pub fn pidfile(&self, file: Option<&Path>) -> PathBuf {
        self.run.join(file.map_or_else(|| format!("{PROGRAM}.pid").into(), Path::to_path_buf))
    }

    /// The log file: `file`, or the usual name, below the log directory unless absolute.
    pub fn log_file(&self, file: Option<&Path>) -> PathBuf {
        self.log.join(file.map_or_else(|| format!("{PROGRAM}.log").into(), Path::to_path_buf))
    }

    /// The control socket: the process's usual one, or `socket`. `none` stands for no socket.
    pub fn unixctl(&self, socket: Option<&str>) -> Option<PathBuf> {
        match socket {
            None => Some(crate::unixctl::default_path(&self.run)),
            Some("none") => None,
            Some(path) => Some(self.run.join(path.strip_prefix("unix:").unwrap_or(path))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_environment() {
        let usual = Dirs::from_lookup(|_| None);
        assert_eq!(usual.database(), "unix:/var/run/openvswitch/db.sock");
        assert_eq!(usual.db, Path::new("/etc/openvswitch"));
        let mine = Dirs::from_lookup(|name| (name == "OVS_RUNDIR").then(|| "/r".into()));
        assert_eq!(mine.pidfile(None), Path::new("/r/ovs-vswitchd.pid"));
        assert_eq!(mine.pidfile(Some("/x/y".as_ref())), Path::new("/x/y"));
        assert_eq!(mine.log_file(Some("z".as_ref())), Path::new("/var/log/openvswitch/z"));
        assert_eq!(mine.unixctl(Some("c")), Some("/r/c".into()));
        assert_eq!(mine.unixctl(Some("none")), None);
    }
}
