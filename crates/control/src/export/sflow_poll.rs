//! Counters for sFlow: of a bridge's interfaces, of the datapath, of the daemon.

use super::sflow::Sflow;
use crate::ports::Iface;
use crate::state::{Bridge, State};
use ::export::sflow::{
    Block, EthernetCounters, InterfaceCounters, ProcessCounters, Source, SwitchCounters, UNKNOWN,
};
use flow::PortNo;
use ofproto::BridgeId;
use std::collections::BTreeMap;
use telemetry::Drop;

/// Bits per second of an interface that does not say: as in OVS.
const SPEED_DEFAULT: u64 = 100_000_000;

/// Lets the agent know the interfaces as they are.
pub fn set_interfaces(s: &State, bridge: &str, sflow: &mut Sflow) {
    let Some(bridge) = s.bridges.get(bridge) else { return };
    sflow.indices = indices(s, bridge);
    sflow.agent.set_interfaces(sflow.indices.values().copied());
}

/// The ifIndex of each interface that has one, by its datapath port.
fn indices(s: &State, bridge: &Bridge) -> BTreeMap<PortNo, u32> {
    let dummy = bridge.is_dummy();
    let index = |iface: &Iface| {
        let no = iface.dp_port.filter(|_| !iface.is_virtual())?;
        let set = || iface.conf.options.get("ifindex").filter(|_| dummy)?.parse().ok();
        let index = s.dp.port(no)?.ifindex().or_else(set)?;
        (index != 0).then_some((no, index))
    };
    bridge.ifaces.values().filter_map(index).collect()
}

/// Samples counters when it is time, and sends what waits.
pub fn tick(s: &mut State, id: BridgeId) {
    let now = s.now_ms();
    let Some(name) = s.bridge_name(id) else { return };
    let of_bridge = s.observers.export.bridges.get_mut(&id);
    let Some(mut sflow) = of_bridge.and_then(|b| b.sflow.take()) else { return };
    if let Some(due) = sflow.agent.tick(now) {
        set_interfaces(s, &name, &mut sflow);
        count_lost(s, &name, &mut sflow);
        for source in due {
            match source {
                Source::Switch => switch_counters(s, &mut sflow),
                Source::Interface(index) => interface_counters(s, &name, &mut sflow, index),
            }
        }
        sflow.flush(now);
    }
    if let Some(exports) = s.observers.export.bridges.get_mut(&id) {
        exports.sflow = Some(sflow);
    }
}

/// Samples of this bridge's packets that got lost between packet side and control.
fn count_lost(s: &State, bridge: &str, sflow: &mut Sflow) {
    let Some(bridge) = s.bridges.get(bridge) else { return };
    let ports = bridge.ifaces.values().filter_map(|i| s.dp.port_stats(i.dp_port?));
    let lost = [Drop::SampleRate, Drop::SampleFull];
    let now: u64 = ports.map(|p| lost.map(|why| p.drops[why as usize]).iter().sum::<u64>()).sum();
    sflow.agent.dropped(now.saturating_sub(sflow.dropped) as u32);
    sflow.dropped = now;
}

fn switch_counters(s: &State, sflow: &mut Sflow) {
    let mut c = SwitchCounters::default();
    for p in s.dp.pmd_info() {
        let hits = p.perf.cache_hits + p.perf.flow_hits;
        c.lookups[0] = c.lookups[0].wrapping_add(hits as u32);
        c.lookups[1] = c.lookups[1].wrapping_add(p.perf.misses as u32);
        c.mask_hits = c.mask_hits.wrapping_add(p.perf.subtable_lookups as u32);
        c.flows += p.flows;
        c.masks += p.masks;
    }
    let p = process_counters();
    sflow.agent.counters(Source::Switch, &[Block::Switch(&c), Block::Process(&p)]);
}

fn interface_counters(s: &mut State, bridge: &str, sflow: &mut Sflow, index: u32) {
    let Some(bridge) = s.bridges.get_mut(bridge) else { return };
    let no = sflow.indices.iter().find(|(_, i)| **i == index).map(|(no, _)| *no);
    let Some(iface) = bridge.ifaces.values_mut().find(|i| i.dp_port == no) else { return };
    let (name, number) = (iface.conf.name.clone(), iface.of_port.unwrap_or(0) as u16);
    let counted = iface.counters(&mut s.dp);
    let Some(device) = no.and_then(|no| s.dp.port_mut(no)) else { return };
    let c = interface(index, &device.last_link(), &counted);
    let port = bridge.conf.ports.iter().find(|p| p.interfaces.iter().any(|i| i.name == name));
    let lacp = port.and_then(|p| s.bonds.lacp_counters(&p.name, &name));
    let known = |name: &str| counted.get(name).map_or(UNKNOWN, |n| *n as u32);
    let ethernet = EthernetCounters {
        alignment: known("rx_frame_err"),
        fcs: known("rx_crc_err"),
        too_long: known("rx_oversize_errors"),
    };
    let mut blocks = vec![Block::Interface(&c)];
    blocks.extend(lacp.as_ref().map(Block::Lacp));
    blocks.push(Block::PortName(&name));
    blocks.push(Block::OpenFlowPort(bridge.dpid, number.into()));
    blocks.push(Block::Ethernet(ethernet));
    sflow.agent.counters(Source::Interface(index), &blocks);
}

fn interface(index: u32, link: &port::Link, counted: &BTreeMap<String, u64>) -> InterfaceCounters {
    let known = |name: &str| counted.get(name).map_or(UNKNOWN, |n| *n as u32);
    let bytes = |name: &str| counted.get(name).copied().unwrap_or(u64::MAX);
    let (rx, tx) = (
        ["rx_packets", "rx_multicast_packets", "rx_broadcast_packets", "rx_dropped", "rx_errors"],
        ["tx_packets", "tx_multicast_packets", "tx_broadcast_packets", "tx_dropped", "tx_errors"],
    );
    InterfaceCounters {
        index,
        speed: if link.mbps == 0 { SPEED_DEFAULT } else { u64::from(link.mbps) * 1_000_000 },
        direction: match link.full_duplex {
            Some(true) => 1,
            Some(false) => 2,
            None => 0,
        },
        status: u32::from(link.admin_up) | u32::from(link.admin_up && link.up) << 1,
        in_octets: bytes("rx_bytes"),
        received: rx.map(known),
        out_octets: bytes("tx_bytes"),
        sent: tx.map(known),
    }
}

fn process_counters() -> ProcessCounters {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes to the structure; all zero is a value of it, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ms = |t: libc::timeval| (t.tv_sec * 1000 + t.tv_usec / 1000) as u32;
    let cpu_ms = [ms(usage.ru_utime), ms(usage.ru_stime)];
    ProcessCounters { cpu_ms, memory: usage.ru_maxrss as u64 * 1024 }
}
