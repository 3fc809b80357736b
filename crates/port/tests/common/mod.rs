//! What the tests of kernel ports share. Not every test uses all of it.
#![allow(dead_code, missing_docs)]

use packet::{HeapPool, Packet, Pool};
use port::{Port, PortConfig, RxQueue, TxQueue};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Moves the calling thread into a fresh network namespace, which ends with the thread.
pub fn namespace() -> bool {
    // SAFETY: affects the calling thread only.
    let made = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    testkit::available(made, "root, for a network namespace")
}

pub fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output().expect("ip runs");
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A veth pair v0 - v1, both ends up and without IPv6.
pub fn veth() {
    ip("link set lo up");
    ip("link add v0 type veth peer name v1");
    for dev in ["v0", "v1"] {
        ip(&format!("link set {dev} addrgenmode none"));
        ip(&format!("link set {dev} up"));
    }
}

/// An open port with its queues and pool.
pub struct Open {
    pub port: Box<dyn Port>,
    pub rx: Box<dyn RxQueue>,
    pub tx: Box<dyn TxQueue>,
    pub pool: Arc<HeapPool>,
}

pub fn config(name: &str, kind: &str) -> PortConfig {
    PortConfig { name: name.into(), kind: kind.into(), n_txq: 1, ..PortConfig::default() }
}

pub fn open(name: &str, kind: &str) -> Open {
    open_with(&config(name, kind))
}

pub fn open_with(config: &PortConfig) -> Open {
    let pool = Arc::new(HeapPool::new());
    let mut port = port::open(config, pool.clone()).expect("the port opens");
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    assert!(port.take_rx(0).is_none() && port.take_tx(1).is_none());
    Open { port, rx, tx, pool }
}

impl Open {
    /// Receives until `n` frames for which `want` holds are there, or a second passed.
    pub fn receive(&mut self, n: usize, want: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let (mut got, end) = (Vec::new(), Instant::now() + Duration::from_secs(2));
        while got.len() < n && Instant::now() < end {
            let mut out = Vec::new();
            if self.rx.rx(&mut out, 32) == 0 {
                wait(self.rx.fd().unwrap(), 20);
            }
            got.extend(out.iter().map(|p| p.data().to_vec()).filter(|f| want(f)));
            self.pool.free(&out);
        }
        got
    }

    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let packets: Vec<Packet> = frames.iter().map(|f| self.pool.packet(f).unwrap()).collect();
        assert_eq!(self.tx.tx(&packets), packets.len());
    }

    /// Closes everything; every buffer must be back.
    pub fn close(self) {
        let Open { port, rx, tx, pool } = self;
        drop((rx, tx, port));
        assert_eq!(pool.in_use(), 0, "buffers leaked");
    }
}

/// Waits for input; the events that came.
pub fn wait(fd: i32, ms: i32) -> i16 {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut p, 1, ms) };
    p.revents
}

/// A test frame of an experimental Ethertype with a number in it.
pub fn numbered(n: u32, len: usize) -> Vec<u8> {
    let mut f = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5];
    f.extend(n.to_be_bytes());
    f.resize(len, 0x5a);
    f
}

pub fn is_numbered(f: &[u8]) -> bool {
    f[12..14] == [0x88, 0xb5]
}

/// `linux/if_packet.h`.
pub const PACKET_VNET_HDR: libc::c_int = 15;

/// A packet socket of our own, independent of the ports.
pub struct RawSender(pub i32, libc::sockaddr_ll);

impl RawSender {
    pub fn new(dev: &str) -> Self {
        let name = std::ffi::CString::new(dev).unwrap();
        // SAFETY: plain calls; the address is plain data.
        unsafe {
            let mut addr: libc::sockaddr_ll = std::mem::zeroed();
            addr.sll_family = libc::AF_PACKET as u16;
            addr.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            RawSender(libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0), addr)
        }
    }

    /// Its frames begin with a `struct virtio_net_hdr`: the sender leaves work to the adapter.
    pub fn offloading(dev: &str) -> Self {
        let (raw, on) = (RawSender::new(dev), 1i32);
        let opt = std::ptr::from_ref(&on).cast();
        // SAFETY: the option is an int.
        let ret = unsafe { libc::setsockopt(raw.0, libc::SOL_PACKET, PACKET_VNET_HDR, opt, 4) };
        assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
        raw
    }

    pub fn send(&self, f: &[u8]) {
        // SAFETY: the frame and the address are readable for their lengths.
        let n = unsafe {
            let addr = std::ptr::from_ref(&self.1).cast();
            libc::sendto(self.0, f.as_ptr().cast(), f.len(), 0, addr, size_of_val(&self.1) as u32)
        };
        assert_eq!(n, f.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for RawSender {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::close(self.0) };
    }
}
