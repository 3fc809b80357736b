//! `coverage/show` and `memory/show`: named counters of the whole daemon.

use crate::of::account::Counts;
use crate::state::State;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use telemetry::Drop;

/// Names of ovs-vswitchd for reasons that Weft has too, and that people look for under these. Those
/// without a reason cannot happen here: `coverage/read-counter` answers 0 instead of an error.
const OVS_DROPS: &[(&str, &[Drop])] = &[
    ("drop_action_bridge_not_found", &[]),
    ("drop_action_forwarding_disabled", &[Drop::SpanningTree]),
    ("drop_action_invalid_tunnel_metadata", &[Drop::TunnelOptions]),
    ("drop_action_recirculation_conflict", &[]),
    ("datapath_drop_invalid_bond", &[]),
    ("datapath_drop_invalid_port", &[Drop::NoPort]),
    ("datapath_drop_invalid_tnl_port", &[]),
    ("datapath_drop_lock_error", &[]),
    ("datapath_drop_recirc_error", &[Drop::RecircLimit]),
    ("datapath_drop_sample_error", &[]),
    ("datapath_drop_tunnel_push_error", &[Drop::NoHeadroom]),
    ("datapath_drop_upcall_error", &[]),
    ("datapath_drop_userspace_action_error", &[Drop::PuntFull]),
    ("drop_action_of_pipeline", &[Drop::Policy]),
    ("drop_action_recursion_too_deep", &[Drop::DepthLimit]),
    ("drop_action_too_many_resubmit", &[Drop::ResubmitLimit]),
    ("drop_action_congestion", &[Drop::TunnelEcn]),
    ("drop_action_stack_too_deep", &[Drop::StackLimit]),
    ("drop_action_no_recirculation_context", &[Drop::RecircLimit]),
    ("drop_action_unsupported_packet_type", &[Drop::PacketType]),
    ("drop_action_too_many_mpls_labels", &[Drop::TooManyLabels]),
    ("datapath_drop_rx_invalid_packet", &[Drop::Truncated]),
    ("datapath_drop_tunnel_pop_error", &[Drop::TunnelHeader, Drop::TunnelChecksum]),
];

/// Every counter by name. Drops are called `datapath_drop_<reason>`. With nothing in flight:
/// received + injected + copies = sent + drops + punted.
pub fn totals(s: &State) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (reason, n) in s.dp.drops() {
        all.insert(format!("datapath_drop_{}", reason.name()), n);
    }
    for (name, reasons) in OVS_DROPS {
        let n = reasons.iter().map(|r| all[&format!("datapath_drop_{}", r.name())]).sum();
        all.insert((*name).into(), n);
    }
    let moved = s.dp.totals();
    for (name, n) in [
        ("netdev_received", moved.rx_packets),
        ("netdev_sent", moved.tx_packets),
        ("datapath_copies", moved.copies),
        ("datapath_punted", moved.punted),
        ("datapath_injected", moved.injected),
    ] {
        all.insert(name.into(), n);
    }
    for p in s.dp.pmd_info() {
        for (name, n) in [
            ("xlate_actions", p.perf.misses),
            ("dpif_flow_put", p.perf.installed),
            ("datapath_flow_evicted", p.perf.evicted),
            ("datapath_flow_not_installed", p.perf.not_installed),
        ] {
            *all.entry(name.to_string()).or_insert(0) += n;
        }
    }
    let counted = s.dp.conntrack().counted();
    all.extend(conntrack::COUNT_NAMES.iter().zip(counted).map(|(name, n)| (name.to_string(), n)));
    all.extend(super::engine_commands::coverage(s).map(|(name, n)| (name.to_string(), n)));
    let exports = s.observers.export.counts();
    all.insert("export_flow_cache_full".into(), exports.lost);
    all.insert("export_sent".into(), exports.sent);
    all.insert("export_failed".into(), exports.failed);
    all.insert("bfd_run".into(), s.oam.bfd.runs);
    all.insert("bfd_not_heard".into(), s.oam.bfd.unheard);
    all.insert("cfm_run".into(), s.oam.cfm.runs);
    all.insert("cfm_not_heard".into(), s.oam.cfm.unheard);
    all.insert("lldp_run".into(), s.oam.lldp.runs);
    all.insert("lldp_not_heard".into(), s.oam.lldp.unheard);
    all.insert("rev_reconfigure".into(), s.recent.reconfigured);
    addresses(s, &mut all);
    all.insert("stp_not_heard".into(), s.trees.refused_bpdus);
    all.insert("link_look".into(), s.recent.links_looked_at);
    all.insert("status_interface".into(), s.recent.reported[0]);
    all.insert("status_turn".into(), s.recent.reported[1]);
    all.insert("tnl_neigh_limited".into(), s.ofproto.neighbours_limited());
    all.insert("flow_learning_limited".into(), s.ofproto.flows_not_learned());
    all.insert("mac_learning_static_none_move".into(), s.ofproto.macs_not_moved());
    all.insert("mac_learning_limited".into(), s.ofproto.macs_not_learned());
    all.insert("mcast_snooping_limited".into(), s.ofproto.mcast_not_heard());
    let here = |count: fn(&Counts) -> u64| -> u64 {
        count(&s.of.counts) + s.conns.values().map(|c| count(&c.counts)).sum::<u64>()
    };
    for (name, n) in [
        ("ofconn_packet_in_dropped", here(|c| c.packet_ins_dropped)),
        // ovs-vswitchd's name of the same.
        ("rconn_overflow", here(|c| c.packet_ins_dropped)),
        ("ofconn_malformed", here(|c| c.malformed)),
        ("ofconn_refused", here(|c| c.refused)),
        ("ofconn_not_served", here(|c| c.not_served)),
        ("ofconn_overdrawn", here(|c| c.overdrawn)),
    ] {
        all.insert(name.into(), n);
    }
    all
}

