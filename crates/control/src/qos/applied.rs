//! The traffic control of devices as it was last set, and what changes it.

use super::plan::{Plan, Shape};
use ::port::tc::{ROOT_CLASS, TrafficControl};
use flow::PortNo;
use std::collections::BTreeMap;
use std::io;

/// Traffic control as it was last set, by datapath port.
pub type Ports = BTreeMap<PortNo, Applied>;

/// The traffic control of one device as it was last set.
#[derive(Default)]
pub struct Applied {
    /// None: not known.
    plan: Option<Plan>,
    /// When each queue was made (`now_ms`).
    pub(super) since_ms: BTreeMap<u32, u64>,
    /// What failed at the last attempt, which is in the log already.
    failures: Vec<String>,
}

impl Applied {
    /// Makes a device's traffic control be as planned; what failed, and did not fail the same at
    /// the last attempt.
    pub(super) fn apply(
        &mut self,
        tc: &mut TrafficControl,
        plan: Plan,
        name: &str,
        now_ms: u64,
    ) -> Vec<String> {
        if self.plan.as_ref() == Some(&plan) {
            return Vec::new();
        }
        let (mut failures, was) = (Vec::new(), self.plan.take());
        self.plan = change(tc, was.as_ref(), plan, name, &mut failures);
        if self.shape().is_none_or(|shape| kept(was.as_ref(), shape).is_none()) {
            self.since_ms.clear();
        }
        self.keep_times(now_ms);
        let before = std::mem::replace(&mut self.failures, failures.clone());
        failures.retain(|failure| !before.contains(failure));
        failures
    }

    pub(super) fn shape(&self) -> Option<&Shape> {
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

/// The minor number of a queue's class.
pub(super) fn minor(queue: u32) -> u16 {
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
    let old = kept(was, &shape);
    let result = match old {
        Some(_) => set_root(tc, old, &shape),
        None => tc.set_qdisc(&shape.qdisc).and_then(|()| set_root(tc, None, &shape)),
    };
    if let Err(e) = result {
        let kind = shape.kind;
        failures.push(format!("{name}: Failed to install new qdisc: {} ({kind})", text(&e)));
        let _ = tc.remove_qdisc();
        return None;
    }
    set_queues(tc, old, &mut shape, name, failures);
    Some(Plan::Shape(shape))
}

/// The shape before, if its queueing discipline stays.
fn kept<'a>(was: Option<&'a Plan>, shape: &Shape) -> Option<&'a Shape> {
    match was {
        Some(Plan::Shape(old)) if old.qdisc == shape.qdisc => Some(old),
        _ => None,
    }
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
