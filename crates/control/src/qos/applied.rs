//! The traffic control of devices as it was last set, and what changes it, some requests at a time.

use super::plan::{Plan, Shape, Wanted};
use ::port::tc::{ClassStats, Qdisc, ROOT_CLASS, TrafficClass, TrafficControl};
use flow::PortNo;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Requests for a device before another one has its turn: the kernel takes up to two milliseconds
/// for each where classes are many.
const TURN_REQUESTS_MAX: usize = 64;

/// Traffic control as it was last set, by datapath port.
pub type Ports = BTreeMap<PortNo, Applied>;

/// What is asked of the kernel.
pub(super) trait Kernel {
    fn remove_qdisc(&mut self) -> io::Result<()>;
    fn set_qdisc(&mut self, qdisc: &Qdisc) -> io::Result<()>;
    fn set_class(&mut self, minor: u16, class: &TrafficClass) -> io::Result<()>;
    fn remove_class(&mut self, minor: u16) -> io::Result<()>;
}

impl Kernel for TrafficControl {
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

/// A request; the thread that makes it may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TcRequest {
    /// The kernel's default queueing.
    Remove,
    /// The queueing discipline, unless it stays, and the class of all queues together, unless it
    /// stays; what fails leaves the kernel's default.
    Root(Option<Qdisc>, Option<TrafficClass>),
    /// The class of a queue; None: it goes.
    Queue(u32, Option<TrafficClass>),
}

impl TcRequest {
    fn run(&self, tc: &mut impl Kernel) -> io::Result<()> {
        match self {
            TcRequest::Remove => tc.remove_qdisc(),
            TcRequest::Root(qdisc, class) => {
                let qdisc = qdisc.iter().try_for_each(|qdisc| tc.set_qdisc(qdisc));
                let all =
                    qdisc.and_then(|()| class.iter().try_for_each(|c| tc.set_class(ROOT_CLASS, c)));
                all.inspect_err(|_| _ = tc.remove_qdisc())
            }
            TcRequest::Queue(id, Some(class)) => tc.set_class(minor(*id), class),
            TcRequest::Queue(id, None) => tc.remove_class(minor(*id)),
        }
    }
}

/// Requests, and what the kernel answered to each.
pub(super) type Answers = Vec<(TcRequest, io::Result<()>)>;

/// Lets one thread at a time make requests for a device, until its port is closed.
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<bool>>);

impl Gate {
    /// True if both are of the same port.
    pub(super) fn is(&self, other: &Gate) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Makes requests, and waits for the kernel. Those after the port was closed are left out.
    pub(super) fn run(&self, tc: &mut impl Kernel, requests: Vec<TcRequest>) -> Answers {
        let answered = requests.into_iter().map_while(|request| {
            let is_closed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = (!*is_closed).then(|| request.run(tc))?;
            Some((request, answer))
        });
        answered.collect()
    }

    /// Gives a device whose port is closed the kernel's default queueing again, and waits for the
    /// kernel. No other request is made after that.
    pub fn close(&self, tc: Option<TrafficControl>) {
        let mut is_closed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *is_closed = true;
        // The device may be gone.
        let _ = tc.map(|mut tc| tc.remove_qdisc());
    }
}

/// A change under way.
struct Change {
    plan: Plan,
    /// All but the queues is done.
    has_root: bool,
    /// Queues that are to go, and then those that come or change.
    due: VecDeque<u32>,
    failures: Vec<String>,
}

/// The kernel's last answer about what a port's queues have sent.
#[derive(Default)]
pub(super) struct Counted {
    /// The number of the question.
    pub number: u64,
    /// By minor number.
    pub stats: BTreeMap<u16, ClassStats>,
}

/// The traffic control of one device as it was last set.
#[derive(Default)]
pub struct Applied {
    /// What it was last to be made of; None: it was not, or something failed.
    wanted: Option<Wanted>,
    /// That was not taken to begin with yet.
    is_new: bool,
    /// What is in effect; None: not known.
    plan: Option<Plan>,
    change: Option<Change>,
    /// When each queue was made (`now_ms`).
    pub(super) since_ms: BTreeMap<u32, u64>,
    /// What failed at the last attempt, which is in the log already.
    failures: Vec<String>,
    pub(super) gate: Gate,
    /// What the kernel said last of the queues.
    pub(super) counted: Counted,
}

impl Applied {
    /// Records what it is to be made of. True: something is to be done for that.
    pub(super) fn want(&mut self, wanted: Wanted) -> bool {
        if self.wanted.as_ref() == Some(&wanted) {
            return false;
        }
        self.is_new = !(wanted.is_default() && self.has_default());
        self.wanted = Some(wanted);
        self.is_new
    }

    /// What it is to be made of, if that is new; the caller calls [`Self::begin`] then.
    pub(super) fn take_new(&mut self) -> Option<Wanted> {
        std::mem::take(&mut self.is_new).then(|| self.wanted.clone())?
    }

    /// Begins to make a device's traffic control be as planned.
    pub(super) fn begin(&mut self, plan: Plan) {
        let is_so = self.change.is_none() && self.plan.as_ref() == Some(&plan);
        if !is_so && self.change.as_ref().is_none_or(|change| change.plan != plan) {
            let (due, failures) = (VecDeque::new(), Vec::new());
            self.change = Some(Change { plan, has_root: false, due, failures });
        }
    }

