//! The port contract over DPDK: `dpdk`, `afxdp`, `dpdkvhostuserclient` and `dpdkvhostuser`.
//!
//! *Place*: devices row. *Knows*: OVSDB's interface options, status and statistics names for these
//! types, and the `dpdk` crate. *Does not know*: the database, flows, threads, DPDK's C interface.
//!
//! Packets that these ports receive or send are DPDK's: they come from [`dpdk::Pools`].

mod eth;
mod memif;
mod options;
mod vhost;

use dpdk::{DpdkError, Pools};
use port::{Port, PortConfig, PortError};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use vhost_user::Inform;

/// Writes a line to the log.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// The interface types that [`Devices::open`] knows.
pub const KINDS: [&str; 4] = ["afxdp", "dpdk", "dpdkvhostuser", "dpdkvhostuserclient"];

/// What all DPDK ports share.
#[derive(Clone)]
pub struct Devices {
    /// The pools of packets.
    pub pools: Arc<Pools>,
    /// Directory of the sockets of `dpdkvhostuser` ports.
    pub vhost_sock_dir: PathBuf,
    /// `other_config:vhost-iommu-support`.
    pub vhost_iommu: bool,
    /// `other_config:vhost-postcopy-support`.
    pub vhost_postcopy: bool,
    /// `other_config:userspace-tso-enable`.
    pub userspace_tso: bool,
    /// Called when a guest or one of its queues is added or removed, or an adapter interrupts as
    /// its link changes (`dpdk-lsc-interrupt`), so that link state and number of receive queues are
    /// read again. Runs on a thread of DPDK; must not block.
    pub on_change: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called with a warning for the log, from any thread.
    pub warn: Option<Warn>,
    /// Called with a line for the log that is no warning, from any thread.
    pub info: Option<Inform>,
    memif: Arc<memif::Memif>,
}

/// MTUs of ports of DPDK in bytes, as in ovs-vswitchd: frames have up to 9,728 bytes, with two
/// tags.
const MTU_BYTES: RangeInclusive<u32> = 68..=9702;

/// True if ports of this type may have this MTU.
pub fn takes_mtu(kind: &str, mtu: u32) -> bool {
    !kind.starts_with("dpdk") || MTU_BYTES.contains(&mtu)
}

/// What `dpctl/show` shows for every port of DPDK, in ovs-vswitchd's words.
fn shown_config(port: &dyn Port) -> BTreeMap<String, String> {
    let mut shown = port::shown_queues(port.n_rxq(), port.n_txq());
    shown.insert("mtu".into(), port.mtu().to_string());
    shown
}

impl Devices {
    /// Devices with vhost sockets in `vhost_sock_dir`, without IOMMU, post-copy and TSO.
    pub fn new(pools: Arc<Pools>, vhost_sock_dir: impl Into<PathBuf>) -> Self {
        let vhost_sock_dir = vhost_sock_dir.into();
        Devices {
            pools,
            vhost_sock_dir,
            vhost_iommu: false,
            vhost_postcopy: false,
            userspace_tso: false,
            on_change: None,
            warn: None,
            info: None,
            memif: Arc::default(),
        }
    }

    /// Opens a port. An error has a text for `Interface.error`, and nothing was changed.
    pub fn open(&self, config: &PortConfig) -> Result<Box<dyn Port>, PortError> {
        match config.kind.as_str() {
            "dpdk" if let Some(args) = memif::Args::read(options::devargs(config)) => {
                let args = args.map_err(PortError::Device)?;
                Ok(Box::new(memif::MemifPort::open(self, config, args)?))
            }
            "dpdk" | "afxdp" => Ok(Box::new(eth::EthPort::open(self, config)?)),
            "dpdkvhostuser" | "dpdkvhostuserclient" => {
                Ok(Box::new(vhost::VhostPort::open(self, config)?))
            }
            kind => Err(PortError::Device(format!("'{kind}' is not a type of DPDK port"))),
        }
    }
}

fn device_error(error: DpdkError) -> PortError {
    PortError::Device(error.to_string())
}
