//! OpenFlow messages as text, for the log of module `vconn` at level DBG: the layout is that of
//! ovs-vswitchd's. Messages that change or report flows, packets, errors, bundles, roles and
//! configuration have their contents; of others the log has the type.

use crate::vlog::{self, Level};
use flow::{match_text, port_text};
use ofproto::{actions_text, instructions_text};
use openflow::codec;
use openflow::{
    BundleStep, FlowFormat, FlowMod, FlowModCommand, FlowRemoved, FlowSelect, FlowStats,
    FragHandling, Match, MultipartReply, MultipartRequest, NO_BUFFER, PacketIn, PacketInFormat,
    PacketOut, Reason, Removed, Reply, Request, Role, SwitchConfig, TABLE_ALL, Version, flow_flag,
    port,
};
use std::fmt::{self, Write};

/// The priority that is not printed.
const DEFAULT_PRIORITY: u16 = 0x8000;
/// Bytes of a message in front of the one that it adds to a bundle: OpenFlow's and the ONF's form.
const BUNDLE_ADD_BYTES: [usize; 2] = [16, 24];
/// Statistics are wanted of all groups.
const GROUP_ALL: u32 = 0xffff_fffc;
/// The type of the ONF's form, an experimenter's message.
const EXPERIMENTER: u8 = 4;

/// Messages in a row that the log has, and messages a second after that: ovs-vswitchd's numbers.
const LOGGED: (u32, u32) = (600, 10);

/// True if the log wants messages.
pub fn is_logged() -> bool {
    vlog::enabled(Level::Dbg) && vlog::enabled_in("vconn", Level::Dbg)
}

/// A text that is made when it is written, so that messages beyond the log's limit cost none.
struct Lazy<T: Fn() -> String>(T);

impl<T: Fn() -> String> fmt::Display for Lazy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0())
    }
}

/// Logs a message that was received; `text` makes what it says. The log is locked meanwhile.
pub fn log_received(name: &str, text: impl Fn() -> String) {
    static SITE: vlog::Site = vlog::Site::with_limit(LOGGED.0, LOGGED.1);
    let text = Lazy(|| text().trim_end().to_owned());
    vlog::write(&SITE, Level::Dbg, "vconn", format_args!("{name}: received: {text}"));
}

/// Logs a message that was sent; `text` makes what it says, without its header. The log is locked
/// meanwhile.
pub fn log_sent(name: &str, bytes: &[u8], text: impl Fn() -> String) {
    static SITE: vlog::Site = vlog::Site::with_limit(LOGGED.0, LOGGED.1);
    let text = Lazy(|| {
        let more = if codec::has_more(bytes) { " flags=[more]" } else { "" };
        codec::headline(bytes) + more + &text()
    });
    vlog::write(&SITE, Level::Dbg, "vconn", format_args!("{name}: sent (Success): {text}"));
}

/// OpenFlow versions, bit `1 << wire version`: `0x01, 0x04`.
pub fn versions(bitmap: u32) -> String {
    let each = (0..32).filter(|v| bitmap >> v & 1 != 0).map(|v| format!("0x{v:02x}"));
    each.collect::<Vec<_>>().join(", ")
}

/// As [`versions`], with the word for one or several, or what all up to one are called.
pub fn supported(bitmap: u32) -> String {
    match bitmap {
        // Bits 1 to n without a gap.
        b if b & 2 != 0 && (b + 2) & b == 0 && b != 2 => {
            format!("version 0x{:02x} and earlier", b.ilog2())
        }
        b if b.is_power_of_two() => format!("version {}", versions(b)),
        b => format!("versions {}", versions(b)),
    }
}

/// What a hello with these versions says.
pub fn offered(bitmap: u32) -> String {
    format!("\n version bitmap: {}", versions(bitmap))
}

/// A hello.
pub fn hello(bytes: &[u8]) -> String {
    codec::headline(bytes) + &offered(codec::decode_hello(bytes).unwrap_or(0))
}

