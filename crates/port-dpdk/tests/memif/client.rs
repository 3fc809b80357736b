//! A client of a memif server that says and writes what a test wants it to.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// The port's id.
pub const PORT: u32 = 7;
pub const SIZE: usize = 128;
pub const REGION: u64 = 1 << 20;
const COOKIE: u32 = 0x3E3_1F20;
const LOG2: u8 = 4;
pub const RING: u64 = 128 + (16 << LOG2);

/// One message to send.
pub struct Said {
    pub bytes: Vec<u8>,
    pub fds: Vec<RawFd>,
}

pub fn fd(ret: i32) -> OwnedFd {
    assert!(ret >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: just made by a call that returned it.
    unsafe { OwnedFd::from_raw_fd(ret) }
}

/// Shared memory of this size.
pub fn memory(size: u64, sealed: bool) -> OwnedFd {
    // SAFETY: plain calls with valid arguments.
    unsafe {
        let memory = fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING));
        assert_eq!(libc::ftruncate(memory.as_raw_fd(), size as i64), 0);
        if sealed {
            libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        }
        memory
    }
}

fn eventfd() -> OwnedFd {
    // SAFETY: makes a descriptor.
    fd(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) })
}

/// A client that has what it takes.
pub struct Client {
    pub memory: OwnedFd,
    pub signals: [OwnedFd; 2],
}

impl Client {
    /// Two rings at the start of a region.
    pub fn new() -> Client {
        Client::with(memory(REGION, true))
    }

    /// With memory that it can make shorter.
    pub fn unsealed() -> Client {
        Client::with(memory(REGION, false))
    }

    /// With memory in a file of a disk.
    pub fn on_disk() -> Client {
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        // SAFETY: makes a file without a name.
        let file = fd(unsafe { libc::open(c"/var/tmp".as_ptr(), flags, 0o600) });
        std::fs::File::from(file.try_clone().unwrap()).set_len(REGION).unwrap();
        Client::with(file)
    }

    fn with(memory: OwnedFd) -> Client {
        let client = Client { memory, signals: [eventfd(), eventfd()] };
        for at in [0, RING] {
            client.write(at, &COOKIE.to_ne_bytes());
        }
        client
    }

    pub fn file(&self) -> std::fs::File {
        self.memory.try_clone().unwrap().into()
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        std::os::unix::fs::FileExt::write_all_at(&self.file(), bytes, at).unwrap();
    }

    /// All it says until it is connected to [`PORT`].
    pub fn speech(&self) -> Vec<Said> {
        self.speech_to(PORT)
    }

    pub fn speech_to(&self, port: u32) -> Vec<Said> {
        let said = |kind: u16, parts: &[&[u8]], fds: &[&OwnedFd]| {
            let mut bytes = [&kind.to_ne_bytes()[..], &parts.concat()].concat();
            bytes.resize(SIZE, 0);
            Said { bytes, fds: fds.iter().map(|fd| fd.as_raw_fd()).collect() }
        };
        let ring = |flags: u16, offset: u32, signal: &OwnedFd| {
            let words = [flags, 0, 0].map(u16::to_ne_bytes).concat();
            said(5, &[&words, &offset.to_ne_bytes(), &[LOG2, 0, 0]], &[signal])
        };
        vec![
            said(3, &[&0x200u16.to_ne_bytes(), &port.to_ne_bytes(), &[0]], &[]),
            said(4, &[&0u16.to_ne_bytes(), &REGION.to_ne_bytes()], &[&self.memory]),
            ring(1, 0, &self.signals[0]),
            ring(0, RING as u32, &self.signals[1]),
            said(6, &[b"test"], &[]),
        ]
    }
}

/// A connection to the server.
pub struct Conn(pub OwnedFd);

fn address(path: &Path) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zero is a valid address.
    let mut at: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    at.sun_family = libc::AF_UNIX as u16;
    let path = path.to_str().unwrap().as_bytes();
    at.sun_path.iter_mut().zip(path).for_each(|(to, from)| *to = *from as i8);
    (at, size_of_val(&at) as u32)
}

/// A server's socket on which no connection is accepted; one may wait.
pub fn server_that_accepts_none(path: &Path) -> OwnedFd {
    let (at, len) = address(path);
    // SAFETY: the address is initialised and its length right.
    unsafe {
        let socket = fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0));
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const at).cast(), len), 0);
        assert_eq!(libc::listen(socket.as_raw_fd(), 0), 0);
        socket
    }
}

impl Conn {
    pub fn open(path: &Path) -> Conn {
        let (to, len) = address(path);
        // SAFETY: the address is initialised and its length right.
        unsafe {
            let socket = fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0));
            let ret = libc::connect(socket.as_raw_fd(), (&raw const to).cast(), len);
            assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
            let limit = libc::timeval { tv_sec: 8, tv_usec: 0 };
            let (value, len) = ((&raw const limit).cast(), size_of_val(&limit) as u32);
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, len);
            Conn(socket)
        }
    }

    /// True if the server still takes it.
    pub fn say(&self, said: &Said) -> bool {
        let mut control = [0u64; 16];
        let mut part = libc::iovec {
            iov_base: said.bytes.as_ptr().cast_mut().cast(),
            iov_len: said.bytes.len(),
        };
        // SAFETY: the header points to valid memory of the lengths it says.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            let len = 4 * said.fds.len() as u32;
            if len > 0 {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(len) as usize;
                let item = libc::CMSG_FIRSTHDR(&header);
                ((*item).cmsg_level, (*item).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
                (*item).cmsg_len = libc::CMSG_LEN(len) as usize;
                let data = libc::CMSG_DATA(item);
                std::ptr::copy_nonoverlapping(said.fds.as_ptr().cast(), data, len as usize);
            }
            libc::sendmsg(self.0.as_raw_fd(), &header, libc::MSG_NOSIGNAL) >= 0
        }
    }

    /// The type of the next message; 0 at the end.
    pub fn hear(&self) -> u16 {
        let mut bytes = [0u8; SIZE];
        // A message of ours that was not read is an error once; what was said to us comes after it.
        // SAFETY: the buffer is that long.
        let mut hear =
            || unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), SIZE, 0) };
        let mut n = hear();
        if n < 0 && errno() == libc::ECONNRESET {
            n = hear();
        }
        assert!(n >= 0, "{}", std::io::Error::last_os_error());
        if n == 0 { 0 } else { u16::from_ne_bytes([bytes[0], bytes[1]]) }
    }

    /// Hears until the server has closed; the last that it said.
    pub fn ended(&self) -> u16 {
        let mut last = 0;
        loop {
            match self.hear() {
                0 => return last,
                kind => last = kind,
            }
        }
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
