//! vhost-user messages of front-ends, with sizes and descriptors checked.
//!
//! Numbers and layouts are those of QEMU's `docs/interop/vhost-user.rst`.

use crate::violation::Violation;
use std::os::fd::OwnedFd;

/// Bytes of a header: request, flags, size of the payload.
pub const HEADER_BYTES: usize = 12;
/// Most memory regions of a table: the limit for back-ends that do not offer more slots.
pub const REGIONS_MAX: usize = 8;
/// Longest payload of a known request: a memory table.
pub const PAYLOAD_BYTES_MAX: usize = 8 + REGIONS_MAX * REGION_BYTES;
const REGION_BYTES: usize = 32;
/// Version 1, in every message.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// Flag beside a ring's number: the message has no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub request: u32,
    /// The front-end waits for a reply, even if the request has none of its own.
    pub need_reply: bool,
    /// Bytes of the payload.
    pub size: usize,
}

impl Header {
    /// Reads and checks a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Violation> {
        let word =
            |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let (request, flags, size) = (word(0), word(4), word(8) as usize);
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(Violation::Version);
        }
        if size > PAYLOAD_BYTES_MAX {
            return Err(Violation::Size);
        }
        Ok(Header { request, need_reply: flags & NEED_REPLY != 0, size })
    }

    /// Encodes a reply to this request.
    pub fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
        for word in [request, VERSION | REPLY, payload.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(payload);
        out
    }
}

/// A region of the guest's memory, as the front-end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes of the region.
    pub size: u64,
    /// Address at which the front-end has mapped the region: ring addresses are of this kind.
    pub user: u64,
    /// Offset of the region in its file.
    pub offset: u64,
}

/// The description of the in-flight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflight {
    /// Bytes of the region; ignored in a request for one.
    pub size: u64,
    /// Offset of the region in its file.
    pub offset: u64,
    /// Number of rings.
    pub queues: u16,
    /// Entries of each ring.
    pub entries: u16,
    /// Bytes of the message's payload: some front-ends pad it.
    pub payload: usize,
}

/// A ring's addresses, in the front-end's own address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddress {
    /// Address of the descriptors.
    pub desc: u64,
    /// Address of the device's area.
    pub used: u64,
    /// Address of the driver's area.
    pub avail: u64,
}

/// A request with its payload and descriptors.
#[derive(Debug)]
pub enum Message {
    /// Asks for the features of the device.
    GetFeatures,
    /// The features that the driver chose.
    SetFeatures(u64),
    /// The session begins.
    SetOwner,
    /// Resets all settings of the session.
    ResetOwner,
    /// The guest's memory.
    SetMemTable(Vec<(TableEntry, OwnedFd)>),
    /// The log of dirty pages: size, offset, file.
    SetLogBase(u64, u64, OwnedFd),
    /// An eventfd to signal when pages were logged; not used.
    SetLogFd,
    /// Entries of a ring: ring, number.
    SetRingSize(u32, u32),
    /// Addresses of a ring.
    SetRingAddress(u32, RingAddress),
    /// The index from which a ring is served: ring, index.
    SetRingBase(u32, u32),
    /// Stops the ring and asks for the index up to which it was served.
    GetRingBase(u32),
    /// Starts the ring. Its kick eventfd is not used: rings are polled.
    SetRingKick(u32),
    /// The eventfd by which the guest is notified, if it wants that.
    SetRingCall(u32, Option<OwnedFd>),
    /// An eventfd to signal errors; not used.
    SetRingErr(u32),
    /// Asks for the protocol features.
    GetProtocolFeatures,
    /// The protocol features that the front-end chose.
    SetProtocolFeatures(u64),
    /// Asks for the number of queue pairs.
    GetQueueNum,
    /// Enables or disables the ring.
    SetRingEnable(u32, bool),
    /// Asks to announce this MAC address to the network.
    SendRarp([u8; 6]),
    /// The guest's MTU.
    SetMtu(u64),
    /// Asks for a region for buffers in flight.
    GetInflight(Inflight),
    /// The region created by the back-end before this one.
    SetInflight(Inflight, OwnedFd),
    /// The device's status, as the driver wrote it.
    SetStatus(u64),
    /// The front-end asks for the device's status.
    GetStatus,
}

