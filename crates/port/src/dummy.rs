//! Dummy ports, without a device: packets that are sent are counted and freed, packets that are
//! received were injected. Two of them may be connected by a wire ([`crate::dummy_wire`]).

use crate::dummy_arp::Station;
use crate::dummy_wire::{Wire, WireTx};
use crate::netlink::KernelStats;
use crate::pcap::Captures;
use crate::shown_queues;
use crate::stats::Stats;
use crate::sys::check;
use crate::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use packet::{Packet, Pool};
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use telemetry::Drop as Reason;

/// The address of the next dummy port; each has its own.
static NEXT_MAC: AtomicU32 = AtomicU32::new(0xaa55_0000);
const MTU: u16 = 1500;
/// Packets that may wait in a queue to be received, whoever sent them; further ones are dropped.
const WAITING_PACKETS_MAX: usize = 4096;
/// Queues of each direction, at most.
pub const DUMMY_QUEUES_MAX: usize = 64;

/// A port of type `dummy`, `dummy-internal`, or `dummy-pmd`, which a PMD thread polls.
pub struct DummyPort {
    name: String,
    kind: String,
    mac: [u8; 6],
    mtu: u16,
    admin_up: bool,
    shape: Shape,
    pool: Arc<dyn Pool>,
    rx: Vec<Rx>,
    tx: Vec<Tx>,
    captures: Arc<Mutex<Captures>>,
    station: Arc<Station>,
    options: BTreeMap<String, String>,
    wire: Option<Wire>,
}

/// Properties that do not change while the port is open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    /// `n_rxq` and `n_txq`: the numbers of queues of `dummy-pmd` ports.
    n_rxq: usize,
    n_txq: usize,
    /// `numa_id`: the NUMA node that the port reports.
    numa: usize,
    /// `pstream` and `stream`.
    wire: [Option<String>; 2],
}

impl Shape {
    fn read(config: &PortConfig) -> Shape {
        let number = |name: &str| config.options.get(name).and_then(|n| n.parse().ok());
        let queues = |name: &str| match config.kind.as_str() {
            "dummy-pmd" => number(name).unwrap_or(1).clamp(1, DUMMY_QUEUES_MAX),
            _ => 1,
        };
        Shape {
            n_rxq: queues("n_rxq"),
            n_txq: queues("n_txq"),
            numa: number("numa_id").unwrap_or(0),
            wire: ["pstream", "stream"].map(|name| config.options.get(name).cloned()),
        }
    }
}

/// The control side's part of a receive queue.
struct Rx {
    injected: Arc<Injected>,
    stats: Arc<Stats>,
    queue: Option<Box<dyn RxQueue>>,
}

/// The control side's part of a transmit queue.
struct Tx {
    stats: Arc<Stats>,
    queue: Option<Box<dyn TxQueue>>,
}

/// Packets to be received, and the descriptor that announces them.
struct Injected {
    packets: Mutex<VecDeque<Vec<u8>>>,
    stats: Arc<Stats>,
    /// True: there may be packets.
    some: AtomicBool,
    bell: OwnedFd,
}

impl Injected {
    fn new(stats: Arc<Stats>) -> Result<Self, PortError> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        let os = |source| PortError::Os { what: "eventfd".into(), source };
        let fd = check(fd).map_err(os)?;
        // SAFETY: the descriptor was just made and has no other owner.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        let (packets, some) = (Mutex::default(), AtomicBool::new(false));
        Ok(Injected { packets, stats, some, bell })
    }

    /// Appends a packet, or drops and counts it.
    fn push(&self, packet: &[u8]) {
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        if packets.len() >= WAITING_PACKETS_MAX {
            return self.stats.rx.drop(Reason::NoBuffer, 1);
        }
        packets.push_back(packet.to_vec());
        drop(packets);
        self.some.store(true, Ordering::Release);
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    fn len(&self) -> usize {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn pop(&self) -> Option<Vec<u8>> {
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let packet = packets.pop_front();
        if packet.is_none() {
            self.some.store(false, Ordering::Relaxed);
            let mut n = 0u64;
            // SAFETY: eight writable bytes.
            unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut n).cast(), 8) };
        }
        packet
    }
}

/// The value that is written to an eventfd.
static ONE: u64 = 1;

struct DummyRx {
    injected: Arc<Injected>,
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
    captures: Arc<Mutex<Captures>>,
}

struct DummyTx {
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
    captures: Arc<Mutex<Captures>>,
    peer: Peer,
}

/// Where frames go that are sent to the port.
#[derive(Clone)]
struct Peer {
    station: Arc<Station>,
    /// Answers of the station are received here.
    injected: Arc<Injected>,
    wire: Option<WireTx>,
}

