//! A memif device as a port.

use super::client::Client;
use super::devargs::{Args, Role};
use super::message::RINGS_MAX;
use super::ring::{Ring, RingError};
use super::server::Served;
use crate::options::EthOptions;
use crate::{Devices, device_error};
use dpdk::DpdkPool;
use packet::{BURST, Packet, Pool};
use port::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use sync::waits::{self, Rest};
use vhost_user::{OnChange, Slot};

/// MTU unless `mtu_request` says otherwise, bytes.
const DEFAULT_MTU: u16 = 1500;
/// What DPDK's driver says of the link, Mbit/s.
const LINK_MBPS: u32 = 10_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// How many queues a port has.
#[derive(Clone, Copy)]
pub(super) struct Queues {
    pub rx: u16,
    pub tx: u16,
}

/// One queue: its ring while a peer is connected, and what it moved. The thread of the connection
/// puts the ring in and takes it out; a worker that finds it doing so moves nothing.
#[derive(Default)]
struct Queue {
    ring: Mutex<Option<Ring>>,
    moved: Slot,
}

/// What a port, its queues and the thread of its connection share.
pub(super) struct PortState {
    rx: Vec<Queue>,
    tx: Vec<Queue>,
    is_up: AtomicBool,
    /// On after the peer's memory had a worker wait, also when another peer connects.
    rest: Rest,
    /// What the peer calls itself while it is connected.
    peer: Mutex<Option<String>>,
    changes: AtomicU64,
    /// What a worker found wrong in a ring, for the connection's thread, and what tells it.
    broken: Mutex<Option<RingError>>,
    pub(super) broken_event: OwnedFd,
    on_change: Option<OnChange>,
}

impl PortState {
    fn new(queues: Queues, on_change: Option<OnChange>) -> std::io::Result<PortState> {
        let new = |n: u16| (0..n).map(|_| Queue::default()).collect();
        Ok(PortState {
            rx: new(queues.rx),
            tx: new(queues.tx),
            is_up: AtomicBool::new(true),
            rest: Rest::default(),
            peer: Mutex::default(),
            changes: AtomicU64::new(0),
            broken: Mutex::default(),
            broken_event: super::eventfd()?,
            on_change,
        })
    }

    /// A peer is connected: rings to receive from, and to send to, one for each queue.
    pub(super) fn connect(&self, rx: Vec<Ring>, tx: Vec<Ring>, peer: &str) {
        super::clear(&self.broken_event);
        *lock(&self.broken) = None;
        let queues = self.rx.iter().zip(rx).chain(self.tx.iter().zip(tx));
        queues.for_each(|(queue, ring)| *lock(&queue.ring) = Some(ring));
        self.change(Some(peer.into()));
    }

    /// The peer is gone: no worker uses its memory any more.
    pub(super) fn disconnect(&self) {
        self.rx.iter().chain(&self.tx).for_each(|queue| *lock(&queue.ring) = None);
        self.change(None);
    }

    fn change(&self, peer: Option<String>) {
        *lock(&self.peer) = peer;
        self.changes.fetch_add(1, Ordering::Relaxed);
        if let Some(on_change) = &self.on_change {
            on_change();
        }
    }

    /// What a worker found wrong in a ring.
    pub(super) fn broken(&self) -> Option<RingError> {
        *lock(&self.broken)
    }

    /// Moves packets by a queue's ring, for a worker, if the port is up and a peer is connected;
    /// returns how many.
    fn by_ring(
        &self,
        queue: &Queue,
        step: impl FnOnce(&mut Ring, &mut vhost_user::Counters) -> Result<(), RingError>,
    ) -> usize {
        if !self.is_up.load(Ordering::Relaxed) || self.rest.is_on() {
            return 0;
        }
        let Ok(mut guard) = queue.ring.try_lock() else { return 0 };
        let Some(ring) = guard.as_mut() else { return 0 };
        let (mut moved, began) = (vhost_user::Counters::default(), waits::begin());
        if let Err(error) = step(ring, &mut moved) {
            self.report(error);
        }
        self.rest.ended(began);
        queue.moved.count(&moved);
        moved.packets as usize
    }

    /// A worker found this in a ring: the connection's thread sends the peer away.
    #[cold]
    fn report(&self, error: RingError) {
        lock(&self.broken).get_or_insert(error);
        super::set(&self.broken_event);
    }
}

