//! Rule changes at a given rate while packets flow: an OpenFlow 1.3 controller of few words.
//!
//! It adds and deletes rules for /32 destinations in 17.0.0.0/8 in table 0, where the experiment's
//! rules are; no packet goes there. Or it has rules of the experiment deliver elsewhere. A barrier
//! every 20 ms tells how far the switch is.

use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

const HELLO: u8 = 0;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const FLOW_MOD: u8 = 14;
const BARRIER_REQUEST: u8 = 20;
const BARRIER_REPLY: u8 = 21;
/// Rules that come and go.
const RULES: u32 = 10_000;

/// A running controller; ends when dropped.
pub struct Churn {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    socket: UnixStream,
}

fn message(kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let mut m = vec![4, kind];
    m.extend((8 + body.len() as u16).to_be_bytes());
    m.extend(xid.to_be_bytes());
    m.extend(body);
    m
}

/// OpenFlow 1.3.5 section 7.3.4.1: adds (command 0) or deletes strictly (4) a rule of these match
/// fields; output to a port.
fn flow_mod(command: u8, priority: u16, oxm: &[u8], port: u32) -> Vec<u8> {
    let mut b = vec![0; 16];
    b.extend([0, command, 0, 0, 0, 0]);
    b.extend(priority.to_be_bytes());
    b.extend([0xff; 12]); // no buffer, any port, any group
    b.extend([0; 4]);
    b.extend([0, 1]);
    b.extend((4 + oxm.len() as u16).to_be_bytes());
    b.extend(oxm);
    b.resize(b.len().next_multiple_of(8), 0);
    if command == 0 {
        b.extend([0, 4, 0, 24, 0, 0, 0, 0]); // apply actions
        b.extend([0, 0, 0, 16]); // output
        b.extend(port.to_be_bytes());
        b.extend([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    }
    message(FLOW_MOD, 0, &b)
}

/// Actions of the n-th change of rules for packets that do not come.
fn come_and_go(n: u32) -> Vec<u8> {
    let mut oxm = vec![0x80, 0, 0x0a, 2, 0x08, 0, 0x80, 0, 0x18, 4]; // eth_type, ipv4_dst
    oxm.extend((0x1100_0000 + n % RULES).to_be_bytes());
    flow_mod([0, 4][(n / RULES % 2) as usize], 20, &oxm, 2)
}

/// The match of a rule that is about MAC addresses and VNIs.
fn oxm_of(line: &str) -> Result<Vec<u8>> {
    let mut oxm = Vec::new();
    for (name, value) in line.split(',').filter_map(|field| field.split_once('=')) {
        match name {
            "tun_id" => {
                oxm.extend([0x80, 0, 38 << 1, 8]);
                oxm.extend(value.parse::<u64>()?.to_be_bytes());
            }
            "dl_dst" => {
                oxm.extend([0x80, 0, 3 << 1, 6]);
                for byte in value.split(':') {
                    oxm.push(u8::from_str_radix(byte, 16)?);
                }
            }
            "priority" | "actions" => {}
            other => ensure!(false, "{other}: such rules do not move"),
        }
    }
    Ok(oxm)
}

/// Rules that are delivered to ports 10 to 10 + n - 1, the i-th to port 10 + i mod n at first: the
/// n-th change.
fn move_on(rules: &[Vec<u8>], receivers: u32, n: u32) -> Vec<u8> {
    let (rule, round) = (n % rules.len() as u32, n / rules.len() as u32);
    flow_mod(0, 10, &rules[rule as usize], 10 + (rule + round + 1) % receivers)
}

/// What the n-th change says.
type Change = Box<dyn Fn(u32) -> Vec<u8> + Send>;

/// Sends `rate` changes per second, in steps of a millisecond. The number of a barrier is how many
/// were sent before it.
fn send(
    mut socket: UnixStream,
    rate: u32,
    change: &Change,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let (began, mut sent, mut barriers) = (Instant::now(), 0u32, 0);
    while !stop.load(Ordering::Relaxed) {
        let passed = began.elapsed();
        let due = (passed.as_secs_f64() * f64::from(rate)) as u32;
        let mut bytes = Vec::new();
        // A switch that does not keep up is not given more than a second's worth at once.
        for n in sent..due.min(sent + rate) {
            bytes.extend(change(n));
        }
        sent = sent.max(due.min(sent + rate));
        if passed.as_millis() / 20 > barriers {
            barriers = passed.as_millis() / 20;
            bytes.extend(message(BARRIER_REQUEST, sent, &[]));
        }
        socket.write_all(&bytes)?;
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn receive(mut socket: UnixStream, acknowledged: &AtomicU64) -> std::io::Result<()> {
    let mut head = [0; 8];
    loop {
        socket.read_exact(&mut head)?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]])).max(8);
        let xid = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let mut body = vec![0; length - 8];
        socket.read_exact(&mut body)?;
        match head[1] {
            BARRIER_REPLY => acknowledged.store(u64::from(xid), Ordering::Relaxed),
            ECHO_REQUEST => socket.write_all(&message(ECHO_REPLY, xid, &body))?,
            _ => {}
        }
    }
}

