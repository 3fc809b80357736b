//! Everything the control thread owns, and how its parts reach each other.

mod accounts;
mod changes;
mod connections;
mod datapath_ports;
mod fail_mode;
pub mod of_ports;
mod packets;
mod remotes;

pub use changes::{collect, wait_for_changes};
pub use remotes::Remotes;

use crate::of::controller::Controller;
use crate::of::snoops::Snoops;
use crate::of::{Conn, ConnId};
use crate::ports::Iface;
use crate::vlog;
use datapath::{Datapath, Ticket};
use ofproto::{BridgeId, Switch};
use openflow::Version;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state, shared by the tasks of the control thread; never borrowed across an await.
pub type Shared = Rc<RefCell<State>>;

/// What OpenFlow connections share.
pub struct OfShared {
    /// What went wrong on connections that ended.
    pub counts: crate::of::account::Counts,
    /// Readers of `.snoop` sockets.
    pub snoops: Snoops,
    /// How much of the control thread's time the connections of each bridge have.
    pub paces: crate::of::pace::Paces,
    /// Keys and authorities of connections over TLS.
    pub tls: crate::tls::Tls,
    /// Notified when a test suite put the clock forward: silence may have been long enough.
    pub warped: Rc<tokio::sync::Notify>,
    next_conn: ConnId,
    /// How long a bundle may be left alone, ns.
    pub bundle_timeout: u64,
}

impl Default for OfShared {
    fn default() -> Self {
        OfShared {
            counts: Default::default(),
            snoops: Snoops::default(),
            paces: Default::default(),
            tls: Default::default(),
            warped: Default::default(),
            next_conn: 1,
            bundle_timeout: crate::of::bundle::IDLE_TIMEOUT,
        }
    }
}

/// Changes that packets may not have seen yet.
#[derive(Default)]
pub struct Pending {
    /// Notified when the packet side's queues were emptied and changes may be complete.
    pub progress: Rc<tokio::sync::Notify>,
    /// Held by the task that brings counters up to date, some at a time; the next one waits for it.
    collecting: Rc<tokio::sync::Mutex<()>>,
    /// Bridges of which connections wait to change them.
    pub turns: Rc<RefCell<crate::of::turns::Turns>>,
    /// Bridges whose flows, groups and meters go because their fail mode asks for it. Controllers
    /// change nothing of them before.
    pub forgetting: BTreeMap<BridgeId, Forgetting>,
    /// Changes of kernel devices.
    pub devices: crate::device_changes::DeviceChanges,
    /// What controllers' packets had the packet side do.
    pub injected: crate::of::injected::Injected,
    /// Whose packets controllers may have go on.
    pub paused: crate::of::paused::Paused,
    /// Invalidations under way, oldest first.
    tickets: VecDeque<Ticket>,
    /// Invalidations that were done before those.
    tickets_done: u64,
}

/// How far a bridge is with forgetting its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    /// It was asked for, and has not begun.
    Wanted,
    /// It is under way, some flows at a time: how often, as it may be asked for again meanwhile.
    Begun(u32),
}

/// What is configured and known of the network under the tunnels, and around the switch.
pub struct UnderlayConf {
    /// The kernel's routes and neighbours, as last heard of.
    pub kernel: Option<Arc<::port::Snapshot>>,
    /// The kernel's routes count for tunnels (not so with `--disable-system-route`).
    pub system_routes: bool,
    /// Addresses that tests gave to devices.
    pub dummy_addresses: ofproto::Addresses,
}

impl Default for UnderlayConf {
    fn default() -> Self {
        UnderlayConf { kernel: None, system_routes: true, dummy_addresses: Default::default() }
    }
}

/// A capture under way.
pub struct Capture {
    /// Gone when the client is.
    pub client: std::sync::Weak<()>,
    /// What the client asked for.
    pub what: String,
}

/// Who wants to know of packets, besides controllers.
#[derive(Default)]
pub struct Observers {
    /// Packets are being captured for a client.
    pub capture: Option<Capture>,
    /// What collectors get.
    pub export: crate::export::exports::Exports,
}

/// What of the configuration was applied last.
#[derive(Default)]
pub struct Applied {
    /// `Open_vSwitch.other_config`.
    pub other_config: BTreeMap<String, String>,
    /// `flow-restore-wait` was set when the database was first read, and still is.
    pub restoring: bool,
    /// `dpif/set-dp-features` said that the datapath has no `add_mpls`.
    pub add_mpls_off: bool,
    /// Traffic control of the kernel's devices.
    pub qos: crate::qos::applied::Ports,
    /// Ports whose traffic control is not as it is to be yet.
    pub qos_due: crate::qos::due::Due,
    /// Ports whose queues' counters are wanted.
    pub queues_asked: crate::qos::due::Asked,
    /// Settings without effect that are in the log already.
    pub notices: BTreeSet<crate::config::Notice>,
    /// What more may come into the log about these, and about mirrors.
    pub setting_log: crate::setting_log::SettingLog,
}

