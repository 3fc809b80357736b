//! Counters of one worker: iterations, packets, cycles by stage.

use super::counters::Count;

macro_rules! perf {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A worker's counters since they were last cleared.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Perf { $($(#[$doc])* pub $name: u64,)* }
        /// The counters that the worker writes and the control side reads.
        #[derive(Default)]
        #[repr(align(64))]
        pub(crate) struct PerfCell { $(pub $name: Count,)* }
        impl PerfCell {
            pub(crate) fn read(&self) -> Perf { Perf { $($name: self.$name.get(),)* } }
        }
        impl Perf {
            /// The difference between two readings.
            pub fn since(&self, base: &Perf) -> Perf {
                Perf { $($name: self.$name.wrapping_sub(base.$name),)* }
            }
        }
    };
}

impl Perf {
    /// Comparisons of the validating mode.
    pub fn validated(&self) -> u64 {
        let [parse, lookup] = [self.parse_validated, self.lookup_validated];
        parse + lookup + self.direct_validated + self.tunnel_validated + self.act_validated
    }
}

perf! {
    /// Iterations.
    iterations,
    /// Iterations without a packet.
    idle_iterations,
    /// Cycles of iterations without a packet.
    idle_cycles,
    /// Cycles of iterations with packets.
    busy_cycles,
    /// Iterations after which the worker slept.
    sleep_iterations,
    /// Cycles slept.
    sleep_cycles,
    /// Packets received.
    rx_packets,
    /// Packets looked up: received, postponed, recirculated or injected ones.
    passes,
    /// Packets looked up again after a recirculation.
    recirculated,
    /// Packets parsed by a profile.
    claimed,
    /// Packets whose parsing was compared with the scalar parser's.
    parse_validated,
    /// Lookups whose result was compared with the subtables.
    lookup_validated,
    /// Decisions in direct mode that were compared with decisions with masks.
    direct_validated,
    /// Packets decapsulated in one pass that were compared with the two steps.
    tunnel_validated,
    /// Packets whose program was compared with the interpreter.
    act_validated,
    /// Comparisons that found a difference.
    differences,
    /// Packets whose megaflow was in the signature cache.
    cache_hits,
    /// Packets whose megaflow was known by their adapter's mark.
    mark_hits,
    /// Packets whose mark stands for no megaflow, or for one that ended.
    mark_stale,
    /// Packets that are not of the megaflow that their mark stands for.
    mark_wrong,
    /// Packets whose megaflow was in a subtable.
    flow_hits,
    /// Subtables visited.
    subtable_lookups,
    /// Packets that the pipeline decided about.
    misses,
    /// Misses in direct mode, decided without a mask.
    direct,
    /// Cycles of misses.
    miss_cycles,
    /// Decisions stored as megaflows.
    installed,
    /// Decisions used once and not stored.
    not_installed,
    /// Megaflows evicted because the table was full.
    evicted,
    /// Packets sent.
    tx_packets,
    /// Bursts sent.
    tx_batches,
    /// Vectors processed.
    vectors,
    /// Cycles of receiving.
    rx_cycles,
    /// Cycles of parsing.
    parse_cycles,
    /// Cycles of lookup (misses included).
    lookup_cycles,
    /// Cycles of acting and sending.
    act_cycles,
}
