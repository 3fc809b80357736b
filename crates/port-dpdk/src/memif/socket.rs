//! Sequenced-packet sockets that carry memif's messages and the descriptors that come with them.

use super::message::{Message, SIZE};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Who may connect, less the process's umask: the owner and the group, as at ovs-vswitchd's own
/// sockets.
const MODE: libc::mode_t = 0o770;
/// Descriptors taken from one message; the kernel closes what is too much and says so.
const MOST_FDS: usize = 4;

/// Where a socket listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    /// A file.
    Path(PathBuf),
    /// A name without a file.
    Abstract(String),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Path(path) => path.display().fmt(f),
            Address::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

impl Address {
    fn raw(&self) -> Result<(libc::sockaddr_un, libc::socklen_t)> {
        // SAFETY: all-zero is a valid address structure.
        let mut raw: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let (bytes, start) = match self {
            Address::Path(path) => (path.as_os_str().as_bytes(), 0),
            Address::Abstract(name) => (name.as_bytes(), 1),
        };
        if bytes.is_empty() || bytes.len() + 1 > raw.sun_path.len() || bytes.contains(&0) {
            return Err(Error::new(ErrorKind::InvalidInput, "empty or too long for a socket"));
        }
        for (to, from) in raw.sun_path[start..].iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
        Ok((raw, len as libc::socklen_t))
    }
}

/// What one receive call brought.
pub(crate) struct Received {
    /// Bytes that were read: one more than a message has, at most.
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// More descriptors came than fit.
    pub cut: bool,
}

/// A listening or connected socket.
pub(crate) struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn check(ret: i32) -> Result<i32> {
    if ret < 0 { Err(Error::last_os_error()) } else { Ok(ret) }
}

impl Socket {
    fn new() -> Result<Socket> {
        // No call waits for the other end: a server may accept no connection.
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: makes a descriptor, which is ours.
        unsafe { Ok(Socket(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?))) }
    }

    /// Listens; a file that no process listens on any more is replaced.
    pub fn listen(address: &Address) -> Result<Socket> {
        let socket = Socket::new()?;
        if let Err(error) = socket.bind(address) {
            let Address::Path(path) = address else { return Err(error) };
            let stale = error.kind() == ErrorKind::AddrInUse
                && Socket::connect(address)
                    .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
            if !stale {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            socket.bind(address)?;
        }
        // SAFETY: the socket is ours.
        check(unsafe { libc::listen(socket.0.as_raw_fd(), BACKLOG) })?;
        Ok(socket)
    }

    fn bind(&self, address: &Address) -> Result<()> {
        let (raw, len) = address.raw()?;
        // The file gets the socket's mode, so that there is no moment in which others may connect.
        // SAFETY: the socket is ours.
        check(unsafe { libc::fchmod(self.0.as_raw_fd(), MODE) })?;
        // SAFETY: the address is valid for `len` bytes.
        check(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const raw).cast(), len) }).map(drop)
    }

    pub fn connect(address: &Address) -> Result<Socket> {
        let (socket, (raw, len)) = (Socket::new()?, address.raw()?);
        // SAFETY: as above.
        check(unsafe { libc::connect(socket.0.as_raw_fd(), (&raw const raw).cast(), len) })?;
        Ok(socket)
    }

    pub fn accept(&self) -> Result<Socket> {
        let (none, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC);
        // SAFETY: the peer's address is not asked for; the new descriptor is ours.
        unsafe {
            let fd = check(libc::accept4(self.0.as_raw_fd(), none, none.cast(), flags))?;
            Ok(Socket(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Sends a message, with a descriptor if it has one. Never waits: whoever does not read
    /// answers has no claim to more.
    pub fn send(&self, message: &Message, fd: Option<BorrowedFd>) -> Result<()> {
        let bytes = message.bytes();
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: SIZE };
        let mut control = Control::default();
        // SAFETY: all-zero is a valid header; the kernel only reads what it points to, and the
        // control buffer has room for one descriptor.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            if let Some(fd) = fd {
                header.msg_control = (&raw mut control).cast();
                header.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
                let item = libc::CMSG_FIRSTHDR(&header);
                (*item).cmsg_level = libc::SOL_SOCKET;
                (*item).cmsg_type = libc::SCM_RIGHTS;
                (*item).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
                libc::CMSG_DATA(item).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
            }
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            let sent = libc::sendmsg(self.0.as_raw_fd(), &header, flags);
            check(sent as i32).map(drop)
        }
    }

    /// What is there. No bytes: the other end is gone.
    pub fn receive(&self) -> Result<Received> {
        let mut bytes = vec![0u8; SIZE + 1];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control::default();
        let mut fds = Vec::new();
        // SAFETY: the kernel writes at most the given lengths; descriptors that came are ours.
        let (n, flags) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = size_of::<Control>();
            let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
            let n = check(libc::recvmsg(self.0.as_raw_fd(), &mut header, flags) as i32)?;
            let mut item = libc::CMSG_FIRSTHDR(&header);
            while !item.is_null() {
                if (*item).cmsg_level == libc::SOL_SOCKET && (*item).cmsg_type == libc::SCM_RIGHTS {
                    let len = (*item).cmsg_len - libc::CMSG_LEN(0) as usize;
                    for i in 0..len / size_of::<RawFd>() {
                        let fd = libc::CMSG_DATA(item).cast::<RawFd>().add(i).read_unaligned();
                        fds.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                item = libc::CMSG_NXTHDR(&header, item);
            }
            (n as usize, header.msg_flags)
        };
        bytes.truncate(n);
        Ok(Received { bytes, fds, cut: flags & libc::MSG_CTRUNC != 0 })
    }
}

/// Room for control data, aligned as the kernel wants it: a header of 16 bytes and descriptors.
#[repr(C, align(8))]
#[derive(Default)]
struct Control([u8; 16 + 4 * MOST_FDS]);
