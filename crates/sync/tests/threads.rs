//! Readers, writers and rings with the standard library's atomics.

use sync::{Domain, Guard, Published, ring};

#[test]
fn retired_value_waits_for_reader() {
    let d = Domain::new();
    let mut r = d.reader();
    let mut w = d.writer();
    let p = Published::new(d.clone(), 1u32);
    p.publish(2);
    assert_eq!(w.reclaim(), 1);
    r.quiescent();
    assert_eq!(w.reclaim(), 0);
    assert_eq!((*p.read(r.pin()), *p.read(w.pin())), (2, 2));
}

#[test]
fn offline_reader_blocks_nobody() {
    let d = Domain::new();
    let mut r = d.reader();
    let g = d.grace();
    assert!(!d.passed(g));
    r.offline();
    assert!(d.passed(g));
    r.online();
    let g = d.grace();
    assert!(!d.passed(g));
    drop(r);
    assert!(d.passed(g));
}

#[test]
#[should_panic(expected = "offline")]
fn an_offline_reader_has_no_guard() {
    let mut r = Domain::new().reader();
    r.offline();
    let _ = r.pin();
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "another domain")]
fn a_guard_of_another_domain_is_found() {
    let (here, r) = (Domain::new(), Domain::new().reader());
    Published::new(here, 1).read(r.pin());
}

#[test]
#[should_panic(expected = "one writer")]
fn a_domain_has_one_writer_at_a_time() {
    let d = Domain::new();
    drop(d.writer());
    let _one = d.writer();
    d.writer();
}

#[test]
fn a_guard_costs_nothing_where_it_is_not_checked() {
    let pointer = if cfg!(debug_assertions) { size_of::<usize>() } else { 0 };
    assert_eq!(size_of::<Guard<'_>>(), pointer);
}

#[test]
fn keeps_order_and_bounds() {
    let (mut p, mut c) = ring::<u32>(4);
    for i in 0..4 {
        p.push(i).unwrap();
    }
    assert_eq!(p.push(9), Err(9));
    assert_eq!(
        (0..5).map(|_| c.pop()).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), Some(3), None]
    );
    p.push(5).unwrap();
    assert_eq!(c.pop(), Some(5));
}

#[test]
fn two_threads() {
    let (mut p, mut c) = ring::<u64>(64);
    let t = std::thread::spawn(move || {
        let mut i = 0;
        while i < 100_000 {
            if p.push(i).is_ok() {
                i += 1;
            }
        }
    });
    let mut want = 0;
    while want < 100_000 {
        if let Some(v) = c.pop() {
            assert_eq!(v, want);
            want += 1;
        }
    }
    t.join().unwrap();
}
