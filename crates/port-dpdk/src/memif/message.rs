//! memif's control messages, protocol version 2.0, as far as a server must understand them: 128
//! bytes in the host's byte order, each with at most one descriptor (the memif protocol's
//! documentation in DPDK's guide to its memif driver).

use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of every message.
pub(crate) const SIZE: usize = 128;
const VERSION: u16 = 0x0200;
/// Regions that a client may have, at most.
const MAX_REGIONS: usize = 256;
/// Rings in each direction, at most.
const MAX_RINGS: u16 = 255;
/// Binary logarithm of the number of entries of a ring, at most.
const MAX_LOG2_RING_SIZE: u8 = 14;
/// Bytes of a ring in front of its descriptors.
const RING_HEADER: u64 = 128;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
/// Bytes of a region that descriptors can reach.
const MAX_REGION: u64 = 1 << 32;
/// The end of names that begin at byte 2.
const NAME_END: usize = 33;
/// The end of the name in an INIT.
const INIT_NAME_END: usize = 64;
const REASON: std::ops::Range<usize> = 6..101;

/// Message types.
pub(crate) const ACK: u16 = 1;
pub(crate) const HELLO: u16 = 2;
pub(crate) const INIT: u16 = 3;
pub(crate) const ADD_REGION: u16 = 4;
pub(crate) const ADD_RING: u16 = 5;
pub(crate) const CONNECT: u16 = 6;
pub(crate) const CONNECTED: u16 = 7;
pub(crate) const DISCONNECT: u16 = 8;

/// One message.
#[derive(Clone)]
pub(crate) struct Message([u8; SIZE]);

impl Message {
    pub fn new(kind: u16) -> Message {
        let mut message = Message([0; SIZE]);
        message.put(0, &kind.to_ne_bytes());
        message
    }

    /// The server's greeting.
    pub fn hello() -> Message {
        let mut message = Message::new(HELLO);
        message.put(2, b"Weft");
        let words = [VERSION, VERSION, MAX_REGIONS as u16 - 1, MAX_RINGS, MAX_RINGS];
        for (i, word) in words.iter().enumerate() {
            message.put(34 + 2 * i, &word.to_ne_bytes());
        }
        message.put(44, &[MAX_LOG2_RING_SIZE]);
        message
    }

    /// A DISCONNECT, with its reason.
    pub fn disconnect(reason: &str) -> Message {
        let mut message = Message::new(DISCONNECT);
        message.put(REASON.start, &reason.as_bytes()[..reason.len().min(REASON.len())]);
        message
    }

    pub fn bytes(&self) -> &[u8; SIZE] {
        &self.0
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        bytes.try_into().ok().map(Message)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.get(at))
    }

    pub fn kind(&self) -> u16 {
        self.u16(0)
    }

    /// The reason in a DISCONNECT.
    pub fn reason(&self) -> String {
        let text = &self.0[REASON];
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

/// The rings that a port offers: from client to server (its receive queues), and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    pub c2s: u16,
    pub s2c: u16,
}

/// A port to which a client connects, as the checks need it.
#[derive(Clone, Copy)]
pub(crate) struct RingTarget {
    /// Its number at DPDK's own socket.
    pub id: u32,
    pub rings: Rings,
}

/// What a client has sent so far, all of it checked. DPDK gets none of it before it is complete.
#[derive(Default)]
pub(crate) struct Offer {
    /// The port to which the client wants to connect, and the number that it sent.
    pub target: Option<(u32, RingTarget)>,
    regions: Vec<u64>,
    c2s: Vec<bool>,
    s2c: Vec<bool>,
    /// All messages in order, with their descriptors.
    pub said: Vec<(Message, Option<OwnedFd>)>,
}

/// What has to be done after a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send an ACK.
    Ack,
    /// The client has sent everything: connect it.
    Connect,
    /// Nothing.
    Nothing,
    /// The client disconnects.
    Gone,
}

/// The reason for which a client is disconnected.
pub(crate) type Refusal = String;

impl Offer {
    /// Checks and keeps a message; `find` finds ports by number.
    pub fn take(
        &mut self,
        mut message: Message,
        mut fds: Vec<OwnedFd>,
        find: impl Fn(u32) -> Option<RingTarget>,
    ) -> Result<Next, Refusal> {
        let kind = message.kind();
        let carries = usize::from(matches!(kind, ADD_REGION | ADD_RING));
        if fds.len() != carries {
            return Err(format!("message {kind} came with {} descriptors", fds.len()));
        }
        let fd = fds.pop();
        match kind {
            ACK => return Ok(Next::Nothing),
            DISCONNECT => return Ok(Next::Gone),
            INIT => self.init(&mut message, find)?,
            ADD_REGION => self.region(&message, fd.as_ref().ok_or("no region")?)?,
            ADD_RING => self.ring(&message, fd.as_ref().ok_or("no ring")?)?,
            CONNECT => {
                self.complete()?;
                message.0[NAME_END] = 0;
            }
            _ => return Err(format!("message {kind} is not a client's")),
        }
        self.said.push((message, fd));
        Ok(if kind == CONNECT { Next::Connect } else { Next::Ack })
    }

