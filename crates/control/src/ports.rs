//! Interfaces: opening, changing and closing the ports behind them, and what they say of
//! themselves.

use crate::budget::Budget;
pub use crate::config::parse_mac;
use crate::config::{IfaceConf, QosConf};
use crate::tunnel_options::is_tunnel;
use crate::vlog;
use datapath::{Datapath, EgressPolicer, Policing, RxAffinity};
use flow::PortNo;
use openflow::{OfPort, PortStats};
use port::{Port, PortConfig, PortError};
use std::collections::BTreeMap;

const MODULE: &str = "bridge";

/// OVSDB interface types that can be added.
pub const IFACE_TYPES: &[&str] = &[
    "afxdp",
    "dpdk",
    "dpdkvhostuser",
    "dpdkvhostuserclient",
    "erspan",
    "geneve",
    "gre",
    "gtpu",
    "internal",
    "ip6erspan",
    "ip6gre",
    "patch",
    "system",
    "tap",
    "vxlan",
];

/// Counters that have a place of their own in OpenFlow's port statistics.
const STANDARD: &[&str] = &[
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_dropped",
    "tx_dropped",
    "rx_errors",
    "tx_errors",
    "rx_frame_err",
    "rx_over_err",
    "rx_crc_err",
    "collisions",
    "rx_missed_errors",
    "rx_multicast_packets",
];

/// How often an AF_XDP device that was lost, or could not be opened, is opened again without being
/// asked for: attempts that fail keep a sixth of a pool of 67 MB each, and DPDK 22.11's
/// driver does not give back all memory of the former one, and the fourth device of one name that
/// it opens in a process may send nothing.
const XDP_REOPENS_MAX: u8 = 2;
/// Changes of an interface's link that are taken over one after the other, at once. A tenant makes
/// as many as it likes, and controllers hear of each.
const LINK_CHANGES_BURST: u64 = 16;

/// An interface of a bridge, working or not.
pub struct Iface {
    /// What was asked for.
    pub conf: IfaceConf,
    /// OpenFlow number; None when it does not work.
    pub of_port: Option<OfPort>,
    /// The number it has or had last: it gets it again.
    pub last_port: Option<OfPort>,
    /// Datapath number; None for patch ports and those that do not work.
    pub dp_port: Option<PortNo>,
    /// Why it does not work.
    pub error: Option<String>,
    /// When it was added (`now_ms`).
    pub since_ms: u64,
    /// What a patch or tunnel port received and sent at the last look: (packets, bytes).
    pub patch: [(u64, u64); 2],
    /// Carrier changes at the last look.
    pub resets: u64,
    /// The MTU that its bridge's other ports gave it ([`crate::mtu`]).
    pub mtu_given: Option<u16>,
    /// Its device is being changed to a configuration that is not `conf` yet.
    pub is_changing: bool,
    /// A report since it works had its statistics, so that others need not have them.
    pub has_statistics: bool,
    /// Changes of its link that may be taken over ([`crate::links`]).
    pub link_changes: Budget,
    /// How often an AF_XDP device that does not work may be opened again without being asked for.
    pub xdp_reopens: u8,
    /// How often a device of DPDK whose adapter was reset is still opened again.
    pub reset_reopens: u8,
}

impl Iface {
    /// An interface that does not work yet.
    pub fn new(conf: IfaceConf, now_ms: u64) -> Self {
        let last_port = conf.last_ofport.0.map(OfPort::from);
        let (of_port, dp_port, error) = (None, None, None);
        Iface {
            conf,
            of_port,
            last_port,
            dp_port,
            error,
            since_ms: now_ms,
            patch: [(0, 0); 2],
            resets: 0,
            mtu_given: None,
            is_changing: false,
            has_statistics: false,
            link_changes: Budget::full(LINK_CHANGES_BURST, now_ms),
            xdp_reopens: XDP_REOPENS_MAX,
            reset_reopens: 0,
        }
    }

    /// True if the port has no device of its own; the switch half counts its packets.
    pub fn is_virtual(&self) -> bool {
        self.conf.kind == "patch" || is_tunnel(&self.conf.kind)
    }

    /// True if the port works.
    pub fn works(&self) -> bool {
        self.of_port.is_some()
    }

