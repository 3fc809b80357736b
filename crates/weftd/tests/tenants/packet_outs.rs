//! A controller's packet-outs that are sent very often.

use crate::lab::*;
use crate::measure::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use testkit::Switch;

/// Packet-outs a second, and copies of each.
const RATE: u32 = 500;
const COPIES: usize = 4000;

/// A packet-out of OpenFlow 1.3: a frame of zeros to port 1, so many times.
fn packet_out(copies: usize) -> Vec<u8> {
    let output = [0, 0, 0, 16, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0].repeat(copies);
    let len = ((24 + output.len() + 64) as u16).to_be_bytes();
    let actions = (output.len() as u16).to_be_bytes();
    let head = [4, 13, len[0], len[1], 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd];
    [&head[..], &[actions[0], actions[1], 0, 0, 0, 0, 0, 0], &output, &[0; 64]].concat()
}

fn talk(sw: &Switch<'_>, copies: usize) -> Vec<Traffic> {
    let mut stream = UnixStream::connect(sw.dir().join("br0.mgmt")).unwrap();
    stream.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    stream.set_nonblocking(true).unwrap();
    let message = packet_out(copies);
    let mut at = 0;
    vec![Traffic::run(RATE, move |_| {
        while let Ok(n) = stream.write(&message[at..]) {
            at = (at + n) % message.len();
            if at == 0 {
                break;
            }
        }
        let _ = stream.read(&mut [0; 4096]);
    })]
}

#[test]
fn packet_outs_that_are_sent_very_often() {
    attacked(|ns, sw, _| {
        vsctl(sw, "set interface v3 ofport_request=1");
        let victim = Victim::new(ns, sw);
        judge("packet-outs", &victim, || talk(sw, 1), || talk(sw, COPIES));
    });
}

/// A thread of the daemon that stands still until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(sw: &Switch<'_>, name: &str) -> Stopped {
        let id = thread_id(sw, name);
        // SAFETY: traces a thread of a child's, which stops; the calls write nothing here.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, id, 0usize, 0usize), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, id, 0usize, 0usize), 0);
            assert_eq!(libc::waitpid(id, std::ptr::null_mut(), libc::__WALL), id);
        }
        Stopped(id)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: lets a thread go on that stands still.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0usize, 0usize) };
    }
}

/// Who reads counters waits for packets that controllers have sent, but not for long: the thread
/// that sends them may have no time.
#[test]
fn readers_of_counters_wait_for_sent_packets_for_a_while_only() {
    /// What waits without a bound waits until the tool gives up.
    const LONG: Duration = Duration::from_secs(5);
    attacked(|_, sw, _| {
        // UDP from port 1 to port 2, which the second flow counts when it is looked up again.
        let frame = "ffffffffffff00000000000108004500001c00000000401166cf0a0000010a00000200010002\
                     00080000";
        let send = format!("packet-out br0 controller table {frame}");
        let counted = || ofctl(sw, "dump-flows br0 table=1").contains("n_packets=1,");
        ofctl(sw, "del-flows br0");
        ofctl(sw, "add-flow br0 udp,tp_dst=2,actions=ct(table=1)");
        ofctl(sw, "add-flow br0 table=1,udp,tp_dst=2,actions=drop");
        let stopped = Stopped::new(sw, "kernel-ports");
        ofctl(sw, &send);
        let asked = Instant::now();
        assert!(!counted(), "the thread does nothing");
        assert!(asked.elapsed() < LONG, "{:?}", asked.elapsed());
        drop(stopped);
        assert!(counted(), "who asks while it does something waits for it");
    });
}

/// A connection to a bridge's management socket that receives packet-ins.
fn connect(sw: &Switch<'_>) -> UnixStream {
    let mut stream = UnixStream::connect(sw.dir().join("br0.mgmt")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let config = [4, 9, 0, 12, 0, 0, 0, 2, 0, 0, 0xff, 0xff];
    stream.write_all(&[&[4, 0, 0, 8, 0, 0, 0, 1], &config[..]].concat()).unwrap();
    assert_eq!(barrier(&mut stream), 0, "no packet-in yet");
    stream
}

/// Asks for a barrier; the number of packet-ins in front of its reply.
fn barrier(stream: &mut UnixStream) -> usize {
    const PACKET_IN: u8 = 10;
    const BARRIER_REPLY: u8 = 21;
    stream.write_all(&[4, 20, 0, 8, 0, 0, 0, 3]).unwrap();
    let mut packet_ins = 0;
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head).unwrap();
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        stream.read_exact(&mut vec![0; len - head.len()]).unwrap();
        match head[1] {
            BARRIER_REPLY => return packet_ins,
            PACKET_IN => packet_ins += 1,
            _ => {}
        }
    }
}

/// A barrier is answered after the packet-ins of packets that another connection sent before,
/// also if the thread that sends them had no time until then, but for a while only.
#[test]
fn barriers_wait_for_packets_of_other_connections() {
    const TRIES: usize = 20;
    attacked(|_, sw, _| {
        let mut stream = connect(sw);
        let in_front = |_| {
            let stopped = Stopped::new(sw, "kernel-ports");
            ofctl(sw, "packet-out br0 none controller 000000000001000000000002ffff00000000");
            let after = std::thread::scope(|scope| {
                let packet_ins = scope.spawn(|| barrier(&mut stream));
                std::thread::sleep(Duration::from_millis(5));
                drop(stopped);
                packet_ins.join().unwrap()
            });
            // What came too late is there once the thread had time.
            let mut comes = |_| {
                std::thread::sleep(Duration::from_millis(10));
                barrier(&mut stream) == 1
            };
            assert!(after == 1 || (0..1000).any(&mut comes), "the packet-in is lost");
            after == 1
        };
        // A busy machine may need longer than a barrier waits.
        assert!((0..TRIES).any(in_front));
    });
}
