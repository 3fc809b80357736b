//! Readers, writers and rings with the standard library's atomics.

use sync::{Domain, Published, ring};

#[test]
fn retired_value_waits_for_reader() {
    let d = Domain::new();
    let r = d.reader();
    let p = Published::new(d.clone(), 1u32);
    p.publish(2);
    assert_eq!(d.reclaim(), 1);
    r.quiescent();
    assert_eq!(d.reclaim(), 0);
    // SAFETY: this thread is the only publisher.
    assert_eq!(unsafe { *p.read() }, 2);
}

#[test]
fn offline_reader_blocks_nobody() {
    let d = Domain::new();
    let r = d.reader();
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
