//! Where Open vSwitch's tools expect things, from the environment or Debian's defaults.

use std::path::{Path, PathBuf};

/// The directories that the daemon and the stock tools share.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// Sockets and pidfiles (`OVS_RUNDIR`).
    pub run: PathBuf,
    /// Log files (`OVS_LOGDIR`).
    pub log: PathBuf,
    /// The database file's directory (`OVS_DBDIR`, else `OVS_SYSCONFDIR/openvswitch`).
    pub db: PathBuf,
}

impl Dirs {
    /// As the stock tools find them.
    pub fn from_env() -> Self {
        let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let sysconf = var("OVS_SYSCONFDIR").map(|d| d.join("openvswitch"));
        Dirs {
            run: var("OVS_RUNDIR").unwrap_or_else(|| "/var/run/openvswitch".into()),
            log: var("OVS_LOGDIR").unwrap_or_else(|| "/var/log/openvswitch".into()),
            db: var("OVS_DBDIR").or(sysconf).unwrap_or_else(|| "/etc/openvswitch".into()),
        }
    }

    /// Everything in one directory.
    pub fn private(dir: &Path) -> Self {
        Dirs { run: dir.into(), log: dir.into(), db: dir.into() }
    }

    /// The database's socket.
    pub fn db_sock(&self) -> PathBuf {
        self.run.join("db.sock")
    }

    /// The variables that make the stock tools look here.
    pub fn env(&self) -> [(&'static str, &Path); 3] {
        [("OVS_RUNDIR", &self.run), ("OVS_LOGDIR", &self.log), ("OVS_DBDIR", &self.db)]
    }
}