/// A request: its header, and what it says. `bytes` is all of it.
pub fn request(request: &Request, version: Version, bytes: &[u8]) -> String {
    let head = codec::headline(bytes);
    let body = match request {
        Request::EchoRequest(data) | Request::EchoReply(data) => echo(data),
        Request::SetConfig(c) => config(c),
        Request::FlowMod(m) => flow_mod(m, version),
        Request::PacketOut(p) => packet_out(p),
        Request::Role { role, generation } => role_text(*role, *generation),
        Request::BundleControl { id, step, flags } => bundle(*id, *step, *flags),
        Request::BundleAdd { id, flags, inner, .. } => {
            let ours = bytes.get(1) == Some(&EXPERIMENTER);
            let rest = bytes.get(BUNDLE_ADD_BYTES[usize::from(ours)]..).unwrap_or_default();
            let flags = bundle_flags(*flags);
            let inner = self::request(inner, version, rest);
            format!("\n bundle_id={} flags={flags}\n{inner}", hex(*id))
        }
        Request::SetFlowFormat(f) => match f {
            FlowFormat::OpenFlow10 => " format=openflow10".into(),
            FlowFormat::Nxm => " format=nxm".into(),
        },
        Request::SetPacketInFormat(f) => match f {
            PacketInFormat::Standard => " format=openflow10".into(),
            PacketInFormat::Nxt => " format=nxt_packet_in".into(),
            PacketInFormat::Nxt2 => " format=nxt_packet_in2".into(),
        },
        Request::Multipart(m) => wanted(m, version),
        _ => String::new(),
    };
    head + &body
}

/// What a message from the switch says, without its header.
pub fn reply(reply: &Reply, version: Version) -> String {
    match reply {
        Reply::EchoRequest(data) | Reply::EchoReply(data) => echo(data),
        Reply::Error { error, data } => {
            let about = match codec::decode(version, data) {
                Ok((_, request)) => self::request(&request, version, data),
                Err(_) => codec::headline(data),
            };
            format!(" {}\n{about}", error.ovs_name())
        }
        Reply::Features { dpid, n_buffers, n_tables, .. } => {
            format!(" dpid:{dpid:016x}\nn_tables:{n_tables}, n_buffers:{n_buffers}")
        }
        Reply::Config(c) => config(c),
        Reply::PacketIn(p) => packet_in(p),
        Reply::FlowRemoved(f) => flow_removed(f, version),
        Reply::PortStatus { reason, desc } => {
            let reason = ["ADD", "DEL", "MOD"].get(usize::from(*reason)).unwrap_or(&"?");
            format!(" {reason}: {}({})", port_text(desc.port, &|_| None), desc.name)
        }
        Reply::Role { role, generation } => role_text(*role, Some(*generation)),
        Reply::BundleControl { id, step, flags } => bundle(*id, *step, *flags),
        Reply::Multipart(m) => part(m, version),
        _ => String::new(),
    }
}

/// What a part of a multipart reply says.
pub fn part(part: &MultipartReply, version: Version) -> String {
    match part {
        MultipartReply::Flow(flows) => {
            flows.iter().map(|f| format!("\n {}", flow_stats(f, version))).collect()
        }
        MultipartReply::Aggregate { packets, bytes, flows } => {
            format!(" packet_count={packets} byte_count={bytes} flow_count={flows}")
        }
        MultipartReply::PortStats(all) => format!(" {} ports", all.len()),
        MultipartReply::QueueStats(all) => format!(" {} queues", all.len()),
        _ => String::new(),
    }
}

