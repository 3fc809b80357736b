//! In-memory ports, each with two rings and a peer that the test holds. For tests, examples and
//! simulation.

use packet::{Packet, Pool};
use port::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Wire {
    rx: Vec<VecDeque<Packet>>,
    tx: VecDeque<Packet>,
    tx_room: usize,
    /// Transmit queues are busy, as if another thread used them.
    tx_busy: bool,
    /// Transmit queues have phases ([`TxQueue::has_phases`]).
    phases: bool,
    sent: usize,
    /// Number of packets that the switch tried to send.
    offered: usize,
    /// Number of packets received and sent of which the peer was not notified.
    pending_notify: usize,
    mtu: u16,
    queues_out: usize,
    /// Cycles that the peer costs with each call, and those not charged to it yet.
    lost_per_call: u64,
    /// How long each packet takes to be sent.
    send_time: Duration,
    owed: u64,
}

impl Wire {
    fn lose(&mut self) {
        if self.lost_per_call > 0 {
            port::charge_penalty(self.lost_per_call);
            self.owed += self.lost_per_call;
        }
    }
}

/// The peer of a port: what the test sends and receives.
#[derive(Clone)]
pub struct Peer {
    wire: Arc<Mutex<Wire>>,
    pool: Arc<dyn Pool>,
}

struct RingPort {
    name: String,
    service: Service,
    wire: Arc<Mutex<Wire>>,
    rx: Vec<Option<Box<dyn RxQueue>>>,
    tx: Vec<Option<Box<dyn TxQueue>>>,
}

struct Rx(Arc<Mutex<Wire>>, usize);
struct Tx(Arc<Mutex<Wire>>);

/// A port with this many queues, and its peer.
pub fn ring_port(
    name: &str,
    service: Service,
    n_rxq: usize,
    n_txq: usize,
    pool: Arc<dyn Pool>,
) -> (Box<dyn Port>, Peer) {
    let wire = Wire {
        rx: (0..n_rxq).map(|_| VecDeque::new()).collect(),
        tx_room: usize::MAX,
        mtu: 1500,
        queues_out: n_rxq + n_txq,
        ..Wire::default()
    };
    let wire = Arc::new(Mutex::new(wire));
    let rx = (0..n_rxq).map(|i| Some(Box::new(Rx(wire.clone(), i)) as Box<dyn RxQueue>));
    let tx = (0..n_txq).map(|_| Some(Box::new(Tx(wire.clone())) as Box<dyn TxQueue>));
    let port = RingPort {
        name: name.into(),
        service,
        wire: wire.clone(),
        rx: rx.collect(),
        tx: tx.collect(),
    };
    (Box::new(port), Peer { wire, pool })
}

impl Peer {
    /// Sends a packet to receive queue 0.
    pub fn send(&self, bytes: &[u8]) {
        self.send_on(0, bytes);
    }
    /// Sends a packet to this receive queue.
    pub fn send_on(&self, queue: usize, bytes: &[u8]) {
        let p = self.pool.packet(bytes).expect("a packet that fits a buffer");
        self.wire.lock().unwrap().rx[queue].push_back(p);
    }
    /// Sends a packet to receive queue 0 whose checksums an adapter found good.
    pub fn send_sound(&self, bytes: &[u8]) {
        let mut p = self.pool.packet(bytes).expect("a packet that fits a buffer");
        // RTE_MBUF_F_RX_IP_CKSUM_GOOD and L4_CKSUM_GOOD.
        p.mbuf().ol_flags |= 1 << 7 | 1 << 8;
        self.wire.lock().unwrap().rx[0].push_back(p);
    }
    /// Sends a packet to receive queue 0 that an adapter marked.
    pub fn send_marked(&self, bytes: &[u8], mark: u32) {
        let mut p = self.pool.packet(bytes).expect("a packet that fits a buffer");
        // RTE_MBUF_F_RX_FDIR and RX_FDIR_ID.
        p.mbuf().ol_flags |= 1 << 2 | 1 << 13;
        p.mbuf().hash_hi = mark;
        self.wire.lock().unwrap().rx[0].push_back(p);
    }
    /// Adds a receive queue to the port, as a guest does.
    pub fn add_rxq(&self) {
        let mut wire = self.wire.lock().unwrap();
        wire.rx.push(VecDeque::new());
        wire.queues_out += 1;
    }
    /// Takes one packet that the switch sent.
    pub fn recv(&self) -> Option<Vec<u8>> {
        let p = self.wire.lock().unwrap().tx.pop_front()?;
        let bytes = p.data().to_vec();
        self.pool.free(&[p]);
        Some(bytes)
    }
    /// Takes everything that the switch sent.
    pub fn drain(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.recv()).collect()
    }
    /// Gives the port room for `room` more packets.
    pub fn limit_tx(&self, room: usize) {
        self.wire.lock().unwrap().tx_room = room;
    }
    /// Makes the port's transmit queues busy, as if another thread used them, or not busy.
    pub fn make_tx_busy(&self, busy: bool) {
        self.wire.lock().unwrap().tx_busy = busy;
    }
    /// Makes each call on the port's queues cost this many cycles that are charged to the peer, as
    /// ring errors of a guest do.
    pub fn lose(&self, cycles: u64) {
        self.wire.lock().unwrap().lost_per_call = cycles;
    }
    /// Makes each packet take this long to be sent.
    pub fn slow_down(&self, send_time: Duration) {
        self.wire.lock().unwrap().send_time = send_time;
    }
    /// Changes the port's MTU.
    pub fn set_mtu(&self, mtu: u16) {
        self.wire.lock().unwrap().mtu = mtu;
    }
    /// Gives the transmit queues phases, as guests' queues have. To be called before the port is
    /// added.
    pub fn set_phases(&self) {
        self.wire.lock().unwrap().phases = true;
    }
    /// Packets the switch has sent so far.
    pub fn sent(&self) -> usize {
        self.wire.lock().unwrap().sent
    }
    /// Packets that the switch has tried to send so far, including those for which there was no
    /// room.
    pub fn offered(&self) -> usize {
        self.wire.lock().unwrap().offered
    }
    /// Queues that were neither dropped nor closed.
    pub fn queues_alive(&self) -> usize {
        self.wire.lock().unwrap().queues_out
    }
    /// Packets that the switch received and sent without notifying this peer ([`RxQueue::notify`]).
    pub fn pending_notify(&self) -> usize {
        self.wire.lock().unwrap().pending_notify
    }
    /// Packets the switch has not received yet.
    pub fn pending(&self) -> usize {
        self.wire.lock().unwrap().rx.iter().map(VecDeque::len).sum()
    }
}

