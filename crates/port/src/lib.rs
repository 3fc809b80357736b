//! The port contract, and the drivers that need no DPDK (kernel devices and TAPs).
//!
//! *Place*: devices row. *Knows*: packets, names, file descriptors, netlink. *Does not know*:
//! flows, OpenFlow, OVSDB, threads (whoever calls a queue owns it).
//!
//! A [`Port`] is the control side's handle; its queues are taken out once and moved to the thread
//! that serves them. Calls are per burst, so the `dyn` costs nothing per packet.

mod adapter;
mod device;
mod dummy;
mod dummy_wire;
mod ethtool;
mod gso;
mod netlink;
mod packet_rx;
mod packet_tx;
mod pcap;
mod penalty;
mod stats;
mod sys;
mod system;
mod tap;
pub mod testing;
mod tunnel;
mod turn;
mod underlay;
mod vnet;
mod watch;

pub use adapter::*;
pub use penalty::{charge_penalty, take_penalty};
pub use tunnel::TunnelPort;
pub use turn::{Turns, begin_turn, end_turn, set_turns, stop_turns};
pub use underlay::{KernelNeighbour, KernelRoute, Snapshot, UnderlayWatch, addresses};
pub use watch::{LinkEvent, LinkState, LinkWatch};

use packet::{Packet, Pool};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The receive end of a port. Owned by one thread.
pub trait RxQueue: Send {
    /// Appends up to `max` packets to `out` (which has room); returns how many. Never blocks.
    /// Exactly `max` means that there may be more which `fd` does not announce: call again before
    /// waiting.
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize;
    /// Starts to fetch what the next `rx` will read: phase 0, and some time later phase 1, which
    /// needs what phase 0 fetched. Called for many queues in turn, so that they do not wait one
    /// after the other. Changes nothing that the outcome of `rx` depends on.
    fn prepare(&mut self, phase: usize) {
        let _ = phase;
    }
    /// Tells the other side, if it sleeps, of what `rx` took. Called at the end of a round for each
    /// queue that brought packets, after a full fence, which so serves them all. Not `all`: it may
    /// wait if the other side did not seem to sleep; another call follows soon.
    fn notify(&mut self, all: bool) {
        let _ = all;
    }
    /// Does `notify` do something? If no queue says so there is no fence either.
    fn notifies(&self) -> bool {
        false
    }
    /// Cycles that any thread lost to violations of the other side of this port since this was
    /// asked last ([`charge_penalty`]): one of the port's queues says so. Asked some times per
    /// second.
    fn take_port_penalty(&mut self) -> u64 {
        0
    }
    /// A descriptor to wait on when idle (kernel ports); None: poll only. Level-triggered; stays
    /// the same, and becomes silent when the device is gone.
    fn fd(&self) -> Option<RawFd> {
        None
    }
}

/// The transmit end of a port. Owned by one thread.
pub trait TxQueue: Send {
    /// Sends from the front of `packets`; returns how many were taken (sent, or dropped and freed
    /// and counted by the port itself). The rest stays the caller's. Never blocks.
    fn tx(&mut self, packets: &[Packet]) -> usize;
    /// How many of `n` packets `tx` would take, at most: asked of a queue that was full, before
    /// packets for it are worked on. All, where that cannot be said.
    fn room(&mut self, n: usize) -> usize {
        n
    }
    /// Why the last `tx` did not take all: another thread has what is sent on, so that it may do so
    /// soon. Otherwise there was no room.
    fn is_busy(&self) -> bool {
        false
    }
    /// As [`RxQueue::notify`], for what `tx` sent.
    fn notify(&mut self, all: bool) {
        let _ = all;
    }
    /// As [`RxQueue::notifies`].
    fn notifies(&self) -> bool {
        false
    }
    /// Does `prepare` bring something? Then even full bursts are sent at the end of a vector, when
    /// all such queues take turns.
    fn has_phases(&self) -> bool {
        false
    }
    /// As [`RxQueue::prepare`] for the next `tx`, of `n` packets.
    fn prepare(&mut self, phase: usize, n: usize) {
        let _ = (phase, n);
    }
}

/// How a port must be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Polled by PMD threads (DPDK and vhost-user).
    Poll,
    /// Waited for by the kernel-port thread (system calls per packet burst).
    Kernel,
}

/// Counters since the port was opened, in OVSDB's names (`Interface.statistics`).
pub type Counters = BTreeMap<String, u64>;

/// What is known about the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Administratively up?
    pub admin_up: bool,
    /// Carrier?
    pub up: bool,
    /// Speed in Mbit/s, 0 when unknown.
    pub mbps: u32,
    /// Full duplex? None when unknown.
    pub full_duplex: Option<bool>,
    /// Carrier changes seen.
    pub resets: u64,
}

