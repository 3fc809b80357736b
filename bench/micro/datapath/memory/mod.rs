//! What the examples share: packets and ports that are only memory.

use packet::{HeapPool, Packet, Pool};
use port::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;

/// A pool that gives nothing back: the packets belong to the source.
pub struct Borrowed(pub HeapPool);

impl Pool for Borrowed {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        self.0.alloc(out, n)
    }
    fn free(&self, _: &[Packet]) {}
    fn room(&self) -> usize {
        self.0.room()
    }
}

/// A 64-byte UDP packet, to be given addresses and ports.
pub fn packet(pool: &dyn Pool) -> Packet {
    let mut p = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    p.extend([0x45, 0, 0, 50, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0]);
    // As TCP: a header of five words, ACK.
    p.extend([0, 1, 0, 2, 0, 30, 0, 0, 0, 0, 0, 0, 0x50, 0x10]);
    p.resize(64, 0);
    pool.packet(&p).expect("a heap")
}

struct Sink;

impl TxQueue for Sink {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        packets.len()
    }
}

/// A port with a source of packets, or none, and so many places to send them to.
pub struct Mem {
    rx: Option<Box<dyn RxQueue>>,
    n_rxq: usize,
    n_txq: usize,
}

impl Mem {
    pub fn new(source: Option<Box<dyn RxQueue>>, n_txq: usize) -> Box<Mem> {
        Box::new(Mem { n_rxq: usize::from(source.is_some()), rx: source, n_txq })
    }
}

impl Port for Mem {
    fn name(&self) -> &str {
        "mem"
    }
    fn kind(&self) -> &str {
        "mem"
    }
    fn service(&self) -> Service {
        Service::Poll
    }
    fn n_rxq(&self) -> usize {
        self.n_rxq
    }
    fn n_txq(&self) -> usize {
        self.n_txq
    }
    fn take_rx(&mut self, _: usize) -> Option<Box<dyn RxQueue>> {
        self.rx.take()
    }
    fn take_tx(&mut self, _: usize) -> Option<Box<dyn TxQueue>> {
        Some(Box::new(Sink))
    }
    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }
    fn mtu(&self) -> u16 {
        1500
    }
    fn link(&mut self) -> Link {
        Link::default()
    }
    fn set_admin_up(&mut self, _: bool) -> Result<(), PortError> {
        Ok(())
    }
    fn counters(&mut self) -> Counters {
        Counters::new()
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, _: &PortConfig) -> Result<bool, PortError> {
        Ok(true)
    }
}

/// CPU time of this thread: what other processes take is not ours.
pub fn cpu_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}