impl DummyPort {
    /// Makes the port.
    pub fn open(config: &PortConfig, pool: Arc<dyn Pool>) -> Result<Self, PortError> {
        let n = NEXT_MAC.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let captures = Arc::new(Mutex::new(Captures::open(&config.options)?));
        let shape = Shape::read(config);
        let rx = |_| Rx::new(pool.clone(), captures.clone());
        let rx: Vec<Rx> = (0..shape.n_rxq).map(rx).collect::<Result<_, _>>()?;
        let injected = rx[0].injected.clone();
        provide(&pool, config.mtu_request);
        let mac = config.mac.unwrap_or([0xaa, 0x55, n[0], n[1], n[2], n[3]]);
        let station = Arc::new(Station::new(mac));
        let wire = Wire::open(&config.options, move |frame: &[u8]| injected.push(frame))?;
        let injected = rx[0].injected.clone();
        let peer = Peer { station: station.clone(), injected, wire: wire.as_ref().map(Wire::tx) };
        let tx = |_| Tx::new(pool.clone(), captures.clone(), peer.clone());
        Ok(DummyPort {
            name: config.name.clone(),
            kind: config.kind.clone(),
            mac,
            mtu: config.mtu_request.unwrap_or(MTU),
            admin_up: true,
            tx: (0..shape.n_txq).map(tx).collect(),
            rx,
            pool,
            shape,
            captures,
            station,
            options: config.options.clone(),
            wire,
        })
    }

    /// The counters of each queue of a direction, with the queue's name.
    fn queue_counters(&self) -> impl Iterator<Item = (&'static str, usize, Counters)> {
        let read = |stats: &Stats| stats.counters(&KernelStats::default());
        let rx = self.rx.iter().enumerate().map(move |(i, q)| ("rx", i, read(&q.stats)));
        let tx = self.tx.iter().enumerate().map(move |(i, q)| ("tx", i, read(&q.stats)));
        rx.chain(tx)
    }
}

/// Asks the pool for buffers of the MTU that a user wants; without memory for them longer packets
/// are dropped and counted.
fn provide(pool: &Arc<dyn Pool>, mtu: Option<u16>) {
    if let Some(mtu) = mtu {
        let _ = pool.provide(mtu.into());
    }
}

impl Rx {
    fn new(pool: Arc<dyn Pool>, captures: Arc<Mutex<Captures>>) -> Result<Rx, PortError> {
        let stats = Arc::<Stats>::default();
        let injected = Arc::new(Injected::new(stats.clone())?);
        let queue = DummyRx { injected: injected.clone(), pool, stats: stats.clone(), captures };
        Ok(Rx { injected, stats, queue: Some(Box::new(queue)) })
    }
}

impl Tx {
    fn new(pool: Arc<dyn Pool>, captures: Arc<Mutex<Captures>>, peer: Peer) -> Tx {
        let stats = Arc::<Stats>::default();
        let queue = DummyTx { pool, stats: stats.clone(), captures, peer };
        Tx { stats, queue: Some(Box::new(queue)) }
    }
}

impl Peer {
    fn get(&self, frame: &[u8]) {
        if let Some(wire) = &self.wire {
            wire.send(frame);
        }
        if let Some(answer) = self.station.answer(frame) {
            self.injected.push(&answer);
        }
    }
}

impl DummyRx {
    /// A packet with these bytes. What is longer than the largest buffers has less headroom.
    fn packet(&self, bytes: &[u8]) -> Option<Packet> {
        if let Some(packet) = self.pool.packet(bytes) {
            return Some(packet);
        }
        let room = self.pool.room();
        let mut packet = self.pool.sized(room)?;
        if !packet.push_front(bytes.len().saturating_sub(room)) || !packet.set_len(bytes.len()) {
            self.pool.free(&[packet]);
            return None;
        }
        packet.data_mut().copy_from_slice(bytes);
        Some(packet)
    }
}

impl RxQueue for DummyRx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let before = out.len();
        if !self.injected.some.load(Ordering::Acquire) {
            return 0;
        }
        for _ in 0..max {
            let Some(bytes) = self.injected.pop() else { break };
            match self.packet(&bytes) {
                Some(packet) => out.push(packet),
                None => self.stats.rx.drop(Reason::NoBuffer, 1),
            }
        }
        if let Some(capture) = &self.captures.lock().unwrap_or_else(PoisonError::into_inner).rx {
            out[before..].iter().for_each(|p| capture.add(p.data()));
        }
        let n = out.len() - before;
        self.stats.rx.pass(n, out[before..].iter().map(Packet::len).sum());
        n
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.injected.bell.as_raw_fd())
    }
}

