//! Maps the files of a front-end: the guest's memory and logs of dirty pages.
//!
//! A file is checked before it is mapped: it must be on a file system whose pages are available at
//! once (a fault in a file that another process serves, or that is read from a disk, would stop a
//! worker), and be at least as long as what is mapped of it. Later changes of the file are handled
//! by [`crate::sigbus`].

use crate::dma_map::{Complain, DmaGuard, DmaMap};
use crate::dma_thread;
use crate::message::TableEntry;
use crate::sigbus::{Registered, register};
use crate::violation::Violation;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vhost::{Memory, Region};

/// File systems from which memory is accepted: tmpfs (with memfd_create), ramfs, hugetlbfs.
const FILE_SYSTEMS: [i64; 3] = [0x0102_1994, 0x8584_58f6, HUGETLBFS];
/// File systems of local disks, from which memory is refused as [`Violation::Disk`]: ext4, XFS,
/// Btrfs.
const DISKS: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
const HUGETLBFS: i64 = 0x9584_58f6;
const PAGE_BYTES: u64 = 4096;
/// Unit of a file's number of blocks (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// A mapped part of a file; unmapped when dropped.
pub struct Mapping {
    /// Address of the part's first byte, which need not be the start of the mapping.
    pub at: *mut u8,
    map: *mut libc::c_void,
    bytes: usize,
    /// The file has all its pages.
    is_allocated: bool,
    registered: Option<Registered>,
    /// Kept open for the handler of SIGBUS.
    _event: Arc<OwnedFd>,
}

// SAFETY: an address range; its bytes are used by raw pointers and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.registered = None;
        // SAFETY: mapped by `map`, and not used any more.
        unsafe { libc::munmap(self.map, self.bytes) };
    }
}

/// What a file is.
struct Look {
    /// Its length in bytes.
    length: u64,
    /// Bytes of one of its pages.
    page: u64,
    /// It has all its pages.
    is_allocated: bool,
}

/// Checks a file.
fn look(fd: BorrowedFd) -> Result<Look, Violation> {
    // SAFETY: both calls write to locals, for which all zero is valid.
    let (stat, fs) = unsafe {
        let (mut stat, mut fs): (libc::stat, libc::statfs) =
            (std::mem::zeroed(), std::mem::zeroed());
        if libc::fstat(fd.as_raw_fd(), &mut stat) != 0
            || libc::fstatfs(fd.as_raw_fd(), &mut fs) != 0
        {
            return Err(Violation::FileKind);
        }
        (stat, fs)
    };
    let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    if is_file && DISKS.contains(&fs.f_type) {
        return Err(Violation::Disk);
    }
    if !is_file || !FILE_SYSTEMS.contains(&fs.f_type) {
        return Err(Violation::FileKind);
    }
    let page = if fs.f_type == HUGETLBFS { fs.f_bsize as u64 } else { PAGE_BYTES };
    let length = stat.st_size as u64;
    let is_allocated = stat.st_blocks as u64 * BLOCK_BYTES >= length;
    Ok(Look { length, page: page.max(PAGE_BYTES), is_allocated })
}

/// Maps `size` bytes of a file from `offset` on, for reading and writing. `event` is made readable
/// when a page of the mapping is lost (the owner truncated the file): it reads as zeros from then
/// on.
///
/// # Errors
/// The file is shorter, is on a file system whose pages may take long to be available, or cannot be
/// mapped.
pub fn map(
    file: BorrowedFd,
    offset: u64,
    size: u64,
    event: &Arc<OwnedFd>,
) -> Result<Mapping, Violation> {
    let Look { length, page, is_allocated } = look(file)?;
    let end = offset.checked_add(size).ok_or(Violation::Region)?;
    if size == 0 || end > length {
        return Err(Violation::ShortFile);
    }
    let from = offset & !(page - 1);
    let bytes = usize::try_from(end.next_multiple_of(page) - from).map_err(|_| Violation::Map)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), from as i64)
    };
    if map == libc::MAP_FAILED {
        return Err(Violation::Map);
    }
    // SAFETY: advice about our own range. Guests' memory is not part of our core dumps.
    unsafe { libc::madvise(map, bytes, libc::MADV_DONTDUMP) };
    let registered = register(map as usize, bytes, page as usize, event.as_fd());
    let at = map.cast::<u8>().wrapping_add((offset - from) as usize);
    let is_there = registered.is_some();
    let mapping = Mapping { at, map, bytes, is_allocated, registered, _event: event.clone() };
    // A mapping that is not registered could end the process; dropping it unmaps it.
    if is_there { Ok(mapping) } else { Err(Violation::Map) }
}

