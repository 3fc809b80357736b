//! Models: the crate's own source, compiled with loom's atomics, run in every order that the memory model allows.

#[allow(dead_code)]
#[path = "../src/place.rs"]
mod place;

/// What `src/atomics.rs` is outside a model.
mod atomics {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, Ordering};

    pub fn wait(_attempts: usize) {
        loom::thread::yield_now();
    }
}

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use place::Place;

/// Times that a thread is interrupted where it need not be, in one execution: more find nothing that three do not,
/// and take minutes.
const PREEMPTIONS_MAX: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// A value that knows who is inside, and whether it was taken away. Plain memory: loom reports accesses that
/// nothing orders.
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

/// The control side: what it takes away nobody is inside of.
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
