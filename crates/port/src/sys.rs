//! Safe wrappers of system calls: sockets, options, error texts.

use crate::PortError;
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The result of a system call that returns -1 on error.
pub fn check(ret: c_int) -> io::Result<c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// The text of strerror(3), without the number that `io::Error` appends.
pub fn text(e: &io::Error) -> String {
    let Some(code) = e.raw_os_error() else { return e.to_string() };
    let mut buf = [0 as libc::c_char; 128];
    // SAFETY: the buffer is writable for the length given.
    let ret = unsafe { libc::strerror_r(code, buf.as_mut_ptr(), buf.len()) };
    if ret != 0 {
        return e.to_string();
    }
    // SAFETY: strerror_r terminated the text.
    unsafe { CStr::from_ptr(buf.as_ptr()) }.to_string_lossy().into_owned()
}

/// The error of a port that cannot be opened, in OVS's words.
pub fn open_failed(name: &str, e: &io::Error) -> PortError {
    PortError::Device(format!("could not open network device {name} ({})", text(e)))
}

/// An operating-system error, with what failed on which device.
pub fn failed(name: &str, what: &str, source: io::Error) -> PortError {
    PortError::Os { what: format!("{name}: {what}"), source }
}

/// A socket that closes on exec and never blocks.
pub fn socket(domain: c_int, kind: c_int, proto: c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain numbers; a descriptor that is returned is ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(domain, kind, proto))?)) }
}

/// setsockopt(2) with a plain value.
pub fn set_option<T>(fd: &OwnedFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let (ptr, len) = (std::ptr::from_ref(value).cast::<c_void>(), size_of::<T>() as u32);
    // SAFETY: the pointer is to `len` readable bytes.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr, len) }).map(drop)
}

/// Asks for a larger socket buffer, beyond the system's limit if that is allowed.
pub fn grow_buffer(fd: &OwnedFd, force: c_int, plain: c_int, bytes: c_int) {
    if set_option(fd, libc::SOL_SOCKET, force, &bytes).is_err() {
        let _ = set_option(fd, libc::SOL_SOCKET, plain, &bytes);
    }
}

/// bind(2) with an address structure.
pub fn bind<T>(fd: &OwnedFd, addr: &T) -> io::Result<()> {
    let (ptr, len) = (std::ptr::from_ref(addr).cast::<libc::sockaddr>(), size_of::<T>() as u32);
    // SAFETY: the pointer is to `len` readable bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr, len) }).map(drop)
}

/// An interface request for `name`; None: the name is too long for the kernel.
pub fn ifreq(name: &str) -> Option<libc::ifreq> {
    // SAFETY: plain data for which all-zero is valid.
    let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return None;
    }
    for (to, from) in req.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Some(req)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_ovs_prints_them() {
        let e = open_failed("nope", &io::Error::from_raw_os_error(libc::ENODEV));
        assert_eq!(e.to_string(), "could not open network device nope (No such device)");
    }

    #[test]
    fn names_too_long_are_refused() {
        assert!(ifreq("fifteen-letters").is_some());
        assert!(ifreq("sixteen-letters!").is_none() && ifreq("").is_none());
    }
}
