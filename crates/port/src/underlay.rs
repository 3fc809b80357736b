//! The kernel's routes, addresses and neighbours, by rtnetlink(7): queried as a whole, and again
//! whenever the kernel reports a change.

use crate::netlink::{self, align, read_u16, read_u32, route_socket};
use crate::sys::check;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const F_REQUEST: u16 = 1;
const F_DUMP: u16 = 0x300;
const HEADER: usize = 16;
const BUFFER: usize = 256 * 1024;
/// Events that one call reads, at most: more than the socket's queue of 1 MiB holds.
const EVENTS_COUNT_MAX: usize = 8192;
/// RTMGRP_NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE.
const GROUPS: u32 = 0x4 | 0x10 | 0x40 | 0x100 | 0x400;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const TABLES: [u32; 2] = [254, 255];
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Neighbour states: REACHABLE, NOARP, PERMANENT; then STALE, DELAY, PROBE.
const SURE: u16 = 0x02 | 0x40 | 0x80;
const LIKELY: u16 = 0x04 | 0x08 | 0x10;

/// A route of the main or local table, to one host or network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination.
    pub prefix: IpAddr,
    /// Bits of the destination that are compared.
    pub len: u8,
    /// The device by which packets leave.
    pub device: String,
    /// Next hop; None: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// True: to an address of this machine.
    pub local: bool,
    /// Metric; lower is better.
    pub metric: u32,
}

/// A neighbour: a host with an address on a device's network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelNeighbour {
    /// Device.
    pub device: String,
    /// Address.
    pub ip: IpAddr,
    /// Hardware address.
    pub mac: [u8; 6],
    /// True: confirmed lately, or by the administrator.
    pub sure: bool,
}

/// Everything that the kernel knows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Routes; of several to one destination, the one that is used comes last.
    pub routes: Vec<KernelRoute>,
    /// Addresses: device, address, prefix length of its network.
    pub addresses: Vec<(String, IpAddr, u8)>,
    /// Neighbours with a hardware address.
    pub neighbours: Vec<KernelNeighbour>,
}

/// Watches the network namespace of the thread that opened it.
pub struct UnderlayMonitor {
    events: OwnedFd,
    buf: Vec<u8>,
}

impl UnderlayMonitor {
    /// Starts to listen.
    ///
    /// # Errors
    /// Of the socket calls.
    pub fn open() -> io::Result<Self> {
        Ok(UnderlayMonitor { events: route_socket(GROUPS)?, buf: vec![0; BUFFER] })
    }

    /// Empties the queue of events; false: there may be more in it. They do not matter themselves,
    /// nor does an overflow: everything is queried again. After an overflow the kernel reports
    /// nothing until the queue is empty.
    pub fn drain(&mut self) -> bool {
        for _ in 0..EVENTS_COUNT_MAX {
            match receive(&self.events, &mut self.buf).map_err(|e| e.raw_os_error()) {
                Ok(0) => return true,
                Ok(_) | Err(Some(libc::ENOBUFS | libc::EINTR)) => {}
                Err(_) => return true,
            }
        }
        false
    }
}

impl Snapshot {
    /// Queries everything in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn take() -> io::Result<Snapshot> {
        let (fd, mut buf) = (route_socket(0)?, vec![0; BUFFER]);
        let (mut names, mut all) = (Names::default(), Snapshot::default());
        dump(&fd, &mut buf, RTM_GETADDR, &mut |body| {
            all.addresses.extend(address(body, &mut names));
        })?;
        dump(&fd, &mut buf, RTM_GETROUTE, &mut |body| {
            all.routes.extend(route(body, &mut names));
        })?;
        dump(&fd, &mut buf, RTM_GETNEIGH, &mut |body| {
            all.neighbours.extend(neighbour(body, &mut names));
        })?;
        all.routes.sort_by_key(|r| std::cmp::Reverse(r.metric));
        Ok(all)
    }

    /// How many objects there are of all kinds.
    pub fn len(&self) -> usize {
        self.routes.len() + self.addresses.len() + self.neighbours.len()
    }

    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The neighbours that are not, or not the same, in an older snapshot.
    pub fn neighbours_since(&self, old: &Snapshot) -> Vec<KernelNeighbour> {
        let known: HashSet<&KernelNeighbour> = old.neighbours.iter().collect();
        self.neighbours.iter().filter(|n| !known.contains(n)).cloned().collect()
    }
}

/// All addresses of the calling thread's network namespace: device, address, prefix length of its
/// network.
///
/// # Errors
/// Of the kernel.
pub fn addresses() -> io::Result<Vec<(String, IpAddr, u8)>> {
    let (fd, mut names, mut all) = (route_socket(0)?, Names::default(), Vec::new());
    dump(&fd, &mut vec![0; BUFFER], RTM_GETADDR, &mut |body| {
        all.extend(address(body, &mut names));
    })?;
    Ok(all)
}

impl AsRawFd for UnderlayMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

