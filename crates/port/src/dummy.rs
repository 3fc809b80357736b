//! Inert ports: no device; what is sent is counted and freed, what is received was injected.

use crate::netlink::KernelStats;
use crate::pcap::Captures;
use crate::stats::Stats;
use crate::sys::check;
use crate::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use packet::{Packet, Pool};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use telemetry::Drop as Reason;

/// Each dummy port has its own address, counted from here.
static NEXT_MAC: AtomicU32 = AtomicU32::new(0xaa55_0000);
const MTU: u16 = 1500;

/// A port of type `dummy`, `dummy-internal`, or `dummy-pmd`, which a PMD thread polls.
pub struct DummyPort {
    name: String,
    kind: String,
    mac: [u8; 6],
    mtu: u16,
    admin_up: bool,
    stats: Arc<Stats>,
    injected: Arc<Injected>,
    captures: Arc<Mutex<Captures>>,
    options: BTreeMap<String, String>,
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
}

/// Packets on their way in, and the descriptor that says that there are some.
struct Injected {
    packets: Mutex<VecDeque<Vec<u8>>>,
    /// There may be some.
    some: AtomicBool,
    bell: OwnedFd,
}

impl Injected {
    fn new() -> Result<Self, PortError> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        let os = |source| PortError::Os { what: "eventfd".into(), source };
        let fd = check(fd).map_err(os)?;
        // SAFETY: the descriptor was just made and has no other owner.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Injected { packets: Mutex::default(), some: AtomicBool::new(false), bell })
    }

    fn push(&self, packet: &[u8]) {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner).push_back(packet.to_vec());
        self.some.store(true, Ordering::Release);
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const ONE).cast(), 8) };
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

/// What rings an eventfd.
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
}

impl DummyPort {
    /// Makes the port.
    pub fn open(config: &PortConfig, pool: Arc<dyn Pool>) -> Result<Self, PortError> {
        let n = NEXT_MAC.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let stats = Arc::new(Stats::default());
        let injected = Arc::new(Injected::new()?);
        let captures = Arc::new(Mutex::new(Captures::open(&config.options)?));
        let rx = DummyRx {
            injected: injected.clone(),
            pool: pool.clone(),
            stats: stats.clone(),
            captures: captures.clone(),
        };
        let tx = DummyTx { pool, stats: stats.clone(), captures: captures.clone() };
        Ok(DummyPort {
            name: config.name.clone(),
            kind: config.kind.clone(),
            mac: config.mac.unwrap_or([0xaa, 0x55, n[0], n[1], n[2], n[3]]),
            mtu: config.mtu_request.unwrap_or(MTU),
            admin_up: true,
            injected,
            rx: Some(Box::new(rx)),
            tx: Some(Box::new(tx)),
            captures,
            options: config.options.clone(),
            stats,
        })
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
            match self.pool.packet(&bytes) {
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
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        if i == 0 { self.rx.take() } else { None }
    }
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        if i == 0 { self.tx.take() } else { None }
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
    /// Nothing but packets and bytes; all of them in its one queue.
    fn counters(&mut self) -> Counters {
        let all = self.stats.counters(&KernelStats::default());
        let mut out = Counters::new();
        for (name, n) in &all {
            if let Some((direction, what @ ("packets" | "bytes"))) = name.split_once('_') {
                out.insert(format!("{direction}_q0_{what}"), *n);
                out.insert(name.clone(), *n);
            }
        }
        // What ovs-vswitchd's dummies count to have counters with names of their own.
        let received = all.get("rx_packets").copied().unwrap_or(0);
        for name in ["rx_custom_packets_1", "rx_custom_packets_2"] {
            out.insert(name.into(), received);
        }
        out
    }
    fn inject(&mut self, packet: &[u8]) -> bool {
        if self.admin_up {
            self.injected.push(packet);
        }
        true
    }
    fn all_taken(&self) -> bool {
        self.injected.packets.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
    fn queues(&self) -> &[u32] {
        &[0]
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        self.mac = config.mac.unwrap_or(self.mac);
        self.mtu = config.mtu_request.unwrap_or(MTU);
        if config.options != self.options {
            let new = Captures::open(&config.options)?;
            *self.captures.lock().unwrap_or_else(PoisonError::into_inner) = new;
            self.options = config.options.clone();
        }
        Ok(config.name == self.name && config.kind == self.kind)
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
        assert!(port.inject(&[7; 60]));
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
}
