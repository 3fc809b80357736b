//! QoS of kernel devices (`QoS.type` of `linux-*`): the kernel's queueing disciplines and classes
//! are made to be what the database asks for. Packets that the switch sends to a device pass them;
//! its threads do not wait for that.

mod plan;
mod show;

use crate::config::{IfaceConf, QosConf};
use crate::state::State;
use crate::vlog;
use ::port::tc::{ClassStats, ROOT_CLASS, TrafficControl};
use flow::PortNo;
use plan::{Device, Plan, Shape};
use std::collections::BTreeMap;
use std::io;

pub use show::show;

const MODULE: &str = "netdev_linux";

/// Traffic control as it was last set, by datapath port.
pub type Ports = BTreeMap<PortNo, Applied>;

/// The traffic control of one device as it was last set.
#[derive(Default)]
pub struct Applied {
    /// None: not known.
    plan: Option<Plan>,
    /// When each queue was made (`now_ms`).
    since_ms: BTreeMap<u32, u64>,
    /// What failed at the last attempt, which is in the log already.
    failures: Vec<String>,
}

/// A queue's counters, and when it was made (`now_ms`).
pub struct QueueCounters {
    /// What it has sent.
    pub stats: ClassStats,
    /// When it was made.
    pub since_ms: u64,
}

/// Brings the traffic control of an interface's device up to date; a port without such a device is
/// left alone. Costs nothing if nothing changed, and two requests for each queue that did.
pub fn apply(s: &mut State, conf: &IfaceConf, no: PortNo) {
    let now = s.now_ms();
    let Some(port) = s.dp.port_mut(no) else { return };
    let plan = match &conf.qos {
        Some(QosConf::Linux(qos)) => {
            let device = Device { mtu: port.mtu().into(), mbps: port.link().mbps };
            Plan::new(qos, device)
        }
        _ => Plan::Default,
    };
    let Some(mut tc) = port.traffic_control() else { return };
    let applied = s.qos.entry(no).or_default();
    if applied.plan.as_ref() == Some(&plan) {
        return;
    }
    let mut failures = Vec::new();
    let was = applied.plan.take();
    applied.plan = change(&mut tc, was.as_ref(), plan, &conf.name, &mut failures);
    applied.keep_times(now);
    for failure in failures.iter().filter(|f| !applied.failures.contains(f)) {
        vlog::warn!(MODULE, "{failure}");
    }
    applied.failures = failures;
}

/// Gives devices whose ports leave the kernel's default queueing again, unless it is not ours.
pub fn release(s: &mut State, ports: &[PortNo]) {
    for no in ports {
        let Some(Plan::Shape(_)) = s.qos.remove(no).and_then(|applied| applied.plan) else {
            continue;
        };
        if let Some(mut tc) = s.dp.port_mut(*no).and_then(|port| port.traffic_control()) {
            // The device may be gone.
            let _ = tc.remove_qdisc();
        }
    }
}

impl Applied {
    fn shape(&self) -> Option<&Shape> {
        match &self.plan {
            Some(Plan::Shape(shape)) => Some(shape),
            _ => None,
        }
    }

    /// Numbers of its queues.
    pub fn queues(&self) -> impl Iterator<Item = u32> {
        self.shape().into_iter().flat_map(|shape| shape.queues.keys().copied())
    }

    fn keep_times(&mut self, now_ms: u64) {
        let queues: Vec<u32> = self.queues().collect();
        let since = |id: &u32| self.since_ms.get(id).copied().unwrap_or(now_ms);
        self.since_ms = queues.iter().map(|id| (*id, since(id))).collect();
    }
}

/// The counters of a port's queues, by number.
pub fn counters(s: &mut State, no: PortNo) -> BTreeMap<u32, QueueCounters> {
    let Some(applied) = s.qos.get(&no).filter(|a| a.queues().next().is_some()) else {
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

/// The minor number of a queue's class.
fn minor(queue: u32) -> u16 {
    (queue + 1) as u16
}

/// Makes a device's traffic control be as planned; what of the plan is in effect now, None if that
/// is not known.
fn change(
    tc: &mut TrafficControl,
    was: Option<&Plan>,
    plan: Plan,
    name: &str,
    failures: &mut Vec<String>,
) -> Option<Plan> {
    let mut shape = match plan {
        Plan::Untouched => return Some(plan),
        Plan::Default => match tc.remove_qdisc() {
            Ok(()) => return Some(plan),
            Err(e) => {
                failures.push(format!("{name}: Failed to delete existing qdisc: {}", text(&e)));
                return None;
            }
        },
        Plan::Shape(shape) => shape,
    };
    let kept = match was {
        Some(Plan::Shape(old)) if old.qdisc == shape.qdisc => Some(old),
        _ => None,
    };
    let result = match kept {
        Some(old) => set_root(tc, Some(old), &shape),
        None => tc.set_qdisc(&shape.qdisc).and_then(|()| set_root(tc, None, &shape)),
    };
    if let Err(e) = result {
        let kind = shape.kind;
        failures.push(format!("{name}: Failed to install new qdisc: {} ({kind})", text(&e)));
        let _ = tc.remove_qdisc();
        return None;
    }
    set_queues(tc, kept, &mut shape, name, failures);
    Some(Plan::Shape(shape))
}

fn set_root(tc: &mut TrafficControl, old: Option<&Shape>, shape: &Shape) -> io::Result<()> {
    match &shape.root {
        Some(class) if old.and_then(|old| old.root.as_ref()) != Some(class) => {
            tc.set_class(ROOT_CLASS, class)
        }
        _ => Ok(()),
    }
}

/// Brings the classes of queues up to date. Those that the kernel refuses are taken out of the
/// shape, so that the next attempt sets them again.
fn set_queues(
    tc: &mut TrafficControl,
    old: Option<&Shape>,
    shape: &mut Shape,
    name: &str,
    failures: &mut Vec<String>,
) {
    let none = BTreeMap::new();
    let old = old.map_or(&none, |old| &old.queues);
    for id in old.keys().filter(|id| !shape.queues.contains_key(id)) {
        if let Err(e) = tc.remove_class(minor(*id)) {
            failures.push(format!("delete {name} class 1:{} failed ({})", id + 1, text(&e)));
        }
    }
    shape.queues.retain(|id, class| {
        if old.get(id) == Some(class) {
            return true;
        }
        let result = tc.set_class(minor(*id), class);
        if let Err(e) = &result {
            let (minor, root) = (id + 1, ROOT_CLASS);
            failures.push(format!(
                "failed to replace {name} class 1:{minor}, parent 1:{root} ({})",
                text(e)
            ));
        }
        result.is_ok()
    });
}

/// The text of an error without its number.
fn text(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
