//! What DPDK 22.11's AF_XDP driver forgets: with Debian's libxdp it leaves the socket of a closed
//! device open, and the kernel keeps the interface's queue busy for it. Here the sockets that
//! appear while a device starts are remembered, and those still open after it is closed are closed.

use std::collections::BTreeSet;
use std::os::fd::RawFd;

/// The driver's name.
pub(crate) const DRIVER: &str = "net_af_xdp";

/// All AF_XDP sockets of this process.
pub(crate) fn sockets() -> BTreeSet<RawFd> {
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else { return BTreeSet::new() };
    let numbers: Vec<RawFd> =
        dir.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.into_iter().filter(|fd| is_xdp(*fd)).collect()
}

fn is_xdp(fd: RawFd) -> bool {
    let (mut domain, mut size) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: writes at most `size` bytes to `domain`; fails for what is not a socket.
    let ret = unsafe {
        let value = (&raw mut domain).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &mut size)
    };
    ret == 0 && domain == libc::AF_XDP
}

/// Closes those of a device's sockets that are still there.
pub(crate) fn close(sockets: &BTreeSet<RawFd>) {
    for fd in sockets.iter().filter(|fd| is_xdp(**fd)) {
        // SAFETY: the driver made it for a device that is closed, and has forgotten it.
        unsafe { libc::close(*fd) };
    }
}
