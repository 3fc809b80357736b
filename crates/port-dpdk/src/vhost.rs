//! vhost-user ports: `dpdkvhostuserclient` (the guest's side makes the socket) and `dpdkvhostuser`
//! (the switch makes it).
//!
//! They are served by the crate `vhost-user`; or by DPDK's vhost library, if the port is configured
//! so (`options:vhost-rings=library`), or the switch is to support an IOMMU or post-copy migration.

use crate::{Devices, device_error, options};
use dpdk::{DpdkPool, VhostConfig, VhostRx, VhostSocket, VhostTx};
use packet::Packet;
use port::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;
use vhost_user::{Claim, Config, Info, Mode, Rx, Socket, Tx};

/// The MTU without `mtu_request`, bytes.
const DEFAULT_MTU: u16 = 1500;
/// Measured lengths are shown as a multiple of this, bytes.
const ASYNC_THRESH_STEP: u32 = 64;

/// A socket, and the guest that may be connected to it. The number of receive queues follows the
/// guest: [`Port::n_rxq`] returns the present one, queues may be taken at any time, and queue 0
/// serves the guest's queues that were not taken.
pub(crate) struct VhostPort {
    name: String,
    kind: String,
    path: String,
    mtu: u16,
    n_txq: usize,
    library: bool,
    socket: Served,
}

/// A socket, by what serves it.
enum Served {
    Own(Socket<DpdkPool>),
    Library(VhostSocket),
}

/// Calls a method of the socket, whichever kind it is.
macro_rules! ask {
    ($served:expr, $socket:ident => $what:expr) => {
        match $served {
            Served::Own($socket) => $what,
            Served::Library($socket) => $what,
        }
    };
}

struct OwnRx(Rx<DpdkPool>);
struct OwnTx(Tx<DpdkPool>);
struct LibraryRx(VhostRx);
struct LibraryTx(VhostTx);

impl RxQueue for LibraryRx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        self.0.burst(out, max)
    }
}

impl TxQueue for LibraryTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        self.0.burst(packets)
    }

    fn has_phases(&self) -> bool {
        true
    }
}

/// Charges the calling thread what it lost to a guest.
#[inline]
fn charge(penalty: u64) {
    if penalty > 0 {
        port::charge_penalty(penalty);
    }
}

impl RxQueue for OwnRx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let n = self.0.burst(out, max);
        charge(self.0.take_penalty());
        n
    }

    fn take_port_penalty(&mut self) -> u64 {
        self.0.take_port_penalty()
    }

    fn prepare(&mut self, phase: usize) {
        self.0.prepare(phase);
    }

    fn notify(&mut self, all: bool) {
        self.0.notify(all);
    }

    fn notifies(&self) -> bool {
        true
    }
}

impl TxQueue for OwnTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        let n = self.0.burst(packets);
        charge(self.0.take_penalty());
        n
    }

    fn room(&mut self, n: usize) -> usize {
        self.0.room(n)
    }

    fn is_busy(&self) -> bool {
        self.0.is_busy()
    }

    fn has_phases(&self) -> bool {
        true
    }

    fn prepare(&mut self, phase: usize, n: usize) {
        self.0.prepare(phase, n);
    }

    fn notify(&mut self, all: bool) {
        self.0.notify(all);
    }

    fn notifies(&self) -> bool {
        true
    }
}

/// The socket's path, and who makes it.
fn place(devices: &Devices, config: &PortConfig) -> Result<(String, Mode), PortError> {
    if config.kind == "dpdkvhostuserclient" {
        return Ok((options::server_path(config)?, Mode::Client));
    }
    if config.name.contains('/') {
        let name = &config.name;
        return Err(PortError::Device(format!("'{name}' is not the name of a socket: it has a /")));
    }
    let path = devices.vhost_sock_dir.join(&config.name);
    Ok((path.to_string_lossy().into_owned(), Mode::Server))
}

impl VhostPort {
    pub(crate) fn open(devices: &Devices, config: &PortConfig) -> Result<VhostPort, PortError> {
        let (path, mode) = place(devices, config)?;
        let mtu = config.mtu_request.unwrap_or(DEFAULT_MTU);
        let library = options::vhost_library(config)?;
        let pool = devices.pools.for_mtu(mtu, 0).map_err(device_error)?;
        let common = Config {
            path: path.clone(),
            mode,
            n_txq: config.n_txq.max(1),
            tx_retries: options::tx_retries(config),
            offloads: devices.userspace_tso,
            on_change: devices.on_change.clone(),
            warn: devices.warn.clone(),
            info: devices.info.clone(),
        };
        let n_txq = common.n_txq;
        let claim = Claim::new(&path, mode).map_err(PortError::Device)?;
        let (iommu, postcopy) = (devices.vhost_iommu, devices.vhost_postcopy);
        let socket = if library || iommu || postcopy {
            let config = VhostConfig { common, iommu, postcopy, pool };
            let socket = VhostSocket::open(devices.pools.eal(), &config, claim);
            Served::Library(socket.map_err(device_error)?)
        } else {
            Served::Own(Socket::open(&common, pool, claim).map_err(PortError::Device)?)
        };
        let (name, kind) = (config.name.clone(), config.kind.clone());
        if let Some(info) = &devices.info {
            let text = match mode {
                Mode::Client => format!(
                    "vHost User device '{name}' created in 'client' mode, using client socket '{path}'"
                ),
                Mode::Server => format!("Socket {path} created for vhost-user port {name}"),
            };
            info("netdev_dpdk", &text);
        }
        Ok(VhostPort { name, kind, path, mtu, n_txq, library, socket })
    }