impl RxQueue for Rx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let mut w = self.0.lock().unwrap();
        w.lose();
        let q = &mut w.rx[self.1];
        let n = max.min(q.len());
        out.extend(q.drain(..n));
        w.pending_notify += n;
        n
    }
    fn take_port_penalty(&mut self) -> u64 {
        std::mem::take(&mut self.0.lock().unwrap().owed)
    }
    fn notify(&mut self, all: bool) {
        let mut w = self.0.lock().unwrap();
        w.pending_notify = if all { 0 } else { w.pending_notify };
    }
    fn notifies(&self) -> bool {
        true
    }
}

impl TxQueue for Tx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        let mut w = self.0.lock().unwrap();
        w.lose();
        let n = if w.tx_busy { 0 } else { packets.len().min(w.tx_room) };
        let until = Instant::now() + w.send_time * n as u32;
        while Instant::now() < until && !w.send_time.is_zero() {
            std::hint::spin_loop();
        }
        w.tx_room -= n;
        w.offered += packets.len();
        w.sent += n;
        w.pending_notify += n;
        // SAFETY: the caller forgets those that were taken.
        w.tx.extend(packets[..n].iter().map(|p| unsafe { p.duplicate() }));
        n
    }
    fn room(&mut self, n: usize) -> usize {
        n.min(self.0.lock().unwrap().tx_room)
    }
    fn is_busy(&self) -> bool {
        self.0.lock().unwrap().tx_busy
    }
    fn has_phases(&self) -> bool {
        self.0.lock().unwrap().phases
    }
    fn notify(&mut self, all: bool) {
        let mut w = self.0.lock().unwrap();
        w.pending_notify = if all { 0 } else { w.pending_notify };
    }
    fn notifies(&self) -> bool {
        true
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.0.lock().unwrap().queues_out -= 1;
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.0.lock().unwrap().queues_out -= 1;
    }
}

impl Port for RingPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &str {
        "ring"
    }
    fn service(&self) -> Service {
        self.service
    }
    fn n_rxq(&self) -> usize {
        self.wire.lock().unwrap().rx.len()
    }
    fn n_txq(&self) -> usize {
        self.tx.len()
    }
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        let fresh = |i| Some(Box::new(Rx(self.wire.clone(), i)) as Box<dyn RxQueue>);
        let more = (self.rx.len()..self.n_rxq()).map(fresh);
        let more: Vec<_> = more.collect();
        self.rx.extend(more);
        self.rx.get_mut(i)?.take()
    }
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        self.tx.get_mut(i)?.take()
    }
    fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }
    fn mtu(&self) -> u16 {
        self.wire.lock().unwrap().mtu
    }
    fn link(&mut self) -> Link {
        Link { admin_up: true, up: true, mbps: 10_000, full_duplex: Some(true), ..Link::default() }
    }
    fn set_admin_up(&mut self, _up: bool) -> Result<(), PortError> {
        Ok(())
    }
    fn counters(&mut self) -> Counters {
        Counters::from([("tx_packets".into(), self.wire.lock().unwrap().sent as u64)])
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, _config: &PortConfig) -> Result<bool, PortError> {
        Ok(true)
    }
}
