//! Packet buffers: DPDK mempools by size class, behind `packet::Pool`.

use crate::{DpdkError, Eal};
use packet::{HEADROOM, Packet, Pool};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Most buffers a class has.
const MAX_BUFFERS: u32 = 65_536;
/// Fewest buffers a class works with.
const MIN_BUFFERS: u32 = 2_048;
/// Buffers of a lossy pool.
const LOSSY_BUFFERS: u32 = 16_384;
/// Bytes a class may take.
const BUDGET: u32 = 192 << 20;
/// Buffers in a registered thread's cache, the most that DPDK allows; half as many more stay there
/// until some go to the pool. A vector of 256 packets and what waits to be sent come from it and go
/// back to it: with less, buffers that lie in no cache of the core take turns with those that do.
const CACHE_BUFFERS: u32 = 512;
/// A cache has at most one in so many of a pool's buffers: what lies in the caches of some threads
/// is out of reach for the others.
const CACHE_BUFFERS_RATIO: u32 = 16;
/// Bytes of an Ethernet header, two VLAN tags and the FCS.
const FRAME_OVERHEAD: usize = 14 + 8 + 4;
/// Classes are multiples of this, so that few different MTUs make few pools.
const CLASS: usize = 1024;
/// Layer-3 MTU, bytes, of the middle one of three pools for the kernel's devices.
const JUMBO_MTU: u16 = 9216;
/// Classes that there can be: a buffer's length has 16 bits.
const CLASSES: usize = (u16::MAX as usize).div_ceil(CLASS) + 1;

/// One mempool. It lives as long as the process: buffers may be anywhere.
pub struct DpdkPool {
    raw: NonNull<dpdk_sys::rte_mempool>,
    buffers: u32,
    room: usize,
}

// SAFETY: mempools are made for several threads: registered ones have a cache each, others go to
// the multi-producer, multi-consumer ring.
unsafe impl Send for DpdkPool {}
// SAFETY: as above.
unsafe impl Sync for DpdkPool {}

/// A name that no other pool has.
fn unique_name(data: usize) -> CString {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("weft{serial}-{data}")).expect("no NUL in it")
}

impl DpdkPool {
    /// Makes a pool of packets of up to `data` bytes on NUMA node `numa`, `limit` of them or
    /// as many as the budget allows, fewer when memory is short.
    fn create(data: usize, numa: i32, limit: u32) -> Result<DpdkPool, DpdkError> {
        let room = (data + HEADROOM) as u16;
        let most = (BUDGET / (room as u32 + 256)).clamp(MIN_BUFFERS, limit);
        let mut buffers = most;
        let mut error = DpdkError::new("cannot allocate packet buffers", "no memory");
        while buffers >= MIN_BUFFERS {
            let name = unique_name(data);
            // One less than a power of two is what the ring below holds without waste.
            let n = buffers - 1;
            let cache = CACHE_BUFFERS.min(n / CACHE_BUFFERS_RATIO);
            // SAFETY: EAL runs (callers hold an `Eal`); the name is copied.
            let raw = unsafe {
                dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), n, cache, 0, room, numa)
            };
            if let Some(raw) = NonNull::new(raw) {
                return Ok(DpdkPool { raw, buffers: n, room: data });
            }
            error = DpdkError::code(format!("cannot allocate {n} packet buffers"), -1);
            buffers /= 2;
        }
        Err(error)
    }

    /// Makes a pool for AF_XDP: [`LOSSY_BUFFERS`] packets, each in a page of its own. DPDK 22.11's
    /// driver registers so many bytes as buffers have together, and without hugepages those of
    /// other pools have gaps between them: the kernel refuses what lies beyond, and in the end a
    /// device has no buffers to receive into.
    fn of_pages(data: usize) -> Result<DpdkPool, DpdkError> {
        let name = unique_name(data);
        let n = LOSSY_BUFFERS - 1;
        // SAFETY: EAL runs (callers hold an `Eal`); the name is copied.
        let raw = unsafe { dpdk_sys::weft_page_pool(name.as_ptr(), n, CACHE_BUFFERS, -1) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            DpdkError::code(format!("cannot allocate {n} packet buffers of a page"), -1)
        })?;
        Ok(DpdkPool { raw, buffers: n, room: data })
    }

    /// Buffers out of the pool: in flight, or posted to a device's receive ring.
    pub fn in_use(&self) -> usize {
        // SAFETY: the pool lives for ever.
        unsafe { dpdk_sys::rte_mempool_in_use_count(self.raw.as_ptr()) as usize }
    }

    /// Buffers in total.
    pub fn capacity(&self) -> usize {
        self.buffers as usize
    }

    /// Bytes of data a fresh packet holds.
    pub fn data_room(&self) -> usize {
        self.room
    }

    pub(crate) fn raw(&self) -> *mut dpdk_sys::rte_mempool {
        self.raw.as_ptr()
    }
}