/// A receive queue's handle.
struct MemifRx {
    shared: Arc<PortState>,
    index: usize,
    pool: Arc<DpdkPool>,
    /// Empty packets.
    spare: Vec<Packet>,
}

/// A transmit queue's handle.
struct MemifTx {
    shared: Arc<PortState>,
    index: usize,
    pool: Arc<DpdkPool>,
}

impl RxQueue for MemifRx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let from = (&*self.pool as &dyn Pool, &mut self.spare);
        let receive = |ring: &mut Ring, moved: &mut _| ring.receive(from, (out, max), moved);
        self.shared.by_ring(&self.shared.rx[self.index], receive)
    }
}

impl Drop for MemifRx {
    fn drop(&mut self) {
        self.pool.free(&self.spare);
    }
}

impl TxQueue for MemifTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        let send = |ring: &mut Ring, moved: &mut vhost_user::Counters| {
            let result = ring.send(packets, moved);
            if moved.packets > 0 {
                ring.notify();
            }
            result
        };
        let n = self.shared.by_ring(&self.shared.tx[self.index], send);
        self.pool.free(&packets[..n]);
        n
    }
}

/// How clients get in, or how we get to a server; until it is dropped.
enum Connector {
    Server { _served: Served },
    Client { _client: Client },
}

/// A memif device. Its rings are served by us, not by DPDK's driver, which trusts what the peer
/// writes.
pub(crate) struct MemifPort {
    name: String,
    options: EthOptions,
    args: Args,
    mac: [u8; 6],
    shared: Arc<PortState>,
    pool: Arc<DpdkPool>,
    taken: (Vec<bool>, Vec<bool>),
    _connector: Connector,
}

impl MemifPort {
    pub(crate) fn open(
        devices: &Devices,
        config: &PortConfig,
        args: Args,
    ) -> Result<MemifPort, PortError> {
        let options = EthOptions::read(config)?;
        let failed = |e: std::io::Error| PortError::Device(format!("memif: {e}"));
        let mtu = options.mtu.unwrap_or(DEFAULT_MTU);
        let pool = devices.pools.for_mtu(mtu, 0).map_err(device_error)?;
        // A ring goes from one end's transmit queue to the other's receive queue of the same
        // number, so ends with as many of each agree; no thread would receive from the others.
        let n_rxq = options.n_rxq.min(RINGS_MAX);
        let queues = Queues { rx: n_rxq, tx: options.n_txq.min(n_rxq) };
        let shared = Arc::new(PortState::new(queues, devices.on_change.clone()).map_err(failed)?);
        let _connector = match args.role {
            Role::Server => Connector::Server {
                _served: devices.memif.serve(&args, queues, &shared, &devices.warn)?,
            },
            Role::Client => {
                let client =
                    Client::start(&args, queues, &shared, &devices.warn).map_err(failed)?;
                Connector::Client { _client: client }
            }
        };
        if args.zero_copy
            && let Some(warn) = &devices.warn
        {
            warn(&format!("{}: zero-copy=yes has no effect: packets are copied", config.name));
        }
        Ok(MemifPort {
            name: config.name.clone(),
            mac: args.mac.unwrap_or_else(random_mac),
            taken: (vec![false; queues.rx.into()], vec![false; queues.tx.into()]),
            options,
            args,
            shared,
            pool,
            _connector,
        })
    }
}

/// A locally administered address by chance.
fn random_mac() -> [u8; 6] {
    let mut mac = [0u8; 6];
    // SAFETY: six bytes that live here.
    unsafe { libc::getrandom(mac.as_mut_ptr().cast(), mac.len(), 0) };
    mac[0] = mac[0] & !1 | 2;
    mac
}

/// Takes queue `i`, once.
fn take(taken: &mut [bool], i: usize) -> Option<()> {
    let taken = taken.get_mut(i)?;
    (!std::mem::replace(taken, true)).then_some(())
}

