//! Copy engines (dmadev): which there are, and the use of one.

use crate::{DpdkError, Eal};
use ::vhost::{DmaMapper, Engine, Job};
use dpdk_sys as sys;
use std::ffi::CStr;
use std::io;

/// Copies that an engine is asked to hold, if it may: its descriptors then still fit into a core's
/// cache.
const COPIES_WANTED: u16 = 1024;

/// A copy engine that DPDK knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaInfo {
    /// DPDK's number of it.
    pub id: i16,
    /// Its name.
    pub name: String,
    /// NUMA node, if it is known.
    pub numa: Option<usize>,
    /// The engine copies between any two addresses of this process.
    pub copies: bool,
    /// The engine takes addresses as the CPU does, so that nothing has to be mapped for it by a
    /// [`VfioMapper`].
    pub virtual_addresses: bool,
    descriptors: (u16, u16),
}

/// The engines that DPDK knows, by their number.
pub fn dma_devices(_eal: Eal) -> Vec<DmaInfo> {
    // SAFETY: walks DPDK's table, which only the control side changes.
    let ids = std::iter::successors(Some(unsafe { sys::rte_dma_next_dev(0) }), |id| {
        // SAFETY: as above.
        (*id >= 0).then(|| unsafe { sys::rte_dma_next_dev(id + 1) })
    });
    ids.take_while(|id| *id >= 0).filter_map(info).collect()
}

fn info(id: i16) -> Option<DmaInfo> {
    // SAFETY: plain data; the call fills it or fails.
    let info = unsafe {
        let mut info: sys::rte_dma_info = std::mem::zeroed();
        (sys::rte_dma_info_get(id, &mut info) == 0 && !info.dev_name.is_null()).then_some(info)?
    };
    // SAFETY: a NUL-terminated name that lives as long as the device.
    let name = unsafe { CStr::from_ptr(info.dev_name) }.to_string_lossy().into_owned();
    let has = |bits: u64| info.dev_capa & bits == bits;
    Some(DmaInfo {
        id,
        name,
        numa: usize::try_from(info.numa_node).ok(),
        copies: has(sys::WEFT_DMA_COPIES),
        virtual_addresses: has(sys::WEFT_DMA_SVA),
        descriptors: (info.min_desc, info.max_desc),
    })
}

/// What an engine did since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaStats {
    /// Copies that it got.
    pub submitted: u64,
    /// Copies that it completed, those included that failed.
    pub completed: u64,
    /// Copies that failed.
    pub errors: u64,
}

/// What an engine did, by DPDK's number of it.
pub fn dma_stats(id: i16) -> DmaStats {
    // SAFETY: plain data; the call fills it or fails.
    let stats = unsafe {
        let mut stats: sys::rte_dma_stats = std::mem::zeroed();
        sys::rte_dma_stats_get(id, 0, &mut stats);
        stats
    };
    DmaStats { submitted: stats.submitted, completed: stats.completed, errors: stats.errors }
}

/// A started engine with one channel. Dropping it stops it.
pub struct DmaEngine {
    id: i16,
    runs: bool,
}