fn receive(fd: &OwnedFd, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is writable for the length given.
    let n = unsafe { libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
    check(n as i32).map(|n| n as usize)
}

/// Queries all objects of a kind, and calls `each` with the bodies of their messages.
fn dump(fd: &OwnedFd, buf: &mut [u8], kind: u16, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    // The body is a zeroed header of that kind; 12 bytes are enough for each.
    let mut msg = Vec::with_capacity(HEADER + 12);
    msg.extend((HEADER as u32 + 12).to_ne_bytes());
    msg.extend(kind.to_ne_bytes());
    msg.extend((F_REQUEST | F_DUMP).to_ne_bytes());
    msg.resize(HEADER + 12, 0);
    // SAFETY: the pointer is to `len` readable bytes.
    check(unsafe { libc::send(fd.as_raw_fd(), msg.as_ptr().cast(), msg.len(), 0) } as i32)?;
    loop {
        // The kernel has queued the next part when it returns this one.
        let n = receive(fd, buf)?;
        let mut rest = &buf[..n];
        while let Some(len) = read_u32(rest, 0).map(|l| l as usize) {
            let Some(msg) = rest.get(..len).filter(|m| m.len() >= HEADER) else { break };
            match read_u16(msg, 4) {
                Some(NLMSG_DONE) => return Ok(()),
                Some(NLMSG_ERROR) => {
                    let code = read_u32(msg, HEADER).unwrap_or(0) as i32;
                    return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
                }
                Some(RTM_NEWADDR | RTM_NEWROUTE | RTM_NEWNEIGH) => each(&msg[HEADER..]),
                _ => {}
            }
            rest = rest.get(align(len)..).unwrap_or(&[]);
        }
    }
}

/// Names of devices, by index.
#[derive(Default)]
struct Names(HashMap<u32, String>);

impl Names {
    fn get(&mut self, index: u32) -> Option<String> {
        let name = self.0.entry(index).or_insert_with(|| {
            let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
            // SAFETY: the buffer has IFNAMSIZ bytes; the name is terminated when one is returned.
            unsafe {
                match libc::if_indextoname(index, name.as_mut_ptr()).is_null() {
                    true => String::new(),
                    false => CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                }
            }
        });
        (!name.is_empty()).then(|| name.clone())
    }
}

/// The attributes behind a header of `skip` bytes.
fn attributes(body: &[u8], skip: usize) -> Vec<(u16, &[u8])> {
    netlink::attributes(body.get(skip..).unwrap_or(&[])).collect()
}

fn find<'a>(list: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    list.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v)
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// `struct ifaddrmsg`.
fn address(body: &[u8], names: &mut Names) -> Option<(String, IpAddr, u8)> {
    let (len, index) = (*body.get(1)?, read_u32(body, 4)?);
    let list = attributes(body, 8);
    let own = find(&list, IFA_LOCAL).or(find(&list, IFA_ADDRESS))?;
    Some((names.get(index)?, ip(own)?, len))
}

/// `struct rtmsg`. Of several next hops the first is taken.
fn route(body: &[u8], names: &mut Names) -> Option<KernelRoute> {
    let [family, len, _, _, table, _, _, kind] = *body.first_chunk()?;
    let list = attributes(body, 12);
    let table = find(&list, RTA_TABLE).and_then(|v| read_u32(v, 0)).unwrap_or(table.into());
    if !matches!(kind, RTN_UNICAST | RTN_LOCAL) || !TABLES.contains(&table) {
        return None;
    }
    let any: IpAddr = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let number = |kind| find(&list, kind).and_then(|v| read_u32(v, 0));
    let (mut device, mut gateway) = (number(RTA_OIF), find(&list, RTA_GATEWAY).and_then(ip));
    if let Some(hops) = find(&list, RTA_MULTIPATH) {
        let first = hops.get(..usize::from(read_u16(hops, 0)?))?;
        device = read_u32(first, 4);
        gateway = find(&attributes(first, 8), RTA_GATEWAY).and_then(ip);
    }
    Some(KernelRoute {
        prefix: find(&list, RTA_DST).and_then(ip).unwrap_or(any),
        len,
        device: names.get(device?)?,
        gateway,
        source: find(&list, RTA_PREFSRC).and_then(ip),
        local: kind == RTN_LOCAL,
        metric: number(RTA_PRIORITY).unwrap_or(0),
    })
}

/// `struct ndmsg`.
fn neighbour(body: &[u8], names: &mut Names) -> Option<KernelNeighbour> {
    let (index, state) = (read_u32(body, 4)?, read_u16(body, 8)?);
    if state & (SURE | LIKELY) == 0 {
        return None;
    }
    let list = attributes(body, 12);
    Some(KernelNeighbour {
        ip: ip(find(&list, NDA_DST)?)?,
        mac: find(&list, NDA_LLADDR)?.try_into().ok()?,
        sure: state & SURE != 0,
        device: names.get(index)?,
    })
}

/// Parses `body` as an address, a route and a neighbour, whatever it is.
pub(crate) fn read_body(body: &[u8]) {
    let mut names = Names::default();
    _ = address(body, &mut names);
    _ = route(body, &mut names);
    _ = neighbour(body, &mut names);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn the_loopback_address_and_its_route_are_there() {
        let all = Snapshot::take().unwrap();
        let home = IpAddr::from([127, 0, 0, 1]);
        assert!(all.addresses.contains(&("lo".into(), home, 8)), "{all:?}");
        let local = all.routes.iter().find(|r| r.prefix == home && r.len == 32).unwrap();
        assert!(local.local && local.device == "lo" && local.gateway.is_none());
    }

    #[test]
    fn cut_messages_do_not_panic() {
        let hop = [&16u16.to_ne_bytes()[..], &[0, 0], &1u32.to_ne_bytes()].concat();
        let hop = [hop, attribute(RTA_GATEWAY, &[10, 0, 0, 9])].concat();
        let head = [2, 24, 0, 0, 254, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        let attrs = [attribute(RTA_DST, &[10, 1, 0, 0]), attribute(RTA_MULTIPATH, &hop)].concat();
        let body = [&head[..], &attrs].concat();
        let mut names = Names::default();
        for cut in 0..body.len() {
            let _ = route(&body[..cut], &mut names);
            let _ = address(&body[..cut], &mut names);
            let _ = neighbour(&body[..cut], &mut names);
        }
        let r = route(&body, &mut names).unwrap();
        assert_eq!((r.gateway, r.len, r.device.as_str()), (Some([10, 0, 0, 9].into()), 24, "lo"));
    }
}