    /// OpenFlow counters.
    pub fn of_stats(&mut self, dp: &mut Datapath, now_ms: u64) -> Option<PortStats> {
        let port = self.of_port?;
        let duration_ns = now_ms.saturating_sub(self.since_ms) * 1_000_000;
        let counters = self.counters(dp);
        // As in OVS kernel devices have none: some controllers fail on these (os-ken on any name
        // whose length is not right for it).
        let kind = self.dp_port.and_then(|no| dp.port_mut(no)).map(|p| p.kind().to_string());
        let kind = kind.unwrap_or_else(|| self.conf.kind.clone());
        let has_custom = !["system", "internal", "tap"].contains(&kind.as_str());
        let custom =
            counters.iter().filter(|(name, _)| has_custom && !STANDARD.contains(&name.as_str()));
        let custom = custom.map(|(name, n)| (name.clone(), *n)).collect();
        let get = |name: &str| counters.get(name).copied();
        let or_none = |name: &str| get(name).unwrap_or(u64::MAX);
        Some(PortStats {
            port,
            duration_ns,
            rx_packets: or_none("rx_packets"),
            tx_packets: or_none("tx_packets"),
            rx_bytes: or_none("rx_bytes"),
            tx_bytes: or_none("tx_bytes"),
            rx_dropped: or_none("rx_dropped"),
            tx_dropped: or_none("tx_dropped"),
            rx_errors: or_none("rx_errors"),
            tx_errors: or_none("tx_errors"),
            rx_frame_err: or_none("rx_frame_err"),
            rx_over_err: or_none("rx_over_err"),
            rx_crc_err: or_none("rx_crc_err"),
            collisions: or_none("collisions"),
            custom,
        })
    }

    /// The port's own counters, with the datapath's drops added.
    pub fn counters(&mut self, dp: &mut Datapath) -> BTreeMap<String, u64> {
        let Some(no) = self.dp_port.filter(|_| !self.is_virtual()) else {
            let [rx, tx] = self.patch;
            let all = [
                ("rx_packets", rx.0),
                ("rx_bytes", rx.1),
                ("tx_packets", tx.0),
                ("tx_bytes", tx.1),
            ];
            return all.map(|(name, n)| (name.to_string(), n)).into();
        };
        let mut all = dp.port_mut(no).map(|p| p.counters()).unwrap_or_default();
        let Some(seen) = dp.port_stats(no) else { return all };
        use telemetry::Drop;
        let [rx_policed, tx_policed, too_long] =
            [Drop::Policed, Drop::TxPoliced, Drop::TooLong].map(|d| seen.drops[d as usize]);
        if rx_policed > 0 {
            *all.entry("rx_dropped".into()).or_insert(0) += rx_policed;
        }
        // OVS has these counters for DPDK ports only, which always show them.
        let qos = [("ovs_rx_qos_drops", rx_policed), ("ovs_tx_qos_drops", tx_policed)];
        let is_dpdk = port_dpdk::KINDS.contains(&self.conf.kind.as_str());
        let shown = qos.into_iter().filter(|(_, n)| is_dpdk || *n > 0);
        all.extend(shown.map(|(name, n)| (name.to_string(), n)));
        // A driver's counters are of packets that the host had.
        let more = dp.hardware_stats(no);
        for (name, value, more) in [
            ("rx_packets", seen.rx_packets, more.rx_packets),
            ("rx_bytes", seen.rx_bytes, more.rx_bytes),
            ("tx_packets", seen.tx_packets, more.tx_packets),
            ("tx_bytes", seen.tx_bytes, more.tx_bytes),
        ] {
            all.entry(name.into()).and_modify(|n| *n += more).or_insert(value);
        }
        let failed = [Drop::TxFull, Drop::TxBusy, Drop::TxDown, Drop::RingFull];
        let failed: u64 = failed.iter().map(|d| seen.drops[*d as usize]).sum();
        let named = too_long + tx_policed;
        let at_output = failed + named;
        if at_output > 0 {
            *all.entry("tx_dropped".into()).or_insert(0) += at_output;
        }
        if is_dpdk {
            let failed = all.get("tx_dropped").map_or(0, |all| all.saturating_sub(named));
            // What ovs-vswitchd counts apart, and tools look at.
            for (name, value) in [
                ("ovs_tx_failure_drops", failed),
                ("ovs_tx_mtu_exceeded_drops", too_long),
                ("ovs_tx_invalid_hwol_drops", 0),
            ] {
                all.insert(name.into(), value);
            }
        }
        all
    }
}

/// Types that ovs-vswitchd has and we have not.
const OF_OVS: [&str; 5] = ["bareudp", "srv6", "lisp", "stt", "vport-internal"];

/// Opens the port behind an interface.
pub fn open(devices: &port_dpdk::Devices, config: &PortConfig) -> Result<Box<dyn Port>, PortError> {
    match config.kind.as_str() {
        kind if port_dpdk::KINDS.contains(&kind) => {
            crate::dpdk_log::begin();
            devices.open(config)
        }
        "system" | "tap" | "internal" | "dummy" | "dummy-internal" | "dummy-pmd" => {
            port::open(config, devices.pools.clone())
        }
        other if OF_OVS.contains(&other) => {
            Err(PortError::Device(format!("{}: unsupported interface type {other}", config.name)))
        }
        other => {
            let name = &config.name;
            vlog::warn!("netdev", "could not create netdev {name} of unknown type {other}");
            let why = "Address family not supported by protocol";
            Err(PortError::Device(format!("could not open network device {name} ({why})")))
        }
    }
}