impl Port for MemifPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &str {
        "dpdk"
    }

    fn service(&self) -> Service {
        Service::Poll
    }

    fn n_rxq(&self) -> usize {
        self.shared.rx.len()
    }

    fn n_txq(&self) -> usize {
        self.shared.tx.len()
    }

    fn take_rx(&mut self, index: usize) -> Option<Box<dyn RxQueue>> {
        take(&mut self.taken.0, index)?;
        let (shared, pool) = (self.shared.clone(), self.pool.clone());
        Some(Box::new(MemifRx { shared, index, pool, spare: Vec::with_capacity(BURST) }))
    }

    fn take_tx(&mut self, index: usize) -> Option<Box<dyn TxQueue>> {
        take(&mut self.taken.1, index)?;
        Some(Box::new(MemifTx { shared: self.shared.clone(), index, pool: self.pool.clone() }))
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.options.mtu.unwrap_or(DEFAULT_MTU)
    }

    fn link(&mut self) -> Link {
        let up = lock(&self.shared.peer).is_some();
        Link {
            admin_up: self.shared.is_up.load(Ordering::Relaxed),
            up,
            mbps: LINK_MBPS,
            full_duplex: up.then_some(true),
            resets: self.shared.changes.load(Ordering::Relaxed),
            abilities: Default::default(),
        }
    }

    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        self.shared.is_up.store(up, Ordering::Relaxed);
        Ok(())
    }

    fn counters(&mut self) -> Counters {
        let mut all = Counters::new();
        for (way, queues) in [("rx", &self.shared.rx), ("tx", &self.shared.tx)] {
            let mut sum = vhost_user::Counters::default();
            for (i, queue) in queues.iter().enumerate() {
                let mut own = vhost_user::Counters::default();
                queue.moved.add_to(&mut own);
                queue.moved.add_to(&mut sum);
                let pairs = [("packets", own.packets), ("bytes", own.bytes)];
                all.extend(pairs.map(|(what, n)| (format!("{way}_q{i}_{what}"), n)));
            }
            let pairs = [
                ("packets", sum.packets),
                ("bytes", sum.bytes),
                ("errors", sum.dropped),
                ("dropped", 0),
            ];
            all.extend(pairs.map(|(what, n)| (format!("{way}_{what}"), n)));
        }
        all
    }

    fn shown_config(&self) -> Option<BTreeMap<String, String>> {
        Some(crate::shown_config(self))
    }

    fn status(&mut self) -> BTreeMap<String, String> {
        let role = match self.args.role {
            Role::Server => "server",
            Role::Client => "client",
        };
        let mut status: BTreeMap<String, String> = [
            ("driver_name", "net_memif".to_string()),
            // ethernetCsmacd of the IANA ifType registry.
            ("if_type", "6".to_string()),
            ("role", role.to_string()),
            ("socket", self.args.address.to_string()),
            ("id", self.args.id.to_string()),
            ("n_rxq", self.n_rxq().to_string()),
            ("n_txq", self.n_txq().to_string()),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .into();
        if let Some(peer) = &*lock(&self.shared.peer) {
            status.insert("peer".into(), peer.clone());
        }
        status
    }

    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        Ok(config.kind == "dpdk" && EthOptions::read(config)? == self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::super::eventfd;
    use super::super::memory::{SharedMemory, new_region};
    use super::super::ring::Buffers;
    use super::*;
    use std::thread::sleep;
    use std::time::Duration;

    const REGION_BYTES: u64 = 64 << 10;

    fn ring() -> Ring {
        let region = [(new_region(REGION_BYTES).unwrap(), REGION_BYTES)];
        let memory = SharedMemory::map(&region, &Arc::new(eventfd().unwrap())).unwrap();
        Ring::format(&memory, 0);
        let buffers = Buffers::Own { first: 4096, bytes: 64 };
        Ring::new(&Arc::new(memory), (0, 0, 4), buffers, eventfd().unwrap(), false).unwrap()
    }

    /// Whichever peer is connected by then.
    #[test]
    fn a_peer_whose_memory_had_a_thread_wait_is_left_alone() {
        let port = PortState::new(Queues { rx: 1, tx: 1 }, None).unwrap();
        let moves = |waits: u64| {
            port.by_ring(&port.tx[0], |_, moved| {
                sleep(Duration::from_millis(waits));
                moved.packets = 1;
                Ok(())
            })
        };
        port.connect(vec![ring()], vec![ring()], "peer");
        sleep(Duration::from_millis(1));
        waits::look(true);
        assert_eq!((moves(0), moves(20), moves(0)), (1, 1, 0));
        port.disconnect();
        port.connect(vec![ring()], vec![ring()], "another");
        assert_eq!(moves(0), 0);
        while port.rest.is_on() {}
        assert_eq!(moves(0), 1);
    }
}
