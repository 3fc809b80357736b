//! `weft/trace` and `weft/trace-next`: samples of packets with what was decided about each, for the
//! program `weft trace`. One capture at a time; it ends with its client's connection.

use super::dpctl::port_names;
use crate::ports::Iface;
use crate::state::{Capture, State};
use crate::tunnel_options;
use action::{OpsText, ops_text_with};
use datapath::{CaptureFilter, Captured, Fate, WorkerId};
use flow::{Key, Mask, PortNo, at};
use ofproto::{Local, Remote};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Weak;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Arguments of `weft/trace`.
pub const USAGE: &str = "[count=PACKETS] [rate=PACKETS] [snaplen=BYTES] port|flow";
/// Most arguments of `weft/trace`.
pub const ARGS_MAX: usize = 4;

/// As tcpdump's limit is, roughly: no packet is longer.
const SNAPLEN_BYTES_MAX: u64 = 65_535;
/// Packets per second that may be asked for: what the control thread formats in some tenths of one.
const RATE_MAX: u64 = 10_000;
/// Bytes of packets that go into one answer, about.
const ANSWER_BYTES: usize = 1 << 18;
/// Stands for a port that was named, among OpenFlow's numbers: none has this one.
const NAMED_PORT: u32 = 1 << 16;

/// `weft/trace`: begins a capture for a client.
pub fn begin(s: &mut State, args: &[String], client: Weak<()>) -> Result<String, String> {
    keep(s);
    if let Some(Capture { what, .. }) = &s.observers.capture {
        return Err(format!("{what:?} is being traced already; there is one trace at a time"));
    }
    let (what, options) = args.split_last().ok_or("say which port or flow")?;
    let (mut count, mut rate, mut snaplen) = (u64::MAX, 1000, 256);
    for option in options {
        let (place, most) = match option.split_once('=').map(|(name, _)| name) {
            Some("count") => (&mut count, u64::MAX),
            Some("rate") => (&mut rate, RATE_MAX),
            Some("snaplen") => (&mut snaplen, SNAPLEN_BYTES_MAX),
            _ => return Err(format!("{option}: not one of count=, rate=, snaplen=")),
        };
        let number = option.split_once('=').and_then(|(_, n)| n.parse().ok());
        let number = number.filter(|n| (1..=most).contains(n));
        *place = number.ok_or_else(|| format!("{option}: not a number from 1 to {most}"))?;
    }
    let (key, mask) = filter(s, what)?;
    let filter = CaptureFilter { key, mask, snaplen: snaplen as usize };
    s.dp.begin_capture(filter, count, rate as u32);
    s.observers.capture = Some(Capture { client, what: what.clone() });
    Ok(String::new())
}

/// Housekeeping: a capture ends when its client is gone.
pub fn keep(s: &mut State) {
    if s.observers.capture.as_ref().is_some_and(|c| c.client.strong_count() == 0) {
        end(s);
    }
}

fn end(s: &mut State) {
    s.observers.capture = None;
    s.dp.end_capture();
}

/// `weft/trace-next [last]`: what was captured since the last time, as JSON. Without `more` that
/// was all, and the capture has ended.
pub fn next(s: &mut State, args: &[String]) -> Result<String, String> {
    if s.observers.capture.is_none() {
        return Err("nothing is being traced".into());
    }
    let names = port_names(s);
    let (packets, more) = s.dp.captured(ANSWER_BYTES);
    let (now, now_cycles) = (SystemTime::now(), datapath::cycles());
    let one = |(worker, p): &(WorkerId, Box<Captured>)| {
        let age = now_cycles.saturating_sub(p.cycles) as f64 / datapath::cycles_per_second() as f64;
        let at = now.checked_sub(Duration::from_secs_f64(age)).unwrap_or(now);
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({
            "time_ns": since.as_nanos() as u64,
            "port": name_of(&names, p.in_port),
            "length": p.len,
            "bytes": hexadecimal(&p.bytes),
            "comment": comment(&s.ofproto, (*worker, p), &names),
        })
    };
    let packets: Vec<Value> = packets.iter().map(one).collect();
    let beyond = s.dp.beyond_capture();
    let more = more && args.is_empty();
    if !more {
        end(s);
    }
    Ok(json!({"packets": packets, "more": more, "beyond": beyond}).to_string())
}

type Names = BTreeMap<u16, (String, String)>;

fn name_of(names: &Names, no: u16) -> String {
    names.get(&no).map_or_else(|| no.to_string(), |(name, _)| name.clone())
}