    fn init(
        &mut self,
        message: &mut Message,
        find: impl Fn(u32) -> Option<RingTarget>,
    ) -> Result<(), Refusal> {
        if self.target.is_some() {
            return Err("a second INIT".into());
        }
        let (version, mode) = (message.u16(2), message.0[8]);
        if version != VERSION {
            return Err(format!("Incompatible memif version {version:#x}"));
        }
        if mode != 0 {
            return Err("Only ethernet mode supported".into());
        }
        let id = u32::from_ne_bytes(message.get(4));
        let target = find(id).ok_or(format!("ID {id} not found"))?;
        message.put(4, &target.id.to_ne_bytes());
        message.0[INIT_NAME_END] = 0;
        self.c2s = vec![false; target.rings.c2s.into()];
        self.s2c = vec![false; target.rings.s2c.into()];
        self.target = Some((id, target));
        Ok(())
    }

    fn region(&mut self, message: &Message, fd: &OwnedFd) -> Result<(), Refusal> {
        let (index, size) = (message.u16(2), u64::from_ne_bytes(message.get(4)));
        if self.target.is_none() {
            return Err("a region before INIT".into());
        }
        if usize::from(index) != self.regions.len() || self.regions.len() >= MAX_REGIONS {
            return Err(format!("Invalid region index {index}"));
        }
        check_region(fd, size)?;
        self.regions.push(size);
        Ok(())
    }

    fn ring(&mut self, message: &Message, fd: &OwnedFd) -> Result<(), Refusal> {
        let (flags, index, region) = (message.u16(2), message.u16(4), message.u16(6));
        let (offset, log2) = (u32::from_ne_bytes(message.get(8)), message.0[12]);
        let (rings, which) = match flags {
            1 => (&mut self.c2s, "transmit"),
            0 => (&mut self.s2c, "receive"),
            _ => return Err(format!("ring flags {flags:#x}")),
        };
        let there = rings.len();
        match rings.get_mut(usize::from(index)) {
            None => return Err(format!("{which} ring {index}, and the server has {there}")),
            Some(true) => return Err(format!("{which} ring {index} again")),
            Some(is_there) => *is_there = true,
        }
        if log2 > MAX_LOG2_RING_SIZE {
            return Err(format!("a ring of 2^{log2} descriptors"));
        }
        let size = *self.regions.get(usize::from(region)).ok_or(format!("no region {region}"))?;
        let end = u64::from(offset) + RING_HEADER + (DESCRIPTOR << log2);
        if end > size || offset % 4 != 0 {
            return Err(format!("a ring at {offset} to {end} of a region of {size} bytes"));
        }
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if !link.is_ok_and(|l| l.as_os_str() == "anon_inode:[eventfd]") {
            return Err("a ring's descriptor is no eventfd".into());
        }
        Ok(())
    }

    /// Checks that the offer is complete. DPDK uses every queue of a connected port, so each needs
    /// a ring.
    fn complete(&self) -> Result<(), Refusal> {
        if self.target.is_none() {
            return Err("CONNECT before INIT".into());
        }
        for (rings, theirs, ours) in
            [(&self.c2s, "transmit", "receive"), (&self.s2c, "receive", "transmit")]
        {
            let given = rings.iter().filter(|r| **r).count();
            if given < rings.len() {
                let n = rings.len();
                return Err(format!(
                    "{given} {theirs} rings, and the server has {n} {ours} queues"
                ));
            }
        }
        Ok(())
    }

    /// True for a ring from server to client.
    pub fn is_s2c_ring(message: &Message) -> bool {
        message.kind() == ADD_RING && message.u16(2) == 0
    }
}

/// Checks that a region's memory exists and stays: it must be a file that cannot shrink.
fn check_region(fd: &OwnedFd, size: u64) -> Result<(), Refusal> {
    let raw = fd.as_raw_fd();
    // SAFETY: only asks about the descriptor; stat is plain data.
    let (seals, mode, have) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let have = if libc::fstat(raw, &mut stat) == 0 { stat.st_size as u64 } else { 0 };
        (libc::fcntl(raw, libc::F_GET_SEALS), libc::fcntl(raw, libc::F_GETFL), have)
    };
    if size == 0 || size > have || size > MAX_REGION {
        return Err(format!("a region of {size} bytes in a file of {have}"));
    }
    let frozen = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err("a region that may shrink (zero-copy clients are not supported)".into());
    }
    if seals & frozen != 0 || mode & libc::O_ACCMODE != libc::O_RDWR {
        return Err("a region that may not be written".into());
    }
    Ok(())
}
