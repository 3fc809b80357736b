//! The traffic control of devices as it was last set, and what changes it, some requests at a time.

use super::plan::{Plan, Shape};
use ::port::tc::{Qdisc, ROOT_CLASS, TrafficClass, TrafficControl};
use flow::PortNo;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Requests of one turn: the kernel takes up to two milliseconds for each where classes are many.
const TURN_REQUESTS_MAX: usize = 16;

/// Traffic control as it was last set, by datapath port.
pub type Ports = BTreeMap<PortNo, Applied>;

/// What is asked of the kernel.
pub(super) trait Kernel {
    fn remove_qdisc(&mut self) -> io::Result<()>;
    fn set_qdisc(&mut self, qdisc: &Qdisc) -> io::Result<()>;
    fn set_class(&mut self, minor: u16, class: &TrafficClass) -> io::Result<()>;
    fn remove_class(&mut self, minor: u16) -> io::Result<()>;
}

impl Kernel for TrafficControl<'_> {
    fn remove_qdisc(&mut self) -> io::Result<()> {
        TrafficControl::remove_qdisc(self)
    }
    fn set_qdisc(&mut self, qdisc: &Qdisc) -> io::Result<()> {
        TrafficControl::set_qdisc(self, qdisc)
    }
    fn set_class(&mut self, minor: u16, class: &TrafficClass) -> io::Result<()> {
        TrafficControl::set_class(self, minor, class)
    }
    fn remove_class(&mut self, minor: u16) -> io::Result<()> {
        TrafficControl::remove_class(self, minor)
    }
}

/// A change under way.
struct Change {
    plan: Plan,
    /// Queues that are to go, and then those that come or change.
    due: VecDeque<u32>,
    failures: Vec<String>,
}

/// The traffic control of one device as it was last set.
#[derive(Default)]
pub struct Applied {
    /// What is in effect; None: not known.
    plan: Option<Plan>,
    change: Option<Change>,
    /// When each queue was made (`now_ms`).
    pub(super) since_ms: BTreeMap<u32, u64>,
    /// What failed at the last attempt, which is in the log already.
    failures: Vec<String>,
}

impl Applied {
    /// Begins to make a device's traffic control be as planned: all but the queues is done.
    pub(super) fn begin(&mut self, tc: &mut impl Kernel, plan: Plan, name: &str) {
        if self.change.as_ref().is_some_and(|change| change.plan == plan)
            || self.change.is_none() && self.plan.as_ref() == Some(&plan)
        {
            return;
        }
        let (mut failures, was) = (Vec::new(), self.plan.take());
        self.plan = begin(tc, was.as_ref(), &plan, name, &mut failures);
        if self.shape().is_none_or(|shape| kept(was.as_ref(), shape).is_none()) {
            self.since_ms.clear();
        }
        let due = due(self.shape(), &plan);
        self.change = Some(Change { plan, due, failures });
    }

    /// Goes on with the change under way, for [`TURN_REQUESTS_MAX`] requests. Some: it is done;
    /// what failed, and did not fail the same at the last attempt.
    pub(super) fn turn(
        &mut self,
        tc: &mut impl Kernel,
        name: &str,
        now_ms: u64,
    ) -> Option<Vec<String>> {
        let Some(change) = &mut self.change else { return Some(Vec::new()) };
        if let (Some(Plan::Shape(shape)), Plan::Shape(wanted)) = (&mut self.plan, &change.plan) {
            let ids = change.due.drain(..change.due.len().min(TURN_REQUESTS_MAX));
            ids.for_each(|id| change_queue(tc, (shape, wanted), id, name, &mut change.failures));
            if !change.due.is_empty() {
                return None;
            }
        }
        let mut failures = self.change.take().map(|change| change.failures)?;
        self.keep_times(now_ms);
        let before = std::mem::replace(&mut self.failures, failures.clone());
        failures.retain(|failure| !before.contains(failure));
        Some(failures)
    }

    /// Records that the device has the kernel's default queueing.
    pub fn is_default(&mut self) {
        (self.plan, self.change) = (Some(Plan::Default), None);
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

/// Makes all of a device's traffic control but its queues be as planned; what is in effect now,
/// None if that is not known.
fn begin(
    tc: &mut impl Kernel,
    was: Option<&Plan>,
    plan: &Plan,
    name: &str,
    failures: &mut Vec<String>,
) -> Option<Plan> {
    let shape = match plan {
        Plan::Untouched => return Some(plan.clone()),
        Plan::Default => match tc.remove_qdisc() {
            Ok(()) => return Some(plan.clone()),
            Err(e) => {
                failures.push(format!("{name}: Failed to delete existing qdisc: {}", text(&e)));
                return None;
            }
        },
        Plan::Shape(shape) => shape,
    };
    let old = kept(was, shape);
    let result = match old {
        Some(_) => set_root(tc, old, shape),
        None => tc.set_qdisc(&shape.qdisc).and_then(|()| set_root(tc, None, shape)),
    };
    if let Err(e) = result {
        let kind = shape.kind;
        failures.push(format!("{name}: Failed to install new qdisc: {} ({kind})", text(&e)));
        let _ = tc.remove_qdisc();
        return None;
    }
    let queues = old.map(|old| old.queues.clone()).unwrap_or_default();
    let Shape { kind, qdisc, root, .. } = shape;
    Some(Plan::Shape(Shape { kind, qdisc: qdisc.clone(), root: root.clone(), queues }))
}

/// The shape before, if its queueing discipline stays.
fn kept<'a>(was: Option<&'a Plan>, shape: &Shape) -> Option<&'a Shape> {
    match was {
        Some(Plan::Shape(old)) if old.qdisc == shape.qdisc => Some(old),
        _ => None,
    }
}

fn set_root(tc: &mut impl Kernel, old: Option<&Shape>, shape: &Shape) -> io::Result<()> {
    match &shape.root {
        Some(class) if old.and_then(|old| old.root.as_ref()) != Some(class) => {
            tc.set_class(ROOT_CLASS, class)
        }
        _ => Ok(()),
    }
}

/// Queues that are to go, and then those that come or change.
fn due(is: Option<&Shape>, plan: &Plan) -> VecDeque<u32> {
    let (Some(is), Plan::Shape(wanted)) = (is, plan) else { return VecDeque::new() };
    let gone = is.queues.keys().filter(|id| !wanted.queues.contains_key(id));
    let changed = wanted.queues.iter().filter(|(id, class)| is.queues.get(id) != Some(class));
    gone.chain(changed.map(|(id, _)| id)).copied().collect()
}

/// Brings the class of a queue up to date. One that the kernel refuses is not of the shape, so that
/// the next attempt sets it again.
fn change_queue(
    tc: &mut impl Kernel,
    (shape, wanted): (&mut Shape, &Shape),
    id: u32,
    name: &str,
    failures: &mut Vec<String>,
) {
    let minor = minor(id);
    shape.queues.remove(&id);
    let Some(class) = wanted.queues.get(&id) else {
        if let Err(e) = tc.remove_class(minor) {
            failures.push(format!("delete {name} class 1:{minor} failed ({})", text(&e)));
        }
        return;
    };
    match tc.set_class(minor, class) {
        Ok(()) => _ = shape.queues.insert(id, class.clone()),
        Err(e) => failures.push(format!(
            "failed to replace {name} class 1:{minor}, parent 1:{ROOT_CLASS} ({})",
            text(&e)
        )),
    }
}

/// The text of an error without its number.
fn text(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
#[path = "applied_tests.rs"]
mod tests;