impl Pool for DpdkPool {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        out.reserve(n);
        // SAFETY: room for n more was reserved; Packet is one mbuf pointer, never null after a
        // successful allocation, which fills all n or none.
        unsafe {
            let end = out.as_mut_ptr().add(out.len());
            if dpdk_sys::weft_alloc_bulk(self.raw(), end.cast(), n as u32) != 0 {
                return false;
            }
            out.set_len(out.len() + n);
        }
        true
    }

    fn free(&self, packets: &[Packet]) {
        free(packets);
    }

    fn room(&self) -> usize {
        self.room
    }
}

/// Gives packets back to the pools they came from.
pub(crate) fn free(packets: &[Packet]) {
    if !packets.is_empty() {
        // SAFETY: the caller owns the packets, all of them DPDK's. The C side only reads the array.
        unsafe {
            dpdk_sys::weft_free_bulk(packets.as_ptr().cast_mut().cast(), packets.len() as u32)
        };
    }
}

/// Frees the chains of several buffers among `out[start..]`; returns how many there were.
pub(crate) fn drop_chains(out: &mut Vec<Packet>, start: usize) -> usize {
    if out[start..].iter().all(|p| p.segments() == 1) {
        return 0;
    }
    let fresh: Vec<Packet> = out.drain(start..).collect();
    let (whole, chains): (Vec<Packet>, Vec<Packet>) =
        fresh.into_iter().partition(|p| p.segments() == 1);
    free(&chains);
    out.extend(whole);
    chains.len()
}

/// The process's pools, one per size class and NUMA node, made when first asked for. As a
/// [`Pool`] it hands out default-sized packets, and larger ones where the data needs it.
pub struct Pools {
    eal: Eal,
    default: Arc<DpdkPool>,
    lossy: Mutex<Option<Arc<DpdkPool>>>,
    classes: Mutex<BTreeMap<(usize, i32), Arc<DpdkPool>>>,
    /// The first pool of each class, by class number: what workers read without a lock.
    by_class: [OnceLock<Arc<DpdkPool>>; CLASSES],
}

impl Pools {
    /// Makes the default pool (packets for MTU 1500) at once.
    pub fn new(eal: Eal) -> Result<Pools, DpdkError> {
        let data = class(1500);
        let default = Arc::new(DpdkPool::create(data, -1, MAX_BUFFERS)?);
        let classes = Mutex::new(BTreeMap::from([((data, 0), default.clone())]));
        let by_class = std::array::from_fn(|_| OnceLock::new());
        let pools = Pools { eal, default, lossy: Mutex::new(None), classes, by_class };
        let _ = pools.by_class[data.div_ceil(CLASS)].set(pools.default.clone());
        Ok(pools)
    }

    /// The EAL they were made with.
    pub fn eal(&self) -> Eal {
        self.eal
    }

    /// The default pool.
    pub fn default_pool(&self) -> &Arc<DpdkPool> {
        &self.default
    }