impl DmaEngine {
    /// Configures and starts an engine that has no other user. It is given virtual addresses: those
    /// of [`DmaInfo::virtual_addresses`], or of memory that is mapped for it.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn start(eal: Eal, info: &DmaInfo) -> Result<DmaEngine, DpdkError> {
        let what = |step: &str| format!("DMA device {}: cannot {step}", info.name);
        let check = |step: &str, ret: i32| match ret {
            0 => Ok(()),
            ret => Err(DpdkError::code(what(step), ret)),
        };
        if !info.copies {
            return Err(DpdkError::new(what("be used"), "copies no memory"));
        }
        if !info.virtual_addresses && !eal.maps_virtual_addresses() {
            let reason = "takes physical addresses (DPDK's IOVA mode is PA)";
            return Err(DpdkError::new(what("be used"), reason));
        }
        let (least, most) = info.descriptors;
        let conf = sys::rte_dma_conf { nb_vchans: 1, enable_silent: false };
        // SAFETY: plain data, for which zero means nothing.
        let mut vchan: sys::rte_dma_vchan_conf = unsafe { std::mem::zeroed() };
        vchan.direction = sys::RTE_DMA_DIR_MEM_TO_MEM;
        vchan.nb_desc = COPIES_WANTED.min(most).max(least);
        // SAFETY: the device exists and is not started; the calls only read what they are given.
        unsafe {
            check("configure it", sys::rte_dma_configure(info.id, &conf))?;
            check("set up its channel", sys::rte_dma_vchan_setup(info.id, 0, &vchan))?;
            check("start it", sys::rte_dma_start(info.id))?;
        }
        Ok(DmaEngine { id: info.id, runs: true })
    }
}

impl Drop for DmaEngine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Maps memory for the devices on vfio-pci, under the addresses that it has in this process: VFIO's
/// default container, in which all of them are.
pub struct VfioMapper;

impl DmaMapper for VfioMapper {
    fn map(&self, at: usize, bytes: usize) -> io::Result<()> {
        // SAFETY: EAL keeps its own account of what is mapped, under a lock.
        result(unsafe { sys::weft_dma_map(at as u64, bytes as u64) })
    }

    fn unmap(&self, at: usize, bytes: usize) -> io::Result<()> {
        // SAFETY: as above.
        result(unsafe { sys::weft_dma_unmap(at as u64, bytes as u64) })
    }
}

/// What a call says that returns 0 or a negative error number.
fn result(ret: i32) -> io::Result<()> {
    if ret == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-ret)) }
}

/// The shim's job and `vhost`'s are laid out alike.
const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Job>() == size_of::<sys::weft_job>());
    assert!(align_of::<Job>() == align_of::<sys::weft_job>());
    assert!(offset_of!(Job, from) == offset_of!(sys::weft_job, from));
    assert!(offset_of!(Job, to) == offset_of!(sys::weft_job, to));
    assert!(offset_of!(Job, len) == offset_of!(sys::weft_job, len));
};

/// As a number of copies that one call of the driver takes.
fn few(n: usize) -> u16 {
    n.min(u16::MAX.into()) as u16
}

impl Engine for DmaEngine {
    fn room(&mut self) -> usize {
        // SAFETY: the device is started, and used by this thread alone.
        unsafe { sys::weft_dma_room(self.id) }.into()
    }

    unsafe fn copy(&mut self, jobs: &[Job]) -> usize {
        let n = few(jobs.len());
        // SAFETY: as above; `n` jobs are read, and the caller vouches for what they name.
        unsafe { sys::weft_dma_copy(self.id, jobs.as_ptr().cast(), n) }.into()
    }

    fn submit(&mut self) {
        // SAFETY: as above.
        unsafe { sys::weft_dma_submit(self.id) };
    }

    fn completed(&mut self, max: usize) -> (usize, bool) {
        let mut failed = 0;
        // SAFETY: as above.
        let n = unsafe { sys::weft_dma_completed(self.id, few(max), &mut failed) };
        (n.into(), failed != 0)
    }

    fn statuses(&mut self, max: usize, out: &mut Vec<u32>) {
        let max = max.min(sys::WEFT_DMA_STATUSES_MAX as usize);
        out.reserve(max);
        // SAFETY: as above; there is room for `max` statuses, of which the call writes as many as
        // it returns.
        unsafe {
            let at = out.as_mut_ptr().add(out.len());
            let n = sys::weft_dma_statuses(self.id, few(max), at);
            out.set_len(out.len() + usize::from(n));
        }
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.runs) {
            // SAFETY: the device is started; it has no other user.
            unsafe { sys::rte_dma_stop(self.id) };
        }
    }
}
