//! Ports of type `system`: an existing kernel device, through a pair of packet sockets.
//!
//! The device keeps its offloads (only LRO is switched off): checksums and segments that senders
//! leave to the adapter are made in software when a frame is received.

use crate::device::Device;
use crate::netlink::{ARPHRD_ETHER, LinkChange};
use crate::packet_rx::PacketRx;
use crate::packet_tx::PacketTx;
use crate::stats::Stats;
use crate::sys::{bind, grow_buffer, open_failed, set_option, socket};
use crate::tc::TrafficControl;
use crate::{Counters, DeviceAnswer, Inquiry, Link, Port, PortConfig, PortError, RxQueue, TxQueue};
use libc::{SOL_PACKET, SOL_SOCKET, c_int};
use packet::Pool;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use telemetry::Drop as Reason;

const PACKET_STATISTICS: c_int = 6;
const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const ARPHRD_LOOPBACK: u16 = 772;
/// Bytes that the kernel may queue for a socket: some thousand frames.
const RECEIVE_BUFFER: c_int = 16 << 20;
const SEND_BUFFER: c_int = 4 << 20;

/// A kernel device.
pub struct SystemPort {
    device: Device,
    stats: Arc<Stats>,
    socket: Arc<OwnedFd>,
    /// The transmit queue's socket, kept so that the port closes it and not the thread that drops
    /// the queue: the kernel takes 10 to 25 ms to close a packet socket.
    _send_socket: Arc<OwnedFd>,
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
}

impl SystemPort {
    /// Opens the device. If it refuses an MTU or MAC it is opened all the same: `mtu` and `mac`
    /// return the present values, and `reconfigure` the reason.
    pub fn open(config: &PortConfig, pool: Arc<dyn Pool>) -> Result<Self, PortError> {
        let fail = |e: io::Error| open_failed(&config.name, &e);
        let mut device = Device::find(&config.name, &pool).map_err(fail)?;
        match device.last().hardware {
            ARPHRD_ETHER => {}
            ARPHRD_LOOPBACK => {
                let name = &config.name;
                let text = format!("could not add network device {name} to ofproto");
                return Err(PortError::Device(text + " (Invalid argument)"));
            }
            _ => return Err(fail(io::Error::from_raw_os_error(libc::EINVAL))),
        }
        device.lro_off();
        let stats = Arc::new(Stats::default());
        let socket = Arc::new(rx_socket(device.ifindex).map_err(fail)?);
        let send_socket = Arc::new(tx_socket(device.ifindex).map_err(fail)?);
        let _ = device.configure(config);
        let rx = PacketRx::new(socket.clone(), pool.clone(), stats.clone()).map_err(fail)?;
        let tx = PacketTx::new(send_socket.clone(), pool, stats.clone());
        let (rx, tx): (Box<dyn RxQueue>, Box<dyn TxQueue>) = (Box::new(rx), Box::new(tx));
        let (rx, tx) = (Some(rx), Some(tx));
        Ok(SystemPort { device, stats, socket, _send_socket: send_socket, rx, tx })
    }

    /// Adds the number of frames that the kernel could not queue, which is reset when it is read,
    /// to the counter.
    fn count_socket_drops(&self) {
        let mut raw = [0u32; 2];
        let mut len = size_of_val(&raw) as libc::socklen_t;
        // SAFETY: `raw` is writable for `len` bytes (`struct tpacket_stats`).
        let ret = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                SOL_PACKET,
                PACKET_STATISTICS,
                raw.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if ret == 0 && raw[1] > 0 {
            self.stats.rx.drop(Reason::RxFull, u64::from(raw[1]));
        }
    }
}

fn address(ifindex: u32, proto: u16) -> libc::sockaddr_ll {
    // SAFETY: plain data for which all-zero is valid.
    let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    addr.sll_family = libc::AF_PACKET as u16;
    addr.sll_protocol = proto.to_be();
    addr.sll_ifindex = ifindex as i32;
    addr
}

/// All options are set before the socket is bound, so that no frame comes in before that, or from
/// another device.
fn rx_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let fd = socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    for option in [PACKET_IGNORE_OUTGOING, PACKET_AUXDATA, PACKET_VNET_HDR] {
        set_option(&fd, SOL_PACKET, option, &1i32)?;
    }
    grow_buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER);
    // SAFETY: plain data for which all-zero is valid.
    let mut member: libc::packet_mreq = unsafe { std::mem::zeroed() };
    member.mr_ifindex = ifindex as i32;
    member.mr_type = libc::PACKET_MR_PROMISC as u16;
    set_option(&fd, SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
    bind(&fd, &address(ifindex, libc::ETH_P_ALL as u16))?;
    Ok(fd)
}

/// A socket of protocol 0, which receives nothing.
fn tx_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let fd = socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    set_option(&fd, SOL_PACKET, PACKET_VNET_HDR, &1i32)?;
    grow_buffer(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER);
    let _ = set_option(&fd, SOL_SOCKET, libc::SO_PRIORITY, &0i32);
    bind(&fd, &address(ifindex, 0))?;
    Ok(fd)
}

impl Port for SystemPort {
    fn name(&self) -> &str {
        &self.device.name
    }
    fn kind(&self) -> &str {
        "system"
    }
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        if i == 0 { self.rx.take() } else { None }
    }
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        if i == 0 { self.tx.take() } else { None }
    }
    fn mac(&self) -> [u8; 6] {
        self.device.last().mac
    }
    fn mtu(&self) -> u16 {
        u16::try_from(self.device.last().mtu).unwrap_or(u16::MAX)
    }
    fn ifindex(&self) -> Option<u32> {
        Some(self.device.ifindex)
    }
    fn traffic_control(&self) -> Option<TrafficControl> {
        Some(self.device.traffic_control())
    }
    fn health(&mut self) -> Result<(), PortError> {
        let name = self.device.name.clone();
        self.device.refresh().map(drop).map_err(|e| open_failed(&name, &e))
    }
    fn complaint(&mut self) -> Option<String> {
        self.device.complaint()
    }
    fn link(&mut self) -> Link {
        self.device.link()
    }
    fn last_link(&mut self) -> Link {
        self.device.last_link()
    }
    fn inquiry(&mut self) -> Option<Inquiry> {
        Some(self.device.inquiry())
    }
    fn answered(&mut self, answer: DeviceAnswer) -> Result<(), PortError> {
        let name = self.device.name.clone();
        self.device.answered(answer).map_err(|e| open_failed(&name, &e))
    }
    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        self.device.change(LinkChange::AdminUp(up), "setting the administrative state")
    }
    fn counters(&mut self) -> Counters {
        self.count_socket_drops();
        let kernel = self.device.stats();
        self.stats.counters(&kernel)
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        self.device.status()
    }
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        if config.name != self.device.name || !matches!(config.kind.as_str(), "" | "system") {
            return Ok(false);
        }
        self.device.configure(config).map(|()| true)
    }
}