/// What all bridges' tables of MAC addresses did.
fn addresses(s: &State, all: &mut BTreeMap<String, u64>) {
    for macs in s.bridges.values().filter_map(|b| s.ofproto.fdb_stats(b.id).ok()) {
        for (name, n) in [
            ("mac_learning_learned", macs.learned),
            ("mac_learning_expired", macs.expired),
            ("mac_learning_evicted", macs.evicted),
            ("mac_learning_moved", macs.moved),
        ] {
            *all.entry(name.to_string()).or_insert(0) += n;
        }
    }
}

/// `coverage/show`.
pub fn show(s: &mut State, _: &[String]) -> Result<String, String> {
    let all = totals(s);
    let mut out = format!(
        "Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash={:08x}:\n",
        ranks(&all)
    );
    for (name, n) in all.iter().filter(|(_, n)| **n > 0) {
        let (five, minute) =
            (s.recent.coverage.rate(name, *n, 5), s.recent.coverage.rate(name, *n, 60));
        let hour = s.recent.coverage.hourly_rate(name, *n);
        let _ = writeln!(
            out,
            "{name:<24} {five:5.1}/sec {minute:9.3}/sec {hour:13.4}/sec   total: {n}"
        );
    }
    let _ = writeln!(out, "{} events never hit", all.values().filter(|n| **n == 0).count());
    Ok(out)
}

/// A hash of the counters' order by size: equal as long as the same things happen about as often.
fn ranks(all: &BTreeMap<String, u64>) -> u32 {
    let mut names: Vec<(u64, &str)> =
        all.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (*n, name.as_str())).collect();
    names.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let mut hasher = DefaultHasher::new();
    names.iter().for_each(|(_, name)| name.hash(&mut hasher));
    hasher.finish() as u32
}

/// `coverage/read-counter NAME`.
pub fn read_counter(s: &mut State, args: &[String]) -> Result<String, String> {
    totals(s).get(&args[0]).map(|n| format!("{n}\n")).ok_or_else(|| "No such counter".into())
}

/// `memory/show`. Handlers are the threads that decide about misses: each worker does, about its
/// own. One thread, the control thread, looks whether cached flows are still right and in use.
pub fn memory(s: &mut State, _: &[String]) -> Result<String, String> {
    let rules: usize = s.bridges.values().map(|b| s.ofproto.n_flows(b.id).unwrap_or(0)).sum();
    let ports: usize =
        s.bridges.values().map(|b| b.ifaces.values().filter(|i| i.works()).count()).sum();
    let workers = s.dp.pmd_info();
    let keys: u64 = workers.iter().map(|p| u64::from(p.flows)).sum();
    let packets = s.devices.pools.in_use();
    let held: usize = s.conns.values().map(|c| c.held()).sum();
    Ok(format!(
        "handlers:{} ofconn bytes:{held} ofconns:{} packets:{packets} ports:{ports} revalidators:1 \
         rules:{rules} udpif keys:{keys}\n",
        workers.len(),
        s.conns.len()
    ))
}
