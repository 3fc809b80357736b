//! Memory that is shared with a peer.

use super::message::Refusal;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use vhost_user::Mapping;

/// The regions of a connection; unmapped when the last ring is gone.
pub(crate) struct SharedMemory {
    regions: Vec<(Mapping, u64)>,
}

impl SharedMemory {
    /// Maps files of these lengths. `event` is made readable when a part of one is found to be
    /// gone, as its owner made it shorter: zeros are read there then, and what is written is lost.
    ///
    /// # Errors
    /// A file cannot be mapped, is shorter, or lies on a file system whose pages may take long.
    pub fn map(regions: &[(OwnedFd, u64)], event: &Arc<OwnedFd>) -> Result<SharedMemory, Refusal> {
        let map = |(fd, bytes): &(OwnedFd, u64)| {
            let mapping = vhost_user::map(fd.as_fd(), 0, *bytes, event);
            mapping.map(|m| (m, *bytes)).map_err(|e| format!("a region: {}", e.name()))
        };
        Ok(SharedMemory { regions: regions.iter().map(map).collect::<Result<_, _>>()? })
    }

    /// Where `len` bytes at `offset` of a region are mapped; None: they are not all in it.
    #[inline]
    pub fn at(&self, region: u16, offset: u32, len: u64) -> Option<*mut u8> {
        let (mapping, bytes) = self.regions.get(usize::from(region))?;
        let inside = u64::from(offset) + len <= *bytes;
        inside.then(|| mapping.at.wrapping_add(offset as usize))
    }
}

/// New memory of so many bytes, which does not shrink.
///
/// # Errors
/// There is none.
pub(crate) fn new_region(bytes: u64) -> std::io::Result<OwnedFd> {
    // SAFETY: a new descriptor, which is ours if it is one; then calls about it alone.
    unsafe {
        let raw =
            libc::memfd_create(c"memif".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if raw < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(raw);
        if libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) != 0
            || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
        Ok(fd)
    }
}