    /// The pool for frames of a port with layer-3 `mtu` on NUMA node `numa`.
    pub fn for_mtu(&self, mtu: u16, numa: usize) -> Result<Arc<DpdkPool>, DpdkError> {
        let key = (class(mtu), numa as i32);
        let mut classes = self.classes.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(pool) = classes.get(&key) {
            return Ok(pool.clone());
        }
        // A node without memory of its own shares that of others.
        let pool = DpdkPool::create(key.0, key.1, MAX_BUFFERS)
            .or_else(|_| DpdkPool::create(key.0, -1, MAX_BUFFERS))?;
        let pool = Arc::new(pool);
        classes.insert(key, pool.clone());
        let _ = self.by_class[key.0.div_ceil(CLASS)].set(pool.clone());
        Ok(pool)
    }

    /// A pool of default packets for a device whose driver loses buffers when it closes, so that
    /// no other user runs short. One that has lost half of its buffers is given up for a fresh one.
    pub fn lossy(&self) -> Result<Arc<DpdkPool>, DpdkError> {
        let mut lossy = self.lossy.lock().unwrap_or_else(|e| e.into_inner());
        match &*lossy {
            Some(pool) if pool.in_use() < pool.capacity() / 2 => Ok(pool.clone()),
            _ => {
                let pool = DpdkPool::of_pages(self.default.room)?;
                Ok(lossy.insert(Arc::new(pool)).clone())
            }
        }
    }

    /// Buffers out of all pools together, but for the lossy one.
    pub fn in_use(&self) -> usize {
        self.all().iter().map(|pool| pool.in_use()).sum()
    }

    /// Every pool there is, but for the lossy one.
    pub fn all(&self) -> Vec<Arc<DpdkPool>> {
        self.classes.lock().unwrap_or_else(|e| e.into_inner()).values().cloned().collect()
    }

    /// A pool of the smallest class there is that holds `bytes`.
    fn holding(&self, bytes: usize) -> Option<&DpdkPool> {
        let fits = |pool: &&Arc<DpdkPool>| pool.room >= bytes;
        let classes = self.by_class.iter().skip(bytes / CLASS);
        classes.filter_map(OnceLock::get).find(fits).map(|pool| &**pool)
    }
}

impl Pool for Pools {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        self.default.alloc(out, n)
    }

    fn free(&self, packets: &[Packet]) {
        free(packets);
    }

    fn room(&self) -> usize {
        self.by_class.iter().rev().find_map(OnceLock::get).map_or(0, |pool| pool.room)
    }

    fn provide(&self, mtu: u32) -> Result<(), String> {
        let mtu = provided_mtu(mtu);
        if class(mtu) <= self.room() {
            return Ok(());
        }
        self.for_mtu(mtu, 0).map(drop).map_err(|e| e.to_string())
    }

    fn sized(&self, bytes: usize) -> Option<Packet> {
        let pool = if bytes <= self.default.room { &self.default } else { self.holding(bytes)? };
        let mut one = std::ptr::null_mut::<packet::Mbuf>();
        // SAFETY: room for one pointer, which a successful allocation fills.
        unsafe {
            let failed = dpdk_sys::weft_alloc_bulk(pool.raw(), (&raw mut one).cast(), 1) != 0;
            (!failed).then(|| Packet::from_raw(one))
        }
    }
}

/// The MTU for which there are to be packets where a kernel's device has this one. Whoever has the
/// device chooses, and pools stay: there are three for all of them.
fn provided_mtu(mtu: u32) -> u16 {
    const STEPS: [u16; 3] = [1500, JUMBO_MTU, u16::MAX];
    STEPS.into_iter().find(|step| mtu <= u32::from(*step)).unwrap_or(u16::MAX)
}

/// Data bytes of the class that holds frames of `mtu`.
fn class(mtu: u16) -> usize {
    (mtu as usize + FRAME_OVERHEAD).next_multiple_of(CLASS).min(u16::MAX as usize - HEADROOM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn devices_of_any_mtu_need_three_pools() {
        let all: Vec<u32> = (0..70_000).collect();
        let enough = |mtu: &u32| u32::from(provided_mtu(*mtu)) >= (*mtu).min(u16::MAX.into());
        assert!(all.iter().all(enough));
        assert_eq!(all.iter().map(|m| class(provided_mtu(*m))).collect::<BTreeSet<_>>().len(), 3);
    }
}
