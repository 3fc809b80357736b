use super::*;
use crate::oam::cfm::cfm_conf::Interval;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn conf(mpid: u64) -> CfmConf {
    CfmConf {
        mpid,
        interval: Interval { ms: 100, number: 3 },
        extended: true,
        demand: false,
        up: true,
        vlan: Vlan::Id(0),
        pcp: 0,
        key_zero: false,
    }
}

fn point(mpid: u64) -> MaintenancePoint {
    MaintenancePoint::new(conf(mpid), 0, 0)
}

/// Lets two points send to one another from `from` to `to`, in steps of 10 ms.
fn talk(a: &mut MaintenancePoint, b: &mut MaintenancePoint, from: u64, to: u64) {
    for now in (from..to).step_by(10) {
        let frames = [&mut *a, &mut *b].map(|s| s.is_due(now).then(|| s.transmit(now, MAC, 0)));
        frames[0].iter().for_each(|f| b.receive(f, now));
        frames[1].iter().for_each(|f| a.receive(f, now));
        a.check(now, 0);
        b.check(now, 0);
    }
}

/// As `talk`, with `b` silent.
fn alone(a: &mut MaintenancePoint, from: u64, to: u64) {
    for now in (from..to).step_by(10) {
        if a.is_due(now) {
            a.transmit(now, MAC, 0);
        }
        a.check(now, 0);
    }
}

#[test]
fn points_hear_one_another_and_miss_who_is_silent() {
    let (mut a, mut b) = (point(1), point(2));
    assert_eq!(a.status(), Status { remote_up: Some(true), ..Status::default() });
    talk(&mut a, &mut b, 0, 5000);
    let good =
        Status { remote_up: Some(true), health: Some(100), remotes: vec![2], ..Status::default() };
    assert_eq!(a.status(), good);
    assert!(!a.status().is_faulty());
    alone(&mut a, 5000, 10_000);
    let is = a.status();
    assert_eq!((is.faults.names(), is.flaps, is.health), (vec!["recv"], 1, Some(0)));
    assert!(is.is_faulty() && is.remotes.is_empty());
    // The remote point sees the bit for that, and counts it as a fault.
    let rdi = a.transmit(10_000, MAC, 0);
    b.receive(&rdi, 10_000);
    b.check(u64::MAX / 2, 0);
    assert_eq!(b.status().faults.names(), ["rdi"]);
    talk(&mut a, &mut b, 10_010, 12_000);
    assert_eq!((a.status().faults, a.status().flaps), (Faults::default(), 2));
}

#[test]
fn what_is_wrong_is_a_fault_until_it_is_not() {
    let mut a = point(1);
    let (own, mut down) = (point(1).transmit(0, MAC, 0), point(3));
    down.configure(CfmConf { up: false, ..conf(3) }, 0, 0);
    a.receive(&own, 10);
    a.receive(&down.transmit(10, MAC, 0), 10);
    let mut strange = own.clone();
    strange[14 + 12] ^= 1;
    a.receive(&strange, 10);
    a.check(350, 0);
    assert_eq!(a.status().faults.names(), ["maid", "loopback"]);
    assert_eq!((a.status().remotes, a.status().remote_up), (vec![1, 3], Some(false)));
    a.force(Some(true));
    assert_eq!(a.status().faults.names(), ["override"]);
    a.force(Some(false));
    assert_eq!(a.status().faults.names(), [""; 0]);
    assert!(
        a.show(350).starts_with("MPID 1: extended fault_override\n  average health: undefined")
    );
    a.force(None);
    a.check(700, 0);
    assert_eq!(a.status().faults.names(), ["recv"]);
}

#[test]
fn data_stands_for_messages_for_a_while_in_demand_mode() {
    let mut a = MaintenancePoint::new(CfmConf { demand: true, ..conf(1) }, 0, 0);
    let mut b = point(2);
    a.receive(&b.transmit(0, MAC, 0), 0);
    let mut faulty_from = None;
    for now in (0..40_000).step_by(100) {
        a.check(now, now);
        if a.status().is_faulty() {
            faulty_from.get_or_insert(now);
        }
    }
    // 100 intervals, and until the next look.
    assert!(matches!(faulty_from, Some(10_000..=11_750)), "{faulty_from:?}");
}

#[test]
fn remote_points_and_messages_are_bounded() {
    let mut a = point(1);
    let mut heard = 0;
    for mpid in 2..2000 {
        if a.hears(0) {
            a.receive(&point(mpid).transmit(0, MAC, 0), 0);
            heard += 1;
        }
    }
    assert_eq!((heard, a.remotes.len()), (BURST_COUNT, REMOTES_COUNT_MAX));
    assert_eq!(a.wake(), 0, "a message is to be sent");
    a.transmit(0, MAC, 0);
    assert_eq!(a.wake(), AGAIN_COUNT);
    assert!(a.hears(1));
    a.receive(&point(5000).transmit(0, MAC, 0), 1);
    a.check(350, 0);
    assert_eq!(a.status().faults.names(), ["overflow"]);
    assert!(a.notes.len() < 4 * BURST_COUNT as usize);
}
