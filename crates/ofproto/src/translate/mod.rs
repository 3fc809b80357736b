//! Translation: from a packet to a decision, through tables, actions, groups, patch ports.
//!
//! PMD threads call `pipe`. Packets that only meet tables and outputs to ports, the common case,
//! are translated together (`plain`); all others go one by one through the translator
//! ([`xlate::Xlate`]), which has a file for each kind of step:
//!
//! - tables: `table_lookup`; instructions: `xlate`; the action set: `set`
//! - what it keeps meanwhile: `state`; what a trace says of it: `notes`
//! - actions: `actions` has the list of all; `choose` (multipath, bundle), `learn` (learn,
//!   fin_timeout), `length` (check_pkt_larger), `encap` (encap, decap),
//!   `labels` (MPLS label stack entries), `ct`
//! - groups: `buckets`
//! - outputs: `output` (ports, patch ports, controllers), `normal` and `multicast` (NORMAL),
//!   `bond`, `mirror`
//! - packets of protocols that the switch speaks itself, taken before the tables: `special`
//! - replies of DHCP servers to a switch that is controlled in-band: `dhcp`
//! - BPDUs, and what spanning trees have ports do: `tree`
//! - tunnels: `tunnel`, `tunnel_options`
//! - translations that stop and go on when the packet is looked up again: `recirc`; their state
//!   meanwhile: `frozen`, kept in `frozen_store` with ids of `frozen_ids`
//! - the decision: `commit` (header changes become operations), `effects` (what the control side
//!   hears of), `own` (bits that the mask leaves out, because actions wrote them)
//! - limits: `budget`; what the log says of translations that exceed them: `failure`

mod actions;
mod bond;
mod buckets;
mod budget;
mod bytes;
mod choose;
mod commit;
pub(crate) mod ct;
mod dhcp;
pub(crate) mod effects;
mod encap;
mod export;
pub(crate) mod failure;
pub(crate) mod frozen;
mod frozen_ids;
pub(crate) mod frozen_store;
mod kernel_tunnel;
mod labels;
mod learn;
mod length;
mod mirror;
mod multicast;
mod normal;
mod notes;
mod nsh;
mod output;
mod own;
pub(crate) mod pipe;
pub(crate) mod plain;
mod queue;
mod recirc;
mod sample;
mod set;
mod special;
mod state;
mod table_lookup;
mod tree;
mod tunnel;
mod tunnel_options;
pub(crate) mod xlate;

pub use effects::{
    BfdContext, CfmContext, FlowExport, IpfixNote, LacpContext, LldpContext, McastContext,
    PacketInContext, SampleContext, Sampled, SetNote, SflowNote, TreeContext,
};
