//! Messages on a UNIX socket that never blocks: every wait ends when the port is removed, or after
//! a bound.

use crate::message::{HEADER_BYTES, Header, Message, PAYLOAD_BYTES_MAX, REGIONS_MAX};
use crate::violation::Violation;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time from a message's first byte to its last, and for one reply: front-ends write a
/// message by one call and wait for its reply; a virtual machine's process may be stopped for some
/// seconds.
pub const MESSAGE_SECONDS_MAX: Duration = Duration::from_secs(5);
/// Most descriptors received by one read; the kernel closes any others.
const DESCRIPTORS_MAX: usize = REGIONS_MAX + 1;

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The front-end or the kernel closed the connection.
    Closed,
    /// The port is being removed.
    Stopped,
    /// A violation of the front-end, and the request, if it is known.
    Violation(Violation, Option<u32>),
}

impl From<Violation> for End {
    fn from(what: Violation) -> End {
        End::Violation(what, None)
    }
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The first descriptor is ready, or has an error.
    pub first: bool,
    /// The second descriptor is ready, or has an error.
    pub second: bool,
}

/// A connection with the port's `stop` (an eventfd, readable once the port is being removed).
pub struct Stream<'a> {
    socket: Arc<UnixStream>,
    stop: BorrowedFd<'a>,
}

/// Waits until `fd` has one of `events`, `other` (if any) or `stop` is readable, or the time is
/// `until`.
pub fn wait(
    fd: RawFd,
    events: i16,
    other: RawFd,
    stop: BorrowedFd,
    until: Option<Instant>,
) -> Result<Ready, End> {
    loop {
        let left = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            left.as_micros().div_ceil(1000).min(60_000) as i32
        });
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds =
            [poll(fd, events), poll(stop.as_raw_fd(), libc::POLLIN), poll(other, libc::POLLIN)];
        // SAFETY: three entries of a local; negative descriptors are ignored.
        let n = unsafe { libc::poll(fds.as_mut_ptr(), 3, left) };
        if n < 0 && io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            return Err(End::Closed);
        }
        if n > 0 && fds[1].revents != 0 {
            return Err(End::Stopped);
        }
        let ready =
            Ready { first: n > 0 && fds[0].revents != 0, second: n > 0 && fds[2].revents != 0 };
        if ready.first || ready.second || until.is_some_and(|until| Instant::now() >= until) {
            return Ok(ready);
        }
    }
}

impl<'a> Stream<'a> {
    /// Wraps a connected socket.
    pub fn new(socket: Arc<UnixStream>, stop: BorrowedFd<'a>) -> io::Result<Stream<'a>> {
        socket.set_nonblocking(true)?;
        Ok(Stream { socket, stop })
    }

    /// Waits for a message, for `other` to be readable, or until `until`.
    pub fn wait(&self, other: RawFd, until: Option<Instant>) -> Result<Ready, End> {
        wait(self.socket.as_raw_fd(), libc::POLLIN, other, self.stop, until)
    }

    /// Waits without reading from the front-end.
    pub fn rest(&self, until: Instant) -> Result<(), End> {
        wait(-1, 0, -1, self.stop, Some(until)).map(|_| ())
    }

    /// Reads one message, whose first byte is available or will be soon.
    pub fn read(&self) -> Result<(Header, Message), End> {
        let until = Instant::now() + MESSAGE_SECONDS_MAX;
        let (mut header, mut fds) = ([0; HEADER_BYTES], Vec::new());
        self.fill(&mut header, &mut fds, until)?;
        let header = Header::decode(&header)?;
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let payload = &mut payload[..header.size];
        self.fill(payload, &mut fds, until).map_err(|end| with(end, header.request))?;
        let message = Message::decode(header.request, payload, fds)
            .map_err(|what| End::Violation(what, Some(header.request)))?;
        Ok((header, message))
    }

    fn fill(&self, mut to: &mut [u8], fds: &mut Vec<OwnedFd>, until: Instant) -> Result<(), End> {
        while !to.is_empty() {
            match receive(self.socket.as_raw_fd(), to, fds) {
                Ok(0) => return Err(End::Closed),
                Ok(n) => to = &mut to[n..],
                Err(Receive::Truncated) => return Err(Violation::Descriptors.into()),
                Err(Receive::Io(e)) => match e.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => {
                        if !self.wait(-1, Some(until))?.first && Instant::now() >= until {
                            return Err(Violation::Slow.into());
                        }
                    }
                    _ => return Err(End::Closed),
                },
            }
        }
        Ok(())
    }

    /// Sends a reply, with or without a descriptor.
    pub fn send(&self, mut bytes: &[u8], fd: Option<BorrowedFd>) -> Result<(), End> {
        let until = Instant::now() + MESSAGE_SECONDS_MAX;
        let (socket, mut fd) = (self.socket.as_raw_fd(), fd);
        while !bytes.is_empty() {
            match transmit(socket, bytes, fd) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    fd = None;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let ready = wait(socket, libc::POLLOUT, -1, self.stop, Some(until))?;
                    if !ready.first {
                        return Err(Violation::Unread.into());
                    }
                }
                Err(_) => return Err(End::Closed),
            }
        }
        Ok(())
    }
}

/// Adds the request to `end` if it is a violation without one.
fn with(end: End, request: u32) -> End {
    match end {
        End::Violation(what, None) => End::Violation(what, Some(request)),
        end => end,
    }
}

enum Receive {
    Io(io::Error),
    /// More descriptors were sent than are received; the received ones are closed.
    Truncated,
}

/// Buffer for control messages, with the alignment that they need.
#[repr(C, align(8))]
struct Control([u8; 128]);

const _: () = assert!(DESCRIPTORS_MAX * 4 + 2 * size_of::<libc::cmsghdr>() <= 128);

/// One read, with the descriptors that come along.
fn receive(socket: RawFd, to: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, Receive> {
    let mut control = Control([0; 128]);
    let mut part = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    // SAFETY: all zero is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    // SAFETY: arithmetic only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4 * DESCRIPTORS_MAX as u32) } as usize;
    // SAFETY: the message says where there is room, and how much.
    let n = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        return Err(Receive::Io(io::Error::last_os_error()));
    }
    // SAFETY: the kernel filled the control messages; each descriptor is new and ours.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&message);
        while let Some(header) = at.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = header.cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(at).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(&message, at);
        }
    }
    match message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > DESCRIPTORS_MAX {
        true => Err(Receive::Truncated),
        false => Ok(n as usize),
    }
}

/// One write, with a descriptor or without.
fn transmit(socket: RawFd, bytes: &[u8], fd: Option<BorrowedFd>) -> io::Result<usize> {
    let mut control = Control([0; 128]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: as in `receive`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        message.msg_control = (&raw mut control).cast();
        // SAFETY: there is room for one header with one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
    }
    // SAFETY: the message says where its parts are; no signal when the other end is closed.
    let n = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}
