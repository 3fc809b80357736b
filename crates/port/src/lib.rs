//! The port contract, and the drivers that need no DPDK (kernel devices and TAPs).
//!
//! *Place*: devices row. *Knows*: packets, names, file descriptors, netlink. *Does not know*:
//! flows, OpenFlow, OVSDB, threads (the caller of a queue owns it).
//!
//! A [`Port`] is the control side's handle; its queues are taken out once and moved to the thread
//! that serves them. Calls are per burst, so the `dyn` costs nothing per packet.

mod adapter;
mod address;
mod cutting;
mod device;
mod dummy;
mod dummy_arp;
mod dummy_wire;
mod ethtool;
mod inquiry;
mod iteration;
mod link_monitor;
mod netlink;
mod packet_rx;
mod packet_tx;
mod pcap;
mod penalty;
mod stats;
mod sys;
mod system;
mod tap;
pub mod tc;
pub mod testing;
mod tunnel;
mod underlay;
mod vectors;

pub use adapter::*;
pub use address::{add_default_route, set_ipv4};
pub use dummy::DUMMY_QUEUES_MAX;
pub use inquiry::{DeviceAnswer, Inquiry, ask_all};
pub use iteration::{
    IterationHooks, begin_iteration, end_iteration, set_iteration_hooks, stop_iterations,
};
pub use link_monitor::{LinkEvent, LinkMonitor, LinkState};
pub use penalty::{charge_penalty, take_penalty};
pub use tunnel::TunnelPort;
pub use underlay::{KernelNeighbour, KernelRoute, Snapshot, UnderlayMonitor, addresses};

use packet::{Packet, Pool};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The receive end of a port. Owned by one thread.
pub trait RxQueue: Send {
    /// Appends up to `max` packets to `out` (which has room); returns how many. Never blocks. If it
    /// returns exactly `max`, there may be more that `fd` does not announce: call it again before
    /// waiting.
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize;
    /// Prefetches what the next `rx` reads: in phase 0, and some time later in phase 1, which needs
    /// what phase 0 prefetched. It is called for many queues in turn, so that they do not wait one
    /// after the other. It does not change the result of `rx`.
    fn prepare(&mut self, phase: usize) {
        let _ = phase;
    }
    /// Notifies the sender, if it sleeps, that `rx` took packets. Called at the end of an iteration
    /// for each queue that returned packets, after a full fence, which serves all queues. Unless
    /// `all`, a notification may be postponed if the sender did not seem to sleep; another call
    /// follows soon.
    fn notify(&mut self, all: bool) {
        let _ = all;
    }
    /// True if `notify` does something. If no queue needs it, there is no fence either.
    fn notifies(&self) -> bool {
        false
    }
    /// Cycles that threads lost to violations by this port's peer since the last call
    /// ([`charge_penalty`]). One of the port's queues returns them. Called some times per second.
    fn take_port_penalty(&mut self) -> u64 {
        0
    }
    /// A descriptor to wait on when idle (kernel ports); None: the queue must be polled. It is
    /// level-triggered, stays the same, and becomes silent when the device is removed.
    fn fd(&self) -> Option<RawFd> {
        None
    }
}

