//! `ovs-appctl` commands that look at the switch, with ovs-vswitchd's names and layouts.

pub mod absent;
pub mod bfd;
pub mod bond_commands;
pub mod capture;
pub mod cfm;
mod command;
pub mod conntrack;
pub mod coverage;
pub mod dpctl;
mod dpctl_actions;
mod dpdk_info;
pub mod dummy;
mod engine_commands;
mod fdb;
mod flow_dump;
pub mod flow_log;
pub mod fragments;
pub mod history;
pub mod implementations;
pub mod lldp;
mod lookups;
mod mdb;
mod odp_actions;
mod offload;
pub mod perf;
mod pmd;
mod qos_commands;
pub mod stp_commands;
mod trace;
mod tree;
mod tunnel_commands;
pub mod usage;

use crate::state::State;
use crate::unixctl::UNLISTED;
pub use command::{Command, Handler, Run};
use command::{Job, admin_state, bridge, command, later, ports_of_kind};

/// Commands about the switch as a whole.
pub const COMMANDS: &[Command] = &[
    later("bridge/dump-flows", "[--offload-stats] bridge", 1, 2, fdb::bridge_dump_flows),
    command("bridge/reconnect", "[bridge]", 0, 1, fdb::reconnect),
    command("coverage/read-counter", "COUNTER", 1, 1, coverage::read_counter),
    command("coverage/show", "", 0, 0, coverage::show),
    command("dpctl/dump-dps", "", 0, 0, dpctl::dump_dps),
    later(
        "dpctl/dump-flows",
        "[-m] [--names] [dp] [filter=..] [type=..] [pmd=..]",
        0,
        6,
        flow_dump::of_datapath,
    ),
    command("dpctl/normalize-actions", "actions", 2, usize::MAX, dpctl_actions::normalize),
    command("dpctl/parse-actions", "actions", 1, usize::MAX, dpctl_actions::parse),
    command("dpctl/offload-stats-show", "[dp]", 0, 1, offload::stats),
    later("offload/show", "[port]", 0, 1, offload::show),
    later("offload/why", "[flow]", 0, 1, offload::why),
    command("dpctl/show", "[-s] [dp...]", 0, 8, dpctl::show),
    command(
        "dpif-netdev/pmd-perf-show",
        "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]",
        0,
        8,
        perf::perf_show,
    ),
    command("dpif-netdev/bond-show", "[dp]", 0, 1, pmd::bond_show),
    command(
        "dpif-netdev/pmd-perf-log-set",
        "on|off [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]",
        0,
        10,
        perf::log_set,
    ),
    command("dpdk/get-malloc-stats", "", 0, 0, dpdk_info::malloc_stats),
    command("dpdk/lcore-list", "", 0, 0, dpdk_info::lcores),
    command("dpdk/log-list", "", 0, 0, dpdk_info::log_levels),
    command("dpdk/log-set", "{level | pattern:level}", 0, usize::MAX, dpdk_info::set_log_levels),
    command("dpif-netdev/pmd-lookup-show", "[-pmd core] [dp]", 0, 3, lookups::show),
    command("dpif-netdev/pmd-rxq-rebalance", "[dp]", 0, 1, pmd::rebalance),
    command("dpif-netdev/pmd-sleep-show", "[dp]", 0, 1, pmd::sleep_show),
    command("dpif-netdev/pmd-rxq-show", "[-pmd core] [-secs secs] [dp]", 0, 5, pmd::rxq_show),
    command("dpif-netdev/pmd-stats-clear", "[-pmd core] [dp]", 0, 3, pmd::stats_clear),
    command("dpif-netdev/pmd-stats-show", "[-pmd core] [dp]", 0, 3, pmd::stats_show),
    command("dpif-netdev/tx-show", "[dp]", 0, 1, pmd::tx_show),
    command("dpctl/del-flows", "[dp] [file]", 0, 2, dpctl::del_flows),
    later("dpctl/get-flow", "[dp] ufid", 1, 2, flow_dump::get_flow),
    command("dpctl/list-commands", "", 0, 0, list_commands),
    command("dpif-netdev/dpif-impl-get", "", 0, 0, implementations::dpif),
    command(
        "dpif-netdev/dpif-impl-set",
        "dpif_implementation_name",
        1,
        1,
        implementations::set_dpif,
    ),
    command("dpif-netdev/miniflow-parser-get", "", 0, 0, implementations::parser),
    command(
        "dpif-netdev/miniflow-parser-set",
        "[-pmd core] miniflow_implementation_name [study_pkt_cnt]",
        1,
        5,
        implementations::set_parser,
    ),
    command("dpif-netdev/subtable-lookup-info-get", "", 0, 0, implementations::lookup),
    command("dpif-netdev/subtable-lookup-prio-get", UNLISTED, 0, 0, implementations::lookup),
    command(
        "dpif-netdev/subtable-lookup-prio-set",
        "[lookup_func] [prio]",
        2,
        2,
        implementations::set_lookup,
    ),
    command("dpif/set-dp-features", "bridge", 1, 3, implementations::set_features),
    command("dpif/show-dp-features", "bridge", 1, 1, implementations::features),
    command("odp-execute/action-impl-set", "name", 1, 1, implementations::set_actions),
    command("odp-execute/action-impl-show", "", 0, 0, implementations::actions),
    command("fdb/add", "bridge port vlan mac", 4, 4, fdb::add),
    command("fdb/del", "bridge vlan mac", 3, 3, fdb::del),
    command("upcall/disable-megaflows", "", 0, 0, dpctl::disable_megaflows),
    command("upcall/enable-megaflows", "", 0, 0, dpctl::enable_megaflows),
    command("upcall/set-flow-limit", "flow-limit-number", 1, 1, dpctl::set_flow_limit),
    command("dpif/dump-dps", "", 0, 0, dpctl::dump_bridges),
    later("dpif/dump-flows", "[-m] [--names | --no-names] bridge", 1, 4, flow_dump::of_bridge),
    command("dpif/show", "", 0, 0, dpctl::dpif_show),
    later("fdb/flush", "[bridge]", 0, 1, fdb::flush),
    later("fdb/show", "bridge", 1, 1, fdb::show),
    command("fdb/stats-clear", "[bridge]", 0, 1, fdb::stats_clear),
    command("fdb/stats-show", "bridge", 1, 1, fdb::stats_show),
    command("memory/show", "", 0, 0, coverage::memory),
    command("netdev-dpdk/detach", "pci address of device", 1, 1, dpdk_info::detach),
    command("netdev-dpdk/get-mempool-info", "[netdev]", 0, 1, dpdk_info::mempools),
    command("netdev-dpdk/get-vhost-async-thresh", "", 0, 0, engine_commands::get_threshold),
    command("netdev-dpdk/set-vhost-async-thresh", "N", 1, 1, engine_commands::set_threshold),
    command("netdev-dpdk/set-admin-state", "[netdev] up|down", 1, 2, dpdk_info::set_admin_state),
    command("ofproto/list-tunnels", "", 0, 0, tunnel_commands::list),
    command(
        "ovs/route/add",
        "ip_addr/prefix_len out_br_name [gw] [pkt_mark=mark]",
        2,
        4,
        tunnel_commands::add_route,
    ),
    command(
        "ovs/route/del",
        "ip_addr/prefix_len [pkt_mark=mark]",
        1,
        2,
        tunnel_commands::del_route,
    ),
    command("ovs/route/lookup", "ip_addr [pkt_mark=mark]", 1, 2, tunnel_commands::lookup_route),
    command("ovs/route/show", "", 0, 0, tunnel_commands::routes),
    command("tnl/arp/aging", "[SECS]", 0, 1, tunnel_commands::aging),
    command("tnl/arp/flush", "", 0, 0, tunnel_commands::flush_neighbours),
    command("tnl/arp/set", "BRIDGE IP MAC", 3, 3, tunnel_commands::set_neighbour),
    command("tnl/arp/show", "", 0, 0, tunnel_commands::neighbours),
    command("tnl/egress_port_range", "min max", 0, 2, tunnel_commands::port_range),
    command("tnl/neigh/aging", "[SECS]", 0, 1, tunnel_commands::aging),
    command("tnl/neigh/flush", "", 0, 0, tunnel_commands::flush_neighbours),
    command("tnl/neigh/set", "BRIDGE IP MAC", 3, 3, tunnel_commands::set_neighbour),
    command("tnl/neigh/show", "", 0, 0, tunnel_commands::neighbours),
    command("tnl/ports/show", "-v", 0, 1, tunnel_commands::ports),
    later("mdb/flush", "[bridge]", 0, 1, mdb::flush),
    later("mdb/show", "bridge", 1, 1, mdb::show),
    command("ofproto/list", "", 0, 0, fdb::list),
    command(
        "ofproto/trace",
        "{[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet]",
        1,
        8,
        trace::trace,
    ),
    command(
        "ofproto/trace-packet-out",
        "[-consistent] {[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet] actions",
        2,
        10,
        trace::trace_packet_out,
    ),
    later("qos/show", "interface", 1, 1, qos_commands::show),
    command("qos/show-types", "interface", 1, 1, qos_commands::types),
    command("revalidator/pause", UNLISTED, 0, 0, dpctl::hold),
    command("revalidator/resume", UNLISTED, 0, 0, dpctl::hold),
    command("revalidator/purge", "", 0, 0, dpctl::purge),
    command("revalidator/wait", "", 0, 0, dpctl::wait),
    command("upcall/show", "", 0, 0, dpctl::upcall_show),
    later("weft/state", "[PATH...]", 0, tree::PATHS_MAX, tree::show),
    command("weft/trace-next", "[last]", 0, 1, capture::next),
];

/// `dpctl/list-commands`.
fn list_commands(_: &mut State, _: &[String]) -> Result<String, String> {
    let all = COMMANDS.iter().chain(conntrack::COMMANDS);
    let all = all.chain(fragments::COMMANDS);
    let all = all.chain(absent::COMMANDS);
    let mut mine: Vec<_> = all.filter(|c| c.name.starts_with("dpctl/")).collect();
    mine.sort_by_key(|c| c.name);
    let lines = mine.iter().map(|c| format!("  {:<28}  {}\n", c.name, c.usage));
    Ok(format!("The available commands are:\n{}", lines.collect::<String>()))
}

/// Arguments `[interface] normal|false|true`: the interface, None for all, and what is forced.
fn forced(args: &[String]) -> Result<(Option<&str>, Option<bool>), String> {
    let (iface, value) = match args {
        [iface, value] => (Some(iface.as_str()), value),
        _ => (None, &args[0]),
    };
    let forced = match value.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        "normal" => None,
        _ => return Err("unknown fault string".into()),
    };
    Ok((iface, forced))
}
