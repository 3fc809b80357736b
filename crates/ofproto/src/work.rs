//! Counts steps of work, in tests only.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts a step: a turn of a loop whose length depends on input.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Number of steps that `f` takes.
#[cfg(test)]
pub(crate) fn steps<T>(f: impl FnOnce() -> T) -> (usize, T) {
    let before = STEPS.get();
    let done = f();
    (STEPS.get() - before, done)
}
