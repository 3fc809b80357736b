//! DPDK, safely: start-up, mempools, ethdev ports and vhost-user connections.
//!
//! *Place*: devices row, the only user of `dpdk-sys`. *Knows*: EAL's rules about threads, memory
//! and lifetimes, and keeps them: a queue handle keeps its device open, a vhost burst keeps its
//! guest's memory mapped, a pool lives as long as the process. *Does not know*: OVSDB, flows,
//! who calls it.
//!
//! Start with [`Eal::init`]; everything else asks for the [`Eal`] it returns.

mod args;
mod dma;
mod dump;
mod eal;
mod eth;
mod eth_info;
mod flow_control;
mod link_watch;
mod pool;
mod registry;
mod rules;
mod upsets;
mod vhost;
mod xdp;

pub use dma::{DmaEngine, DmaInfo, DmaStats, VfioMapper, dma_devices, dma_stats};
pub use dump::{detach, lcores, log_levels, malloc_stats, set_log_level};
pub use eal::{Eal, EalConfig, ThreadGuard};
pub use eth::{EthConfig, EthDev, EthQueues, EthRx, EthTx};
pub use eth_info::{EthInfo, EthLink, EthStats};
pub use flow_control::FlowControl;
pub use link_watch::OnLinkChange;
pub use pool::{DpdkPool, Pools};
pub use rules::EthRules;
pub use vhost::{VhostConfig, VhostRx, VhostSocket, VhostTx};

use std::ffi::CStr;

/// What DPDK refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct DpdkError {
    /// What was tried.
    pub what: String,
    /// What DPDK answered.
    pub reason: String,
}

impl DpdkError {
    pub(crate) fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        DpdkError { what: what.into(), reason: reason.into() }
    }

    /// An error from a return value of DPDK: a negative errno, or -1 with `rte_errno` set; and from
    /// what it logged on the way.
    pub(crate) fn code(what: impl Into<String>, ret: i32) -> Self {
        // SAFETY: reads this thread's errno variable.
        let errno = if ret == -1 { unsafe { dpdk_sys::weft_errno() } } else { ret.abs() };
        // SAFETY: rte_strerror returns a NUL-terminated string for every number.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno)) };
        let text = if errno == 0 { "refused".into() } else { text.to_string_lossy() };
        match eal::take_last_log() {
            log if log.is_empty() => DpdkError::new(what, text),
            log => DpdkError::new(what, format!("{text} ({log})")),
        }
    }
}

/// `DPDK 22.11.x`, for `Open_vSwitch.dpdk_version`.
pub fn dpdk_version() -> String {
    // SAFETY: rte_version returns a static NUL-terminated string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

/// The layout contract between `packet::Mbuf` and the real `rte_mbuf`.
const _: () = {
    use dpdk_sys::rte_mbuf as R;
    use packet::Mbuf as M;
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<M>() == size_of::<R>() && align_of::<M>() == align_of::<R>());
    assert!(offset_of!(M, buf_addr) == offset_of!(R, buf_addr));
    assert!(offset_of!(M, buf_iova) == offset_of!(R, buf_iova));
    assert!(offset_of!(M, data_off) == offset_of!(R, data_off));
    assert!(offset_of!(M, refcnt) == offset_of!(R, refcnt));
    assert!(offset_of!(M, nb_segs) == offset_of!(R, nb_segs));
    assert!(offset_of!(M, port) == offset_of!(R, port));
    assert!(offset_of!(M, ol_flags) == offset_of!(R, ol_flags));
    assert!(offset_of!(M, packet_type) == offset_of!(R, __bindgen_anon_1));
    assert!(offset_of!(M, pkt_len) == offset_of!(R, pkt_len));
    assert!(offset_of!(M, data_len) == offset_of!(R, data_len));
    assert!(offset_of!(M, vlan_tci) == offset_of!(R, vlan_tci));
    assert!(offset_of!(M, hash_rss) == offset_of!(R, __bindgen_anon_2));
    assert!(offset_of!(M, vlan_tci_outer) == offset_of!(R, vlan_tci_outer));
    assert!(offset_of!(M, buf_len) == offset_of!(R, buf_len));
    assert!(offset_of!(M, pool) == offset_of!(R, pool));
    assert!(offset_of!(M, next) == offset_of!(R, next));
    assert!(offset_of!(M, tx_offload) == offset_of!(R, __bindgen_anon_3));
    assert!(packet::HEADROOM == dpdk_sys::RTE_PKTMBUF_HEADROOM as usize);
};