/// What a multipart request asks about.
fn wanted(request: &MultipartRequest, version: Version) -> String {
    let named = |n: u32| port_text(n, &|_| None);
    match request {
        MultipartRequest::Flow(s) | MultipartRequest::Aggregate(s) => select(s),
        MultipartRequest::PortStats(p) => format!(" port_no={}", named(*p)),
        MultipartRequest::PortDesc(p) if version > Version::V10 => format!(" port={}", named(*p)),
        MultipartRequest::QueueStats { port, queue } => {
            let queue = if *queue == u32::MAX { "ALL".into() } else { queue.to_string() };
            format!(" port={} queue={queue}", named(*port))
        }
        MultipartRequest::GroupStats(id) | MultipartRequest::GroupDesc(id) => match *id {
            GROUP_ALL => " group_id=ALL".into(),
            id => format!(" group_id={id}"),
        },
        _ => String::new(),
    }
}

fn hex(n: u32) -> String {
    if n == 0 { "0".into() } else { format!("{n:#x}") }
}

fn echo(data: &[u8]) -> String {
    format!(" {} bytes of payload", data.len())
}

fn config(c: &SwitchConfig) -> String {
    let frags = match c.frag {
        FragHandling::Normal => "normal",
        FragHandling::Drop => "drop",
        FragHandling::Reassemble => "reassemble",
        FragHandling::NxMatch => "nx-match",
    };
    let ttl = if c.invalid_ttl_to_controller { " invalid_ttl_to_controller" } else { "" };
    format!(" frags={frags}{ttl} miss_send_len={}", c.miss_send_len)
}

fn role_text(role: Role, generation: Option<u64>) -> String {
    let role = match role {
        Role::NoChange => "nochange",
        Role::Equal => "equal",
        Role::Primary => "primary",
        Role::Secondary => "secondary",
    };
    match generation.filter(|g| *g != u64::MAX) {
        Some(g) => format!(" role={role} generation_id={g}"),
        None => format!(" role={role}"),
    }
}

fn bundle(id: u32, step: BundleStep, flags: u16) -> String {
    let step = match step {
        BundleStep::OpenRequest => "OPEN_REQUEST",
        BundleStep::OpenReply => "OPEN_REPLY",
        BundleStep::CloseRequest => "CLOSE_REQUEST",
        BundleStep::CloseReply => "CLOSE_REPLY",
        BundleStep::CommitRequest => "COMMIT_REQUEST",
        BundleStep::CommitReply => "COMMIT_REPLY",
        BundleStep::DiscardRequest => "DISCARD_REQUEST",
        BundleStep::DiscardReply => "DISCARD_REPLY",
    };
    format!("\n bundle_id={} type={step} flags={}", hex(id), bundle_flags(flags))
}

fn bundle_flags(flags: u16) -> String {
    match flags {
        0 => "0".into(),
        1 => "atomic".into(),
        2 => "ordered".into(),
        3 => "atomic ordered".into(),
        f => format!("{f:#x}"),
    }
}

/// A match with its priority, if that is not the default.
fn matching(m: &Match, priority: u16) -> String {
    let text = match_text(&m.key, &m.mask, &m.tun, &|_| None);
    match priority {
        DEFAULT_PRIORITY => text,
        p if text.is_empty() => format!("priority={p}"),
        p => format!("priority={p},{text}"),
    }
}

fn flow_flags(flags: u16) -> String {
    let names = [
        (flow_flag::SEND_FLOW_REM, "send_flow_rem "),
        (flow_flag::CHECK_OVERLAP, "check_overlap "),
        (flow_flag::RESET_COUNTS, "reset_counts "),
        (flow_flag::NO_PKT_COUNTS, "no_packet_counts "),
        (flow_flag::NO_BYT_COUNTS, "no_byte_counts "),
    ];
    names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
}

