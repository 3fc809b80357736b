//! rtnetlink(7), as much as ports need: querying a link, changing a link, reading link messages,
//! sending requests of traffic control ([`crate::tc`] has their contents).
//!
//! Written by hand because messages must be read leniently: an attribute of a newer kernel must
//! never make a link unreadable.

use crate::sys::{bind, check, set_option, socket};
use crate::tc;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const F_REQUEST: u16 = 1;
const F_ACK: u16 = 4;
const F_DUMP: u16 = 0x300;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_STATS64: u16 = 23;
const IFLA_CARRIER: u16 = 33;
const IFLA_CARRIER_CHANGES: u16 = 35;
/// The multicast group of link events.
pub const GROUP_LINK: u32 = 1;
/// The hardware type Ethernet, in [`Info::hardware`].
pub const ARPHRD_ETHER: u16 = 1;
const HEADER: usize = 16;
const IFINFO: usize = 16;
/// Size of a message buffer. Only devices with very many virtual functions have longer messages.
const BUFFER: usize = 64 * 1024;

/// `struct rtnl_link_stats64`, its first sixteen numbers in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStats(pub [u64; 16]);

#[allow(missing_docs)]
impl KernelStats {
    pub const RX_ERRORS: usize = 4;
    pub const TX_ERRORS: usize = 5;
    pub const RX_DROPPED: usize = 6;
    pub const TX_DROPPED: usize = 7;
    pub const MULTICAST: usize = 8;
    pub const COLLISIONS: usize = 9;
    pub const RX_OVER: usize = 11;
    pub const RX_CRC: usize = 12;
    pub const RX_FRAME: usize = 13;
    pub const RX_MISSED: usize = 15;

    /// The differences to `base`.
    pub fn since(&self, base: &KernelStats) -> KernelStats {
        let mut out = *self;
        for (o, b) in out.0.iter_mut().zip(base.0) {
            *o = o.wrapping_sub(b);
        }
        out
    }
}

/// One link as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    pub ifindex: u32,
    pub hardware: u16,
    pub flags: u32,
    pub name: String,
    pub mtu: u32,
    pub mac: [u8; 6],
    pub carrier: bool,
    pub carrier_changes: u32,
    pub stats: KernelStats,
}

impl Info {
    /// True if the link is administratively up.
    pub fn admin_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// True if the link is up and has a carrier.
    pub fn up(&self) -> bool {
        self.admin_up() && self.carrier
    }
}

/// A change of a link.
#[derive(Clone, Copy, Debug)]
pub enum LinkChange {
    Mtu(u32),
    Mac([u8; 6]),
    AdminUp(bool),
}

/// The name of a link in a request.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    Name(&'a str),
    Index(u32),
}

/// A received message.
#[derive(Debug)]
pub enum Message {
    New(Info),
    Del(Info),
    /// A class of a queueing discipline: the minor number of its handle, and what it counted.
    Class(u16, tc::ClassStats),
    /// Acknowledgement or error of a request, or the end of a list.
    Done(io::Result<()>),
    Other,
}

/// Opens a NETLINK_ROUTE socket that listens to the multicast groups `groups` (0: requests only).
pub(crate) fn route_socket(groups: u32) -> io::Result<OwnedFd> {
    let fd = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // SAFETY: plain data for which all-zero is valid.
    let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    addr.nl_family = libc::AF_NETLINK as u16;
    addr.nl_groups = groups;
    bind(&fd, &addr)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &(1i32 << 20))?;
    Ok(fd)
}

/// A NETLINK_ROUTE socket, and memory for a message.
pub struct Netlink {
    fd: OwnedFd,
    seq: u32,
    buf: Vec<u8>,
}

