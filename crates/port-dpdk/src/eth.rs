//! Ports on ethdev devices: `dpdk`, and `afxdp` through DPDK's driver for it.

use crate::options::{self, EthOptions};
use crate::{Devices, Warn, device_error};
use dpdk::{EthConfig, EthDev, EthQueues, EthRules, EthRx, EthTx, FlowControl, dpdk_version};
use packet::Packet;
use port::{Counters, Link, Port, PortConfig, PortError, RuleTable, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// DPDK's driver for AF_XDP.
const XDP: &str = "net_af_xdp";
/// Pause before the second attempt to start an AF_XDP device; further ones are twice as long each.
const XDP_PAUSE: Duration = Duration::from_millis(50);
/// Pause before the last one.
const XDP_PAUSE_MAX: Duration = Duration::from_millis(400);

/// A started device. Its queues keep it open: it closes when the port and all queues are dropped.
pub(crate) struct EthPort {
    name: String,
    kind: String,
    options: EthOptions,
    dev: EthDev,
    rx: Vec<Option<Rx>>,
    tx: Vec<Option<Tx>>,
    link_up: bool,
    link_resets: u64,
    /// As it was last asked for.
    flow_control: (FlowControl, bool),
    warn: Option<Warn>,
    /// Resets of the adapter since the port was opened.
    adapter_resets: Arc<AtomicU32>,
}

struct Rx(EthRx);
struct Tx(EthTx);

impl RxQueue for Rx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        self.0.burst(out, max)
    }
}

impl TxQueue for Tx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        self.0.burst(packets)
    }
}

