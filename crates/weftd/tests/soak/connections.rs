//! Connections under traffic: a TCP stream, short connections and datagrams in fragments through
//! `ct` with NAT, while rules, zones and connections are flushed and limits change. In the end
//! every packet is accounted for: each that a host sent was received by the switch or is in a
//! counter of its port, each that the switch received was sent on or is in a named counter, and
//! each that it sent a host has got.
//!
//! `make test` runs some seconds of it, `WEFT_SOAK_SECONDS=600` a long one.

use crate::lab::*;
use crate::{Iperf, books, number};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::{Netns, Noise, Switch, privileged};

/// How long it lasts by default.
const SECONDS: u64 = 5;
/// Seconds for which the stream of iperf3 goes on after the last change. At its end the client
/// waits for the server, whose packets belong to no connection after a flush: none may come then.
const QUIET_SECONDS: u64 = 3;
/// The stream has begun when the server has received so many packets.
const STREAM_PACKETS: u64 = 200;
/// The server's address, and one that is translated to it.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const VIRTUAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 98);
const WEB: u16 = 8000;
const ECHO: u16 = 9000;
/// A datagram of so many octets goes in three fragments.
const DATAGRAM: usize = 4000;
/// What is asked for and what is answered on a short connection.
const QUESTION: [u8; 100] = [b'q'; 100];
const ANSWER: [u8; 3000] = [b'a'; 3000];
/// Threads that open short connections.
const CLIENTS: usize = 4;
/// A client that was not answered for so long begins again.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// The client's address becomes 10.0.0.99 in zone 7, the virtual one the server's in zone 8.
const FLOWS: &str = "\
priority=5,arp,in_port=1,actions=2
priority=5,arp,in_port=2,actions=1
priority=4,ip,in_port=1,nw_dst=10.0.0.98,actions=ct(zone=8,nat,table=1)
priority=3,ip,in_port=1,actions=ct(zone=7,nat,table=1)
priority=3,ip,in_port=2,nw_dst=10.0.0.99,actions=ct(zone=7,nat,table=1)
priority=3,ip,in_port=2,nw_dst=10.0.0.1,actions=ct(zone=8,nat,table=1)
table=1,priority=9,ct_state=+inv,actions=drop
table=1,priority=8,ip,in_port=1,ct_zone=7,ct_state=+new,actions=ct(commit,zone=7,nat(src=10.0.0.99),exec(set_field:MARK->ct_mark)),2
table=1,priority=8,ip,in_port=1,ct_zone=8,ct_state=+new,actions=ct(commit,zone=8,nat(dst=10.0.0.2),table=2)
table=1,priority=7,ip,in_port=1,ct_state=+est,actions=2
table=1,priority=7,ip,in_port=2,ct_state=+est,actions=1
table=1,priority=7,ip,in_port=1,ct_state=+rel,actions=2
table=1,priority=7,ip,in_port=2,ct_state=+rel,actions=1
table=2,actions=2
";

/// What is being said: short connections and datagrams that were answered in full.
#[derive(Default)]
struct Talk {
    over: AtomicBool,
    connections: AtomicU64,
    datagrams: AtomicU64,
}

/// Ends a talk when it is dropped, also by a panic: its threads would go on for ever.
struct End<'a>(&'a Talk);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Talk {
    fn repeat(&self, mut what: impl FnMut()) {
        while !self.over.load(Ordering::Relaxed) {
            what();
        }
    }

    /// Both services.
    fn serve(&self, ns: &Netns) {
        let (web, echo) =
            ns.run(|| (TcpListener::bind((SERVER, WEB)), UdpSocket::bind((SERVER, ECHO))));
        let (web, echo) = (web.expect("a TCP port"), echo.expect("a UDP port"));
        web.set_nonblocking(true).expect("does not wait");
        echo.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("waits for a while");
        std::thread::scope(|s| {
            for _ in 0..CLIENTS {
                s.spawn(|| self.repeat(|| answer(&web)));
            }
            self.repeat(|| {
                let mut buffer = [0; DATAGRAM];
                if let Ok((n, from)) = echo.recv_from(&mut buffer) {
                    let _ = echo.send_to(&buffer[..n], from);
                }
            });
        });
    }

    /// Short connections, one after the other.
    fn connect(&self, ns: &Netns) {
        ns.run(|| {
            self.repeat(|| {
                let all = ask(SocketAddr::from((VIRTUAL, WEB))).is_ok_and(|n| n == ANSWER.len());
                self.connections.fetch_add(u64::from(all), Ordering::Relaxed);
            });
        });
    }

