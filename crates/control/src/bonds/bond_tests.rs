use super::*;

/// A bond of p1 (OpenFlow port 1) and p2 (2), both up.
fn bond(conf: Conf) -> Bond {
    let mut bond = Bond::new(conf, [0; 6], 0);
    for n in [1, 2] {
        bond.set_member(&format!("p{n}"), n.into(), [n; 6]);
        bond.set_up(&format!("p{n}"), true);
    }
    bond.run(LacpStatus::Off, 0);
    bond
}

fn mode(mode: Mode) -> Conf {
    Conf { mode, rebalance_ms: 10_000, ..Conf::default() }
}

fn admissions(bond: &Bond) -> [BondAdmission; 2] {
    let spec = bond.spec(Some(99));
    [1, 2].map(|port| spec.admits[&port])
}

use BondAdmission::{All, Nothing, Unicast};
use BondOutput::{Member as To, Nowhere, Spread};

#[test]
fn the_active_interface_stays_until_it_fails() {
    let mut b = bond(mode(Mode::ActiveBackup));
    assert_eq!((b.spec(None).output, admissions(&b)), (To(1), [All, Nothing]));
    b.set_up("p1", false);
    b.run(LacpStatus::Off, 10);
    assert_eq!((b.spec(None).output, admissions(&b)), (To(2), [Nothing, All]));
    assert!(b.take_announcement() && !b.take_announcement());
    b.set_up("p1", true);
    b.run(LacpStatus::Off, 20);
    assert_eq!(b.spec(None).output, To(2), "it does not go back");
    assert_eq!(b.set_active("p1"), Ok("done"));
    assert_eq!(b.set_active("p1"), Ok("no change"));
    assert_eq!(b.set_active("p3"), Err("no such member"));
    assert_eq!(b.spec(None).output, To(1));
    for n in ["p1", "p2"] {
        b.set_up(n, false);
    }
    b.run(LacpStatus::Off, 30);
    assert_eq!((b.spec(None).output, b.active_mac()), (Nowhere, None));
    let log = b.take_log().join("\n");
    assert!(log.contains("active member is now p2") && log.contains("all members disabled"));
}

#[test]
fn the_primary_comes_back() {
    let primary = Some("p2".to_string());
    let mut b = bond(Conf { primary, ..mode(Mode::ActiveBackup) });
    assert_eq!(b.spec(None).output, To(2));
    b.set_up("p2", false);
    b.run(LacpStatus::Off, 10);
    assert_eq!(b.spec(None).output, To(1));
    b.set_up("p2", true);
    b.run(LacpStatus::Off, 20);
    assert_eq!(b.spec(None).output, To(2));
}

#[test]
fn links_are_used_and_left_after_their_delays() {
    let mut b = bond(Conf { updelay_ms: 100, downdelay_ms: 50, ..mode(Mode::ActiveBackup) });
    assert_eq!(b.spec(None).output, To(1), "with none enabled, no delay");
    b.run(LacpStatus::Off, 100);
    b.set_up("p1", false);
    b.run(LacpStatus::Off, 110);
    assert!(b.show("b", 0, false, 110).contains("  downdelay expires in 50 ms\n"));
    b.set_up("p1", true);
    b.run(LacpStatus::Off, 150);
    b.set_up("p1", false);
    b.run(LacpStatus::Off, 200);
    assert_eq!(b.spec(None).output, To(1));
    b.run(LacpStatus::Off, 250);
    assert_eq!(b.spec(None).output, To(2));
    b.set_up("p1", true);
    b.run(LacpStatus::Off, 300);
    assert_eq!(b.set_active("p1"), Err("cannot make disabled member active"));
    b.run(LacpStatus::Off, 400);
    assert_eq!(b.set_active("p1"), Ok("done"));
}

#[test]
fn all_interfaces_carry_sources() {
    let mut b = bond(mode(Mode::BalanceSlb));
    let spec = b.spec(Some(99));
    assert_eq!((spec.output, spec.drops_moved), (Spread(99), true));
    assert_eq!(admissions(&b), [All, Unicast]);
    assert!(b.buckets.members().any(|m| m == Some(1)));
    assert_eq!(b.migrate("3", "p2"), Ok("migrated"));
    assert_eq!(b.buckets.members().nth(3), Some(Some(2)));
    assert_eq!(b.migrate("x", "p2"), Err("bad hash"));
    assert_eq!(b.force("p2", false), Ok("disabled"));
    assert_eq!(b.migrate("3", "p2"), Err("cannot migrate to disabled member"));
    assert_eq!(bond(mode(Mode::BalanceTcp)).migrate("3", "p2"), Err("not an SLB bond"));
    let all_active = Conf { all_active: true, ..mode(Mode::BalanceSlb) };
    assert_eq!(admissions(&bond(all_active)), [All, All]);
    b.set_up("p1", false);
    b.run(LacpStatus::Off, 10);
    b.set_up("p2", false);
    b.run(LacpStatus::Off, 20);
    assert_eq!(b.spec(Some(99)).output, Nowhere);
}

#[test]
fn connections_are_spread_with_a_partner_only() {
    let conf = mode(Mode::BalanceTcp);
    let mut b = bond(conf.clone());
    for (lacp, output, admits) in [
        (LacpStatus::Off, Nowhere, [Nothing; 2]),
        (LacpStatus::Configured, Nowhere, [Nothing; 2]),
        (LacpStatus::Negotiated, Spread(99), [All; 2]),
    ] {
        b.run(lacp, 10);
        assert_eq!((b.spec(Some(99)).output, admissions(&b)), (output, admits), "{lacp:?}");
    }
    let mut b = bond(Conf { fallback_ab: true, ..conf });
    b.run(LacpStatus::Configured, 10);
    assert_eq!((b.spec(Some(99)).output, admissions(&b)), (To(1), [All, Nothing]));
}

#[test]
fn load_moves_when_it_is_time() {
    let mut b = bond(mode(Mode::BalanceSlb));
    b.buckets.count(|bucket| if bucket % 2 == 0 { 1_000_000 } else { 0 });
    let of_p2 =
        |b: &Bond| (0..256).filter(|i| b.buckets.members().nth(*i) == Some(Some(2))).count();
    let before = of_p2(&b);
    b.run(LacpStatus::Off, 9_999);
    assert_eq!(of_p2(&b), before);
    b.run(LacpStatus::Off, 10_000);
    assert!(b.take_log().join("\n").contains("976kB of load (with hash "));
    assert!(b.show("b", 0, false, 10_000).contains("next rebalance: 10000 ms\n"));
}
