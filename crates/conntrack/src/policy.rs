//! Timeouts: how long a connection is stored without a packet.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a connection's timeout depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Class {
    TcpSynSent,
    TcpSynRecv,
    TcpEstablished,
    TcpFinWait,
    TcpTimeWait,
    TcpClose,
    UdpFirst,
    UdpSingle,
    UdpMultiple,
    IcmpFirst,
    IcmpReply,
}

/// Number of classes.
pub const CLASSES: usize = 11;

/// Names in the database (CT_Timeout_Policy, `timeouts`), in order of [`Class`].
pub const CLASS_NAMES: [&str; CLASSES] = [
    "tcp_syn_sent",
    "tcp_syn_recv",
    "tcp_established",
    "tcp_fin_wait",
    "tcp_time_wait",
    "tcp_close",
    "udp_first",
    "udp_single",
    "udp_multiple",
    "icmp_first",
    "icmp_reply",
];

/// Seconds of each class without a policy (OVS's userspace datapath).
pub const DEFAULT_SECONDS: [u32; CLASSES] =
    [30, 30, 24 * 60 * 60, 15 * 60, 45, 30, 60, 60, 30, 60, 30];

/// Longest timeout; longer ones are cut. An expiry is compared by its distance from now, in
/// milliseconds of 31 bits: 24 days.
pub const TIMEOUT_SECONDS_MAX: u32 = 2_000_000;

/// Timeout policies at once, at most: 44 bytes each.
pub const POLICIES_COUNT_MAX: usize = 1024;

/// All timeout policies. The control side writes them, all threads read them; a change counts from
/// a connection's next packet on.
pub struct Policies {
    seconds: Box<[[AtomicU32; CLASSES]]>,
}

impl Default for Policies {
    fn default() -> Self {
        let all = (0..POLICIES_COUNT_MAX).map(|_| DEFAULT_SECONDS.map(AtomicU32::new));
        Policies { seconds: all.collect() }
    }
}

impl Policies {
    /// Sets policy `id`, below [`POLICIES_COUNT_MAX`]; what has no value has the default.
    pub fn set(&self, id: u32, seconds: &[Option<u32>; CLASSES]) {
        let Some(policy) = self.seconds.get(id as usize) else { return };
        for (i, slot) in policy.iter().enumerate() {
            let value = seconds[i].unwrap_or(DEFAULT_SECONDS[i]).min(TIMEOUT_SECONDS_MAX);
            slot.store(value, Relaxed);
        }
    }

    /// Milliseconds of a class under policy `id`; None or unknown: the default.
    #[inline]
    pub fn millis(&self, id: Option<u32>, class: Class) -> u32 {
        let policy = id.and_then(|id| self.seconds.get(id as usize));
        policy.map_or(DEFAULT_SECONDS[class as usize], |p| p[class as usize].load(Relaxed)) * 1000
    }
}
