//! vhost-user ports: `dpdkvhostuserclient` (the guest makes the socket) and `dpdkvhostuser` (we
//! do).

use crate::{Devices, device_error, options};
use dpdk::{VhostConfig, VhostMode, VhostRx, VhostSocket, VhostTx};
use packet::Packet;
use port::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;

/// MTU unless `mtu_request` says otherwise.
const DEFAULT_MTU: u16 = 1500;

/// A socket and the guest that may be on it. The number of receive queues follows the guest:
/// [`Port::n_rxq`] tells the present one, queues may be taken at any time, and queue 0 serves the
/// guest's queues that were not taken.
pub(crate) struct VhostPort {
    name: String,
    kind: String,
    path: String,
    mtu: u16,
    n_txq: usize,
    library: bool,
    socket: VhostSocket,
}

struct Rx(VhostRx);
struct Tx(VhostTx);

impl RxQueue for Rx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        self.0.burst(out, max)
    }

    fn prepare(&mut self, step: usize) {
        self.0.prepare(step);
    }

    fn notify(&mut self, all: bool) {
        self.0.notify(all);
    }

    fn notifies(&self) -> bool {
        true
    }
}

impl TxQueue for Tx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        self.0.burst(packets)
    }

    fn is_busy(&self) -> bool {
        self.0.is_busy()
    }

    fn has_phases(&self) -> bool {
        true
    }

    fn prepare(&mut self, step: usize, n: usize) {
        self.0.prepare(step, n);
    }

    fn notify(&mut self, all: bool) {
        self.0.notify(all);
    }

    fn notifies(&self) -> bool {
        true
    }
}

/// Where the socket is, and who makes it.
fn place(devices: &Devices, config: &PortConfig) -> Result<(String, VhostMode), PortError> {
    if config.kind == "dpdkvhostuserclient" {
        return Ok((options::server_path(config)?, VhostMode::Client));
    }
    if config.name.contains('/') {
        let name = &config.name;
        return Err(PortError::Device(format!("'{name}' is not the name of a socket: it has a /")));
    }
    let path = devices.vhost_sock_dir.join(&config.name);
    Ok((path.to_string_lossy().into_owned(), VhostMode::Server))
}

impl VhostPort {
    pub(crate) fn open(devices: &Devices, config: &PortConfig) -> Result<VhostPort, PortError> {
        let (path, mode) = place(devices, config)?;
        let mtu = config.mtu_request.unwrap_or(DEFAULT_MTU);
        let vhost = VhostConfig {
            path: path.clone(),
            mode,
            iommu: devices.vhost_iommu,
            postcopy: devices.vhost_postcopy,
            n_txq: config.n_txq.max(1),
            tx_retries: options::tx_retries(config),
            library: options::vhost_library(config)?,
            pool: devices.pools.for_mtu(mtu, 0).map_err(device_error)?,
            on_change: devices.on_change.clone(),
        };
        let socket = VhostSocket::open(devices.pools.eal(), &vhost).map_err(device_error)?;
        let (name, kind) = (config.name.clone(), config.kind.clone());
        let (n_txq, library) = (vhost.n_txq, vhost.library);
        Ok(VhostPort { name, kind, path, mtu, n_txq, library, socket })
    }
}

impl Port for VhostPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &str {
        &self.kind
    }

    fn service(&self) -> Service {
        Service::Poll
    }

    fn n_rxq(&self) -> usize {
        self.socket.n_rxq()
    }

    fn n_txq(&self) -> usize {
        self.socket.n_txq()
    }

    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        Some(Box::new(Rx(self.socket.rx(i)?)))
    }

    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        Some(Box::new(Tx(self.socket.tx(i)?)))
    }

    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn link(&mut self) -> Link {
        self.socket.quieten();
        Link {
            admin_up: self.socket.is_up(),
            up: self.socket.connected(),
            mbps: 0,
            full_duplex: None,
            resets: self.socket.changes(),
        }
    }

    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        self.socket.set_up(up);
        Ok(())
    }

    fn counters(&mut self) -> Counters {
        let (rx, tx) = self.socket.counters();
        let pairs = [
            ("rx_packets", rx.packets),
            ("rx_bytes", rx.bytes),
            ("rx_errors", 0),
            ("rx_dropped", rx.dropped),
            ("rx_segmented_drops", rx.dropped),
            ("tx_packets", tx.packets),
            ("tx_bytes", tx.bytes),
            ("tx_errors", 0),
            ("tx_dropped", tx.dropped),
            ("ovs_tx_retries", tx.retries),
        ];
        let misdeeds = self.socket.misdeeds().into_iter().filter(|(_, n)| *n > 0);
        let misdeeds = misdeeds.map(|(what, n)| (format!("guest_{}", what.name()), n));
        pairs.map(|(name, value)| (name.to_string(), value)).into_iter().chain(misdeeds).collect()
    }

    fn status(&mut self) -> BTreeMap<String, String> {
        let mode = match self.socket.mode() {
            VhostMode::Client => "client",
            VhostMode::Server => "server",
        };
        let mut status = BTreeMap::from([("mode".to_string(), mode.to_string())]);
        let mut put = |key: &str, value: String| status.insert(key.to_string(), value);
        let Some(info) = self.socket.info() else {
            put("status", "disconnected".into());
            return status;
        };
        put("status", "connected".into());
        put("socket", info.socket);
        put("features", format!("0x{:016x}", info.features));
        put("rings", if info.library { "library" } else { "own" }.into());
        put("num_of_vrings", info.vrings.len().to_string());
        put("n_rxq", self.socket.n_rxq().to_string());
        put("n_txq", self.socket.n_txq().to_string());
        for (i, size) in info.vrings.iter().enumerate() {
            put(&format!("vring_{i}_size"), size.to_string());
        }
        if let Some(numa) = info.numa {
            put("numa", numa.to_string());
        }
        if let Some(mtu) = info.mtu {
            put("mtu", mtu.to_string());
        }
        status
    }

    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        let same_path = match self.socket.mode() {
            VhostMode::Client => options::server_path(config)? == self.path,
            VhostMode::Server => config.name == self.name,
        };
        let same = config.kind == self.kind
            && same_path
            && config.mtu_request.unwrap_or(DEFAULT_MTU) == self.mtu
            && config.n_txq.max(1) == self.n_txq
            && options::vhost_library(config)? == self.library;
        if same {
            self.socket.set_tx_retries(options::tx_retries(config));
        }
        Ok(same)
    }
}
