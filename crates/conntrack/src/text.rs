//! Connections as OVS prints them (`dpctl/dump-conntrack`).

use crate::conn::Conn;
use crate::machine::{WSCALE, WSCALE_KNOWN, WSCALE_UNKNOWN};
use crate::tuple::Tuple;
use action::Alg;
use std::fmt::Write;
use wire::IP_TCP;

/// How much of a connection is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// `-m`: everything that is known.
    pub verbose: bool,
    /// `-s`: the seconds until it expires.
    pub stats: bool,
}

/// Names of the states of a TCP end, by number.
const TCP_STATES: [&str; 11] = [
    "CLOSED",
    "LISTEN",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "CLOSE_WAIT",
    "FIN_WAIT_1",
    "CLOSING",
    "LAST_ACK",
    "FIN_WAIT_2",
    "TIME_WAIT",
];

/// Name of the state of a TCP end.
pub fn tcp_state(state: u8) -> &'static str {
    TCP_STATES.get(usize::from(state)).copied().unwrap_or("<invalid>")
}

/// The one state that stands for those of both ends: the higher one, where 9 counts as 10 and 3 as
/// 4.
pub fn tcp_state_of_both(a: u8, b: u8) -> u8 {
    match a.max(b) {
        9 => 10,
        3 => 4,
        state => state,
    }
}

/// The protocol's name, or its number.
pub fn protocol(proto: u8) -> String {
    match proto {
        1 => "icmp".into(),
        2 => "igmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        33 => "dccp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        136 => "udplite".into(),
        n => format!("{n}"),
    }
}

/// A connection in one line; `parent`: the one that announced it. `now`: the present time,
/// milliseconds.
pub fn conn(c: &Conn, parent: Option<&Conn>, style: Style, now: u64) -> String {
    let mut s =
        format!("{},orig=({}),reply=({})", protocol(c.orig.proto), tuple(&c.orig), tuple(&c.reply));
    if style.verbose {
        s += ",id=0";
    }
    if c.orig.zone != 0 {
        let _ = write!(s, ",zone={}", c.orig.zone);
    }
    if style.verbose {
        s += ",status=0";
    }
    if style.stats {
        let _ = write!(s, ",timeout={}", c.expires.saturating_sub(now) / 1000);
    }
    if c.mark != 0 {
        let _ = write!(s, ",mark={}", c.mark);
    }
    if c.label != 0 {
        let _ = write!(s, ",labels={:#x}", c.label);
    }
    if c.orig.proto == IP_TCP {
        s += &protoinfo(c, style.verbose);
    }
    match c.alg {
        None => {}
        Some(Alg::Ftp) => s += ",helper=ftp",
        Some(Alg::Tftp) => s += ",helper=tftp",
    }
    if let Some(parent) = parent.filter(|_| style.verbose) {
        let _ = write!(s, ",parent=({})", tuple(&parent.orig));
    }
    s
}

/// A tuple, as OVS prints it.
fn tuple(t: &Tuple) -> String {
    let addrs = format!("src={},dst={}", t.src_addr(), t.dst_addr());
    match t.is_icmp() {
        true => format!("{addrs},id={},type={},code=0", t.sport, t.icmp_type),
        false => format!("{addrs},sport={},dport={}", t.sport, t.dport),
    }
}

/// The states of a TCP connection; `verbose`: of each end, with window scales and flags.
fn protoinfo(c: &Conn, verbose: bool) -> String {
    let [a, b] = &c.peers;
    if !verbose {
        return format!(",protoinfo=(state={})", tcp_state(tcp_state_of_both(a.state, b.state)));
    }
    let mut s =
        format!(",protoinfo=(state_orig={},state_reply={}", tcp_state(a.state), tcp_state(b.state));
    let [scale_a, scale_b] = [a.wscale & WSCALE, b.wscale & WSCALE];
    if scale_a | scale_b != 0 {
        let _ = write!(s, ",wscale_orig={scale_a},wscale_reply={scale_b}");
    }
    s + &flags("orig", a.wscale) + &flags("reply", b.wscale) + ")"
}

/// Flags of an end, as OVS derives them from its window scale.
fn flags(end: &str, wscale: u8) -> String {
    let mut names = Vec::new();
    if wscale & WSCALE_KNOWN != 0 {
        names.push("WINDOW_SCALE");
    }
    if wscale & WSCALE_UNKNOWN != 0 {
        names.push("BE_LIBERAL");
    }
    let text = if names.is_empty() { "0".into() } else { names.join("|") };
    format!(",flags_{end}={text}")
}