impl Churn {
    /// Begins with the bridge br0 of the daemon in `dir`.
    ///
    /// # Errors
    /// The bridge cannot be talked to.
    pub fn begin(dir: &Path, rate: u32) -> Result<Self> {
        Churn::with(dir, rate, Box::new(come_and_go))
    }

    /// Has these rules, one after the other, deliver to the next one of so many receivers.
    ///
    /// # Errors
    /// The bridge cannot be talked to, or the rules are not about MAC addresses.
    pub fn begin_moves(dir: &Path, rate: u32, lines: &[String], receivers: u32) -> Result<Self> {
        let rules = lines.iter().map(|l| oxm_of(l)).collect::<Result<Vec<_>>>()?;
        Churn::with(dir, rate, Box::new(move |n| move_on(&rules, receivers, n)))
    }

    fn with(dir: &Path, rate: u32, change: Change) -> Result<Self> {
        let mut socket = UnixStream::connect(dir.join("br0.mgmt")).context("br0.mgmt")?;
        socket.write_all(&message(HELLO, 0, &[]))?;
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (out, flag) = (socket.try_clone()?, stop.clone());
        let (back, count) = (socket.try_clone()?, acknowledged.clone());
        let threads = vec![
            std::thread::spawn(move || drop(send(out, rate, &change, &flag))),
            std::thread::spawn(move || drop(receive(back, &count))),
        ];
        Ok(Churn { stop, acknowledged, threads, socket })
    }

    /// Changes that the switch has confirmed.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_length_they_say() {
        for n in [0, RULES - 1, RULES, 3 * RULES] {
            let m = come_and_go(n);
            assert_eq!(usize::from(u16::from_be_bytes([m[2], m[3]])), m.len());
            assert_eq!((m.len() % 8, m[25]), (0, [0, 4][(n / RULES % 2) as usize]));
        }
    }

    #[test]
    fn rules_move_to_the_next_receiver() {
        let line = "priority=10,tun_id=103,dl_dst=02:00:01:00:00:07,actions=output:2";
        let rules = [oxm_of(line).unwrap(), oxm_of("dl_dst=02:00:00:00:00:01").unwrap()];
        assert_eq!(
            rules[0],
            [0x80, 0, 76, 8, 0, 0, 0, 0, 0, 0, 0, 103, 0x80, 0, 6, 6, 2, 0, 1, 0, 0, 7]
        );
        for (n, port) in [(0, 11), (1, 12), (2, 12), (3, 10), (4, 10)] {
            let m = move_on(&rules, 3, n);
            assert_eq!(usize::from(u16::from_be_bytes([m[2], m[3]])), m.len());
            assert_eq!(m[m.len() - 12..m.len() - 8], [0, 0, 0, port], "{n}");
        }
        assert!(oxm_of("priority=10,ip,nw_dst=1.2.3.4,actions=drop").is_err());
    }
}
