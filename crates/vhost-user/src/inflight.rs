//! Regions for buffers in flight (vhost-user's GET_INFLIGHT_FD and SET_INFLIGHT_FD).
//!
//! A device that uses buffers out of order writes there which buffers it holds, for the device that
//! replaces it. Ours uses them in order and holds none after a burst, so it creates the region as
//! empty and never writes to it: nothing is in flight. The index at which a ring continues is read
//! from the ring (`vhost::resumed_base`), which works also with front-ends that have no such
//! region, as QEMU's for network devices.

use crate::memory;
use crate::message::Inflight;
use crate::shared::RINGS_MAX;
use crate::violation::Violation;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The area of each queue begins at a multiple of this many bytes.
const ALIGN_BYTES: u64 = 64;
/// Bytes of a queue's area before the entries, and of an entry, for split and packed rings.
const SPLIT_BYTES: (u64, u64) = (16, 16);
const PACKED_BYTES: (u64, u64) = (32, 32);

fn part_bytes(entries: u16, is_packed: bool) -> u64 {
    let (before, each) = if is_packed { PACKED_BYTES } else { SPLIT_BYTES };
    (before + each * u64::from(entries)).next_multiple_of(ALIGN_BYTES)
}

/// Bytes of a region: at most 128 MB, for 128 rings of 32768 entries.
fn region_bytes(region: &Inflight, is_packed: bool) -> Result<u64, Violation> {
    let Inflight { queues, entries, .. } = *region;
    if queues == 0 || usize::from(queues) > RINGS_MAX || entries == 0 || entries > 32_768 {
        return Err(Violation::Inflight);
    }
    Ok(u64::from(queues) * part_bytes(entries, is_packed))
}

/// Creates a region in which nothing is in flight (all zero, like an unused one). Returns the
/// reply's payload and the file. The file's size cannot be changed, and pages that are never
/// written take no memory.
pub(crate) fn make(wanted: Inflight, is_packed: bool) -> Result<(Vec<u8>, OwnedFd), Violation> {
    let bytes = region_bytes(&wanted, is_packed)?;
    // SAFETY: the call returns a new descriptor, which is ours, or an error; the name is
    // NUL-terminated.
    let file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = libc::memfd_create(c"vhost-inflight".as_ptr(), flags);
        if fd < 0 {
            return Err(Violation::Map);
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: the file is ours.
    unsafe {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if libc::ftruncate(file.as_raw_fd(), bytes as i64) != 0
            || libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0
        {
            return Err(Violation::Map);
        }
    }
    let mut reply = Vec::with_capacity(wanted.payload);
    reply.extend_from_slice(&bytes.to_le_bytes());
    reply.extend_from_slice(&0u64.to_le_bytes());
    reply.extend_from_slice(&wanted.queues.to_le_bytes());
    reply.extend_from_slice(&wanted.entries.to_le_bytes());
    reply.resize(wanted.payload, 0);
    Ok((reply, file))
}

/// Checks a region of the device before this one: it is mapped once and unmapped again.
pub(crate) fn check(region: Inflight, file: BorrowedFd) -> Result<(), Violation> {
    let least = region_bytes(&region, false)?;
    if region.size < least || region.size > region_bytes(&region, true)?.max(least) + (1 << 20) {
        return Err(Violation::Inflight);
    }
    let event = Arc::new(memory::event()?);
    memory::map(file, region.offset, region.size, &event).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(queues: u16, entries: u16) -> Inflight {
        Inflight { size: 1 << 40, offset: 0, queues, entries, payload: 24 }
    }

    #[test]
    fn regions_have_the_size_that_we_compute() {
        for (is_packed, bytes) in [(false, 4 * 4160u64), (true, 4 * 8256)] {
            let (reply, file) = make(wanted(4, 256), is_packed).unwrap();
            assert_eq!((reply.len(), &reply[..8]), (24, &bytes.to_le_bytes()[..]));
            let file = std::fs::File::from(file);
            assert_eq!(file.metadata().unwrap().len(), bytes);
            assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
            let region = Inflight { size: bytes, ..wanted(4, 256) };
            use std::os::fd::AsFd;
            assert_eq!(check(region, file.as_fd()), Ok(()));
            let long = Inflight { size: 1 << 40, ..region };
            assert_eq!(check(long, file.as_fd()), Err(Violation::Inflight));
            let outside = Inflight { offset: 1, ..region };
            assert_eq!(check(outside, file.as_fd()), Err(Violation::ShortFile));
        }
        for (queues, entries) in [(0, 1), (1, 0), (129, 1), (1, 32_769), (u16::MAX, u16::MAX)] {
            assert_eq!(make(wanted(queues, entries), false).err(), Some(Violation::Inflight));
        }
    }
}
