//! The front-end of a vhost-user device, as a virtual machine monitor has it, with the guest's
//! memory: everything in it can be made wrong.

use crate::Result;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of the guest's memory.
const MEMORY: u64 = 4 << 20;
/// Where the front-end has it, by its own account.
const USER: u64 = 0x7000_0000_0000;
/// Guest addresses: rings one after the other, then what the driver likes.
const RING: u64 = 0x1_0000;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
/// Where the guest's memory is free for tables and buffers.
pub const FREE: u64 = 0x10_0000;
/// Descriptors of each ring.
pub const RING_SIZE: u16 = 256;
/// A guest waits so long for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Descriptor flags of split rings (virtio 1.1, section 2.6.5).
pub const DESC_NEXT: u16 = 1;
/// The device writes.
pub const DESC_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;

/// vhost-user requests (QEMU's interop/vhost-user).
#[allow(missing_docs)]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const GET_INFLIGHT_FD: u32 = 31;
}

/// VIRTIO_F_VERSION_1, VIRTIO_RING_F_INDIRECT_DESC, VHOST_USER_F_PROTOCOL_FEATURES.
const FEATURES: u64 = 1 << 32 | 1 << 28 | 1 << 30;
/// VIRTIO_F_RING_PACKED.
pub const PACKED: u64 = 1 << 34;

/// A front-end with one pair of split rings: 0 receives, 1 transmits (the guest's view).
pub struct FrontEnd {
    socket: UnixStream,
    memory: File,
    /// The eventfds by which the switch is kicked and calls, by ring.
    kicks: Vec<OwnedFd>,
    calls: Vec<OwnedFd>,
    available: [u16; 2],
}

fn last() -> String {
    std::io::Error::last_os_error().to_string()
}