fn flow_mod(m: &FlowMod, version: Version) -> String {
    let command = match m.command {
        FlowModCommand::Add => "ADD",
        FlowModCommand::Modify => "MOD",
        FlowModCommand::ModifyStrict => "MOD_STRICT",
        FlowModCommand::Delete => "DEL",
        FlowModCommand::DeleteStrict => "DEL_STRICT",
    };
    let mut out = format!(" {command}");
    // Without its extension OpenFlow 1.0 says nothing about the table.
    if m.table != 0 && (m.table, version) != (TABLE_ALL, Version::V10) {
        let _ = write!(out, " table:{}", m.table);
    }
    out.push(' ');
    out += &matching(&m.matching, m.priority);
    if !out.ends_with(' ') {
        out.push(' ');
    }
    if !matches!(m.cookie, 0 | u64::MAX) {
        let _ = write!(out, "cookie:{:#x} ", m.cookie);
    }
    if m.cookie_mask != 0 {
        let _ = write!(out, "cookie:{:#x}/{:#x} ", m.cookie_old, m.cookie_mask);
    }
    for (name, n) in
        [("idle", m.idle_timeout), ("hard", m.hard_timeout), ("importance", m.importance)]
    {
        if n != 0 {
            let _ = write!(out, "{name}:{n} ");
        }
    }
    if m.buffer_id != NO_BUFFER {
        let _ = write!(out, "buf:{:#x} ", m.buffer_id);
    }
    if m.out_port != port::ANY {
        let _ = write!(out, "out_port:{} ", port_text(m.out_port, &|_| None));
    }
    // 1.0 and 1.1 have no such flag, and always do that.
    let hidden = if version < Version::V12 { flow_flag::RESET_COUNTS } else { 0 };
    out += &flow_flags(m.flags & !hidden);
    out + "actions=" + &instructions_text(&m.instructions)
}

fn select(s: &FlowSelect) -> String {
    let mut out = String::new();
    if s.table != TABLE_ALL {
        let _ = write!(out, " table={}", s.table);
    }
    if s.out_port != port::ANY {
        let _ = write!(out, " out_port={}", port_text(s.out_port, &|_| None));
    }
    out + " " + &matching(&s.matching, DEFAULT_PRIORITY)
}

/// Seconds with as many decimal places as they have.
fn duration(ns: u64) -> String {
    let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    match format!("{rest:09}").trim_end_matches('0') {
        "" => format!("{seconds}s"),
        places => format!("{seconds}.{places}s"),
    }
}

fn flow_stats(f: &FlowStats, version: Version) -> String {
    let mut out = format!("cookie={:#x}, duration={}, ", f.cookie, duration(f.duration_ns));
    let _ = write!(out, "table={}, n_packets={}, n_bytes={}, ", f.table, f.packets, f.bytes);
    let optional = |name: &str, n: Option<u32>| n.map(|n| format!("{name}={n}, "));
    let some = |n: u16| Some(u32::from(n)).filter(|n| *n != 0);
    out.extend(optional("idle_timeout", some(f.idle_timeout)));
    out.extend(optional("hard_timeout", some(f.hard_timeout)));
    if version >= Version::V13 {
        out += &flow_flags(f.flags);
    }
    if version >= Version::V14 {
        out.extend(optional("importance", some(f.importance)));
    }
    // OpenFlow has these from 1.5 on, and OVS's extension of 1.0.
    if matches!(version, Version::V10 | Version::V15) {
        out.extend(optional("idle_age", f.idle_age));
        let age = f.hard_age.filter(|age| u64::from(*age) != f.duration_ns / 1_000_000_000);
        out.extend(optional("hard_age", age));
    }
    let matching = matching(&f.matching, f.priority);
    let space = if matching.is_empty() { "" } else { " " };
    out + &matching + space + "actions=" + &instructions_text(&f.instructions)
}