/// Anything that went wrong with a port, in words for `Interface.error`.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No such device, bad argument, refused by the driver, ...
    #[error("{0}")]
    Device(String),
    /// An operating-system error with what was tried.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What the control side asked for (a subset means something to each kind of port).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortConfig {
    /// Interface name.
    pub name: String,
    /// OVSDB `Interface.type`, "" normalised to "system".
    pub kind: String,
    /// OVSDB `Interface.options`.
    pub options: BTreeMap<String, String>,
    /// `Interface.mtu_request`.
    pub mtu_request: Option<u16>,
    /// `Interface.mac`, for internal ports.
    pub mac: Option<[u8; 6]>,
    /// Number of threads that will transmit on this port.
    pub n_txq: usize,
}

/// The control side's handle on a port. Dropping it closes the port; its queues are returned to
/// the thread that drops it first.
pub trait Port: Send {
    /// Interface name.
    fn name(&self) -> &str;
    /// OVSDB `Interface.type` ("system", "tap", "internal", "dpdk", ...).
    fn kind(&self) -> &str;
    /// How it must be served.
    fn service(&self) -> Service {
        Service::Kernel
    }
    /// Receive queues; 0: packets come in another way (tunnels).
    fn n_rxq(&self) -> usize {
        1
    }
    /// Transmit queues; when fewer than threads, the datapath shares them.
    fn n_txq(&self) -> usize {
        1
    }
    /// Takes receive queue `i` out; None when already taken.
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>>;
    /// Takes transmit queue `i` out; None when already taken.
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>>;
    /// NUMA node.
    fn numa(&self) -> usize {
        0
    }
    /// MAC address.
    fn mac(&self) -> [u8; 6];
    /// Layer-3 MTU in bytes.
    fn mtu(&self) -> u16;
    /// Kernel interface index, if there is one.
    fn ifindex(&self) -> Option<u32> {
        None
    }
    /// Is the device still there? An error is final: close the port, open it again when the device
    /// is back. Other ports are not concerned.
    fn health(&mut self) -> Result<(), PortError> {
        Ok(())
    }
    /// What is wrong with the port though it works, for the log: each such thing once.
    fn complaint(&mut self) -> Option<String> {
        None
    }
    /// Says whether a kernel device that the port made outlives the port (and the process). Ports
    /// that make none ignore it.
    fn set_persistent(&mut self, _on: bool) -> Result<(), PortError> {
        Ok(())
    }
    /// Link state now.
    fn link(&mut self) -> Link;
    /// Sets the administrative state.
    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError>;
    /// Driver counters.
    fn counters(&mut self) -> Counters;
    /// Has the port receive a packet in a queue; false: it is no dummy, packets come from its
    /// device only, or it has no such queue.
    fn inject(&mut self, _queue: usize, _packet: &[u8]) -> bool {
        false
    }
    /// Was everything that [`Port::inject`] was given taken by a worker?
    fn all_taken(&self) -> bool {
        true
    }
    /// Numbers of the egress queues that the device has without being configured.
    fn queues(&self) -> &[u32] {
        &[]
    }
    /// What is shown of its configuration in place of its options (`dpif/show`); None: these.
    fn shown_config(&self) -> Option<BTreeMap<String, String>> {
        None
    }
    /// OVSDB `Interface.status`.
    fn status(&mut self) -> BTreeMap<String, String>;
    /// The adapter's rule table, for a thread of its own; None: the port has no adapter, or one
    /// without rules.
    fn rule_table(&mut self) -> Option<Box<dyn RuleTable>> {
        None
    }
    /// Resets and removals of the adapter that has the rule table, counted from the first call on:
    /// after each, rules that were there are gone.
    fn adapter_upsets(&mut self) -> Option<Arc<AtomicU32>> {
        None
    }
    /// Applies a changed configuration in place; Ok(false) when the port must be reopened.
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError>;
}

/// Queues as ovs-vswitchd shows those of ports that PMD threads poll. Here as many were asked for
/// as there are: a device without so many is refused or has fewer from the start.
pub fn shown_queues(n_rxq: usize, n_txq: usize) -> BTreeMap<String, String> {
    let of = |what: &str| {
        [("rx", n_rxq), ("tx", n_txq)]
            .map(|(way, n)| (format!("{what}_{way}_queues"), n.to_string()))
    };
    ["configured", "requested"].into_iter().flat_map(of).collect()
}

/// Opens a port that needs no DPDK: kind `system` (or empty), `tap`, `internal`, `dummy` or
/// `dummy-internal`. Packets come from `pool`, and go back to it when sent or dropped. Belongs to
/// the network namespace of the calling thread.
///
/// # Errors
/// In the words that ovs-vsctl's users know, fit for `Interface.error`.
pub fn open(config: &PortConfig, pool: Arc<dyn Pool>) -> Result<Box<dyn Port>, PortError> {
    match config.kind.as_str() {
        "" | "system" => Ok(Box::new(system::SystemPort::open(config, pool)?)),
        "tap" | "internal" => Ok(Box::new(tap::TapPort::open(config, pool)?)),
        "dummy" | "dummy-internal" | "dummy-pmd" => {
            Ok(Box::new(dummy::DummyPort::open(config, pool)?))
        }
        kind => Err(PortError::Device(format!(
            "could not create network device {} of unknown type {kind}",
            config.name
        ))),
    }
}
