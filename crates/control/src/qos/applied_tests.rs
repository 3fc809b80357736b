use super::*;
use crate::config::{LinuxQos, QUEUES_MAX};
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

/// Requests that a change makes, all together; no turn makes too many.
fn requests(applied: &mut Applied, kernel: &mut Counting, plan: Plan) -> usize {
    let before = kernel.requests;
    applied.begin(kernel, plan, "p1");
    assert!(kernel.requests - before <= 3, "the discipline and the root class");
    loop {
        let so_far = kernel.requests;
        let done = applied.turn(kernel, "p1", 0).is_some();
        assert!(kernel.requests - so_far <= TURN_REQUESTS_MAX);
        if done {
            return kernel.requests - before;
        }
    }
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
    applied.begin(&mut kernel, plan(1000, 8_000_000), "p1");
    assert!(applied.turn(&mut kernel, "p1", 0).is_none());
    assert_eq!(applied.queues().count(), TURN_REQUESTS_MAX);
    let rest = requests(&mut applied, &mut kernel, plan(20, 8_000_000));
    assert_eq!((rest, applied.queues().count()), (20 - TURN_REQUESTS_MAX, 20));
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