impl Netlink {
    /// Opens a socket that listens to the multicast groups `groups` (0: requests only).
    pub fn open(groups: u32) -> io::Result<Self> {
        Ok(Netlink { fd: route_socket(groups)?, seq: 0, buf: vec![0; BUFFER] })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Queries a link.
    pub fn link(&mut self, which: Which) -> io::Result<Info> {
        let (index, attrs) = match which {
            Which::Index(i) => (i, Vec::new()),
            Which::Name(n) if n.len() >= libc::IFNAMSIZ => {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            }
            Which::Name(n) => (0, attribute(IFLA_IFNAME, &[n.as_bytes(), &[0]].concat())),
        };
        match self.request(RTM_GETLINK, F_REQUEST, &ifinfo(index, 0, 0), &attrs)? {
            Message::New(info) => Ok(info),
            Message::Done(Err(e)) => Err(e),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Changes a link.
    pub fn change(&mut self, ifindex: u32, change: LinkChange) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        let (head, attrs) = match change {
            LinkChange::Mtu(mtu) => {
                (ifinfo(ifindex, 0, 0), attribute(IFLA_MTU, &mtu.to_ne_bytes()))
            }
            LinkChange::Mac(mac) => (ifinfo(ifindex, 0, 0), attribute(IFLA_ADDRESS, &mac)),
            LinkChange::AdminUp(on) => (ifinfo(ifindex, if on { up } else { 0 }, up), Vec::new()),
        };
        self.order(RTM_SETLINK, 0, &head, &attrs)
    }

    /// Sends a request that is answered with an acknowledgement or an error.
    pub fn order(&mut self, kind: u16, flags: u16, head: &[u8], attrs: &[u8]) -> io::Result<()> {
        match self.request(kind, F_REQUEST | F_ACK | flags, head, attrs)? {
            Message::Done(result) => result,
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Asks for all objects of a kind, and calls `each` with each message but the last.
    pub fn list(
        &mut self,
        kind: u16,
        head: &[u8],
        mut each: impl FnMut(Message),
    ) -> io::Result<()> {
        self.send(kind, F_REQUEST | F_DUMP, head, &[])?;
        let want = self.seq;
        let mut end = None;
        // The kernel has queued the next part when it returns this one.
        while end.is_none() {
            self.receive(|seq, message| match message {
                Message::Done(result) if seq == want => end = Some(result),
                message if seq == want => each(message),
                _ => {}
            })?;
        }
        end.unwrap_or(Ok(()))
    }

    fn request(&mut self, kind: u16, flags: u16, head: &[u8], attrs: &[u8]) -> io::Result<Message> {
        self.send(kind, flags, head, attrs)?;
        self.reply()
    }

    fn send(&mut self, kind: u16, flags: u16, head: &[u8], attrs: &[u8]) -> io::Result<()> {
        self.seq += 1;
        let mut msg = Vec::with_capacity(HEADER + head.len() + attrs.len());
        msg.extend(((HEADER + head.len() + attrs.len()) as u32).to_ne_bytes());
        msg.extend(kind.to_ne_bytes());
        msg.extend(flags.to_ne_bytes());
        msg.extend(self.seq.to_ne_bytes());
        msg.extend([0; 4]);
        msg.extend(head);
        msg.extend(attrs);
        // SAFETY: the pointer is to `len` readable bytes.
        let sent = unsafe { libc::send(self.fd(), msg.as_ptr().cast(), msg.len(), 0) };
        check(sent as i32).map(drop)
    }

    /// Reads the kernel's answer, which is queued when send(2) returns.
    fn reply(&mut self) -> io::Result<Message> {
        let want = self.seq;
        loop {
            let mut found = None;
            self.receive(|seq, message| {
                if seq == want && found.is_none() {
                    found = Some(message);
                }
            })?;
            if let Some(message) = found {
                return Ok(message);
            }
        }
    }

    /// Reads a datagram, and calls `each` with each message in it and its sequence number.
    pub fn receive(&mut self, mut each: impl FnMut(u32, Message)) -> io::Result<()> {
        // SAFETY: the buffer is writable for the length given.
        let n = unsafe {
            libc::recv(self.fd(), self.buf.as_mut_ptr().cast(), self.buf.len(), libc::MSG_TRUNC)
        };
        let n = check(n as i32)? as usize;
        read_datagram(self.buf.get(..n).ok_or(io::ErrorKind::InvalidData)?, &mut each);
        Ok(())
    }
}

/// Calls `each` with each message of a datagram and its sequence number; a truncated message ends
/// the datagram.
pub(crate) fn read_datagram(mut rest: &[u8], each: &mut dyn FnMut(u32, Message)) {
    while let Some(len) = read_u32(rest, 0).map(|l| l as usize) {
        let Some(msg) = rest.get(..len).filter(|m| m.len() >= HEADER) else { break };
        each(read_u32(msg, 8).unwrap_or(0), parse(msg));
        rest = rest.get(align(len)..).unwrap_or(&[]);
    }
}

pub fn align(n: usize) -> usize {
    (n + 3) & !3
}

pub fn read_u16(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..)?.first_chunk().map(|c| u16::from_ne_bytes(*c))
}

pub fn read_u32(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..)?.first_chunk().map(|c| u32::from_ne_bytes(*c))
}

/// `struct ifinfomsg`.
fn ifinfo(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut out = vec![0; 4];
    for v in [index, flags, change] {
        out.extend(v.to_ne_bytes());
    }
    out
}

pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len();
    let mut out = Vec::with_capacity(align(len));
    out.extend((len as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(align(len), 0);
    out
}

/// The attributes in `rest`, as far as they are whole.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(read_u16(rest, 0)?), read_u16(rest, 2)?);
        let value = rest.get(4..len)?;
        rest = rest.get(align(len)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn parse(msg: &[u8]) -> Message {
    let body = &msg[HEADER..];
    match read_u16(msg, 4) {
        Some(RTM_NEWLINK) => link(body).map_or(Message::Other, Message::New),
        Some(RTM_DELLINK) => link(body).map_or(Message::Other, Message::Del),
        Some(tc::RTM_NEWTCLASS) => {
            tc::class(body).map_or(Message::Other, |(minor, stats)| Message::Class(minor, stats))
        }
        Some(NLMSG_DONE) => Message::Done(Ok(())),
        Some(NLMSG_ERROR) => Message::Done(match read_u32(body, 0).map(|e| e as i32) {
            Some(0) => Ok(()),
            Some(e) => Err(io::Error::from_raw_os_error(e.wrapping_neg())),
            None => Err(io::ErrorKind::InvalidData.into()),
        }),
        _ => Message::Other,
    }
}

/// A link message; None for other families (a bridge reports its ports in the same group).
fn link(body: &[u8]) -> Option<Info> {
    if *body.first()? != libc::AF_UNSPEC as u8 {
        return None;
    }
    let mut info = Info {
        hardware: read_u16(body, 2)?,
        ifindex: read_u32(body, 4)?,
        flags: read_u32(body, 8)?,
        ..Info::default()
    };
    attributes(body.get(IFINFO..)?)
        .for_each(|(kind, value)| link_attribute(&mut info, kind, value));
    Some(info)
}

fn link_attribute(info: &mut Info, kind: u16, value: &[u8]) {
    match kind {
        IFLA_IFNAME => {
            let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
            info.name = String::from_utf8_lossy(&value[..end]).into_owned();
        }
        IFLA_ADDRESS => {
            if let Ok(mac) = value.try_into() {
                info.mac = mac;
            }
        }
        IFLA_MTU => info.mtu = read_u32(value, 0).unwrap_or(0),
        IFLA_CARRIER => info.carrier = value.first() == Some(&1),
        IFLA_CARRIER_CHANGES => info.carrier_changes = read_u32(value, 0).unwrap_or(0),
        IFLA_STATS64 => {
            for (slot, raw) in info.stats.0.iter_mut().zip(value.chunks_exact(8)) {
                *slot = u64::from_ne_bytes(raw.try_into().unwrap_or_default());
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_index() {
        let mut nl = Netlink::open(0).unwrap();
        let lo = nl.link(Which::Name("lo")).unwrap();
        assert_eq!((lo.name.as_str(), lo.mac), ("lo", [0; 6]));
        let same = nl.link(Which::Index(lo.ifindex)).unwrap();
        assert_eq!(same.name, "lo");
    }

    #[test]
    fn absent_links_are_enodev() {
        let mut nl = Netlink::open(0).unwrap();
        for which in [
            Which::Name("kp-absent"),
            Which::Index(0x7fff_fff0),
            Which::Name("x".repeat(99).as_str()),
        ] {
            let e = nl.link(which).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::ENODEV), "{which:?}");
        }
    }

    #[test]
    fn cut_messages_do_not_panic() {
        let attrs = [attribute(IFLA_IFNAME, b"x\0"), attribute(IFLA_STATS64, &[1; 192])].concat();
        let body = [ifinfo(3, 1, 0), attrs].concat();
        for cut in 0..body.len() {
            let _ = link(&body[..cut]);
        }
        let info = link(&body).unwrap();
        assert_eq!((info.name.as_str(), info.ifindex, info.admin_up()), ("x", 3, true));
        assert_eq!(info.stats.0[15], 0x0101_0101_0101_0101);
    }
}