/// A new eventfd, not readable yet.
pub(crate) fn event() -> Result<OwnedFd, Violation> {
    use std::os::fd::FromRawFd;
    // SAFETY: the call returns a new descriptor, which is ours, or an error.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(Violation::Map),
        }
    }
}

/// Makes an eventfd not readable again.
pub(crate) fn clear(event: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: reads eight bytes into a local; the descriptor does not block.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// A guest's memory, as its memory table describes it.
pub(crate) struct RegionTable {
    entries: Vec<(TableEntry, *mut u8)>,
    /// The memory as rings use it; the mappings live as long as this does.
    pub memory: Arc<Memory>,
    /// The memory as engines use it.
    pub dma: Arc<DmaMap>,
}

// SAFETY: contains addresses, as `Memory` does.
unsafe impl Send for RegionTable {}

impl RegionTable {
    /// Checks and maps a table. `event` is made readable when a page of it is lost; `complain` says
    /// why engines cannot use it.
    pub fn new(
        regions: Vec<(TableEntry, OwnedFd)>,
        event: &Arc<OwnedFd>,
        complain: Complain,
    ) -> Result<RegionTable, Violation> {
        let wraps = |at: u64, r: &TableEntry| at.checked_add(r.size).is_none();
        let meet = |a: u64, n: u64, b: u64, m: u64| a < b + m && b < a + n;
        for (i, (r, _)) in regions.iter().enumerate() {
            let bad = r.size == 0 || wraps(r.guest, r) || wraps(r.user, r) || wraps(r.offset, r);
            // The regions before this one were checked, so their sums do not wrap.
            let again = || {
                let mut others = regions[..i].iter().map(|(o, _)| o);
                others.any(|o| {
                    meet(r.guest, r.size, o.guest, o.size) || meet(r.user, r.size, o.user, o.size)
                })
            };
            if bad || again() {
                return Err(Violation::Region);
            }
        }
        let (mut entries, mut maps) = (Vec::new(), Vec::new());
        for (entry, file) in &regions {
            let mapping = map(file.as_fd(), entry.offset, entry.size, event)?;
            entries.push((*entry, mapping.at));
            maps.push(mapping);
        }
        let region =
            |(e, at): &(TableEntry, *mut u8)| Region { guest: e.guest, size: e.size, host: *at };
        let regions: Vec<Region> = entries.iter().map(region).collect();
        let range = |m: &Mapping| m.map.addr()..m.map.addr() + m.bytes;
        let ranges: Vec<_> = maps.iter().map(range).collect();
        let dma = dma_thread::add(&ranges, maps.iter().all(|m| m.is_allocated), complain);
        // In this order they are dropped.
        let owner = (DmaGuard(dma.clone()), maps);
        let memory = Arc::new(Memory::owned(regions, Box::new(owner)));
        Ok(RegionTable { entries, memory, dma })
    }

    /// The NUMA node of its first page, if the kernel reports it.
    pub fn numa(&self) -> Option<usize> {
        const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;
        let (mut node, at) = (0i32, self.entries.first()?.1);
        // SAFETY: writes one word; the address is mapped.
        let ret = unsafe {
            let (none, zero) = (std::ptr::null_mut::<libc::c_ulong>(), 0 as libc::c_ulong);
            libc::syscall(libc::SYS_get_mempolicy, &raw mut node, none, zero, at, NODE_OF_ADDRESS)
        };
        (ret == 0).then(|| usize::try_from(node).ok()).flatten()
    }

    /// The address here of the front-end's address `user`.
    pub fn host(&self, user: u64) -> Option<*mut u8> {
        self.entries.iter().find_map(|(entry, at)| {
            let offset = user.wrapping_sub(entry.user);
            (offset < entry.size).then(|| at.wrapping_add(offset as usize))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::FromRawFd;

    fn memfd(bytes: u64) -> File {
        // SAFETY: a new descriptor.
        let file = unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        file.set_len(bytes).unwrap();
        file
    }

    fn entry(guest: u64, size: u64, user: u64, offset: u64) -> TableEntry {
        TableEntry { guest, size, user, offset }
    }

    fn table(list: &[TableEntry], bytes: u64) -> Result<RegionTable, Violation> {
        let event = Arc::new(event().unwrap());
        let regions = list.iter().map(|e| (*e, memfd(bytes).into())).collect();
        RegionTable::new(regions, &event, Box::new(|_| ()))
    }

    #[test]
    fn tables_are_checked_against_themselves_and_their_files() {
        let max = u64::MAX;
        let good = table(&[entry(0, 8192, 0x9000, 4096), entry(8192, 1, 0x100, 5)], 12288).unwrap();
        assert_eq!(good.host(0x9fff), Some(good.entries[0].1.wrapping_add(0xfff)));
        assert_eq!((good.host(0xb000), good.host(0x8fff)), (None, None));
        for (bad, what) in [
            (vec![entry(0, 0, 0, 0)], Violation::Region),
            (vec![entry(max, 2, 0, 0)], Violation::Region),
            (vec![entry(0, 2, max, 0)], Violation::Region),
            (vec![entry(0, 2, 0, max)], Violation::Region),
            (vec![entry(0, 2, 0, 0), entry(1, 2, 9, 0)], Violation::Region),
            (vec![entry(0, 2, 0, 0), entry(9, 2, 1, 0)], Violation::Region),
            (vec![entry(0, 4097, 0, 0)], Violation::ShortFile),
            (vec![entry(0, 4096, 0, 1)], Violation::ShortFile),
        ] {
            assert_eq!(table(&bad, 4096).err(), Some(what), "{bad:?}");
        }
        for path in ["/dev/null", "/proc/self/stat"] {
            let file = vec![(entry(0, 1, 0, 0), File::open(path).unwrap().into())];
            let kind = RegionTable::new(file, &Arc::new(event().unwrap()), Box::new(|_| ())).err();
            assert_eq!(kind, Some(Violation::FileKind), "{path}");
        }
    }

    /// Each page that a worker touches for the first time would have it wait for the disk.
    #[test]
    fn memory_on_a_disk_is_refused() {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_TMPFILE);
        let file = options.open("/var/tmp").unwrap();
        file.set_len(4096).unwrap();
        let regions = vec![(entry(0, 4096, 0, 0), file.into())];
        let refused = RegionTable::new(regions, &Arc::new(event().unwrap()), Box::new(|_| ()));
        let refused = refused.err().unwrap();
        assert!([Violation::Disk, Violation::FileKind].contains(&refused), "{refused:?}");
    }

    /// What is gone reads as zeros, is reported, and does not end the process.
    #[test]
    fn a_file_that_shrinks_under_us_is_survived() {
        let file = memfd(1 << 20);
        let all = entry(0, 1 << 20, 0x10_0000, 0);
        let event = Arc::new(event().unwrap());
        let regions = vec![(all, file.try_clone().unwrap().into())];
        let table = RegionTable::new(regions, &event, Box::new(|_| ())).unwrap();
        let at = table.host(0x10_0000 + 0x8_0000).unwrap();
        // SAFETY: mapped as long as the table lives; volatile, as the file changes.
        unsafe {
            at.write_volatile(7);
            file.set_len(0).unwrap();
            assert_eq!(at.read_volatile(), 0);
            at.add(4096).write_volatile(9);
            assert_eq!(at.add(4096).read_volatile(), 9);
        }
        let mut count = 0u64;
        // SAFETY: eight bytes that live here.
        let n = unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
        assert_eq!((n, count), (8, 2), "two pages were gone");
        clear(&event);
    }
}