/// What was decided about a packet, a line each: where it came in, its megaflow, what is done.
fn comment(of: &ofproto::Switch, (worker, p): (WorkerId, &Captured), names: &Names) -> String {
    let lookup = |no: u16| names.get(&no).map(|(name, _)| name.clone());
    let core = match worker {
        WorkerId::Pmd(core) => format!("core {core}"),
        WorkerId::Kernel => "the kernel ports' thread".into(),
    };
    let mut text = format!("in_port: {} ({}), on {core}\n", name_of(names, p.in_port), p.in_port);
    let ended = |why: telemetry::Drop| format!("drop: {} ({})", why.name(), why.help());
    let _ = match &p.fate {
        Fate::Unparsed(why) => write!(text, "{}", ended(*why)),
        Fate::Decided { megaflow, ops, drop } => {
            let _ = match megaflow {
                Some(both) => {
                    let text_of = flow::odp_text(&both.0, &both.1, false, &lookup);
                    writeln!(text, "megaflow: {text_of}")
                }
                None => writeln!(text, "megaflow: none, decided about this packet alone"),
            };
            let style = OpsText { punt: &|p| of.punt_text(p), port: &lookup };
            match ops[..] {
                [] => write!(text, "{}", ended(*drop)),
                [action::Op::Drop(why)] => write!(text, "{}", ended(why)),
                _ => write!(text, "actions: {}", ops_text_with(ops, &style)),
            }
        }
    };
    text
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A port as packets have it: key and mask.
type Place = Result<(Key, Mask), String>;

/// What packets have that are meant by a port's name, or by a flow as `ovs-ofctl` or `dpctl` has
/// it.
fn filter(s: &State, what: &str) -> Place {
    if let Some(place) = place(s, what) {
        return place;
    }
    let (key, mut mask) = match what.contains("in_port(") {
        true => datapath_flow(s, what)?,
        false => openflow_flow(s, what)?,
    };
    mask.set_u32(at::PACKET_TYPE, 0);
    // Packets come in with ids of 32 bits.
    if key.u32(at::TUN_ID_HIGH) == 0 {
        mask.set_u32(at::TUN_ID_HIGH, 0);
    }
    match mask.words[flow::PACKET_LINES * 8..].iter().any(|w| *w != 0) {
        true => Err(format!("{what}: registers and metadata cannot be traced")),
        false => Ok((key, mask)),
    }
}

fn datapath_flow(s: &State, what: &str) -> Place {
    let number = |name: &str| match place(s, name)? {
        Ok((key, _)) => Some(key.u16(at::IN_PORT)),
        Err(_) => None,
    };
    flow::parse_odp(what, &number).map_err(|e| format!("{what}: {e}"))
}

fn openflow_flow(s: &State, what: &str) -> Place {
    let named = RefCell::new(None);
    let number = |name: &str| {
        *named.borrow_mut() = Some(place(s, name)?);
        Some(NAMED_PORT)
    };
    let parsed = flow::parse_match(what, &number);
    let (mut key, mut mask) = parsed.map_err(|e| match what.contains(['=', ',']) {
        true => format!("{what}: {e}"),
        false => format!("there is no port {what}, and as a flow: {e}"),
    })?;
    if mask.u32(at::OF_IN_PORT) == 0 {
        return Ok((key, mask));
    }
    let port = match key.u32(at::OF_IN_PORT) {
        NAMED_PORT => named.take().ok_or("in_port: no such port")?,
        number => numbered(s, number),
    }?;
    key.set_u32(at::OF_IN_PORT, 0);
    mask.set_u32(at::OF_IN_PORT, 0);
    for (w, (value, bits)) in port.0.words.iter().zip(port.1.words).enumerate() {
        key.words[w] = key.words[w] & !bits | value;
        mask.words[w] |= bits;
    }
    Ok((key, mask))
}

/// The port that has this OpenFlow number, if only one bridge has such a port.
fn numbered(s: &State, number: u32) -> Place {
    let bridges = s.bridges.iter();
    let all = bridges.flat_map(|(bridge, b)| b.ifaces.values().map(move |i| (bridge, i)));
    let found: Vec<_> = all.filter(|(_, i)| i.of_port == Some(number)).collect();
    match found[..] {
        [(_, iface)] => place_of(s, iface),
        [] => Err(format!("in_port={number}: no bridge has this port")),
        [(a, _), (b, _), ..] => {
            Err(format!("in_port={number}: bridges {a} and {b} have this port; say its name"))
        }
    }
}

/// The port of this name; None: there is none.
fn place(s: &State, name: &str) -> Option<Place> {
    let mut all = s.bridges.values().flat_map(|b| b.ifaces.values());
    match all.find(|i| i.conf.name == name) {
        Some(iface) => Some(place_of(s, iface)),
        None => s.tunnels.number(name).map(|no| Ok(on_port(no))),
    }
}

fn place_of(s: &State, iface: &Iface) -> Place {
    let name = &iface.conf.name;
    if iface.conf.kind == "patch" {
        return Err(format!("{name} is a patch port: trace the port where packets come in"));
    }
    let Some(no) = iface.dp_port else {
        let why = iface.error.as_deref().unwrap_or("it is not open");
        return Err(format!("{name} does not work: {why}"));
    };
    let (mut key, mut mask) = on_port(no);
    if s.tunnels.name(no).is_none() {
        return Ok((key, mask));
    }
    // Tunnels share a datapath port: the rest of what a tunnel's packets have says which it is.
    let spec = tunnel_options::parse(&iface.conf)?;
    let mut set = |at: usize, bytes: &[u8]| {
        key.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        mask.bytes_mut()[at..at + bytes.len()].fill(0xff);
    };
    if let Some(id) = spec.in_key {
        set(at::TUN_ID, &id.to_be_bytes());
    }
    let mut address = |ip, [v4, v6]: [usize; 2]| match ip {
        IpAddr::V4(ip) => set(v4, &ip.octets()),
        IpAddr::V6(ip) => set(v6, &ip.octets()),
    };
    if let Remote::Ip(ip) = spec.remote {
        address(ip, [at::TUN_SRC, at::TUN_IPV6_SRC]);
    }
    if let Local::Ip(ip) = spec.local {
        address(ip, [at::TUN_DST, at::TUN_IPV6_DST]);
    }
    Ok((key, mask))
}

/// All packets of a datapath port.
fn on_port(no: PortNo) -> (Key, Mask) {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    key.set_u16(at::IN_PORT, no);
    mask.set_u16(at::IN_PORT, u16::MAX);
    (key, mask)
}