    /// What is to be asked of the kernel next, [`TURN_REQUESTS_MAX`] requests at most. The caller
    /// makes them, and calls [`Self::answered`] then.
    pub(super) fn requests(&mut self) -> Vec<TcRequest> {
        let Some(change) = &mut self.change else { return Vec::new() };
        if !change.has_root {
            return first_request(self.plan.as_ref(), &change.plan).into_iter().collect();
        }
        let ids = change.due.drain(..change.due.len().min(TURN_REQUESTS_MAX));
        let Plan::Shape(wanted) = &change.plan else { return Vec::new() };
        ids.map(|id| TcRequest::Queue(id, wanted.queues.get(&id).cloned())).collect()
    }

    /// Takes over what the kernel answered. Some: the change is done; what failed, and did not fail
    /// the same at the last attempt.
    pub(super) fn answered(
        &mut self,
        answers: Answers,
        name: &str,
        now_ms: u64,
    ) -> Option<Vec<String>> {
        let Some(change) = &mut self.change else { return Some(Vec::new()) };
        if !change.has_root {
            change.has_root = true;
            let old = kept(self.plan.take(), &change.plan);
            if old.is_none() {
                self.since_ms.clear();
            }
            let result = answers.into_iter().try_for_each(|(_, answer)| answer);
            match result {
                Ok(()) => self.plan = Some(without_new_queues(&change.plan, old)),
                Err(e) => change.failures.push(root_failure(&change.plan, &e, name)),
            }
            change.due = due(self.plan.as_ref(), &change.plan);
        } else if let Some(Plan::Shape(shape)) = &mut self.plan {
            answers.into_iter().for_each(|answer| {
                change.failures.extend(take_queue(shape, answer, name));
            });
        }
        if !change.due.is_empty() || self.is_new {
            return None;
        }
        let mut failures = self.change.take().map(|change| change.failures)?;
        if !failures.is_empty() {
            // The next configuration has it tried again.
            self.wanted = None;
        }
        self.keep_times(now_ms);
        let before = std::mem::replace(&mut self.failures, failures.clone());
        failures.retain(|failure| !before.contains(failure));
        Some(failures)
    }

    /// True if the device has queueing that the switch made, or is being given it.
    pub(super) fn is_ours(&self) -> bool {
        let change = self.change.as_ref().map(|change| &change.plan);
        self.shape().is_some() || matches!(change, Some(Plan::Shape(_)))
    }

    /// True if there is nothing to be done for the kernel's default queueing.
    fn has_default(&self) -> bool {
        self.change.is_none() && self.plan == Some(Plan::Default)
    }

    /// Records that the device has the kernel's default queueing.
    pub fn set_default(&mut self) {
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

/// The request that makes all but the queues be as planned; None: there is nothing to be asked.
fn first_request(was: Option<&Plan>, plan: &Plan) -> Option<TcRequest> {
    let shape = match plan {
        Plan::Untouched => return None,
        Plan::Default => return Some(TcRequest::Remove),
        Plan::Shape(shape) => shape,
    };
    let old = match was {
        Some(Plan::Shape(old)) if old.qdisc == shape.qdisc => Some(old),
        _ => None,
    };
    let is_new = old.is_none_or(|old| old.root != shape.root);
    let qdisc = old.is_none().then(|| shape.qdisc.clone());
    Some(TcRequest::Root(qdisc, shape.root.clone().filter(|_| is_new)))
}

/// The queues before, if the queueing discipline stays.
fn kept(was: Option<Plan>, plan: &Plan) -> Option<BTreeMap<u32, TrafficClass>> {
    match (was, plan) {
        (Some(Plan::Shape(old)), Plan::Shape(new)) if old.qdisc == new.qdisc => Some(old.queues),
        _ => None,
    }
}

/// A plan of which only the queues are as before.
fn without_new_queues(plan: &Plan, old: Option<BTreeMap<u32, TrafficClass>>) -> Plan {
    let Plan::Shape(Shape { kind, qdisc, root, .. }) = plan else { return plan.clone() };
    let queues = old.unwrap_or_default();
    Plan::Shape(Shape { kind, qdisc: qdisc.clone(), root: root.clone(), queues })
}

fn root_failure(plan: &Plan, e: &io::Error, name: &str) -> String {
    match plan {
        Plan::Shape(shape) => {
            format!("{name}: Failed to install new qdisc: {} ({})", text(e), shape.kind)
        }
        _ => format!("{name}: Failed to delete existing qdisc: {}", text(e)),
    }
}

/// Queues that are to go, and then those that come or change.
fn due(is: Option<&Plan>, plan: &Plan) -> VecDeque<u32> {
    let (Some(Plan::Shape(is)), Plan::Shape(wanted)) = (is, plan) else { return VecDeque::new() };
    let gone = is.queues.keys().filter(|id| !wanted.queues.contains_key(id));
    let changed = wanted.queues.iter().filter(|(id, class)| is.queues.get(id) != Some(class));
    gone.chain(changed.map(|(id, _)| id)).copied().collect()
}

/// Takes over what became of the class of a queue; what failed. One that the kernel refuses is not
/// of the shape, so that the next attempt sets it again.
fn take_queue(
    shape: &mut Shape,
    (request, answer): (TcRequest, io::Result<()>),
    name: &str,
) -> Option<String> {
    let TcRequest::Queue(id, class) = request else { return None };
    let minor = minor(id);
    shape.queues.remove(&id);
    match (class, answer) {
        (Some(class), Ok(())) => _ = shape.queues.insert(id, class),
        (None, Ok(())) => {}
        (None, Err(e)) => {
            return Some(format!("delete {name} class 1:{minor} failed ({})", text(&e)));
        }
        (Some(_), Err(e)) => {
            return Some(format!(
                "failed to replace {name} class 1:{minor}, parent 1:{ROOT_CLASS} ({})",
                text(&e)
            ));
        }
    }
    None
}

/// The text of an error without its number.
fn text(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
#[path = "applied_tests.rs"]
mod tests;
