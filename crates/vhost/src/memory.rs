//! The parts of a guest's memory that this process may access.

use std::any::Any;

/// A range of guest-physical memory that is mapped in this process.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Guest-physical address of the first byte.
    pub guest: u64,
    /// Length in bytes.
    pub size: u64,
    /// The address at which it is mapped in this process.
    pub host: *mut u8,
}

/// A guest's memory table: the complete list of its memory.
#[derive(Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    /// The owner of the mappings, unless the caller keeps them.
    _owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: addresses; code that follows them vouches for the mapping (`Ring::new`).
unsafe impl Send for Memory {}
// SAFETY: as above; never written.
unsafe impl Sync for Memory {}

impl Memory {
    /// A memory table of these regions. Regions that wrap around the end of an address space are
    /// left out.
    pub fn new(regions: impl IntoIterator<Item = Region>) -> Memory {
        let sane = |r: &Region| {
            r.size > 0
                && r.guest.checked_add(r.size).is_some()
                && (r.host as u64).checked_add(r.size).is_some()
        };
        Memory { regions: regions.into_iter().filter(sane).collect(), _owner: None }
    }

    /// A memory table of regions that are mapped as long as `owner` lives.
    pub fn owned(
        regions: impl IntoIterator<Item = Region>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Memory {
        Memory { _owner: Some(owner), ..Memory::new(regions) }
    }

    /// The address at which guest address `guest` is mapped, and how many of `len` bytes are
    /// contiguous there. `last` is a copy of the region that the last call found, or
    /// [`Region::NONE`]: so the table itself need not be in the cache.
    #[inline]
    pub(crate) fn translate(
        &self,
        last: &mut Region,
        guest: u64,
        len: u32,
    ) -> Option<(*mut u8, u32)> {
        match last.translate(guest, len) {
            Some(found) => Some(found),
            None => self.search(last, guest, len),
        }
    }

    #[cold]
    fn search(&self, last: &mut Region, guest: u64, len: u32) -> Option<(*mut u8, u32)> {
        let (region, found) =
            self.regions.iter().find_map(|r| Some((r, r.translate(guest, len)?)))?;
        *last = *region;
        Some(found)
    }

    /// The guest's address of the memory that is mapped at `host`.
    pub(crate) fn guest(&self, host: *const u8) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let off = (host as u64).wrapping_sub(r.host as u64);
            (off < r.size).then(|| r.guest + off)
        })
    }

    /// True if `len` bytes from `host` on are in one region.
    pub(crate) fn holds(&self, host: *const u8, len: usize) -> bool {
        self.regions.iter().any(|r| {
            let off = (host as u64).wrapping_sub(r.host as u64);
            off < r.size && len as u64 <= r.size - off
        })
    }
}

impl Region {
    /// A region without addresses.
    pub(crate) const NONE: Region = Region { guest: 0, size: 0, host: std::ptr::null_mut() };

    #[inline]
    fn translate(&self, guest: u64, len: u32) -> Option<(*mut u8, u32)> {
        let off = guest.wrapping_sub(self.guest);
        if off >= self.size {
            return None;
        }
        // wrapping_add: whether the mapping is one object is for `Ring::new`'s caller to know.
        let host = self.host.wrapping_add(off as usize);
        Some((host, (self.size - off).min(len.into()) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_their_region_only() {
        let at = |n: usize| n as *mut u8;
        let memory = Memory::new([
            Region { guest: 0, size: 0x1000, host: at(0x10_0000) },
            Region { guest: 0x1000, size: 0x1000, host: at(0x90_0000) },
            Region { guest: u64::MAX - 5, size: 10, host: at(0x50_0000) },
            Region { guest: 0x10_0000, size: 0, host: at(0x60_0000) },
        ]);
        let mut last = Region::NONE;
        assert_eq!(memory.translate(&mut last, 0x1004, 8), Some((at(0x90_0004), 8)));
        assert_eq!(last.guest, 0x1000);
        assert_eq!(memory.translate(&mut last, 0xffc, 8), Some((at(0x10_0ffc), 4)));
        assert_eq!((last.guest, last.size), (0, 0x1000));
        for gone in [0x2000, u64::MAX - 1, u64::MAX, 0x10_0000, 1 << 63] {
            assert_eq!(memory.translate(&mut last, gone, 1), None, "{gone:#x}");
        }
        assert_eq!(memory.guest(at(0x90_0004)), Some(0x1004));
        assert_eq!(memory.guest(at(0x90_1000)), None);
        assert!(memory.holds(at(0x90_0ff0), 16) && !memory.holds(at(0x90_0ff0), 17));
        assert!(!memory.holds(at(0), 1) && !memory.holds(at(0x10_0000), 0x1001));
    }
}