/// What the log has said of PMD threads.
#[derive(Default)]
pub struct PollingSaid {
    /// The settings that it knows; None: it said nothing yet.
    pub settings: Option<datapath::Settings>,
    /// Core and NUMA node of each thread.
    pub cores: Vec<(usize, usize)>,
}

/// What was counted, sampled and looked at lately.
#[derive(Default)]
pub struct Recent {
    /// Counters for `coverage/show`.
    pub coverage: crate::appctl::history::Coverage,
    /// How many flows were cached, for `upcall/show`.
    pub flows: crate::appctl::history::Flows,
    /// How busy workers were, for `dpif-netdev/pmd-rxq-show`.
    pub usage: crate::appctl::usage::Usage,
    /// When links were last looked at because drivers had reported changes.
    pub reported_ms: u64,
    /// A guest or one of its queues came or went, or an adapter's link changed; set by a thread of
    /// the driver's.
    pub links_reported: Arc<AtomicBool>,
    /// How often the link of an interface was looked at.
    pub links_looked_at: u64,
    /// Interfaces that were reported to the database, and turns that this took.
    pub reported: [u64; 2],
    /// Whether a report to the database is wanted, being put together, or being written.
    pub reports: crate::config::Reports,
    /// Configurations of the database that had packets decided about anew.
    pub reconfigured: u64,
    /// What the log said of PMD threads.
    pub said: PollingSaid,
    /// When a failed translation was logged last, and with its trace.
    pub failures_ms: [Option<u64>; 2],
    /// When cached flows were logged last.
    pub flows_logged_ms: u64,
}

/// The control side's state.
pub struct State {
    /// Bridges as OpenFlow sees them, compiled for the packet side.
    pub ofproto: Switch,
    /// The packet side's handle.
    pub dp: Datapath,
    /// What opens DPDK ports, with the packet pools.
    pub devices: port_dpdk::Devices,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// Datapath ports of tunnels.
    pub tunnels: crate::tunnel_ports::TunnelPorts,
    /// Connections.
    pub conns: BTreeMap<ConnId, Conn>,
    /// What connections share.
    pub of: OfShared,
    /// Changes that packets may not have seen yet.
    pub pending: Pending,
    /// What is configured and known of the network under the tunnels, and around the switch.
    pub underlay: UnderlayConf,
    /// What of the configuration was applied last.
    pub applied: Applied,
    /// What was counted, sampled and looked at lately.
    pub recent: Recent,
    /// Something in a database row changed that should be written soon.
    pub status_dirty: bool,
    /// Sessions that say which interfaces carry traffic.
    pub oam: crate::oam::protocols::Protocols,
    /// Ports of several interfaces, and LACP.
    pub bonds: crate::bonds::all::Bonds,
    /// Spanning trees.
    pub trees: crate::trees::bridge_trees::Trees,
    /// Copy engines and the PMD threads that they serve.
    pub engines: crate::engines::Engines,
    /// Rules in adapters.
    pub offload: crate::offload::Offload,
    /// Who wants to know of packets.
    pub observers: Observers,
    /// Connection tracking.
    pub ct: Conntrack,
    /// Ports that are being closed.
    pub closing: crate::closing::Closing,
}

/// What is known of connection tracking besides the connections.
pub struct Conntrack {
    /// Walks over all connections.
    pub walker: crate::ct_walk::Walker,
    /// Timeouts as they were last applied, by zone.
    pub timeouts: BTreeMap<u16, crate::config::Timeouts>,
    /// The numbers of timeout policies.
    pub policies: crate::ct_policies::Numbers,
}