/// Reads a payload from its start.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Violation::Size)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Violation> {
        Ok(u16::from_le_bytes(self.bytes()?))
    }

    fn u32(&mut self) -> Result<u32, Violation> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, Violation> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }
}

/// The only descriptor of a message.
fn one(fds: &mut Vec<OwnedFd>) -> Result<OwnedFd, Violation> {
    fds.pop().ok_or(Violation::Descriptors)
}

/// The ring of a message, with the descriptor if it has one.
fn ring_fd(p: &mut Reader, fds: &mut Vec<OwnedFd>) -> Result<(u32, Option<OwnedFd>), Violation> {
    let value = p.u64()?;
    if value & !(NO_DESCRIPTOR | 0xff) != 0 {
        return Err(Violation::Value);
    }
    let fd = if value & NO_DESCRIPTOR == 0 { Some(one(fds)?) } else { None };
    Ok(((value & 0xff) as u32, fd))
}

fn table(p: &mut Reader, fds: &mut Vec<OwnedFd>) -> Result<Message, Violation> {
    let n = p.u32()? as usize;
    p.u32()?;
    if n == 0 || n > REGIONS_MAX {
        return Err(Violation::Region);
    }
    let mut regions = Vec::with_capacity(n);
    for _ in 0..n {
        let (guest, size) = (p.u64()?, p.u64()?);
        let (user, offset) = (p.u64()?, p.u64()?);
        regions.push(TableEntry { guest, size, user, offset });
    }
    // A table may be sent with all its entries, used or not.
    p.0 = if p.0.len() == (REGIONS_MAX - n) * REGION_BYTES { &[] } else { p.0 };
    if fds.len() != n {
        return Err(Violation::Descriptors);
    }
    Ok(Message::SetMemTable(regions.into_iter().zip(fds.drain(..)).collect()))
}

fn address(p: &mut Reader) -> Result<Message, Violation> {
    let (ring, _flags) = (p.u32()?, p.u32()?);
    let (desc, used, avail, _log) = (p.u64()?, p.u64()?, p.u64()?, p.u64()?);
    Ok(Message::SetRingAddress(ring, RingAddress { desc, used, avail }))
}

fn inflight(p: &mut Reader) -> Result<Inflight, Violation> {
    let payload = p.0.len();
    let (size, offset) = (p.u64()?, p.u64()?);
    let (queues, entries) = (p.u16()?, p.u16()?);
    if p.0.len() == 4 {
        p.u32()?;
    }
    Ok(Inflight { size, offset, queues, entries, payload })
}

fn enable(p: &mut Reader) -> Result<Message, Violation> {
    match (p.u32()?, p.u32()?) {
        (ring, on @ (0 | 1)) => Ok(Message::SetRingEnable(ring, on == 1)),
        _ => Err(Violation::Value),
    }
}

fn rarp(p: &mut Reader) -> Result<Message, Violation> {
    let mac = p.bytes()?;
    p.u16()?;
    Ok(Message::SendRarp(mac))
}

