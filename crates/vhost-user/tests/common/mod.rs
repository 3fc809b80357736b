//! A front-end of our own: its socket, a guest's memory, and a driver that sends back what it gets.

#![allow(dead_code)]

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const RESET_OWNER: u32 = 4;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SEND_RARP: u32 = 19;
pub const NET_SET_MTU: u32 = 20;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;

pub const VERSION_1: u64 = 1 << 32;
pub const PACKED: u64 = 1 << 34;
pub const LOG_ALL: u64 = 1 << 26;
pub const PROTOCOL: u64 = 1 << 30;
pub const INDIRECT: u64 = 1 << 28;

/// Where the front-end says that it has the guest's memory mapped, and where the guest has it.
pub const USER: u64 = 0x7000_0000_0000;
pub const PHYSICAL: u64 = 0x10_0000;
/// Bytes of a guest's memory.
pub const BYTES: u64 = 4 << 20;
/// Entries of a ring, and bytes of a buffer.
pub const SIZE: u16 = 256;
const BUFFER: u64 = 2048;
const HEADER: u64 = 12;

pub fn memfd(bytes: u64) -> File {
    // SAFETY: a new descriptor, then ours.
    let file = unsafe {
        let fd = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(bytes).unwrap();
    file
}

pub fn eventfd() -> OwnedFd {
    // SAFETY: a new descriptor, then ours.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) }
}

/// The front-end's end of a socket.
pub struct Frontend(pub UnixStream);

pub fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    [request, flags, size].iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub fn pair(ring: u32, value: u32) -> Vec<u8> {
    words(&[u64::from(ring) | u64::from(value) << 32])
}

pub fn region(file_offset: u64, size: u64) -> [u64; 4] {
    [PHYSICAL, size, USER, file_offset]
}

impl Frontend {
    pub fn raw(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
        let mut control = [0u64; 40];
        let part = IoSlice::new(bytes);
        // SAFETY: the message says where its parts are; there is room for 64 descriptors.
        let n = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = (&raw const part).cast_mut().cast();
            message.msg_iovlen = 1;
            if !fds.is_empty() {
                let size = size_of_val(fds) as u32;
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(size) as usize;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
                let to = libc::CMSG_DATA(header).cast::<RawFd>();
                to.copy_from_nonoverlapping(fds.as_ptr(), fds.len());
            }
            libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }

    pub fn send(&self, request: u32, payload: &[u8], fds: &[RawFd]) -> io::Result<usize> {
        let mut bytes = header(request, 1, payload.len() as u32);
        bytes.extend_from_slice(payload);
        self.raw(&bytes, fds)
    }

    pub fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 12];
        self.0.read_exact(&mut header)?;
        let size = u32::from_le_bytes(header[8..].try_into().unwrap());
        let mut payload = vec![0; size as usize];
        self.0.read_exact(&mut payload)?;
        Ok(payload)
    }

    pub fn ask(&mut self, request: u32, payload: &[u8]) -> io::Result<u64> {
        self.send(request, payload, &[])?;
        let reply = self.reply()?;
        Ok(u64::from_le_bytes(reply[..8].try_into().unwrap()))
    }

    /// All that was sent was acted on.
    pub fn settle(&mut self) -> io::Result<()> {
        self.ask(GET_FEATURES, &[]).map(|_| ())
    }
}

/// One virtqueue, seen by the driver: buffers of one descriptor each.
pub struct Driver {
    at: *mut u8,
    packed: bool,
    write: bool,
    next: u16,
    wrap: bool,
    seen: u16,
    seen_wrap: bool,
}

/// Offsets of ring `i`'s parts and buffers in the guest's memory.
pub fn parts(i: u64) -> [u64; 3] {
    [0x1_0000 * i, 0x1_0000 * i + 0x4000, 0x1_0000 * i + 0x6000]
}

fn buffer(i: u64, id: u16) -> u64 {
    0x10_0000 * (i + 1) + BUFFER * u64::from(id)
}

impl Driver {
    fn word(&self, offset: u64) -> &AtomicU16 {
        // SAFETY: within the guest's memory; used by two sides, as atomics.
        unsafe { AtomicU16::from_ptr(self.at.add(offset as usize).cast()) }
    }