/// The address to set on a port: a bridge's own port (`local`) has its bridge's, other internal
/// ports that of their interface record, and devices that are not the switch's keep theirs.
fn mac(conf: &IfaceConf, local: Option<[u8; 6]>) -> Option<[u8; 6]> {
    let own = conf.mac.as_deref().filter(|_| conf.kind == "internal");
    local.or(own.and_then(parse_mac))
}

/// Says in the log why an interface record's `mac` is not set, in OVS's words.
pub fn judge_mac(conf: &IfaceConf, is_local: bool) {
    let Some(text) = conf.mac.as_deref().filter(|_| conf.kind == "internal") else { return };
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let is_mac = text.split(':').count() == 6 && bytes.clone().all(|byte| byte.is_some());
    let is_multicast = bytes.flatten().next().is_some_and(|first| first & 1 != 0);
    let name = &conf.name;
    if is_mac && is_local {
        vlog::err!(
            MODULE,
            "interface {name}: ignoring mac in Interface record (use Bridge record to set local \
             port's mac)"
        );
    } else if is_mac && is_multicast {
        vlog::err!(MODULE, "interface {name}: cannot set MAC to multicast address");
    }
}

/// The greatest MTU that a port may have.
const MTU_BYTES_MAX: u32 = 0xffff;

/// True if the interface's port takes the MTU that is asked for, as far as that is known before.
pub fn takes_mtu(conf: &IfaceConf) -> bool {
    let fits = |mtu: u32| mtu <= MTU_BYTES_MAX && port_dpdk::takes_mtu(&conf.kind, mtu);
    conf.mtu_request.is_none_or(fits)
}

/// Says in the log that an interface does not get the MTU that is asked for, in OVS's words.
pub fn judge_mtu(conf: &IfaceConf) {
    if let Some(mtu) = conf.mtu_request.filter(|_| !takes_mtu(conf)) {
        let name = &conf.name;
        if conf.kind.starts_with("dpdk") {
            vlog::err!("netdev_dpdk", "{name}: unsupported MTU {mtu}");
        }
        vlog::warn!("netdev", "failed to set MTU for network device {name}: Invalid argument");
    }
}

/// The part of an interface's configuration that its port sees; `local`: the bridge's address, for
/// its own port.
pub fn port_config(conf: &IfaceConf, local: Option<[u8; 6]>, n_txq: usize) -> PortConfig {
    let is_vhost = conf.kind.starts_with("dpdkvhostuser");
    PortConfig {
        name: conf.name.clone(),
        kind: conf.kind.clone(),
        options: conf.options.clone(),
        mtu_request: conf.mtu_request.and_then(|mtu| mtu.try_into().ok()),
        mac: mac(conf, local),
        n_txq: if is_vhost && tx_by_hash(conf) { n_txq.max(STEERED_QUEUES) } else { n_txq },
        userspace_tso: false,
    }
}

/// Handles of a guest's receive queues that packets are spread over; those beyond the guest's
/// queues serve the first ones again.
const STEERED_QUEUES: usize = 16;

/// True if packets are spread over the port's queues by a hash of their addresses and ports
/// (`tx-steering`).
pub fn tx_by_hash(conf: &IfaceConf) -> bool {
    conf.other_config.get("tx-steering").is_some_and(|mode| mode == "hash")
}

/// `ingress_policing_*`.
pub fn policing(conf: &IfaceConf) -> Policing {
    let (kbit_rate, kbit_burst) = conf.policing_kbits;
    let (kpkt_rate, kpkt_burst) = conf.policing_kpkts;
    Policing { kbit_rate, kbit_burst, kpkt_rate, kpkt_burst }
}

/// The egress policer of its port; None as well if it has no rate or no burst.
pub fn egress(conf: &IfaceConf) -> Option<EgressPolicer> {
    match conf.qos.as_deref() {
        Some(&QosConf::EgressPolicer { cir, cbs }) if cir > 0 && cbs > 0 => {
            Some(EgressPolicer { cir, cbs })
        }
        _ => None,
    }
}

/// `pmd-rxq-affinity="0:3,1:7"`: queue to core; an item that makes no sense is left out.
pub fn affinity(conf: &IfaceConf) -> RxAffinity {
    let text = conf.other_config.get("pmd-rxq-affinity").map_or("", String::as_str);
    let mut out = BTreeMap::new();
    for item in text.split(',').filter(|i| !i.trim().is_empty()) {
        match item.split_once(':').map(|(q, c)| (q.trim().parse(), c.trim().parse())) {
            Some((Ok(queue), Ok(core))) => {
                out.insert(queue, core);
            }
            _ => vlog::warn!(MODULE, "{}: pmd-rxq-affinity: {item} is not QUEUE:CORE", conf.name),
        }
    }
    RxAffinity(out)
}