    /// Datagrams in fragments, from a port of its own every few.
    fn exchange(&self, ns: &Netns) {
        ns.run(|| {
            self.repeat(|| {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
                socket.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("waits for a while");
                for n in 0..20 {
                    let mut buffer = [n; DATAGRAM];
                    let _ = socket.send_to(&buffer, (SERVER, ECHO));
                    if socket.recv(&mut buffer).is_ok_and(|n| n == DATAGRAM) {
                        self.datagrams.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        });
    }
}

/// Answers one connection, if there is one.
fn answer(web: &TcpListener) {
    let Ok((mut stream, _)) = web.accept() else {
        return std::thread::sleep(Duration::from_millis(1));
    };
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(ANSWER_TIME_MAX));
    if stream.read_exact(&mut QUESTION.clone()).is_ok() {
        let _ = stream.write_all(&ANSWER);
    }
}

/// Asks on a connection of its own; how much was answered.
fn ask(to: SocketAddr) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect_timeout(&to, ANSWER_TIME_MAX)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    stream.write_all(&QUESTION)?;
    stream.read_to_end(&mut Vec::new())
}

/// One change at random.
fn change(sw: &Switch<'_>, noise: &mut Noise) {
    let flows = FLOWS.replace("MARK", &(1 + noise.below(9)).to_string());
    match noise.below(10) {
        0 => drop(ofctl(sw, "ct-flush-zone br0 7")),
        1 => drop(ofctl(sw, "ct-flush-zone br0 8")),
        2 => drop(appctl(sw, "dpctl/flush-conntrack")),
        3 => drop(ofctl(sw, "ct-flush br0 zone=8 ct_nw_proto=6,ct_tp_dst=8000")),
        4 => {
            ofctl(sw, "del-flows br0");
            restore(sw, &flows);
        }
        5 => {
            let words = ["-OOpenFlow14", "--bundle", "replace-flows", "br0", "-"];
            sw.ofctl_stdin(&words, &flows).unwrap();
        }
        6 => drop(appctl(sw, "revalidator/purge")),
        7 => {
            appctl(sw, "dpctl/ct-set-limits zone=8,limit=2");
            std::thread::sleep(Duration::from_millis(100));
            appctl(sw, "dpctl/ct-del-limits zone=8");
        }
        8 => {
            appctl(sw, "dpctl/ipf-set-disabled v4");
            appctl(sw, "dpctl/ipf-set-enabled v4");
        }
        _ => drop(appctl(sw, "dpctl/dump-conntrack")),
    }
}

fn restore(sw: &Switch<'_>, flows: &str) {
    sw.ofctl_stdin(&["-OOpenFlow13", "add-flows", "br0", "-"], flows).unwrap();
}

/// Fragments that wait for the rest of their datagram.
fn waiting(sw: &Switch<'_>) -> u64 {
    let text = appctl(sw, "dpctl/ipf-get-status");
    let line = text.lines().find_map(|l| l.trim().strip_prefix("num frag:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// What a host's device received and sent, and what it dropped on receipt.
fn device(ns: &Netns) -> [u64; 3] {
    let text = ns.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("eth0:")).expect("eth0");
    let all: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    [all[1], all[9], all[3]]
}

/// What is not accounted for, if anything is not.
fn missing(sw: &Switch<'_>, hosts: &[Netns; 2]) -> Option<String> {
    let (came, went) = books::balance(sw);
    let held = waiting(sw);
    if came != went + held {
        return Some(format!("in {came}, out {went}, {held} fragments wait"));
    }
    hosts.iter().enumerate().find_map(|(i, host)| {
        let of = |key: &str| statistic(sw, &format!("v{}", i + 1), key).unwrap_or(0);
        let ([received, sent, refused], rx, dropped, tx) =
            (device(host), of("rx_packets"), of("rx_dropped"), of("tx_packets"));
        let level = sent == rx + dropped && tx == received + refused;
        (!level).then(|| {
            format!(
                "host {} sent {sent}, of which {rx} came and {dropped} were dropped; \
                 {tx} were sent to it, it received {received} and refused {refused}",
                i + 1
            )
        })
    })
}

#[test]
fn every_packet_of_connections_is_accounted_for_while_they_are_flushed() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let seconds = number("WEFT_SOAK_SECONDS", SECONDS);
    let mut noise = Noise(number("WEFT_SOAK_SEED", 1).max(1));
    let sw = start_with_bridge(&ns);
    let hosts = [1, 2].map(|n| host(&ns, n));
    for (n, (own, names)) in hosts.iter().zip([["2", "98"], ["1", "99"]]).enumerate() {
        let near = format!("v{}", n + 1);
        for (ns, dev) in [(&ns, &near[..]), (own, "eth0")] {
            ns.ipv6_off(dev).unwrap();
            ns.offloads_off(dev).unwrap();
        }
        for name in names {
            let words =
                format!("neigh add 10.0.0.{name} lladdr 02:00:00:00:00:0{} dev eth0", 2 - n);
            own.ip(&words).unwrap();
        }
        vsctl(
            &sw,
            &format!("add-port br0 {near} -- set interface {near} ofport_request={}", n + 1),
        );
    }
    ofctl(&sw, "del-flows br0");
    restore(&sw, &FLOWS.replace("MARK", "1"));
    let [client, server] = &hosts;
    ping(client, 2);
    let (first, talk) = (buffers(&sw), Talk::default());
    let mut changes = 0;
    let rate = std::thread::scope(|s| {
        let stream = Iperf::start(client, server, 5201, seconds + QUIET_SECONDS, "-b 200M");
        wait_for("the stream", || device(server)[0] > STREAM_PACKETS);
        let _end = End(&talk);
        s.spawn(|| talk.serve(server));
        (0..CLIENTS).for_each(|_| drop(s.spawn(|| talk.connect(client))));
        s.spawn(|| talk.exchange(client));
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            change(&sw, &mut noise);
            changes += 1;
            std::thread::sleep(Duration::from_millis(noise.below(200) as u64));
        }
        stream.end()
    });
    let mut what = None;
    let level = || {
        what = missing(&sw, &hosts);
        what.is_none()
    };
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for("every packet is accounted for", level)
    }));
    let (connections, datagrams) = (talk.connections.into_inner(), talk.datagrams.into_inner());
    eprintln!("{changes} changes, {connections} connections, {datagrams} datagrams, {rate} Mbit/s");
    eprintln!("{}", books::text(&sw));
    assert!(found.is_ok(), "{what:?}");
    assert!(connections > 2 * seconds && datagrams > seconds && rate > 1.0);
    assert!(buffers(&sw) <= first + waiting(&sw), "packets are still held");
    appctl(&sw, "dpctl/flush-conntrack");
    wait_for("no connection is left", || appctl(&sw, "dpctl/dump-conntrack").is_empty());
    books::check_log(&sw);
    ping(client, 2);
}