impl TxQueue for DummyTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        if let Some(capture) = &self.captures.lock().unwrap_or_else(PoisonError::into_inner).tx {
            packets.iter().for_each(|p| capture.add(p.data()));
        }
        packets.iter().for_each(|p| self.peer.get(p.data()));
        self.stats.tx.pass(packets.len(), packets.iter().map(Packet::len).sum());
        self.pool.free(packets);
        packets.len()
    }
}

impl Port for DummyPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &str {
        &self.kind
    }
    fn service(&self) -> Service {
        if self.kind == "dummy-pmd" { Service::Poll } else { Service::Kernel }
    }
    fn n_rxq(&self) -> usize {
        self.rx.len()
    }
    fn n_txq(&self) -> usize {
        self.tx.len()
    }
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        self.rx.get_mut(i)?.queue.take()
    }
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        self.tx.get_mut(i)?.queue.take()
    }
    fn numa(&self) -> usize {
        self.shape.numa
    }
    fn mac(&self) -> [u8; 6] {
        self.mac
    }
    fn mtu(&self) -> u16 {
        self.mtu
    }
    fn link(&mut self) -> Link {
        Link { admin_up: self.admin_up, up: self.admin_up, ..Link::default() }
    }
    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        self.admin_up = up;
        Ok(())
    }
    /// Packets and bytes of each queue, and their sums.
    fn counters(&mut self) -> Counters {
        let mut out = Counters::new();
        for (direction, queue, counted) in self.queue_counters() {
            for what in ["packets", "bytes"] {
                let name = format!("{direction}_{what}");
                let n = counted.get(&name).copied().unwrap_or(0);
                *out.entry(name).or_default() += n;
                out.insert(format!("{direction}_q{queue}_{what}"), n);
            }
        }
        // ovs-vswitchd's dummies take packets of any length, and have no such counter.
        let read = |q: &Rx| q.stats.counters(&KernelStats::default()).remove("rx_dropped");
        let dropped: u64 = self.rx.iter().filter_map(read).sum();
        if dropped > 0 {
            out.insert("rx_dropped".into(), dropped);
        }
        // What ovs-vswitchd's dummies count, so that there are counters with names of their own.
        let received = out.get("rx_packets").copied().unwrap_or(0);
        for name in ["rx_custom_packets_1", "rx_custom_packets_2"] {
            out.insert(name.into(), received);
        }
        out
    }
    fn inject(&mut self, queue: usize, packet: &[u8]) -> bool {
        let Some(rx) = self.rx.get(queue) else { return false };
        if self.admin_up {
            rx.injected.push(packet);
        }
        true
    }
    fn answer_arp_for(&mut self, ip: Ipv4Addr) {
        self.station.change(|(_, own)| *own = Some(ip));
    }
    fn is_wired(&self) -> Option<bool> {
        self.wire.as_ref()?.is_connected()
    }
    fn all_taken(&self) -> bool {
        self.rx.iter().all(|q| q.injected.len() == 0)
    }
    fn shown_config(&self) -> Option<BTreeMap<String, String>> {
        (self.kind == "dummy-pmd").then(|| shown_queues(self.rx.len(), self.tx.len()))
    }
    fn queues(&self) -> &[u32] {
        &[0]
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        self.mac = config.mac.unwrap_or(self.mac);
        self.station.change(|(mac, _)| *mac = self.mac);
        self.mtu = config.mtu_request.unwrap_or(MTU);
        provide(&self.pool, config.mtu_request);
        let new = Captures::open(&config.options)?;
        *self.captures.lock().unwrap_or_else(PoisonError::into_inner) = new;
        self.options = config.options.clone();
        let same = config.name == self.name && config.kind == self.kind;
        Ok(same && Shape::read(config) == self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapPool;

    #[test]
    fn a_capture_has_what_was_sent_and_received() {
        let path = std::env::temp_dir().join(format!("dummy-{}.pcap", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let options = BTreeMap::from([("pcap".into(), path.display().to_string())]);
        let config =
            PortConfig { name: "p".into(), kind: "dummy".into(), options, ..Default::default() };
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new());
        let mut port = DummyPort::open(&config, pool).unwrap();
        let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
        assert!(port.inject(0, &[7; 60]));
        let mut packets = Vec::new();
        assert_eq!(rx.rx(&mut packets, 32), 1);
        assert_eq!(tx.tx(&packets), 1);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (header, record) = (24, 16 + 60);
        assert_eq!(bytes.len(), header + 2 * record);
        assert_eq!(bytes[..4], 0xa1b2_c3d4u32.to_ne_bytes());
        assert_eq!(bytes[header + 16..][..60], [7; 60]);
        assert_eq!(bytes[header + record + 16..], [7; 60]);
    }

    /// A sender over a wire fills no more memory than a queue may have.
    #[test]
    fn packets_that_wait_are_bounded() {
        let path = std::env::temp_dir().join(format!("dummy-flood-{}", std::process::id()));
        let port = |name: &str, value: String| {
            let options = [(name.to_string(), value)].into();
            let kind = "dummy-pmd".to_string();
            let config = PortConfig { name: "p".into(), kind, options, ..Default::default() };
            DummyPort::open(&config, Arc::new(HeapPool::new())).unwrap()
        };
        let to = port("pstream", format!("punix:{}", path.display()));
        let from = port("stream", format!("unix:{}", path.display()));
        let wire = from.wire.as_ref().unwrap().tx();
        let dropped = || to.rx[0].stats.counters(&KernelStats::default())["rx_dropped"];
        while dropped() < 100 {
            wire.send(&[7; 60]);
        }
        assert_eq!(to.rx[0].injected.len(), WAITING_PACKETS_MAX);
    }

    #[test]
    fn packets_that_nothing_receives_wait_up_to_a_number_and_are_counted() {
        let config = PortConfig { name: "p".into(), kind: "dummy".into(), ..Default::default() };
        let mut port = DummyPort::open(&config, Arc::new(HeapPool::new())).unwrap();
        assert!((0..WAITING_PACKETS_MAX + 5).all(|_| port.inject(0, &[7; 60])));
        assert_eq!(port.rx[0].injected.len(), WAITING_PACKETS_MAX);
        assert_eq!(port.counters()["rx_dropped"], 5);
        // So are its own answers.
        port.answer_arp_for([10, 0, 0, 1].into());
        let peer = Peer {
            station: port.station.clone(),
            injected: port.rx[0].injected.clone(),
            wire: None,
        };
        let (mut question, words) = (vec![0xff; 42], [0x0806, 1, 0x0800, 0x0604, 1]);
        for (i, word) in words.iter().enumerate() {
            question[12 + 2 * i..][..2].copy_from_slice(&u16::to_be_bytes(*word));
        }
        question[38..].copy_from_slice(&[10, 0, 0, 1]);
        peer.get(&question);
        assert_eq!(port.counters()["rx_dropped"], 6);
    }

    #[test]
    fn long_packets_are_received_where_the_mtu_allows_them_and_else_counted() {
        let mut config =
            PortConfig { name: "p".into(), kind: "dummy".into(), ..Default::default() };
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new());
        let mut port = DummyPort::open(&config, pool.clone()).unwrap();
        let mut rx = port.take_rx(0).unwrap();
        let mut packets = Vec::new();
        assert!(port.inject(0, &[7; 9000]));
        assert_eq!(rx.rx(&mut packets, 32), 0);
        assert_eq!(port.counters()["rx_dropped"], 1);
        config.mtu_request = Some(65535);
        assert!(port.reconfigure(&config).unwrap());
        for len in [60, 9000, 65_500] {
            assert!(port.inject(0, &vec![len as u8; len]));
        }
        assert_eq!(rx.rx(&mut packets, 32), 3);
        for (packet, len) in packets.iter().zip([60, 9000, 65_500]) {
            assert_eq!(packet.data(), vec![len as u8; len]);
        }
        assert_eq!((port.counters()["rx_dropped"], port.counters()["rx_packets"]), (1, 3));
        pool.free(&packets);
    }

    #[test]
    fn queues_of_their_own_and_a_node() {
        let options = [("n_rxq", "3"), ("n_txq", "2"), ("numa_id", "8")];
        let options: BTreeMap<String, String> =
            options.map(|(k, v)| (k.to_string(), v.to_string())).into();
        let kind = "dummy-pmd".to_string();
        let mut config = PortConfig { name: "p".into(), kind, options, ..Default::default() };
        let mut port = DummyPort::open(&config, Arc::new(HeapPool::new())).unwrap();
        assert_eq!((port.n_rxq(), port.n_txq(), port.numa()), (3, 2, 8));
        assert!(port.inject(2, &[7; 60]) && !port.inject(3, &[7; 60]));
        let taken: Vec<usize> =
            (0..3).map(|i| port.take_rx(i).unwrap().rx(&mut Vec::new(), 32)).collect();
        assert_eq!(taken, [0, 0, 1]);
        assert!(port.take_rx(3).is_none() && port.take_tx(1).is_some());
        let counters = port.counters();
        assert_eq!(counters["rx_packets"], 1);
        assert_eq!((counters["rx_q2_bytes"], counters["tx_q1_packets"]), (60, 0));
        assert!(port.reconfigure(&config).unwrap());
        config.options.remove("n_rxq");
        assert!(!port.reconfigure(&config).unwrap(), "it has to be opened again");
        config.kind = "dummy".into();
        assert_eq!(DummyPort::open(&config, Arc::new(HeapPool::new())).unwrap().n_txq(), 1);
    }
}