/// The transmit end of a port. Owned by one thread.
pub trait TxQueue: Send {
    /// Sends from the front of `packets`; returns how many were taken (sent, or dropped, freed and
    /// counted by the port). The others stay the caller's. Never blocks.
    fn tx(&mut self, packets: &[Packet]) -> usize;
    /// Sends as `tx` does, until `enough` of `packets` were taken. A frame that is made of several
    /// packets is not divided for that, so a few more may be taken. `enough` is at most the number
    /// of packets.
    fn tx_some(&mut self, packets: &[Packet], enough: usize) -> usize {
        self.tx(&packets[..enough])
    }
    /// How many of `n` packets `tx` would take, at most: called for a queue that was full, before
    /// packets for it are worked on. `n`, if the queue cannot say.
    fn room(&mut self, n: usize) -> usize {
        n
    }
    /// True if the last `tx` did not take all packets because another thread uses what is sent on,
    /// so that it may do so soon. False: there was no room.
    fn is_busy(&self) -> bool {
        false
    }
    /// True if `tx` may take packets that it cannot send, and leaves them to `take_refused`.
    fn refuses(&self) -> bool {
        false
    }
    /// Appends packets that the last `tx` took and could not send: they are the caller's again.
    fn take_refused(&mut self, to: &mut Vec<Packet>) {
        let _ = to;
    }
    /// Notifies the receiver, as [`RxQueue::notify`] does the sender.
    fn notify(&mut self, all: bool) {
        let _ = all;
    }
    /// As [`RxQueue::notifies`].
    fn notifies(&self) -> bool {
        false
    }
    /// True if `prepare` does something. Then bursts are sent at the end of a vector, unless they
    /// have as many packets as half a vector, so that all such queues are prepared in turn.
    fn has_phases(&self) -> bool {
        false
    }
    /// Prefetches what the next `tx` of `n` packets touches, in phases as [`RxQueue::prepare`].
    fn prepare(&mut self, phase: usize, n: usize) {
        let _ = (phase, n);
    }
}

/// How a port must be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// PMD threads poll it (DPDK and vhost-user).
    Poll,
    /// The kernel worker waits for it (a system call per burst).
    Kernel,
}

/// Counters since the port was opened, in OVSDB's names (`Interface.statistics`).
pub type Counters = BTreeMap<String, u64>;

/// The state of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// True if it is administratively up.
    pub admin_up: bool,
    /// True if there is a carrier.
    pub up: bool,
    /// Speed in Mbit/s; 0: unknown.
    pub mbps: u32,
    /// True if it is full duplex; None: unknown.
    pub full_duplex: Option<bool>,
    /// Number of carrier changes.
    pub resets: u64,
    /// What the adapter says of itself; empty: it says nothing.
    pub abilities: Abilities,
}

/// What an adapter says of its link beside the speed. Modes are the kernel's bits
/// (`SUPPORTED_*` and `ADVERTISED_*` of its ethtool.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// What the link runs over; None: unknown, or neither.
    pub medium: Option<Medium>,
    /// True if the speed is negotiated with the peer.
    pub negotiates: bool,
    /// The modes that the adapter has.
    pub supported: u32,
    /// The modes that the adapter offers the peer.
    pub advertised: u32,
}

/// What a link runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Twisted pair.
    Copper,
    /// Glass.
    Fiber,
}

/// An error of a port, with a text for `Interface.error`.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No such device, bad argument, refused by the driver, ...
    #[error("{0}")]
    Device(String),
    /// An operating-system error with what was tried.
    #[error("{what}: {source}")]
    Os {
        /// What failed.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The configuration of a port. Each kind of port uses a part of it.
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
    /// Number of threads that transmit on this port.
    pub n_txq: usize,
    /// `other_config:userspace-tso-enable`.
    pub userspace_tso: bool,
}

