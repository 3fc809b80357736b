//! Closing ports beside the main loop.
//!
//! The kernel lets go of a TAP device or a packet socket only after each of its CPUs has passed a
//! quiet point, 10 to 25 ms later, and the thread that closes it waits for that. A driver of DPDK
//! may wait for its adapter for longer. Threads of their own close such ports, side by side, and
//! the control thread goes on meanwhile; devices of DPDK one after the other (`dpdk::registry`).

use crate::qos::applied::Gate;
use ::port::{Port, Service};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Ports that are closed side by side: 500 take some tenths of a second instead of nine.
const CLOSING_THREADS_MAX: usize = 16;
/// How often a task that waits for all ports to be closed looks whether they are.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The name of all devices of DPDK, which no interface can have: another port may be of the same
/// device.
const DEVICE: &str = "a device of DPDK";

/// The name under which a port of this type and name would be closed.
fn closed_as<'a>(kind: &str, name: &'a str) -> &'a str {
    if matches!(kind, "dpdk" | "afxdp") { DEVICE } else { name }
}

/// Ports that are being closed, by name.
pub struct Closing<T = Leaving>(Arc<Shared<T>>);

/// A port that is closed when this is dropped.
pub struct Leaving {
    port: Box<dyn Port>,
    /// The device that the port made stays for the next daemon.
    stays: bool,
    /// Its device is given the kernel's default queueing again.
    queueing: Option<Gate>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.queueing.iter().for_each(|gate| gate.close(self.port.traffic_control()));
        if !self.stays {
            // A device that is gone does not stay either.
            let _ = self.port.set_persistent(false);
        }
    }
}

struct Shared<T> {
    going: Mutex<Going<T>>,
    one_is_closed: Condvar,
}

struct Going<T> {
    /// Ports that no thread has begun to close, with their names.
    waiting: VecDeque<(String, T)>,
    /// Names of all ports that are not closed yet, begun or not.
    names: Vec<String>,
    threads: usize,
}

impl<T> Default for Closing<T> {
    fn default() -> Self {
        let going = Going { waiting: VecDeque::new(), names: Vec::new(), threads: 0 };
        Closing(Arc::new(Shared { going: Mutex::new(going), one_is_closed: Condvar::new() }))
    }
}

impl Closing {
    /// Begins to close ports, and their devices go. Those that take no time are closed when it
    /// returns. `queueing`: of devices with traffic control of ours, by name.
    pub fn close(&self, ports: Vec<Box<dyn Port>>, queueing: BTreeMap<String, Gate>) {
        self.leave(ports, queueing, false);
    }

    /// As [`Self::close`], and devices that the ports made stay for the next daemon.
    pub fn close_and_keep(&self, ports: Vec<Box<dyn Port>>) {
        self.leave(ports, BTreeMap::new(), true);
    }

    fn leave(&self, ports: Vec<Box<dyn Port>>, mut queueing: BTreeMap<String, Gate>, stays: bool) {
        let all = ports.into_iter().map(|port| {
            let queueing = queueing.remove(port.name());
            Leaving { port, stays, queueing }
        });
        let (slow, others): (Vec<_>, Vec<_>) = all.partition(|l| l.port.closes_slowly());
        drop(others);
        for leaving in slow {
            let is_device = leaving.port.service() == Service::Poll;
            let name = if is_device { DEVICE } else { leaving.port.name() }.to_owned();
            self.begin(name, leaving);
        }
    }
}