fn flow_removed(f: &FlowRemoved, version: Version) -> String {
    let reason = match f.reason {
        Removed::IdleTimeout => "idle",
        Removed::HardTimeout => "hard",
        Removed::Delete => "delete",
        Removed::GroupDelete => "group_delete",
        Removed::MeterDelete => "meter_delete",
        Removed::Eviction => "eviction",
    };
    let s = &f.stats;
    let mut out = format!(" {} reason={reason}", matching(&s.matching, s.priority));
    if s.table != TABLE_ALL && version > Version::V10 {
        let _ = write!(out, " table_id={}", s.table);
    }
    if s.cookie != 0 {
        let _ = write!(out, " cookie:{:#x}", s.cookie);
    }
    let _ = write!(out, " duration{} idle{}", duration(s.duration_ns), s.idle_timeout);
    if s.hard_timeout != 0 {
        let _ = write!(out, " hard{}", s.hard_timeout);
    }
    let _ = write!(out, " pkts{} bytes{}", s.packets, s.bytes);
    out
}

/// A packet, as fields.
fn packet(data: &[u8]) -> String {
    // Wherever it came in, the packet does not say.
    match datapath::extract(data, 0, 2) {
        Some(key) => {
            format!("\n{}", flow::flow_text(&key, &[], &|_| None).replacen("in_port=0,", "", 1))
        }
        None => String::new(),
    }
}

fn packet_in(p: &PacketIn) -> String {
    let mut out = String::new();
    if p.table != 0 {
        let _ = write!(out, " table_id={}", p.table);
    }
    if p.cookie != u64::MAX {
        let _ = write!(out, " cookie={:#x}", p.cookie);
    }
    let reason = match p.reason {
        Reason::TableMiss => "no_match",
        Reason::Action => "action",
        Reason::InvalidTtl => "invalid_ttl",
        Reason::ActionSet => "action_set",
        Reason::Group => "group",
        Reason::PacketOut => "packet_out",
    };
    let (total, len) = (usize::from(p.total_len), p.data.len());
    let fields = matching(&p.matching, DEFAULT_PRIORITY);
    let _ = write!(out, " total_len={total} {fields} (via {reason}) data_len={len}");
    match p.buffer_id {
        NO_BUFFER if total != len => out += " (unbuffered) (***total_len != data_len***)",
        NO_BUFFER => out += " (unbuffered)",
        buffer => {
            let _ = write!(out, " buffer=0x{buffer:08x}");
        }
    }
    if !p.userdata.is_empty() {
        let bytes: Vec<String> = p.userdata.iter().map(|b| format!("{b:02x}")).collect();
        let _ = write!(out, "\n userdata={}", bytes.join("."));
    }
    out + &packet(&p.data)
}

fn packet_out(p: &PacketOut) -> String {
    let fields = matching(&p.matching, DEFAULT_PRIORITY);
    let out = format!(" {fields} actions={}", actions_text(&p.actions));
    match p.buffer_id {
        NO_BUFFER => format!("{out} data_len={}{}", p.data.len(), packet(&p.data)),
        buffer => format!("{out} buffer=0x{buffer:08x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_by_ovs() {
        assert_eq!(versions(0b111_0010), "0x01, 0x04, 0x05, 0x06");
        for (bitmap, expected) in [
            (0b111_1110, "version 0x06 and earlier"),
            (0b110, "version 0x02 and earlier"),
            (0b10, "version 0x01"),
            (0b100_000, "version 0x05"),
            (0b100_010, "versions 0x01, 0x05"),
        ] {
            assert_eq!(supported(bitmap), expected, "{bitmap:b}");
        }
    }

    #[test]
    fn messages_beyond_the_limit_of_the_log_cost_no_text() {
        let made = std::cell::Cell::new(0);
        let text = || {
            made.set(made.get() + 1);
            String::new()
        };
        (0..10_000).for_each(|_| log_received("br0<->unix#0", text));
        assert!((600..1_000).contains(&made.get()), "{made:?} texts were made");
    }

    #[test]
    fn durations_have_the_places_that_they_need() {
        let shown = [0, 5_000_000_000, 1_250_000_000, 2_000_000_001].map(duration);
        assert_eq!(shown, ["0s", "5s", "1.25s", "2.000000001s"]);
    }
}
