//! The log of dirty pages of a guest that is being migrated: one bit for each page that was
//! written.

use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a page in the log, whatever page size the guest has (vhost-user: VHOST_LOG_PAGE).
const PAGE_BYTES: u64 = 4096;

/// A bitmap in which this process sets bits, and which the migration reads and clears at the same
/// time.
#[derive(Debug)]
pub struct DirtyLog {
    host: *mut u8,
    bytes: u64,
    /// The owner of the mapping, which lives as long as the log.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: an address range of which single bytes are changed by atomics only.
unsafe impl Send for DirtyLog {}
// SAFETY: as above.
unsafe impl Sync for DirtyLog {}

impl DirtyLog {
    /// A log of `bytes` bytes at `host`.
    ///
    /// # Safety
    /// The `bytes` at `host` are mapped for reading and writing as long as `owner` lives.
    pub unsafe fn new(host: *mut u8, bytes: u64, owner: Box<dyn Any + Send + Sync>) -> DirtyLog {
        DirtyLog { host, bytes, _owner: owner }
    }

    /// Marks the pages of `len` bytes at guest address `guest`; pages beyond the log are left out.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len - 1) / PAGE_BYTES;
        for page in guest / PAGE_BYTES..=last.min(self.bytes.saturating_mul(8).saturating_sub(1)) {
            if page / 8 >= self.bytes {
                return;
            }
            // SAFETY: within the log; atomic, as the migration changes it too.
            let byte = unsafe { AtomicU8::from_ptr(self.host.add((page / 8) as usize)) };
            byte.fetch_or(1 << (page % 8), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_marked_as_far_as_the_log_goes() {
        let mut bits = vec![0u8; 3];
        // SAFETY: two of the three bytes; the vector outlives the log.
        let log = unsafe { DirtyLog::new(bits.as_mut_ptr(), 2, Box::new(())) };
        log.mark(0x3fff, 1);
        log.mark(0x4fff, 2);
        log.mark(0xf000, 0x5000);
        log.mark(u64::MAX, 9);
        log.mark(0, 0);
        drop(log);
        assert_eq!(bits, [0b0011_1000, 0b1000_0000, 0]);
    }
}
