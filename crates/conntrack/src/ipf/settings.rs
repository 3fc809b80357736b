//! Settings and counters of reassembly. The control side and whoever holds the store write them;
//! every thread may read them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Fragments that may wait until `ipf-set-max-nfrags` says otherwise (as in OVS).
pub const FRAGMENTS_COUNT_DEFAULT: u32 = 1000;
/// The largest number that `ipf-set-max-nfrags` takes (as in OVS).
#[allow(missing_docs)]
pub const FRAGMENTS_COUNT_MAX: u32 = 5000;
/// Bytes that every fragment but the last must have, of IPv4 and of IPv6, until `ipf-set-min-frag`
/// says otherwise (as in OVS).
pub const FRAGMENT_BYTES_MIN_DEFAULT: [u32; 2] = [1200, 1280];
/// The smallest number that `ipf-set-min-frag` takes (as in OVS).
#[allow(missing_docs)]
pub const FRAGMENT_BYTES_MIN: u32 = 400;

/// How long a datagram's fragments wait for the rest, from the first one on (as in OVS).
pub const FRAGMENT_WAIT_MILLIS: u32 = 15_000;

/// What is counted of fragments, separately for IPv4 and IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FragmentCount {
    Accepted,
    Completed,
    Expired,
    TooSmall,
    Overlapped,
    Purged,
}

/// Names in OVS's words (`ipf-get-status`), in order of [`FragmentCount`].
pub const FRAGMENT_COUNT_NAMES: [&str; 6] = [
    "frags accepted",
    "frags completed",
    "frags expired",
    "frags too small",
    "frags overlapped",
    "frags purged",
];

/// Settings and counters of reassembly.
pub struct FragmentSettings {
    off: [AtomicBool; 2],
    bytes_min: [AtomicU32; 2],
    most: AtomicU32,
    wait_millis: AtomicU32,
    /// Fragments that wait now.
    pub(super) waiting: AtomicU32,
    counts: [[AtomicU64; FRAGMENT_COUNT_NAMES.len()]; 2],
}

impl Default for FragmentSettings {
    fn default() -> Self {
        FragmentSettings {
            off: Default::default(),
            bytes_min: FRAGMENT_BYTES_MIN_DEFAULT.map(AtomicU32::new),
            most: AtomicU32::new(FRAGMENTS_COUNT_DEFAULT),
            wait_millis: AtomicU32::new(FRAGMENT_WAIT_MILLIS),
            waiting: AtomicU32::new(0),
            counts: Default::default(),
        }
    }
}

impl FragmentSettings {
    /// True if datagrams of this IP version are reassembled.
    pub fn is_on(&self, v6: bool) -> bool {
        !self.off[usize::from(v6)].load(Relaxed)
    }

    /// Sets whether datagrams of this IP version are reassembled.
    pub fn set_on(&self, v6: bool, on: bool) {
        self.off[usize::from(v6)].store(!on, Relaxed);
    }

    /// Bytes that fragments but the last must have.
    pub fn bytes_min(&self, v6: bool) -> u32 {
        self.bytes_min[usize::from(v6)].load(Relaxed)
    }

    /// Sets how many bytes fragments but the last must have; false: fewer than
    /// [`FRAGMENT_BYTES_MIN`].
    pub fn set_bytes_min(&self, v6: bool, bytes: u32) -> bool {
        let fits = bytes >= FRAGMENT_BYTES_MIN;
        if fits {
            self.bytes_min[usize::from(v6)].store(bytes, Relaxed);
        }
        fits
    }

    #[cfg(test)]
    pub(super) fn set_bytes_min_for_tests(&self, bytes: u32) {
        self.bytes_min.iter().for_each(|min| min.store(bytes, Relaxed));
    }

    /// Fragments there may be at once.
    pub fn most(&self) -> u32 {
        self.most.load(Relaxed)
    }

    /// Sets how many fragments there may be at once; false: more than [`FRAGMENTS_COUNT_MAX`].
    pub fn set_most(&self, n: u32) -> bool {
        let fits = n <= FRAGMENTS_COUNT_MAX;
        if fits {
            self.most.store(n, Relaxed);
        }
        fits
    }

    /// How long fragments wait for the rest of their datagram, from the first one on, in
    /// milliseconds.
    pub fn wait_millis(&self) -> u32 {
        self.wait_millis.load(Relaxed)
    }

    /// Sets how long fragments wait (tests, simulation).
    pub fn set_wait_millis(&self, millis: u32) {
        self.wait_millis.store(millis, Relaxed);
    }

    /// Fragments that wait now.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Relaxed)
    }

    /// How often this was counted.
    pub fn counted(&self, v6: bool, what: FragmentCount) -> u64 {
        self.counts[usize::from(v6)][what as usize].load(Relaxed)
    }

    pub(super) fn count(&self, v6: bool, what: FragmentCount, n: u64) {
        self.counts[usize::from(v6)][what as usize].fetch_add(n, Relaxed);
    }
}
