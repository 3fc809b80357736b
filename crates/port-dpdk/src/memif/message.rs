//! memif's control messages, protocol version 2.0: 128 bytes in the host's byte order, at most one
//! descriptor with each (the memif protocol's documentation in DPDK's guide to its memif driver).

use std::os::fd::{AsRawFd, OwnedFd};

/// Every message has this many bytes.
pub(crate) const SIZE: usize = 128;
const VERSION: u16 = 0x0200;
/// Regions a client may have, rings each way, and a ring's size as a power of two.
const REGIONS_MAX: usize = 32;
pub(crate) const RINGS_MAX: u16 = 256;
pub(crate) const LOG2_SIZE_MAX: u8 = 14;
/// Bytes of a ring before its descriptors, and of a descriptor.
pub(crate) const RING_HEADER_BYTES: u64 = 128;
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;
/// Descriptors reach no further into a region.
const REGION_BYTES_MAX: u64 = 1 << 32;
/// Bytes of a secret, and of a name with the zero behind it.
pub(crate) const SECRET_BYTES: usize = 24;
const NAME_BYTES: usize = 32;
/// Where names are: in HELLO, CONNECT and CONNECTED, and in INIT; the secret in INIT.
const AT_NAME: usize = 2;
const AT_INIT_NAME: usize = 33;
const AT_SECRET: usize = 9;
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

    /// What a server greets with.
    pub fn hello() -> Message {
        let mut message = Message::named(HELLO, AT_NAME, "Weft");
        let rings = RINGS_MAX - 1;
        let words = [VERSION, VERSION, REGIONS_MAX as u16 - 1, rings, rings];
        for (i, word) in words.iter().enumerate() {
            message.put(34 + 2 * i, &word.to_ne_bytes());
        }
        message.put(44, &[LOG2_SIZE_MAX]);
        message
    }

    /// A message with a name at a place.
    fn named(kind: u16, at: usize, name: &str) -> Message {
        let mut message = Message::new(kind);
        message.put(at, &name.as_bytes()[..name.len().min(NAME_BYTES - 1)]);
        message
    }

    /// What a client wants to connect to.
    pub fn init(id: u32, secret: &[u8; SECRET_BYTES], name: &str) -> Message {
        let mut message = Message::named(INIT, AT_INIT_NAME, name);
        message.put(2, &VERSION.to_ne_bytes());
        message.put(4, &id.to_ne_bytes());
        message.put(AT_SECRET, secret);
        message
    }

    /// The first region, of so many bytes; its file comes with the message.
    pub fn add_region(bytes: u64) -> Message {
        let mut message = Message::new(ADD_REGION);
        message.put(4, &bytes.to_ne_bytes());
        message
    }

    /// A ring in the first region; its eventfd comes with the message.
    pub fn add_ring(c2s: bool, index: u16, offset: u32, log2_size: u8) -> Message {
        let mut message = Message::new(ADD_RING);
        message.put(2, &u16::from(c2s).to_ne_bytes());
        message.put(4, &index.to_ne_bytes());
        message.put(8, &offset.to_ne_bytes());
        message.put(12, &[log2_size]);
        message
    }

    /// CONNECT or CONNECTED: all was said.
    pub fn connect(kind: u16, name: &str) -> Message {
        Message::named(kind, AT_NAME, name)
    }

    /// What the server takes, by its HELLO.
    ///
    /// # Errors
    /// It speaks no version of the protocol that we do.
    pub fn limits(&self) -> Result<ServerLimits, Refusal> {
        let [least, most, _, s2c, c2s] = [34, 36, 38, 40, 42].map(|at| self.u16(at));
        if !(least..=most).contains(&VERSION) {
            return Err(format!("Incompatible memif version {least:#x} to {most:#x}"));
        }
        let rings = Rings { c2s: c2s.saturating_add(1), s2c: s2c.saturating_add(1) };
        Ok(ServerLimits { rings, log2_size: self.0[44] })
    }

    /// The end of a connection, and why.
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
        text(&self.0[REASON])
    }

    /// The name in a CONNECT or CONNECTED.
    pub fn name(&self) -> String {
        text(&self.0[AT_NAME..AT_NAME + NAME_BYTES])
    }
}

/// Up to the first zero, without what is not printable.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let all = String::from_utf8_lossy(&bytes[..end]);
    all.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What a server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    pub rings: Rings,
    /// A ring's descriptors as a power of two.
    pub log2_size: u8,
}

/// How many rings there are from client to server and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    pub c2s: u16,
    pub s2c: u16,
}

/// A port, as the checks see it.
#[derive(Clone, Copy)]
pub(crate) struct RingTarget {
    pub rings: Rings,
    /// What a client must know; all zero: nothing.
    pub secret: [u8; SECRET_BYTES],
}

/// A ring that a client offers.
pub(crate) struct RingOffer {
    /// Number of its region, offset in bytes there, and descriptors as a power of two.
    pub place: (u16, u32, u8),
    /// Tells the consumer that there is something.
    pub signal: OwnedFd,
}

/// What a client has said so far, every piece of it checked.
#[derive(Default)]
pub(crate) struct Offer {
    /// What it wants to connect to.
    pub id: Option<u32>,
    /// Files and their bytes.
    pub regions: Vec<(OwnedFd, u64)>,
    pub c2s: Vec<Option<RingOffer>>,
    pub s2c: Vec<Option<RingOffer>>,
    /// What it calls itself.
    pub name: String,
}

