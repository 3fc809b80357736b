//! Counters of one worker: iterations, packets, cycles by stage.

use super::counters::Count;

macro_rules! perf {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a worker did since the counters were cleared.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Perf { $($(#[$doc])* pub $name: u64,)* }
        /// [`Perf`] under way: written by the worker, read by the control side.
        #[derive(Default)]
        #[repr(align(64))]
        pub(crate) struct PerfCell { $(pub $name: Count,)* }
        impl PerfCell {
            pub(crate) fn read(&self) -> Perf { Perf { $($name: self.$name.get(),)* } }
        }
        impl Perf {
            /// What happened between two readings.
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
    /// Loops.
    iterations,
    /// Loops without a packet.
    idle_iterations,
    /// Cycles of loops without a packet.
    idle_cycles,
    /// Cycles of loops with packets.
    busy_cycles,
    /// Loops that ended asleep.
    sleep_iterations,
    /// Cycles slept.
    sleep_cycles,
    /// Packets received.
    rx_packets,
    /// Packets looked up (received, carried over, recirculated, injected).
    passes,
    /// Packets looked up again after a recirculation.
    recirculated,
    /// Packets parsed by a profile.
    claimed,
    /// Packets whose parsing was compared with the scalar parser's.
    parse_validated,
    /// Lookups that were compared with what megaflows say.
    lookup_validated,
    /// Decisions of direct mode that were compared with those of the whole way.
    direct_validated,
    /// Packets decapsulated in one pass that were compared with two steps.
    tunnel_validated,
    /// Packets of which a program was compared with the interpreter.
    act_validated,
    /// Comparisons that found a difference.
    differences,
    /// Found by the signature cache.
    cache_hits,
    /// Known by the mark that an adapter gave them.
    mark_hits,
    /// Packets whose mark stands for nothing, or nothing any more.
    mark_stale,
    /// Packets that are not of the megaflow that their mark stands for.
    mark_wrong,
    /// Found in the megaflow table.
    flow_hits,
    /// Subtables visited.
    subtable_lookups,
    /// Decided by the pipeline.
    misses,
    /// Of the misses, those of ports in direct mode, decided without a mask.
    direct,
    /// Cycles the pipeline took.
    miss_cycles,
    /// Decisions stored.
    installed,
    /// Decisions used once and not stored.
    not_installed,
    /// Flows evicted because the table was full.
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