    fn info(&self) -> Option<Info> {
        ask!(&self.socket, socket => socket.info())
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
        ask!(&self.socket, socket => socket.n_rxq())
    }

    fn n_txq(&self) -> usize {
        ask!(&self.socket, socket => socket.n_txq())
    }

    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        Some(match &self.socket {
            Served::Own(socket) => Box::new(OwnRx(socket.rx(i)?)),
            Served::Library(socket) => Box::new(LibraryRx(socket.rx(i)?)),
        })
    }

    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        Some(match &self.socket {
            Served::Own(socket) => Box::new(OwnTx(socket.tx(i)?)),
            Served::Library(socket) => Box::new(LibraryTx(socket.tx(i)?)),
        })
    }

    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn link(&mut self) -> Link {
        if let Served::Library(socket) = &mut self.socket {
            socket.quieten();
        }
        ask!(&self.socket, socket => Link {
            admin_up: socket.is_up(),
            up: socket.connected(),
            mbps: 0,
            full_duplex: None,
            resets: socket.changes(),
            abilities: Default::default(),
        })
    }

    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        ask!(&self.socket, socket => socket.set_up(up));
        Ok(())
    }

    fn counters(&mut self) -> Counters {
        let (rx, tx) = ask!(&self.socket, socket => socket.counters());
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
        let mut all: BTreeMap<String, u64> =
            pairs.map(|(name, value)| (name.to_string(), value)).into_iter().collect();
        if let Served::Own(socket) = &self.socket {
            let ring_errors = socket.ring_errors().into_iter().filter(|(_, n)| *n > 0);
            all.extend(ring_errors.map(|(what, n)| (format!("guest_{}", what.name()), n)));
            let violations = socket.violations().into_iter().filter(|(_, n)| *n > 0);
            all.extend(violations.map(|(what, n)| (format!("frontend_{}", what.name()), n)));
        }
        all
    }

    fn shown_config(&self) -> Option<BTreeMap<String, String>> {
        Some(crate::shown_config(self))
    }

    fn status(&mut self) -> BTreeMap<String, String> {
        let mode = match ask!(&self.socket, socket => socket.mode()) {
            Mode::Client => "client",
            Mode::Server => "server",
        };
        let mut status = BTreeMap::from([("mode".to_string(), mode.to_string())]);
        let mut put = |key: &str, value: String| status.insert(key.to_string(), value);
        let info = self.info();
        let (n_rxq, n_txq) = (self.n_rxq(), self.n_txq());
        let library = matches!(self.socket, Served::Library(_));
        let Some(info) = info else {
            put("status", "disconnected".into());
            return status;
        };
        put("status", "connected".into());
        put("socket", info.socket);
        put("features", format!("0x{:016x}", info.features));
        put("rings", if library { "library" } else { "own" }.into());
        put("num_of_vrings", info.vrings.len().to_string());
        put("n_rxq", n_rxq.to_string());
        put("n_txq", n_txq.to_string());
        for (i, size) in info.vrings.iter().enumerate() {
            put(&format!("vring_{i}_size"), size.to_string());
        }
        if let Some(numa) = info.numa {
            put("numa", numa.to_string());
        }
        if let Served::Own(socket) = &self.socket {
            let floors =
                ["tx_async_thresh", "rx_async_thresh"].into_iter().zip(socket.copy_floors());
            for (key, bytes) in floors.filter(|(_, bytes)| *bytes > 0) {
                // In steps, as the database is written at each change.
                put(key, bytes.next_multiple_of(ASYNC_THRESH_STEP).to_string());
            }
        }
        if let Some(mtu) = info.mtu {
            put("mtu", mtu.to_string());
        }
        status
    }

    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        let same_path = match ask!(&self.socket, socket => socket.mode()) {
            Mode::Client => options::server_path(config)? == self.path,
            Mode::Server => config.name == self.name,
        };
        let same = config.kind == self.kind
            && same_path
            && config.mtu_request.unwrap_or(DEFAULT_MTU) == self.mtu
            && config.n_txq.max(1) == self.n_txq
            && options::vhost_library(config)? == self.library;
        if same {
            let most = options::tx_retries(config);
            ask!(&self.socket, socket => socket.set_tx_retries(most));
        }
        Ok(same)
    }
}
