//! QoS of kernel devices (`QoS.type` of `linux-*`): the kernel's queueing disciplines and classes
//! are made to be what the database asks for. Packets that the switch sends to a device pass them;
//! its threads do not wait for that. Threads of their own ask the kernel, which may take long.

pub mod applied;
pub mod counters;
pub mod due;
mod plan;
mod qos_show;

use crate::config::IfaceConf;
use crate::state::{Shared, State};
use crate::vlog;
use ::port::Port;
use ::port::tc::TrafficControl;
use applied::{Answers, Applied, Gate, TcRequest};
use flow::PortNo;
use plan::{Device, Plan, Wanted};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

pub use qos_show::show;

const MODULE: &str = "netdev_linux";

/// Whoever waits for a configuration waits for its traffic control, but no longer than this: the
/// kernel takes minutes for tens of thousands of queues. Changes of other ports go on then.
const FINISH_TIME_MAX: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Has the traffic control of an interface's device be as configured; a port without such a device
/// is left alone. [`run`] does it.
pub fn apply(s: &mut State, conf: &IfaceConf, no: PortNo) {
    let has_device = |port: &&mut dyn Port| port.traffic_control().is_some();
    let Some(port) = s.dp.port_mut(no).filter(has_device) else { return };
    let device = Device { mtu: port.mtu().into(), mbps: port.last_link().mbps };
    let wanted = Wanted { qos: conf.qos.clone(), device };
    if s.applied.qos.entry(no).or_default().want(wanted) {
        s.applied.qos_due.add(no);
    }
}

/// Brings traffic control up to date until the daemon ends. Other threads ask the kernel, which may
/// take long, and make plans.
pub async fn run(state: Shared) {
    let wake = state.borrow().applied.qos_due.wake.clone();
    loop {
        let next = state.borrow_mut().applied.qos_due.next();
        match next {
            Some(no) => turn(&state, no).await,
            None => wake.notified().await,
        }
    }
}

/// Waits until traffic control is up to date, or for [`FINISH_TIME_MAX`], and gives others their
/// turn meanwhile.
pub async fn finished(state: &Shared) {
    let begin = Instant::now();
    while !state.borrow().applied.qos_due.ports.is_empty() && begin.elapsed() < FINISH_TIME_MAX {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Makes some of the requests for a device: one for each queue that changed.
async fn turn(state: &Shared, no: PortNo) {
    let begin = |applied: &mut Applied| (applied.gate.clone(), applied.take_new());
    let begun = state.borrow_mut().applied.qos.get_mut(&no).map(begin);
    let Some((gate, new)) = begun else { return };
    let plan = match new {
        Some(wanted) => spawn_blocking(move || wanted.plan()).await.ok(),
        None => None,
    };
    let due = requests(&mut state.borrow_mut(), (no, &gate), plan);
    // None: the port has gone meanwhile.
    let Some((mut tc, some)) = due else { return };
    let own = gate.clone();
    let answers = spawn_blocking(move || own.run(&mut tc, some)).await;
    take_over(&mut state.borrow_mut(), (no, &gate), answers.unwrap_or_default());
}

/// What is to be asked of the kernel next for a port; `plan`: what is to be begun with.
fn requests(
    s: &mut State,
    (no, gate): (PortNo, &Gate),
    plan: Option<Plan>,
) -> Option<(TrafficControl, Vec<TcRequest>)> {
    let tc = s.dp.port(no)?.traffic_control()?;
    let applied = s.applied.qos.get_mut(&no).filter(|applied| applied.gate.is(gate))?;
    plan.into_iter().for_each(|plan| applied.begin(plan));
    Some((tc, applied.requests()))
}

/// Takes over what the kernel answered; what failed is in the log then.
fn take_over(s: &mut State, (no, gate): (PortNo, &Gate), answers: Answers) {
    let now = s.now_ms();
    let applied = s.applied.qos.get_mut(&no).filter(|applied| applied.gate.is(gate));
    let (Some(applied), Some(port)) = (applied, s.dp.port(no)) else { return };
    let Some(failures) = applied.answered(answers, port.name(), now) else { return };
    failures.iter().for_each(|failure| vlog::warn!(MODULE, "{failure}"));
    s.applied.qos_due.ports.remove(&no);
}

/// Forgets ports that are to be closed, by name: whoever closes one gives its device the kernel's
/// default queueing again, unless it is not ours.
pub fn release(s: &mut State, ports: &[PortNo]) -> BTreeMap<String, Gate> {
    let mut gates = BTreeMap::new();
    for no in ports {
        s.applied.qos_due.ports.remove(no);
        let ours = s.applied.qos.remove(no).filter(Applied::is_ours);
        if let (Some(applied), Some(port)) = (ours, s.dp.port(*no)) {
            gates.insert(port.name().to_owned(), applied.gate);
        }
    }
    gates
}
