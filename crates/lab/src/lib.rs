//! The lab: experiments that run testpmd, OVS-DPDK and Weft side by side on identical ports.
//!
//! *Place*: support. Knows the systems only as programs; shares nothing with the switch.
//!
//! *Invariants*: one system runs at a time, in network, mount and PID namespaces of its own that
//! end with it; hugepages are held under a lock and set back; a run that fails is one line, and the
//! rest still runs.
//!
//! *Method*: the ports are `net_weftgen` (lab/generator), which has a packet ready whenever it is
//! asked, so the forwarding thread is never idle. Cycles per packet are that thread's CPU time
//! times the TSC rate over the packets that left; time in which something else had the core does
//! not count.

mod cached;
mod churn;
mod compare;
mod counters;
mod environment;
mod experiment;
mod flows;
mod host;
mod hugepages;
mod measure;
mod offloaded;
mod page;
mod plot;
mod progress;
mod random;
mod report;
mod results;
mod rules;
mod search;
mod stages;
mod system;
mod table;
mod validate;
mod warm;

pub use compare::compare;
pub use counters::Counters;
pub use experiment::Experiment;
pub use flows::{Flow, FlowTable, Template};
pub use measure::{Options, run};
pub use random::Random;
pub use report::write_page;
pub use rules::{Match, RuleKind, RuleSet, Rules};
pub use validate::validate;