/// The control side's handle on a port. Dropping it closes the port. The thread that drops it
/// returns the queues first.
pub trait Port: Send {
    /// Interface name.
    fn name(&self) -> &str;
    /// OVSDB `Interface.type` ("system", "tap", "internal", "dpdk", ...).
    fn kind(&self) -> &str;
    /// How the port must be served.
    fn service(&self) -> Service {
        Service::Kernel
    }
    /// True if closing the port may take long. Then a thread drops it that has nothing else to do.
    fn closes_slowly(&self) -> bool {
        self.service() == Service::Kernel
    }
    /// Number of receive queues; 0: packets come in another way (tunnels).
    fn n_rxq(&self) -> usize {
        1
    }
    /// Number of transmit queues; if there are fewer than threads, the datapath shares them.
    fn n_txq(&self) -> usize {
        1
    }
    /// Takes receive queue `i` from the port; None: it was taken before.
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>>;
    /// Takes transmit queue `i` from the port; None: it was taken before.
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>>;
    /// NUMA node.
    fn numa(&self) -> usize {
        0
    }
    /// MAC address.
    fn mac(&self) -> [u8; 6];
    /// Layer-3 MTU in bytes.
    fn mtu(&self) -> u16;
    /// Kernel interface index, if it has one.
    fn ifindex(&self) -> Option<u32> {
        None
    }
    /// An error if the device does not exist any more. Then the port has to be closed, and opened
    /// again when the device is back. Other ports are not affected.
    fn health(&mut self) -> Result<(), PortError> {
        Ok(())
    }
    /// What is wrong although the port works, for the log; each message is returned once.
    fn complaint(&mut self) -> Option<String> {
        None
    }
    /// Sets whether a kernel device that the port made outlives the port (and the process). Ports
    /// that make none ignore this.
    fn set_persistent(&mut self, _on: bool) -> Result<(), PortError> {
        Ok(())
    }
    /// The link state now.
    fn link(&mut self) -> Link;
    /// The link state as last seen: kernel ports do not ask the kernel, which takes microseconds
    /// for each.
    fn last_link(&mut self) -> Link {
        self.link()
    }
    /// What [`Port::health`] and [`Port::link`] would ask the kernel, to be asked on a thread that
    /// may wait ([`ask_all`]); None: they do not wait. Counters and status of the kernel are those
    /// of the last answer from then on.
    fn inquiry(&mut self) -> Option<Inquiry> {
        None
    }
    /// Takes the answer to an inquiry: [`Port::last_link`] is the link's state then. An error as
    /// of [`Port::health`].
    fn answered(&mut self, _answer: DeviceAnswer) -> Result<(), PortError> {
        Ok(())
    }
    /// Sets the administrative state.
    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError>;
    /// The driver's counters.
    fn counters(&mut self) -> Counters;
    /// Injects a packet to be received in a queue; false: it is no dummy port, packets come from
    /// its device only, or it has no such queue.
    fn inject(&mut self, _queue: usize, _packet: &[u8]) -> bool {
        false
    }
    /// Makes a dummy port answer ARP requests for this address; other ports' hosts answer by
    /// themselves.
    fn answer_arp_for(&mut self, _ip: std::net::Ipv4Addr) {}
    /// Whether the wire that a dummy port connects to is there; None: it connects to none.
    fn is_wired(&self) -> Option<bool> {
        None
    }
    /// True if workers have taken everything that was given to [`Port::inject`].
    fn all_taken(&self) -> bool {
        true
    }
    /// Numbers of the egress queues that the device has without configuration.
    fn queues(&self) -> &[u32] {
        &[]
    }
    /// Traffic control of the port's kernel device, where packets that are sent to it pass; None:
    /// it has no such device.
    fn traffic_control(&self) -> Option<tc::TrafficControl> {
        None
    }
    /// The configuration to show (`dpif/show`); None: its options.
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
    /// The number of resets and removals of the adapter since the first call: each removes all
    /// rules.
    fn adapter_upsets(&mut self) -> Option<Arc<AtomicU32>> {
        None
    }
    /// Applies a changed configuration in place; Ok(false): the port must be opened again. An
    /// error: the device refuses something and goes on as it is.
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError>;
}

/// Numbers of queues as ovs-vswitchd shows them for ports that PMD threads poll. As many were asked
/// for as there are: a device with fewer is refused, or has fewer from the start.
pub fn shown_queues(n_rxq: usize, n_txq: usize) -> BTreeMap<String, String> {
    let of = |what: &str| {
        [("rx", n_rxq), ("tx", n_txq)]
            .map(|(way, n)| (format!("{what}_{way}_queues"), n.to_string()))
    };
    ["configured", "requested"].into_iter().flat_map(of).collect()
}

/// Opens a port that needs no DPDK: kind `system` (or empty), `tap`, `internal`, `dummy` or
/// `dummy-internal`. Packets come from `pool`, and go back to it when they are sent or dropped. The
/// port belongs to the network namespace of the calling thread.
///
/// # Errors
///
/// Texts that ovs-vsctl's users know, fit for `Interface.error`.
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
