//! QoS of kernel devices (`QoS.type` of `linux-*`): the kernel's queueing disciplines and classes
//! are made to be what the database asks for. Packets that the switch sends to a device pass them;
//! its threads do not wait for that.

pub mod applied;
mod plan;
mod qos_show;

use crate::config::{IfaceConf, QosConf};
use crate::state::State;
use crate::vlog;
use ::port::tc::ClassStats;
use applied::minor;
use flow::PortNo;
use plan::{Device, Plan};
use std::collections::BTreeMap;

pub use qos_show::show;

const MODULE: &str = "netdev_linux";

/// A queue's counters, and when it was made (`now_ms`).
pub struct QueueCounters {
    /// What the queue has sent.
    pub stats: ClassStats,
    /// When the queue was made.
    pub since_ms: u64,
}

/// Begins to bring the traffic control of an interface's device up to date; a port without such a
/// device is left alone. [`turn`] does the rest.
pub fn apply(s: &mut State, conf: &IfaceConf, no: PortNo) {
    let Some(port) = s.dp.port_mut(no) else { return };
    if port.traffic_control().is_none() {
        return;
    }
    let plan = match conf.qos.as_deref() {
        Some(QosConf::Linux(qos)) => {
            let device = Device { mtu: port.mtu().into(), mbps: port.known_link().mbps };
            Plan::new(qos, device)
        }
        _ => Plan::Default,
    };
    let Some(mut tc) = port.traffic_control() else { return };
    s.applied.qos.entry(no).or_default().begin(&mut tc, plan, &conf.name);
    s.applied.qos_due.insert(no);
}

/// Makes some of the requests that are due: one for each queue that changed. True: there are more.
pub fn turn(s: &mut State) -> bool {
    let now = s.now_ms();
    let Some(no) = s.applied.qos_due.first().copied() else { return false };
    let applied = s.applied.qos.get_mut(&no);
    let done = s.dp.port_mut(no).zip(applied).and_then(|(port, applied)| {
        let name = port.name().to_owned();
        Some(applied.turn(&mut port.traffic_control()?, &name, now))
    });
    // None: the port has gone meanwhile.
    let Some(failures) = done.unwrap_or(Some(Vec::new())) else { return true };
    failures.iter().for_each(|failure| vlog::warn!(MODULE, "{failure}"));
    s.applied.qos_due.remove(&no);
    true
}

/// Gives devices whose ports leave the kernel's default queueing again, unless it is not ours.
pub fn release(s: &mut State, ports: &[PortNo]) {
    for no in ports {
        if s.applied.qos.remove(no).is_none_or(|applied| applied.shape().is_none()) {
            continue;
        }
        if let Some(mut tc) = s.dp.port_mut(*no).and_then(|port| port.traffic_control()) {
            // The device may be gone.
            let _ = tc.remove_qdisc();
        }
    }
}

/// The counters of a port's queues, by number.
pub fn counters(s: &mut State, no: PortNo) -> BTreeMap<u32, QueueCounters> {
    let Some(applied) = s.applied.qos.get(&no).filter(|a| a.queues().next().is_some()) else {
        return BTreeMap::new();
    };
    let tc = s.dp.port_mut(no).and_then(|port| port.traffic_control());
    let stats = tc.and_then(|mut tc| tc.class_stats().ok()).unwrap_or_default();
    let found = applied.since_ms.iter().filter_map(|(id, since_ms)| {
        let stats = *stats.get(&minor(*id))?;
        Some((*id, QueueCounters { stats, since_ms: *since_ms }))
    });
    found.collect()
}