impl Message {
    /// Decodes a message; every byte and descriptor must belong to it.
    pub fn decode(
        request: u32,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
    ) -> Result<Message, Violation> {
        let (mut reader, fds) = (Reader(payload), &mut fds);
        let p = &mut reader;
        let message = match request {
            1 => Message::GetFeatures,
            2 => Message::SetFeatures(p.u64()?),
            3 => Message::SetOwner,
            4 => Message::ResetOwner,
            5 => table(p, fds)?,
            6 => Message::SetLogBase(p.u64()?, p.u64()?, one(fds)?),
            7 => {
                one(fds)?;
                p.0 = &[];
                Message::SetLogFd
            }
            8 => Message::SetRingSize(p.u32()?, p.u32()?),
            9 => address(p)?,
            10 => Message::SetRingBase(p.u32()?, p.u32()?),
            11 => {
                let ring = p.u32()?;
                p.u32()?;
                Message::GetRingBase(ring)
            }
            12 => Message::SetRingKick(ring_fd(p, fds)?.0),
            13 => {
                let (ring, fd) = ring_fd(p, fds)?;
                Message::SetRingCall(ring, fd)
            }
            14 => Message::SetRingErr(ring_fd(p, fds)?.0),
            15 => Message::GetProtocolFeatures,
            16 => Message::SetProtocolFeatures(p.u64()?),
            17 => Message::GetQueueNum,
            18 => enable(p)?,
            19 => rarp(p)?,
            20 => Message::SetMtu(p.u64()?),
            31 => Message::GetInflight(inflight(p)?),
            32 => Message::SetInflight(inflight(p)?, one(fds)?),
            39 => Message::SetStatus(p.u64()?),
            40 => Message::GetStatus,
            _ => return Err(Violation::Request),
        };
        match (p.0.is_empty(), fds.is_empty()) {
            (false, _) => Err(Violation::Size),
            (_, false) => Err(Violation::Descriptors),
            _ => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Noise;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn decode(request: u32, words: &[u64], fds: usize) -> Result<Message, Violation> {
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        Message::decode(request, &payload, (0..fds).map(|_| fd()).collect())
    }

    #[test]
    fn headers_say_version_1_and_a_size_that_is_known() {
        let header = |flags: u32, size: u32| {
            let words = [5, flags, size].map(u32::to_le_bytes);
            Header::decode(words.concat().as_slice().try_into().unwrap())
        };
        assert_eq!(header(9, 264), Ok(Header { request: 5, need_reply: true, size: 264 }));
        for flags in [0, 2, 3, 5] {
            assert_eq!(header(flags, 0), Err(Violation::Version));
        }
        assert_eq!(header(1, 265), Err(Violation::Size));
    }

    #[test]
    fn sizes_and_descriptors_are_those_of_the_request() {
        let wrong = |request, words: &[u64], fds| decode(request, words, fds).unwrap_err();
        assert!(matches!(decode(2, &[7], 0), Ok(Message::SetFeatures(7))));
        assert_eq!(wrong(2, &[], 0), Violation::Size);
        assert_eq!(wrong(2, &[7, 7], 0), Violation::Size);
        assert_eq!(wrong(2, &[7], 1), Violation::Descriptors);
        assert!(matches!(decode(13, &[3], 1), Ok(Message::SetRingCall(3, Some(_)))));
        assert!(matches!(decode(13, &[0x103], 0), Ok(Message::SetRingCall(3, None))));
        assert_eq!(wrong(13, &[3], 0), Violation::Descriptors);
        assert_eq!(wrong(13, &[0x103], 1), Violation::Descriptors);
        assert_eq!(wrong(13, &[0x203], 1), Violation::Value);
        assert_eq!(wrong(18, &[2 << 32], 0), Violation::Value);
        assert_eq!(wrong(5, &[0], 0), Violation::Region);
        assert_eq!(wrong(5, &[9, 1, 2, 3, 4], 9), Violation::Region);
        assert_eq!(wrong(5, &[1, 1, 2, 3, 4], 2), Violation::Descriptors);
        assert_eq!(wrong(5, &[2, 1, 2, 3, 4], 2), Violation::Size);
        assert!(
            matches!(decode(5, &[1, 1, 2, 3, 4], 1), Ok(Message::SetMemTable(t)) if t.len() == 1)
        );
        for unknown in [0, 21, 22, 30, 33, 41, u32::MAX] {
            assert_eq!(wrong(unknown, &[], 0), Violation::Request);
        }
    }

    /// Neither panics nor reads beyond what came, whatever comes.
    #[test]
    fn noise_is_refused_or_read() {
        let (mut noise, mut read) = (Noise::default(), 0);
        for _ in 0..20_000 {
            let size = noise.below(PAYLOAD_BYTES_MAX / 8) & !7;
            let payload = noise.bytes(size);
            read += usize::from(Message::decode(noise.below(42) as u32, &payload, vec![]).is_ok());
        }
        assert!(read > 100, "{read}");
    }
}