/// Attaches the device and starts it. The kernel frees the queues of an AF_XDP socket some time
/// after it was closed, so such a device is tried more than once. Each time it is attached anew:
/// after a start that failed, DPDK 22.11's driver goes on with the positions that it had in its
/// rings, and would receive nothing.
fn start(devices: &Devices, options: &EthOptions) -> Result<(EthDev, EthQueues), PortError> {
    let mut pause = XDP_PAUSE;
    loop {
        let dev = EthDev::attach(devices.pools.eal(), &options.devargs).map_err(device_error)?;
        let mtu = options.mtu.unwrap_or_else(|| dev.mtu());
        // DPDK 22.11's AF_XDP driver does not give back what is in its rings when it closes.
        let xdp = dev.info().driver == XDP;
        let pool = match xdp {
            true => devices.pools.lossy(),
            false => devices.pools.for_mtu(mtu, dev.info().numa),
        }
        .map_err(device_error)?;
        let interrupts = options.link_interrupt && dev.info().link_interrupt;
        let wanted = EthConfig {
            n_rxq: options.n_rxq,
            n_txq: options.n_txq,
            n_rxd: options.n_rxd,
            n_txd: options.n_txd,
            mtu: options.mtu,
            pool,
            on_link_change: devices.on_change.clone().filter(|_| interrupts),
        };
        match dev.start(&wanted) {
            Ok(queues) => return Ok((dev, queues)),
            Err(error) if !xdp || pause > XDP_PAUSE_MAX => return Err(device_error(error)),
            Err(_) => drop(dev),
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
}

impl EthPort {
    pub(crate) fn open(devices: &Devices, config: &PortConfig) -> Result<EthPort, PortError> {
        let options = EthOptions::read(config)?;
        let (dev, (rx, tx)) = start(devices, &options)?;
        let adapter_resets = dev.resets();
        let port = EthPort {
            name: config.name.clone(),
            kind: config.kind.clone(),
            link_up: dev.link().up,
            options,
            dev,
            rx: rx.into_iter().map(|q| Some(Rx(q))).collect(),
            tx: tx.into_iter().map(|q| Some(Tx(q))).collect(),
            link_resets: 0,
            flow_control: options::flow_control(config),
            warn: devices.warn.clone(),
            adapter_resets,
        };
        port.set_flow_control();
        if port.options.link_interrupt && !port.dev.info().link_interrupt {
            port.warn("the device has no interrupt for changes of its link");
        }
        Ok(port)
    }

    /// Has the device do the flow control that is asked for, by default none.
    fn set_flow_control(&self) {
        let (wanted, asked) = self.flow_control;
        let failed = match self.dev.set_flow_control(wanted) {
            Ok(true) => return,
            Ok(false) if !asked => return,
            Ok(false) => "Flow control is not supported.".into(),
            Err(error) => error.to_string(),
        };
        self.warn(&failed);
    }

    /// Writes a warning about the port to the log.
    fn warn(&self, what: &str) {
        if let Some(warn) = &self.warn {
            warn(&format!("{}: {what}", self.name));
        }
    }
}

impl Port for EthPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &str {
        &self.kind
    }

    fn service(&self) -> Service {
        Service::Poll
    }

    /// A driver waits for its adapter.
    fn closes_slowly(&self) -> bool {
        true
    }

    fn n_rxq(&self) -> usize {
        self.rx.len()
    }

    fn n_txq(&self) -> usize {
        self.tx.len()
    }

    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        Some(Box::new(self.rx.get_mut(i)?.take()?))
    }

    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        Some(Box::new(self.tx.get_mut(i)?.take()?))
    }

    fn numa(&self) -> usize {
        self.dev.info().numa
    }

    fn mac(&self) -> [u8; 6] {
        self.dev.mac()
    }

    fn mtu(&self) -> u16 {
        self.dev.mtu()
    }

    fn ifindex(&self) -> Option<u32> {
        Some(self.dev.info().ifindex).filter(|i| *i != 0)
    }

    /// DPDK's driver for AF_XDP does not say that its device is gone.
    fn health(&mut self) -> Result<(), PortError> {
        let info = self.dev.info();
        if info.driver == XDP && !options::has_index(info.ifindex) {
            return Err(PortError::Device(format!("network device {} is gone", self.name)));
        }
        match self.adapter_resets.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(PortError::Device("the adapter was reset".into())),
        }
    }

    fn link(&mut self) -> Link {
        let link = self.dev.link();
        self.link_resets += u64::from(link.up != self.link_up);
        self.link_up = link.up;
        Link {
            admin_up: self.dev.is_up(),
            up: link.up,
            mbps: link.mbps,
            full_duplex: link.up.then_some(link.full_duplex),
            resets: self.link_resets,
            abilities: Default::default(),
        }
    }

    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        if up != self.dev.is_up() {
            self.dev.set_up(up);
        }
        Ok(())
    }

    fn counters(&mut self) -> Counters {
        let stats = self.dev.stats();
        let chained = self.dev.chained_drops();
        let mut counters: Counters =
            stats.extended.into_iter().filter(|(name, _)| is_shown(name)).collect();
        let basic = [
            ("rx_packets", stats.rx_packets),
            ("rx_bytes", stats.rx_bytes),
            ("rx_errors", stats.rx_errors),
            ("rx_dropped", stats.rx_no_buffer + chained),
            ("rx_missed_errors", stats.rx_missed),
            ("rx_segmented_drops", chained),
            ("tx_packets", stats.tx_packets),
            ("tx_bytes", stats.tx_bytes),
            ("tx_errors", stats.tx_errors),
            ("tx_dropped", 0),
        ];
        counters.extend(basic.map(|(name, value)| (name.to_string(), value)));
        counters
    }

    fn shown_config(&self) -> Option<BTreeMap<String, String>> {
        let mut shown = crate::shown_config(self);
        let of = |way: &str, n: u16| {
            ["configured", "requested"]
                .map(|what| (format!("{what}_{way}_descriptors"), n.to_string()))
        };
        shown
            .extend(of("rxq", self.options.n_rxd).into_iter().chain(of("txq", self.options.n_txd)));
        Some(shown)
    }

    fn status(&mut self) -> BTreeMap<String, String> {
        let info = self.dev.info();
        let pairs = [
            ("bus_info", info.bus.clone()),
            ("driver_name", info.driver.clone()),
            ("if_descr", format!("{} {}", dpdk_version(), info.driver)),
            // ethernetCsmacd of the IANA ifType registry.
            ("if_type", "6".to_string()),
            ("link_speed", speed(self.dev.link().mbps)),
            ("max_hash_mac_addrs", info.max_hash_mac_addrs.to_string()),
            ("max_mac_addrs", info.max_mac_addrs.to_string()),
            ("max_rx_pktlen", info.max_rx_pktlen.to_string()),
            ("max_rx_queues", info.max_rx_queues.to_string()),
            ("max_tx_queues", info.max_tx_queues.to_string()),
            ("max_vfs", info.max_vfs.to_string()),
            ("max_vmdq_pools", info.max_vmdq_pools.to_string()),
            ("min_rx_bufsize", info.min_rx_bufsize.to_string()),
            ("n_rxq", self.rx.len().to_string()),
            ("n_txq", self.tx.len().to_string()),
            ("numa_id", info.numa.to_string()),
            ("port_no", info.port.to_string()),
            ("rx_csum_offload", info.rx_checksums.to_string()),
        ];
        pairs.map(|(key, value)| (key.to_string(), value)).into()
    }

    fn rule_table(&mut self) -> Option<Box<dyn RuleTable>> {
        let queues = self.rx.len() as u16;
        (self.kind == "dpdk").then(|| Box::new(EthRules::new(&self.dev, queues)) as _)
    }

    fn adapter_upsets(&mut self) -> Option<Arc<AtomicU32>> {
        (self.kind == "dpdk").then(|| self.dev.upsets())
    }

    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        let same = config.kind == self.kind && EthOptions::read(config)? == self.options;
        let flow_control = options::flow_control(config);
        if same && flow_control != self.flow_control {
            self.flow_control = flow_control;
            self.set_flow_control();
        }
        Ok(same)
    }
}

/// True for a driver's extended counters that say something that the basic ones do not.
fn is_shown(name: &str) -> bool {
    let suffixes = ["_errors", "_dropped", "_drops", "_management_packets"];
    is_of_queue(name) || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// True for names like `rx_q0_packets`, `tx_q12_bytes`.
fn is_of_queue(name: &str) -> bool {
    let rest = name.strip_prefix("rx_q").or_else(|| name.strip_prefix("tx_q"));
    let Some((number, what)) = rest.and_then(|r| r.split_once('_')) else { return false };
    !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
        && ["packets", "bytes", "errors"].contains(&what)
}

/// The link speed as text.
fn speed(mbps: u32) -> String {
    match mbps {
        0 => "unknown".into(),
        1..1000 => format!("{mbps}Mbps"),
        _ if mbps.is_multiple_of(1000) => format!("{}Gbps", mbps / 1000),
        _ => format!("{}Gbps", f64::from(mbps) / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_shown() {
        for name in ["rx_q0_packets", "tx_q12_bytes", "rx_mbuf_allocation_errors"] {
            assert!(is_shown(name), "{name}");
        }
        for name in ["rx_good_packets", "rx_q_packets", "rx_q0_size_64_packets"] {
            assert!(!is_shown(name), "{name}");
        }
    }

    #[test]
    fn speeds() {
        assert_eq!([0, 100, 2500, 10_000].map(speed), ["unknown", "100Mbps", "2.5Gbps", "10Gbps"]);
    }
}
