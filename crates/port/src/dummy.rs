//! Inert ports: no device; what is sent is counted and freed, nothing is ever received.

use crate::netlink::KernelStats;
use crate::stats::Stats;
use crate::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use packet::{Packet, Pool};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Each dummy port has its own address, counted from here.
static NEXT_MAC: AtomicU32 = AtomicU32::new(0xaa55_0000);
const MTU: u16 = 1500;

/// A port of type `dummy` or `dummy-internal`.
pub struct DummyPort {
    name: String,
    kind: String,
    mac: [u8; 6],
    mtu: u16,
    admin_up: bool,
    stats: Arc<Stats>,
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
}

struct DummyRx;

struct DummyTx {
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
}

impl DummyPort {
    /// Makes the port.
    pub fn open(config: &PortConfig, pool: Arc<dyn Pool>) -> Self {
        let n = NEXT_MAC.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let stats = Arc::new(Stats::default());
        DummyPort {
            name: config.name.clone(),
            kind: config.kind.clone(),
            mac: config.mac.unwrap_or([0xaa, 0x55, n[0], n[1], n[2], n[3]]),
            mtu: config.mtu_request.unwrap_or(MTU),
            admin_up: true,
            rx: Some(Box::new(DummyRx)),
            tx: Some(Box::new(DummyTx { pool, stats: stats.clone() })),
            stats,
        }
    }
}

impl RxQueue for DummyRx {
    fn rx(&mut self, _out: &mut Vec<Packet>, _max: usize) -> usize {
        0
    }
}

impl TxQueue for DummyTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
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
        Service::Kernel
    }
    fn n_rxq(&self) -> usize {
        1
    }
    fn n_txq(&self) -> usize {
        1
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
    fn queues(&self) -> &[u32] {
        &[0]
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        self.mac = config.mac.unwrap_or(self.mac);
        self.mtu = config.mtu_request.unwrap_or(MTU);
        Ok(config.name == self.name && config.kind == self.kind)
    }
}