    fn put(&self, offset: u64, addr: u64, len: u32) {
        // SAFETY: as above.
        unsafe {
            let at = self.at.add(offset as usize);
            AtomicU64::from_ptr(at.cast()).store(addr, Ordering::Relaxed);
            AtomicU32::from_ptr(at.add(8).cast()).store(len, Ordering::Relaxed);
        }
    }

    fn long(&self, offset: u64) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at.add(offset as usize).cast()) }.load(Ordering::Relaxed)
    }

    pub fn offer(&mut self, id: u16, len: u32) {
        let ring = if self.write { 0 } else { 1 };
        let [desc, avail, _] = parts(ring);
        let (addr, flags) = (PHYSICAL + buffer(ring, id), if self.write { 2 } else { 0 });
        if !self.packed {
            let at = desc + 16 * u64::from(id);
            self.put(at, addr, len);
            self.word(at + 12).store(flags, Ordering::Relaxed);
            let slot = avail + 4 + 2 * u64::from(self.next % SIZE);
            self.word(slot).store(id, Ordering::Relaxed);
            self.next = self.next.wrapping_add(1);
            self.word(avail + 2).store(self.next, Ordering::Release);
            return;
        }
        let at = desc + 16 * u64::from(self.next);
        self.put(at, addr, len);
        self.word(at + 12).store(id, Ordering::Relaxed);
        let flags = flags | if self.wrap { 1 << 7 } else { 1 << 15 };
        self.word(at + 14).store(flags, Ordering::Release);
        self.next += 1;
        if self.next == SIZE {
            (self.next, self.wrap) = (0, !self.wrap);
        }
    }

    pub fn reap(&mut self) -> Option<(u16, u32)> {
        let [desc, _, used] = parts(if self.write { 0 } else { 1 });
        if !self.packed {
            if self.word(used + 2).load(Ordering::Acquire) == self.seen {
                return None;
            }
            let at = used + 4 + 8 * u64::from(self.seen % SIZE);
            self.seen = self.seen.wrapping_add(1);
            return Some((self.long(at) as u16, self.long(at + 4)));
        }
        let at = desc + 16 * u64::from(self.seen);
        let flags = self.word(at + 14).load(Ordering::Acquire);
        let (avail, used) = (flags >> 7 & 1 == 1, flags >> 15 == 1);
        if avail != self.seen_wrap || used != self.seen_wrap {
            return None;
        }
        let found = (self.word(at + 12).load(Ordering::Relaxed), self.long(at + 8));
        self.seen += 1;
        if self.seen == SIZE {
            (self.seen, self.seen_wrap) = (0, !self.seen_wrap);
        }
        Some(found)
    }
}

/// A guest that sends back what it gets.
pub struct Guest {
    pub frontend: Frontend,
    pub file: File,
    at: *mut u8,
    pub packed: bool,
    rx: Driver,
    tx: Driver,
    free: Vec<u16>,
    /// Frames that came and were sent back.
    pub echoed: u64,
}

// SAFETY: its memory is used by atomics, and copied where this driver owns the buffer.
unsafe impl Send for Guest {}

impl Drop for Guest {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.at.cast(), BYTES as usize) };
    }
}

