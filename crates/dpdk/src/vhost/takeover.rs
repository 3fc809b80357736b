//! Taking a guest's rings over from DPDK's vhost library, and giving them back.
//!
//! The library tells of every message of a guest before and after it acts on it
//! ([`super::socket`]). Before, the rings are given back, with the place up to which they were
//! served; after, they are taken over as they are then. So memory, ring addresses, bases and event
//! descriptors never change while we use them, and live migration finds the library's ideas right.

use super::rings::OwnRing;
use dpdk_sys as sys;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vhost::{Memory, Region, Ring, RingSetup, feature};

/// Features with which the library serves the rings: it knows how to log dirty pages and how to
/// ask an IOMMU.
const LIBRARYS: u64 = feature::LOG_ALL | feature::IOMMU_PLATFORM;

/// Are the rings of this guest, with what was negotiated, ours to serve?
///
/// # Safety
/// `vid` is a live guest.
pub(crate) unsafe fn is_ours(vid: i32) -> bool {
    let mut features = 0;
    // SAFETY: fills what it is given.
    let known = unsafe { sys::rte_vhost_get_negotiated_features(vid, &mut features) } == 0;
    known && features & LIBRARYS == 0
}

/// The rings of a guest that can be served, with their numbers.
///
/// # Safety
/// `vid` is a live guest that has set its memory table, and stays as it is until the rings are
/// dropped.
pub(crate) unsafe fn take(vid: i32) -> Vec<(usize, OwnRing)> {
    // SAFETY: the caller's word.
    unsafe {
        let mut features = 0;
        sys::rte_vhost_get_negotiated_features(vid, &mut features);
        let Some(memory) = memory(vid) else { return Vec::new() };
        let rings = 0..sys::rte_vhost_get_vring_num(vid);
        rings.filter_map(|i| Some((i.into(), ring(vid, i, features, &memory)?))).collect()
    }
}

/// # Safety
/// As [`take`].
unsafe fn memory(vid: i32) -> Option<Arc<Memory>> {
    let mut table = std::ptr::null_mut();
    // SAFETY: on success the table is ours, with as many regions as it says, and to be freed.
    unsafe {
        if sys::rte_vhost_get_mem_table(vid, &mut table) != 0 {
            return None;
        }
        let regions = (&raw const (*table).regions).cast::<sys::rte_vhost_mem_region>();
        let region = |i| {
            let r = regions.add(i).read_unaligned();
            let host = std::ptr::with_exposed_provenance_mut(r.host_user_addr as usize);
            Region { guest: r.guest_phys_addr, size: r.size, host }
        };
        let memory = Memory::new((0..(*table).nregions as usize).map(region));
        libc::free(table.cast());
        Some(Arc::new(memory))
    }
}

/// # Safety
/// As [`take`].
unsafe fn ring(vid: i32, i: u16, features: u64, memory: &Arc<Memory>) -> Option<OwnRing> {
    // SAFETY: each call fills what it is given; the pointers are all of one kind of union.
    unsafe {
        let mut vring: sys::rte_vhost_vring = std::mem::zeroed();
        let (mut avail, mut used) = (0, 0);
        if sys::rte_vhost_get_vhost_vring(vid, i, &mut vring) != 0
            || sys::rte_vhost_get_vring_base(vid, i, &mut avail, &mut used) != 0
            || avail != used
        {
            return None;
        }
        let desc = vring.__bindgen_anon_1.desc.cast::<u8>();
        let driver = vring.__bindgen_anon_2.avail.cast::<u8>();
        let device = vring.__bindgen_anon_3.used.cast::<u8>();
        let areas = [desc, driver, device];
        let setup = RingSetup { features, size: vring.size, areas, base: avail };
        let ring = Ring::new(&setup, memory.clone()).ok()?;
        if vring.callfd >= 0 {
            libc::fcntl(vring.callfd, libc::F_SETFL, libc::O_NONBLOCK);
        }
        Some(OwnRing { ring, call_fd: vring.callfd, told: Box::default() })
    }
}

/// Tells the library how far a ring was served.
///
/// # Safety
/// `vid` is a live guest and nobody serves the ring.
pub(crate) unsafe fn give_back(vid: i32, i: usize, mut ring: OwnRing) {
    fence(Ordering::SeqCst);
    ring.notify();
    let base = ring.ring.base();
    // SAFETY: the caller's word; an unknown ring is refused.
    unsafe { sys::rte_vhost_set_vring_base(vid, i as u16, base, base) };
}
