//! Models: the crate's own source, compiled with loom's atomics, run in every order that the memory
//! model allows. Not under Miri, which cannot run loom's threads.
#![cfg(not(miri))]

#[allow(dead_code)]
#[path = "../src/place.rs"]
mod place;
#[allow(dead_code)]
#[path = "../src/qsbr.rs"]
mod qsbr;
#[allow(dead_code)]
#[path = "../src/spsc.rs"]
mod spsc;

/// What `src/atomics.rs` is outside a model.
mod atomics {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::sync::{Arc, Mutex};

    pub fn wait(_attempts: usize) {
        loom::thread::yield_now();
    }
}

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use place::Place;
use qsbr::{Domain, Guard, Published, Reader};

/// Times that a thread is interrupted where it need not be, in one execution: more find nothing
/// that three do not, and take minutes.
const PREEMPTIONS_MAX: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// A value that knows who is inside, and whether it was taken away. Plain memory: loom reports
/// accesses that nothing orders.
#[derive(Default)]
struct Visited {
    inside: Cell<bool>,
    gone: Cell<bool>,
}

// SAFETY: what the model is to show; loom checks it.
unsafe impl Send for Visited {}

impl Visited {
    fn enter(&self) {
        assert!(!self.inside.get(), "two are inside");
        assert!(!self.gone.get(), "used after it was taken away");
        self.inside.set(true);
    }

    fn leave(&self) {
        assert!(self.inside.get());
        self.inside.set(false);
    }
}

/// One burst: uses the value if the place is free and not empty.
fn burst(place: &Place<Box<Visited>>) {
    if let Some(mut held) = place.try_hold()
        && let Some(value) = held.get()
    {
        value.enter();
        value.leave();
    }
}

/// The control side: no reader is inside of what it takes away.
fn replace(place: &Place<Box<Visited>>, new: Option<Box<Visited>>) {
    if let Some(old) = place.put(new) {
        old.enter();
        old.gone.set(true);
    }
}

#[test]
fn a_place_has_one_holder_among_two_handles_and_the_control_side() {
    check(|| {
        let place = Arc::new(Place::default());
        place.put(Some(Box::new(Visited::default())));
        let handles: Vec<_> = (0..2)
            .map(|_| {
                let place = place.clone();
                thread::spawn(move || burst(&place))
            })
            .collect();
        replace(&place, Some(Box::new(Visited::default())));
        replace(&place, None);
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
}

#[test]
fn a_handle_that_comes_back_meets_the_new_value_only() {
    check(|| {
        let place = Arc::new(Place::default());
        place.put(Some(Box::new(Visited::default())));
        let handle = {
            let place = place.clone();
            thread::spawn(move || (0..2).for_each(|_| burst(&place)))
        };
        replace(&place, Some(Box::new(Visited::default())));
        burst(&place);
        handle.join().unwrap();
    });
}

/// A published value that is marked when it is dropped. Its mark outlives it, and is plain memory:
/// loom reports a reader's look that nothing orders before the drop.
struct Marked(std::sync::Arc<Visited>);

// SAFETY: what the models are to show; loom checks it.
unsafe impl Send for Marked {}
// SAFETY: as above.
unsafe impl Sync for Marked {}

impl Marked {
    fn new() -> Marked {
        Marked(std::sync::Arc::default())
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        self.0.gone.set(true);
    }
}

/// A worker's vector: follows the pointer twice.
fn look(published: &Published<Marked>, guard: Guard<'_>) {
    for _ in 0..2 {
        let value = published.read(guard);
        assert!(!value.0.gone.get(), "read after it was dropped");
    }
}

/// Publishes another value while `worker` runs, and drops the old one as soon as that is said to be
/// safe.
fn replaced_beside(
    worker: impl Fn(&mut Reader, &Published<Marked>) + Copy + Send + Sync + 'static,
) {
    check(move || {
        let domain = Domain::new();
        let published = Arc::new(Published::new(domain.clone(), Marked::new()));
        let (mut reader, mut writer) = (domain.reader(), domain.writer());
        let thread = {
            let published = published.clone();
            thread::spawn(move || worker(&mut reader, &published))
        };
        published.publish(Marked::new());
        writer.reclaim();
        writer.reclaim();
        thread.join().unwrap();
        assert_eq!(writer.reclaim(), 0, "a reader that is gone is waited for");
    });
}

#[test]
fn what_a_worker_reads_is_there_until_its_vector_ends() {
    replaced_beside(|reader, published| {
        look(published, reader.pin());
        reader.quiescent();
        look(published, reader.pin());
    });
}

#[test]
fn a_worker_that_wakes_up_is_waited_for() {
    replaced_beside(|reader, published| {
        reader.offline();
        reader.online();
        look(published, reader.pin());
    });
}

#[test]
fn a_worker_that_starts_is_waited_for() {
    check(|| {
        let domain = Domain::new();
        let published = Arc::new(Published::new(domain.clone(), Marked::new()));
        let thread = {
            let (domain, published) = (domain.clone(), published.clone());
            thread::spawn(move || {
                let reader = domain.reader();
                look(&published, reader.pin());
                drop(reader);
            })
        };
        let mut writer = domain.writer();
        published.publish(Marked::new());
        writer.reclaim();
        thread.join().unwrap();
        assert_eq!(writer.reclaim(), 0);
    });
}

/// A barrier: when the grace period has passed, no worker uses what was published before it.
#[test]
fn a_grace_period_ends_when_all_see_the_change() {
    check(|| {
        let domain = Domain::new();
        let mut reader = domain.reader();
        let (version, changed) =
            (Arc::new(atomics::AtomicU64::new(0)), Arc::new(atomics::AtomicBool::new(false)));
        let thread = {
            let (version, changed) = (version.clone(), changed.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let before = changed.load(atomics::Ordering::Acquire);
                    let seen = version.load(atomics::Ordering::Acquire);
                    assert!(!before || seen == 1, "an old version after the barrier's reply");
                    reader.quiescent();
                }
                reader.offline();
            })
        };
        version.store(1, atomics::Ordering::Release);
        let grace = domain.grace();
        if domain.passed(grace) {
            changed.store(true, atomics::Ordering::Release);
        }
        thread.join().unwrap();
        assert!(domain.passed(grace));
    });
}

/// More entries than the ring has places: each comes once, in order, and what is left is dropped
/// once.
#[test]
fn a_ring_hands_over_in_order() {
    check(|| {
        let (mut producer, mut consumer) = spsc::ring::<std::sync::Arc<u32>>(2);
        let thread = thread::spawn(move || {
            let mut sent = 0;
            while sent < 4 {
                match producer.push(std::sync::Arc::new(sent)) {
                    Ok(()) => sent += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let mut last = None;
        for want in 0..3 {
            let got = loop {
                match consumer.pop() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*got, want);
            last = Some(got);
        }
        thread.join().unwrap();
        drop(consumer);
        assert_eq!(std::sync::Arc::strong_count(&last.unwrap()), 1);
    });
}

/// What was pushed before the producer left is there for who asks whether it left, and then whether
/// anything is.
#[test]
fn an_abandoned_ring_is_emptied_first() {
    check(|| {
        let (mut producer, mut consumer) = spsc::ring::<u32>(2);
        let thread = thread::spawn(move || {
            producer.push(7).unwrap();
        });
        if consumer.is_abandoned() {
            assert!(!consumer.is_empty(), "an entry is lost");
        }
        thread.join().unwrap();
        assert_eq!(consumer.pop(), Some(7));
    });
}