impl Guest {
    /// A guest whose driver has started; nothing is said on the socket yet.
    pub fn new(socket: UnixStream, packed: bool) -> Guest {
        let file = memfd(BYTES);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe {
            let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
            libc::mmap(none, BYTES as usize, access, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        let driver =
            |write| Driver { at, packed, write, next: 0, wrap: true, seen: 0, seen_wrap: true };
        let (mut rx, tx) = (driver(true), driver(false));
        (0..SIZE).for_each(|id| rx.offer(id, BUFFER as u32));
        let free = (0..SIZE).collect();
        Guest { frontend: Frontend(socket), file, at, packed, rx, tx, free, echoed: 0 }
    }

    pub fn features(&self) -> u64 {
        VERSION_1 | PROTOCOL | INDIRECT | if self.packed { PACKED } else { 0 }
    }

    /// Says all that QEMU says, of a packed ring also the place that was true when the driver
    /// started.
    pub fn connect(&mut self) -> io::Result<()> {
        let features = self.features();
        let offered = self.frontend.ask(GET_FEATURES, &[])?;
        assert_eq!(features & !offered, 0);
        let protocol = self.frontend.ask(GET_PROTOCOL_FEATURES, &[])?;
        self.frontend.send(SET_PROTOCOL_FEATURES, &words(&[protocol]), &[])?;
        self.frontend.send(SET_OWNER, &[], &[])?;
        self.frontend.send(SET_FEATURES, &words(&[features]), &[])?;
        self.table()?;
        for ring in 0..2 {
            self.ring(ring)?;
        }
        for ring in 0..2 {
            self.frontend.send(SET_VRING_ENABLE, &pair(ring, 1), &[])?;
        }
        self.frontend.settle()
    }

    pub fn table(&mut self) -> io::Result<()> {
        let table = [&[1][..], &region(0, BYTES)].concat();
        self.frontend.send(SET_MEM_TABLE, &words(&table), &[self.file.as_raw_fd()])?;
        Ok(())
    }

    pub fn ring(&mut self, ring: u32) -> io::Result<()> {
        let [desc, avail, used] = parts(ring.into()).map(|offset| USER + offset);
        let base = if self.packed { 0x8000_8000 } else { 0 };
        let frontend = &self.frontend;
        frontend.send(SET_VRING_NUM, &pair(ring, SIZE.into()), &[])?;
        frontend.send(SET_VRING_BASE, &pair(ring, base), &[])?;
        let address = [u64::from(ring), desc, used, avail, PHYSICAL];
        frontend.send(SET_VRING_ADDR, &words(&address), &[])?;
        let (kick, call) = (eventfd(), eventfd());
        frontend.send(SET_VRING_KICK, &words(&[ring.into()]), &[kick.as_raw_fd()])?;
        frontend.send(SET_VRING_CALL, &words(&[ring.into()]), &[call.as_raw_fd()])?;
        Ok(())
    }

    /// Bytes of the guest's memory.
    pub fn bytes(&self, offset: u64, n: usize) -> Vec<u8> {
        // SAFETY: within the memory; volatile, as the other side may write.
        (0..n).map(|i| unsafe { self.at.add(offset as usize + i).read_volatile() }).collect()
    }

    /// Fills the guest's memory with noise.
    pub fn scribble(&self, noise: &mut testkit::Noise, from: u64, n: usize) {
        for i in 0..n {
            // SAFETY: within the memory.
            unsafe { self.at.add(from as usize + i).write_volatile(noise.next() as u8) };
        }
    }

    /// Has the system give the memory all its pages.
    pub fn allocate(&self) {
        // SAFETY: a descriptor of this guest's.
        assert_eq!(unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, BYTES as i64) }, 0);
    }

    /// Has the system take the pages of all buffers to receive into.
    pub fn give_pages_back(&self) {
        let (from, len) = (buffer(0, 0) as i64, BUFFER as i64 * i64::from(SIZE));
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a descriptor of this guest's.
        assert_eq!(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, from, len) }, 0);
    }

    /// Sends back what came, as far as there is room; returns the first bytes of each frame.
    pub fn step(&mut self) -> Vec<u64> {
        while let Some((id, _)) = self.tx.reap() {
            self.free.push(id);
        }
        let mut seen = Vec::new();
        while let Some(to) = self.free.last().copied() {
            let Some((id, len)) = self.rx.reap() else { break };
            self.free.pop();
            assert!(u64::from(len) > HEADER && u64::from(len) <= BUFFER, "{len}");
            let (from, to_at) = (buffer(0, id) as usize, buffer(1, to) as usize);
            // SAFETY: both buffers are this driver's now.
            unsafe {
                self.at.add(from).copy_to_nonoverlapping(self.at.add(to_at), len as usize);
                seen.push(self.at.add(from + HEADER as usize).cast::<u64>().read_unaligned());
            }
            self.tx.offer(to, len);
            self.rx.offer(id, BUFFER as u32);
            self.echoed += 1;
        }
        fence(Ordering::SeqCst);
        seen
    }
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident memory of this process in kB.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub fn fill(file: &OwnedFd, value: u64) {
    let mut file = File::from(file.try_clone().unwrap());
    file.write_all(&value.to_ne_bytes()).unwrap();
}