/// What a message asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// An ACK.
    Ack,
    /// Everything was said: connect.
    Connect,
    /// Nothing has to be done.
    Nothing,
    /// The client goes.
    Gone,
}

/// Why a client is sent away.
pub(crate) type Refusal = String;

impl Offer {
    /// Takes one message; `find` knows the ports by number.
    pub fn take(
        &mut self,
        message: &Message,
        mut fds: Vec<OwnedFd>,
        find: impl Fn(u32) -> Option<RingTarget>,
    ) -> Result<Next, Refusal> {
        let kind = message.kind();
        let carries = usize::from(matches!(kind, ADD_REGION | ADD_RING));
        if fds.len() != carries {
            return Err(format!("message {kind} came with {} descriptors", fds.len()));
        }
        match (kind, fds.pop()) {
            (ACK, _) => return Ok(Next::Nothing),
            (DISCONNECT, _) => return Ok(Next::Gone),
            (INIT, _) => self.init(message, find)?,
            (ADD_REGION, Some(fd)) => self.region(message, fd)?,
            (ADD_RING, Some(fd)) => self.ring(message, fd)?,
            (CONNECT, _) => {
                self.complete()?;
                self.name = message.name();
                return Ok(Next::Connect);
            }
            _ => return Err(format!("message {kind} is not a client's")),
        }
        Ok(Next::Ack)
    }

    fn init(
        &mut self,
        message: &Message,
        find: impl Fn(u32) -> Option<RingTarget>,
    ) -> Result<(), Refusal> {
        if self.id.is_some() {
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
        let secret: [u8; SECRET_BYTES] = message.get(AT_SECRET);
        if target.secret != [0; SECRET_BYTES] && secret != target.secret {
            return Err("Incorrect secret".into());
        }
        self.c2s.resize_with(target.rings.c2s.into(), || None);
        self.s2c.resize_with(target.rings.s2c.into(), || None);
        self.id = Some(id);
        Ok(())
    }

    fn region(&mut self, message: &Message, fd: OwnedFd) -> Result<(), Refusal> {
        let (index, size) = (message.u16(2), u64::from_ne_bytes(message.get(4)));
        if self.id.is_none() {
            return Err("a region before INIT".into());
        }
        if usize::from(index) != self.regions.len() || self.regions.len() >= REGIONS_MAX {
            return Err(format!("Invalid region index {index}"));
        }
        check_region(&fd, size)?;
        self.regions.push((fd, size));
        Ok(())
    }

    fn ring(&mut self, message: &Message, signal: OwnedFd) -> Result<(), Refusal> {
        let (flags, index, region) = (message.u16(2), message.u16(4), message.u16(6));
        let (offset, log2) = (u32::from_ne_bytes(message.get(8)), message.0[12]);
        let (rings, which) = match flags {
            1 => (&mut self.c2s, "transmit"),
            0 => (&mut self.s2c, "receive"),
            _ => return Err(format!("ring flags {flags:#x}")),
        };
        let there = rings.len();
        let ring = match rings.get_mut(usize::from(index)) {
            None => return Err(format!("{which} ring {index}, and the server has {there}")),
            Some(Some(_)) => return Err(format!("{which} ring {index} again")),
            Some(ring) => ring,
        };
        if log2 > LOG2_SIZE_MAX {
            return Err(format!("a ring of 2^{log2} descriptors"));
        }
        let (_, size) =
            self.regions.get(usize::from(region)).ok_or(format!("no region {region}"))?;
        let end = u64::from(offset) + RING_HEADER_BYTES + (DESCRIPTOR_BYTES << log2);
        if end > *size || offset % 4 != 0 {
            return Err(format!("a ring at {offset} to {end} of a region of {size} bytes"));
        }
        let link = std::fs::read_link(format!("/proc/self/fd/{}", signal.as_raw_fd()));
        if !link.is_ok_and(|l| l.as_os_str() == "anon_inode:[eventfd]") {
            return Err("a ring's descriptor is no eventfd".into());
        }
        *ring = Some(RingOffer { place: (region, offset, log2), signal });
        Ok(())
    }

    /// Each queue of the port needs its ring.
    fn complete(&self) -> Result<(), Refusal> {
        if self.id.is_none() {
            return Err("CONNECT before INIT".into());
        }
        for (rings, theirs, ours) in
            [(&self.c2s, "transmit", "receive"), (&self.s2c, "receive", "transmit")]
        {
            let given = rings.iter().flatten().count();
            if given < rings.len() {
                let n = rings.len();
                return Err(format!(
                    "{given} {theirs} rings, and the server has {n} {ours} queues"
                ));
            }
        }
        Ok(())
    }
}

/// Memory that is really there and may be written.
fn check_region(fd: &OwnedFd, size: u64) -> Result<(), Refusal> {
    let raw = fd.as_raw_fd();
    // SAFETY: only asks about the descriptor; stat is plain data.
    let (seals, mode, have) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let have = if libc::fstat(raw, &mut stat) == 0 { stat.st_size as u64 } else { 0 };
        (libc::fcntl(raw, libc::F_GET_SEALS), libc::fcntl(raw, libc::F_GETFL), have)
    };
    if size == 0 || size > have || size > REGION_BYTES_MAX {
        return Err(format!("a region of {size} bytes in a file of {have}"));
    }
    // Files of other file systems than tmpfs have no seals.
    let frozen = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;
    if (seals >= 0 && seals & frozen != 0) || mode & libc::O_ACCMODE != libc::O_RDWR {
        return Err("a region that may not be written".into());
    }
    Ok(())
}