/// An eventfd that blocks, with this count.
///
/// # Errors
/// When no descriptor is free.
pub fn eventfd(count: u64) -> Result<OwnedFd> {
    // SAFETY: makes a descriptor, which is ours.
    let fd = match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } {
        -1 => return Err(format!("eventfd: {}", last())),
        // SAFETY: as above.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    // SAFETY: writes eight bytes.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const count).cast(), 8) };
    Ok(fd)
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

impl FrontEnd {
    /// Connects to a `dpdkvhostuser` port's socket and says nothing yet.
    ///
    /// # Errors
    /// When there is no such socket, or no memory.
    pub fn connect(path: &Path) -> Result<FrontEnd> {
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        FrontEnd::over(UnixStream::connect(path).map_err(failed)?)
    }

    /// One whose socket the switch (a `dpdkvhostuserclient` port) has connected to.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn over(socket: UnixStream) -> Result<FrontEnd> {
        let failed = |e: std::io::Error| format!("a front-end: {e}");
        socket.set_read_timeout(Some(ANSWER)).map_err(failed)?;
        socket.set_write_timeout(Some(ANSWER)).map_err(failed)?;
        // SAFETY: makes a descriptor, which is ours.
        let memory = match unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC) } {
            -1 => return Err(format!("memfd_create: {}", last())),
            // SAFETY: as above.
            fd => unsafe { File::from_raw_fd(fd) },
        };
        memory.set_len(MEMORY).map_err(failed)?;
        Ok(FrontEnd { socket, memory, kicks: vec![], calls: vec![], available: [0; 2] })
    }

    /// The socket, for what is no message.
    pub fn socket(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// The file that is the guest's memory.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Sends one request with descriptors.
    ///
    /// # Errors
    /// When the switch has hung up.
    pub fn say(&mut self, request: u32, payload: &[u8], fds: &[RawFd]) -> Result<()> {
        let head = words32(&[request, 1, payload.len() as u32]);
        let bytes = [head, payload.to_vec()].concat();
        if fds.is_empty() {
            return self.socket.write_all(&bytes).map_err(|e| format!("request {request}: {e}"));
        }
        let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let mut control = [0u64; 16];
        let len = size_of_val(fds) as u32;
        // SAFETY: plain data for which zero is valid; what it points to outlives the call, and the
        // control buffer has room for the header and up to eight descriptors, of which there are at
        // most that many.
        let sent = unsafe {
            assert!(fds.len() <= 8);
            let mut msg: libc::msghdr = std::mem::zeroed();
            (msg.msg_iov, msg.msg_iovlen) = (&mut iov, 1);
            msg.msg_control = control.as_mut_ptr().cast();
            msg.msg_controllen = libc::CMSG_SPACE(len) as _;
            let c = libc::CMSG_FIRSTHDR(&msg);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(len) as _;
            libc::CMSG_DATA(c).cast::<RawFd>().copy_from(fds.as_ptr(), fds.len());
            libc::sendmsg(self.socket.as_raw_fd(), &msg, libc::MSG_NOSIGNAL)
        };
        let whole = sent == bytes.len() as isize;
        if whole { Ok(()) } else { Err(format!("request {request}: {}", last())) }
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// When the switch has hung up or does not answer.
    pub fn ask(&mut self, request: u32, payload: &[u8]) -> Result<Vec<u8>> {
        self.say(request, payload, &[])?;
        let failed = |e| format!("the answer to {request}: {e}");
        let mut head = [0; 12];
        self.socket.read_exact(&mut head).map_err(failed)?;
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let mut body = vec![0; len.min(4096) as usize];
        self.socket.read_exact(&mut body).map_err(failed)?;
        Ok(body)
    }

    /// Agrees on features and passes the memory, of which it says that it has `bytes`.
    ///
    /// # Errors
    /// When the switch refuses.
    pub fn negotiate(&mut self, bytes: u64) -> Result<()> {
        self.negotiate_with(bytes, 0)
    }

    /// [`FrontEnd::negotiate`] with more features, such as [`PACKED`].
    ///
    /// # Errors
    /// When the switch refuses.
    pub fn negotiate_with(&mut self, bytes: u64, features: u64) -> Result<()> {
        use request::*;
        self.say(SET_OWNER, &[], &[])?;
        let offered = self.ask(GET_FEATURES, &[])?;
        let offered = u64::from_le_bytes(offered.try_into().map_err(|_| "features")?);
        self.ask(GET_PROTOCOL_FEATURES, &[])?;
        self.say(SET_PROTOCOL_FEATURES, &words64(&[0]), &[])?;
        self.say(SET_FEATURES, &words64(&[(FEATURES | features) & offered]), &[])?;
        let table = [words32(&[1, 0]), words64(&[0, bytes, USER, 0])].concat();
        self.say(SET_MEM_TABLE, &table, &[self.memory.as_raw_fd()])
    }

    /// Sets both rings up and enables them; the switch calls by these eventfds, if given.
    ///
    /// # Errors
    /// When the switch refuses.
    pub fn start(&mut self, calls: Option<[OwnedFd; 2]>) -> Result<()> {
        use request::*;
        self.calls = match calls {
            Some(calls) => calls.into(),
            None => vec![eventfd(0)?, eventfd(0)?],
        };
        self.kicks = vec![eventfd(0)?, eventfd(0)?];
        for ring in 0..2u32 {
            let base = USER + u64::from(ring) * RING;
            self.say(SET_VRING_NUM, &words32(&[ring, RING_SIZE.into()]), &[])?;
            self.say(SET_VRING_BASE, &words32(&[ring, 0]), &[])?;
            let parts = words64(&[base, base + USED, base + AVAIL, 0]);
            self.say(SET_VRING_ADDR, &[words32(&[ring, 0]), parts].concat(), &[])?;
            let [call, kick] = [&self.calls, &self.kicks].map(|fds| fds[ring as usize].as_raw_fd());
            self.say(SET_VRING_CALL, &words64(&[ring.into()]), &[call])?;
            self.say(SET_VRING_KICK, &words64(&[ring.into()]), &[kick])?;
        }
        (0..2).try_for_each(|ring| self.say(SET_VRING_ENABLE, &words32(&[ring, 1]), &[]))
    }

    /// Writes the guest's memory.
    pub fn put(&self, guest: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, guest).expect("memory of our own");
    }

    /// A descriptor at a guest address.
    pub fn put_desc(&self, at: u64, addr: u64, len: u32, flags: u16, next: u16) {
        let mut d = words64(&[addr]);
        d.extend(len.to_le_bytes());
        d.extend(flags.to_le_bytes());
        d.extend(next.to_le_bytes());
        self.put(at, &d);
    }

    /// Descriptor `i` of a ring.
    pub fn desc(&self, ring: u64, i: u16) -> u64 {
        ring * RING + 16 * u64::from(i)
    }

    /// Makes `n` more buffers available, by descriptors 0, 1, ... in turn.
    pub fn offer(&mut self, ring: usize, n: u16) {
        let avail = ring as u64 * RING + AVAIL;
        for _ in 0..n {
            let slot = self.available[ring] % RING_SIZE;
            self.put(avail + 4 + 2 * u64::from(slot), &slot.to_le_bytes());
            self.available[ring] = self.available[ring].wrapping_add(1);
        }
        self.put(avail + 2, &self.available[ring].to_le_bytes());
    }

    /// How many buffers the switch has not given back.
    pub fn under_way(&self, ring: usize) -> u16 {
        let mut used = [0; 2];
        let at = ring as u64 * RING + USED + 2;
        self.memory.read_exact_at(&mut used, at).expect("memory of our own");
        self.available[ring].wrapping_sub(u16::from_le_bytes(used))
    }
}