impl<T: Send + 'static> Closing<T> {
    /// Begins to drop a value.
    fn begin(&self, name: String, value: T) {
        let mut going = self.0.lock();
        going.names.push(name.clone());
        going.waiting.push_back((name, value));
        if going.threads == CLOSING_THREADS_MAX {
            return;
        }
        going.threads += 1;
        drop(going);
        let shared = self.0.clone();
        let thread = std::thread::Builder::new().name("closing".into());
        if thread.spawn(move || shared.work()).is_err() {
            self.0.work();
        }
    }

    /// Waits until no port is being closed that would be in the way of one of this type and name.
    pub fn wait_for(&self, kind: &str, name: &str) {
        let name = closed_as(kind, name);
        let is_going = |going: &mut Going<T>| going.names.iter().any(|n| n == name);
        drop(self.0.one_is_closed.wait_while(self.0.lock(), is_going));
    }

    /// As [`Self::wait_for`], and gives others their turn meanwhile.
    pub async fn gone(&self, kind: &str, name: &str) {
        let name = closed_as(kind, name);
        while self.0.lock().names.iter().any(|n| n == name) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits until all ports are closed, and gives others their turn meanwhile.
    pub async fn finished(&self) {
        while !self.0.lock().names.is_empty() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

impl<T> Clone for Closing<T> {
    fn clone(&self) -> Self {
        Closing(self.0.clone())
    }
}

impl<T> Shared<T> {
    /// What the lock guards holds at each moment, also of a thread that panicked.
    fn lock(&self) -> MutexGuard<'_, Going<T>> {
        self.going.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Drops what waits until nothing does.
    fn work(&self) {
        let mut going = self.lock();
        while let Some((name, value)) = going.waiting.pop_front() {
            drop(going);
            drop(value);
            going = self.lock();
            if let Some(i) = going.names.iter().position(|n| *n == name) {
                going.names.swap_remove(i);
            }
            self.one_is_closed.notify_all();
        }
        going.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Longest wait for a thread that has nothing else to do.
    const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

    /// Its end says that it has begun, and takes until the test says so.
    struct Slow(Sender<()>, Arc<Mutex<Receiver<()>>>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            let go = self.1.lock().unwrap().recv_timeout(WAIT_TIME_MAX);
            go.expect("the test lets it end");
        }
    }

    #[test]
    fn many_are_closed_side_by_side_and_no_thread_waits() {
        for n in [1, 5, 100] {
            let closing = Closing::<Slow>::default();
            let (begun, has_begun) = channel();
            let (go, may_end) = channel();
            let may_end = Arc::new(Mutex::new(may_end));
            for i in 0..n {
                closing.begin(format!("p{i}"), Slow(begun.clone(), may_end.clone()));
            }
            // None has ended; those that may go side by side have begun, or do so soon.
            closing.wait_for("", "another");
            has_begun.recv_timeout(WAIT_TIME_MAX).unwrap();
            assert_eq!(closing.0.lock().names.len(), n);
            assert!(closing.0.lock().threads == n.min(CLOSING_THREADS_MAX));
            (0..n).for_each(|_| go.send(()).unwrap());
            (0..n).for_each(|i| closing.wait_for("", &format!("p{i}")));
            assert!(closing.0.lock().names.is_empty());
        }
    }

    /// A device whose driver takes long to stop.
    struct SlowDevice(#[allow(dead_code)] Slow);

    impl Port for SlowDevice {
        fn name(&self) -> &str {
            "p0"
        }
        fn kind(&self) -> &str {
            "dpdk"
        }
        fn service(&self) -> Service {
            Service::Poll
        }
        fn closes_slowly(&self) -> bool {
            true
        }
        fn take_rx(&mut self, _: usize) -> Option<Box<dyn port::RxQueue>> {
            None
        }
        fn take_tx(&mut self, _: usize) -> Option<Box<dyn port::TxQueue>> {
            None
        }
        fn mac(&self) -> [u8; 6] {
            [2; 6]
        }
        fn mtu(&self) -> u16 {
            1500
        }
        fn link(&mut self) -> port::Link {
            port::Link::default()
        }
        fn set_admin_up(&mut self, _: bool) -> Result<(), port::PortError> {
            Ok(())
        }
        fn counters(&mut self) -> port::Counters {
            Default::default()
        }
        fn status(&mut self) -> std::collections::BTreeMap<String, String> {
            Default::default()
        }
        fn reconfigure(&mut self, _: &port::PortConfig) -> Result<bool, port::PortError> {
            Ok(true)
        }
    }

    #[test]
    fn a_slow_device_holds_up_only_ports_on_devices() {
        let closing = Closing::default();
        let (begun, has_begun) = channel();
        let (go, may_end) = channel();
        let slow = Slow(begun, Arc::new(Mutex::new(may_end)));
        closing.close(vec![Box::new(SlowDevice(slow))], BTreeMap::new());
        has_begun.recv_timeout(WAIT_TIME_MAX).unwrap();
        closing.wait_for("system", "p0");
        closing.wait_for("dpdkvhostuserclient", "p1");
        let other = closing.clone();
        let waits = std::thread::spawn(move || other.wait_for("dpdk", "p1"));
        assert!(!waits.is_finished());
        go.send(()).unwrap();
        waits.join().unwrap();
        assert!(closing.0.lock().names.is_empty());
    }
}
