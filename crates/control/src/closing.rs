//! Closing many ports at once.
//!
//! The kernel lets go of a TAP device or a packet socket only after each of its CPUs has passed a
//! quiet point, 10 to 25 ms later, and the thread that closes it waits for that. Ports that go
//! together are closed side by side.

use ::port::{Port, Service};

/// Ports that are closed side by side: 500 take some tenths of a second instead of nine.
const CLOSING_THREADS_MAX: usize = 16;

/// Closes ports, and returns when they are closed. Those that DPDK serves are closed by this
/// thread, one by one.
pub(crate) fn close(ports: Vec<Box<dyn Port>>) {
    let (kernel, others): (Vec<_>, Vec<_>) =
        ports.into_iter().partition(|p| p.service() == Service::Kernel);
    drop(others);
    drop_all(kernel);
}

/// Drops values, some side by side.
fn drop_all<T: Send>(values: Vec<T>) {
    if values.len() < 2 {
        return;
    }
    let mut shares: Vec<Vec<T>> = Vec::new();
    shares.resize_with(values.len().min(CLOSING_THREADS_MAX), Vec::new);
    let n = shares.len();
    values.into_iter().enumerate().for_each(|(i, value)| shares[i % n].push(value));
    std::thread::scope(|scope| {
        for share in shares {
            // A thread that cannot be started drops its share here, with the closure.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || drop(share));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// How many are being dropped now, and the most there were at a time.
    type Going = (Mutex<(usize, usize)>, Condvar);

    /// Its end takes until another one's has begun, if there is another.
    struct Slow<'a>(&'a Going, usize);

    impl Drop for Slow<'_> {
        fn drop(&mut self) {
            let mut now = self.0.0.lock().unwrap();
            now.0 += 1;
            now.1 = now.1.max(now.0);
            self.0.1.notify_all();
            let wait = |n: &mut (usize, usize)| n.1 < self.1;
            let (mut now, _) =
                self.0.1.wait_timeout_while(now, Duration::from_secs(20), wait).unwrap();
            now.0 -= 1;
        }
    }

    #[test]
    fn many_are_closed_side_by_side_and_all_at_the_end() {
        for n in [0, 1, 5, 100] {
            let going = Going::default();
            let at_once = n.min(CLOSING_THREADS_MAX);
            drop_all((0..n).map(|_| Slow(&going, at_once)).collect());
            assert_eq!(*going.0.lock().unwrap(), (0, at_once), "{n}");
        }
    }
}
