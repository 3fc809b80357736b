//! A device's IPv4 address, and the default route, by netdevice(7) and rtnetlink(7).

use crate::netlink::{Netlink, attribute};
use crate::sys::{check, ifreq, socket};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

const RTM_NEWROUTE: u16 = 24;
/// NLM_F_EXCL, NLM_F_CREATE.
const NEW: u16 = 0x200 | 0x400;
const RTA_GATEWAY: u16 = 5;
/// `struct rtmsg` of a default route: AF_INET, no prefix, main table, RTPROT_BOOT, everywhere,
/// RTN_UNICAST.
const DEFAULT_ROUTE: [u8; 12] = [2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];

/// One netdevice(7) request.
fn ask(fd: &OwnedFd, request: u64, req: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: all requests here read and write a `struct ifreq`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, req) }).map(drop)
}

fn with_address(name: &str, ip: Ipv4Addr) -> io::Result<libc::ifreq> {
    let mut req = ifreq(name).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: plain data for which all-zero is valid.
    let mut addr: libc::sockaddr = unsafe { std::mem::zeroed() };
    addr.sa_family = libc::AF_INET as u16;
    // `struct sockaddr_in`: two bytes of port, then the address.
    for (to, byte) in addr.sa_data[2..].iter_mut().zip(ip.octets()) {
        *to = byte as libc::c_char;
    }
    req.ifr_ifru.ifru_addr = addr;
    Ok(req)
}

/// Switches a device on and gives it an address, in place of the one that it was given so before.
///
/// # Errors
/// Of the kernel: no such device, or not allowed.
pub fn set_ipv4(name: &str, ip: Ipv4Addr, netmask: Ipv4Addr) -> io::Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut flags = ifreq(name).ok_or(io::ErrorKind::InvalidInput)?;
    ask(&fd, libc::SIOCGIFFLAGS, &mut flags)?;
    // SAFETY: the request before has written the flags.
    unsafe { flags.ifr_ifru.ifru_flags |= libc::IFF_UP as i16 };
    ask(&fd, libc::SIOCSIFFLAGS, &mut flags)?;
    ask(&fd, libc::SIOCSIFADDR, &mut with_address(name, ip)?)?;
    ask(&fd, libc::SIOCSIFNETMASK, &mut with_address(name, netmask)?)
}

/// Adds a default route by a router that can be reached. False: it is there already.
///
/// # Errors
/// Of the kernel: the router cannot be reached, or it is not allowed.
pub fn add_default_route(router: Ipv4Addr) -> io::Result<bool> {
    let by = attribute(RTA_GATEWAY, &router.octets());
    match Netlink::open(0)?.order(RTM_NEWROUTE, NEW, &DEFAULT_ROUTE, &by) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        result => result.map(|()| true),
    }
}