/// Something about a mirror that an operator should look at: how bad it is, the log's module, the
/// text.
pub type MirrorNotice = (vlog::Level, &'static str, String);

/// A bridge.
pub struct Bridge {
    /// In the switch half.
    pub id: BridgeId,
    /// Its configuration.
    pub conf: crate::config::BridgeConf,
    /// Datapath id in use.
    pub dpid: u64,
    /// Address of its LOCAL port.
    pub mac: [u8; 6],
    /// Interfaces by name (also those that failed to open).
    pub ifaces: BTreeMap<String, Iface>,
    /// `.mgmt` and `.snoop`.
    pub sockets: Vec<crate::of::io::UnixSocket>,
    /// Controllers by target.
    pub controllers: BTreeMap<String, Controller>,
    /// Controllers and managers that are reached through it.
    pub in_band: Remotes,
    /// Where to look for a port number that is free: one that was just given up is not taken again
    /// soon, as flows may still name it.
    pub next_port: openflow::OfPort,
    /// What is wrong with its mirrors.
    pub mirror_notices: BTreeSet<MirrorNotice>,
    /// Highest role generation seen.
    pub generation: Option<u64>,
}

impl Bridge {
    /// True if the bridge has `datapath_type=dummy`, whose ports have the numbers that ovs-vswitchd
    /// gives them in tests.
    pub fn is_dummy(&self) -> bool {
        self.conf.datapath_type == "dummy"
    }
}

impl State {
    /// A state without bridges.
    pub fn new(ofproto: Switch, dp: Datapath, mut devices: port_dpdk::Devices) -> Self {
        let links_reported = Arc::new(AtomicBool::new(false));
        let flag = links_reported.clone();
        devices.on_change = Some(Arc::new(move || flag.store(true, Ordering::Release)));
        devices.warn = Some(Arc::new(|text| vlog::warn!("netdev_dpdk", "{text}")));
        devices.info = Some(Arc::new(|module, text| vlog::info!(module, "{text}")));
        State {
            ct: Conntrack {
                walker: crate::ct_walk::Walker::new(dp.conntrack()),
                timeouts: BTreeMap::new(),
                policies: crate::ct_policies::Numbers::default(),
            },
            closing: Default::default(),
            ofproto,
            dp,
            devices,
            bridges: BTreeMap::new(),
            tunnels: Default::default(),
            conns: BTreeMap::new(),
            of: OfShared::default(),
            pending: Pending::default(),
            underlay: UnderlayConf::default(),
            applied: Applied { restoring: true, ..Applied::default() },
            recent: Recent { links_reported, ..Recent::default() },
            status_dirty: false,
            oam: Default::default(),
            bonds: Default::default(),
            trees: Default::default(),
            engines: Default::default(),
            offload: crate::offload::Offload::default(),
            observers: Observers::default(),
        }
    }

    /// The clock of the whole daemon, milliseconds.
    pub fn now_ms(&self) -> u64 {
        datapath::now_ms()
    }

    /// The clock of the whole daemon in nanoseconds, the unit of the switch half.
    pub fn now_ns(&self) -> u64 {
        datapath::now_ms() * 1_000_000
    }

    /// Changes settings of a bridge that do not come from the database.
    pub fn change_bridge(&mut self, bridge: BridgeId, f: impl FnOnce(&mut ofproto::BridgeConfig)) {
        let Some(config) = self.ofproto.bridge_config(bridge) else { return };
        let mut new = config.clone();
        f(&mut new);
        let _ = self.ofproto.configure_bridge(bridge, new);
    }

    /// The name of a bridge.
    pub fn bridge_name(&self, id: BridgeId) -> Option<String> {
        self.bridges.iter().find(|(_, b)| b.id == id).map(|(n, _)| n.clone())
    }

    /// The datapath port behind an OpenFlow port.
    pub fn dp_port(&self, bridge: BridgeId, of_port: openflow::OfPort) -> Option<flow::PortNo> {
        self.ofproto.port(bridge, of_port)?.dp_port
    }
}

/// OpenFlow 1.0 to 1.5.
pub const DEFAULT_VERSIONS: u32 = 1 << Version::V10 as u32
    | 1 << Version::V11 as u32
    | 1 << Version::V12 as u32
    | 1 << Version::V13 as u32
    | 1 << Version::V14 as u32
    | 1 << Version::V15 as u32;

/// `Bridge.protocols` as a bitmap; empty means the default, unknown names are passed over.
fn versions(protocols: &[String]) -> u32 {
    let bits = protocols.iter().fold(0, |bits, p| {
        bits | match p.as_str() {
            "OpenFlow10" => 1 << Version::V10 as u32,
            "OpenFlow11" => 1 << Version::V11 as u32,
            "OpenFlow12" => 1 << Version::V12 as u32,
            "OpenFlow13" => 1 << Version::V13 as u32,
            "OpenFlow14" => 1 << Version::V14 as u32,
            "OpenFlow15" => 1 << Version::V15 as u32,
            _ => 0,
        }
    });
    if bits == 0 { DEFAULT_VERSIONS } else { bits }
}
