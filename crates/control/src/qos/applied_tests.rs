use super::*;
use crate::config::{LinuxQos, QUEUES_MAX, QosConf};
use crate::qos::plan::Device;

/// Counts requests; what refuses all but the queueing discipline is no device any more.
#[derive(Default)]
struct Counting {
    requests: usize,
    refuses: bool,
}

impl Counting {
    fn answer(&mut self) -> io::Result<()> {
        self.requests += 1;
        let refused = || Err(io::Error::from_raw_os_error(libc::ENODEV));
        if self.refuses { refused() } else { Ok(()) }
    }
}

impl Kernel for Counting {
    fn remove_qdisc(&mut self) -> io::Result<()> {
        self.answer()
    }
    fn set_qdisc(&mut self, _: &Qdisc) -> io::Result<()> {
        self.answer()
    }
    fn set_class(&mut self, _: u16, _: &TrafficClass) -> io::Result<()> {
        self.answer()
    }
    fn remove_class(&mut self, _: u16) -> io::Result<()> {
        self.answer()
    }
}

fn plan(queues: u32, rate: u64) -> Plan {
    let config = [("max-rate".to_string(), rate)].into();
    let all = (0..queues).map(|id| (id, Default::default()));
    let qos = LinuxQos { kind: "linux-htb", config, queues: all.collect() };
    Plan::new(&qos, Device { mtu: 1500, mbps: 1000 })
}

/// A turn of a change. True: it is done.
fn turn(applied: &mut Applied, kernel: &mut Counting) -> bool {
    let (before, some) = (kernel.requests, applied.requests());
    let answers = applied.gate.clone().run(kernel, some);
    assert!(kernel.requests - before <= TURN_REQUESTS_MAX);
    applied.answered(answers, "p1", 0).is_some()
}

/// Requests that a change makes, all together; no turn makes too many.
fn requests(applied: &mut Applied, kernel: &mut Counting, plan: Plan) -> usize {
    let before = kernel.requests;
    applied.begin(plan);
    while !turn(applied, kernel) {}
    kernel.requests - before
}

#[test]
fn a_change_makes_one_request_for_each_queue_and_few_a_turn() {
    let (mut applied, mut kernel) = (Applied::default(), Counting::default());
    let all = QUEUES_MAX as usize;
    let mut change = |plan| requests(&mut applied, &mut kernel, plan);
    assert_eq!(change(plan(QUEUES_MAX, 8_000_000)), all + 2);
    assert_eq!(change(plan(QUEUES_MAX, 8_000_000)), 0, "it is so already");
    assert_eq!(change(plan(100, 8_000_000)), all - 100, "queues go");
    assert_eq!(change(plan(102, 8_000_000)), 2, "queues come");
    assert_eq!(change(plan(102, 9_000_000)), 103, "all have another rate");
    assert_eq!(change(Plan::Default), 1);
    assert_eq!(applied.queues().count(), 0);
}

#[test]
fn a_change_during_a_change_begins_where_that_was() {
    let (mut applied, mut kernel) = (Applied::default(), Counting::default());
    applied.begin(plan(1000, 8_000_000));
    assert!(!turn(&mut applied, &mut kernel) && !turn(&mut applied, &mut kernel));
    assert_eq!(applied.queues().count(), TURN_REQUESTS_MAX);
    let rest = requests(&mut applied, &mut kernel, plan(100, 8_000_000));
    assert_eq!((rest, applied.queues().count()), (100 - TURN_REQUESTS_MAX, 100));
}

/// Begins with what is new.
fn begin(applied: &mut Applied) {
    let new = applied.take_new().unwrap();
    applied.begin(new.plan());
}

/// What is wanted while a change is under way is begun with when the kernel has answered; what is
/// wanted already causes nothing, unless it failed.
#[test]
fn what_is_wanted_is_begun_with_once() {
    let (mut applied, mut kernel) = (Applied::default(), Counting::default());
    let device = |mtu| Device { mtu, mbps: 1000 };
    let wanted = |mtu| Wanted { qos: None, device: device(mtu) };
    applied.set_default();
    assert!(!applied.want(wanted(1500)), "it has the kernel's default");
    let config = [("max-rate".to_string(), 8_000_000)].into();
    let all = (0..1000).map(|id| (id, Default::default()));
    let linux = LinuxQos { kind: "linux-htb", config, queues: all.collect() };
    let qos = Some(Arc::new(QosConf::Linux(linux)));
    let shaped = |mtu| Wanted { qos: qos.clone(), device: device(mtu) };
    assert!(applied.want(shaped(1500)) && !applied.want(shaped(1500)));
    begin(&mut applied);
    assert!(applied.take_new().is_none() && !turn(&mut applied, &mut kernel));
    let some = applied.requests();
    assert!(applied.want(shaped(9000)) && applied.want(wanted(1500)));
    let answers = applied.gate.clone().run(&mut kernel, some);
    assert!(applied.answered(answers, "p1", 0).is_none());
    begin(&mut applied);
    assert!(turn(&mut applied, &mut kernel) && applied.shape().is_none() && !applied.is_ours());
    kernel.refuses = true;
    assert!(applied.want(shaped(1500)));
    begin(&mut applied);
    assert!(turn(&mut applied, &mut kernel));
    assert!(applied.want(shaped(1500)), "it is tried again");
}

/// Once a port is closed nothing is asked for its device any more.
#[test]
fn a_port_that_is_closed_causes_no_requests() {
    let (mut applied, mut kernel) = (Applied::default(), Counting::default());
    applied.begin(plan(1000, 8_000_000));
    assert!(!turn(&mut applied, &mut kernel) && applied.is_ours());
    let some = applied.requests();
    applied.gate.close(None);
    let before = kernel.requests;
    assert!(applied.gate.run(&mut kernel, some).is_empty() && kernel.requests == before);
}

#[test]
fn what_the_kernel_refuses_is_asked_for_once_an_attempt() {
    let (mut applied, mut kernel) = (Applied::default(), Counting::default());
    requests(&mut applied, &mut kernel, plan(10, 8_000_000));
    kernel.refuses = true;
    assert_eq!(requests(&mut applied, &mut kernel, plan(12, 8_000_000)), 2);
    assert_eq!(requests(&mut applied, &mut kernel, plan(12, 8_000_000)), 2);
    kernel.refuses = false;
    assert_eq!(requests(&mut applied, &mut kernel, plan(12, 8_000_000)), 2);
    assert_eq!(applied.queues().count(), 12);
}
