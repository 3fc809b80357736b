//! `dpctl/*conntrack`, `dpctl/ct-*`: connections.

use super::{Command, Job, command, later};
use crate::ct_walk::{Walk, Walker};
use crate::state::State;
use crate::unixctl::Reply;
use conntrack::text::{self, Style};
use conntrack::{Absent, Conn, Filter, Table, TupleFilter};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::ops::Range;
use std::str::FromStr;

/// Commands about connections.
pub const COMMANDS: &[Command] = &[
    later("dpctl/ct-bkts", "[dp] [gt=N]", 0, 2, buckets),
    command("dpctl/ct-del-limits", "[dp] zone=N1[,N2]...", 1, 2, del_limits),
    command("dpctl/ct-disable-tcp-seq-chk", "[dp]", 0, 1, |s, a| set_check(s, a, false)),
    command("dpctl/ct-enable-tcp-seq-chk", "[dp]", 0, 1, |s, a| set_check(s, a, true)),
    command("dpctl/ct-get-limits", "[dp] [zone=N1[,N2]...]", 0, 2, get_limits),
    command("dpctl/ct-get-maxconns", "[dp]", 0, 1, get_maxconns),
    command("dpctl/ct-get-nconns", "[dp]", 0, 1, get_nconns),
    command("dpctl/ct-get-tcp-seq-chk", "[dp]", 0, 1, get_check),
    command(
        "dpctl/ct-set-limits",
        "[dp] [default=L] [zone=N,limit=L]...",
        1,
        usize::MAX,
        set_limits,
    ),
    command("dpctl/ct-set-maxconns", "[dp] maxconns", 1, 2, set_maxconns),
    later("dpctl/ct-stats-show", "[dp] [zone=N]", 0, 3, stats),
    later("dpctl/dump-conntrack", "[-m] [-s] [dp] [zone=N]", 0, 4, dump),
    later("dpctl/flush-conntrack", "[dp] [zone=N] [ct-orig-tuple] [ct-reply-tuple]", 0, 4, flush),
];

/// Columns of `ct-bkts`.
const BUCKETS_PER_ROW: u32 = 8;
pub(super) const INVALID: &str = "Invalid argument";
const ABSENT: &str = "No such file or directory";

pub(super) fn fail<T>(what: &str, errno: &str) -> Result<T, String> {
    Err(format!("ovs-vswitchd: {what} ({errno})\n"))
}

/// The arguments behind the options and the datapath's name.
fn operands(args: &[String]) -> &[String] {
    let options = args.iter().take_while(|a| a.starts_with('-') && a.len() > 1).count();
    const NAMES: [&str; 4] = ["ovs-netdev", "netdev@ovs-netdev", "ovs-dummy", "dummy@ovs-dummy"];
    let named = |a: &String| NAMES.contains(&a.as_str());
    let rest = &args[options..];
    &rest[usize::from(rest.first().is_some_and(named))..]
}

/// What the options ask for; those that there are not were refused before.
fn style(args: &[String]) -> Style {
    let mut style = Style::default();
    for arg in args.iter().take_while(|a| a.starts_with('-') && a.len() > 1) {
        let short = if arg.starts_with("--") { "" } else { arg };
        style.verbose |= arg == "--more" || short.contains('m');
        style.stats |= arg == "--statistics" || short.contains('s');
    }
    style
}

/// The number behind `name`; OVS reads as much of it as is one.
fn number<T: FromStr>(arg: &str, name: &str) -> Option<T> {
    let digits = arg.strip_prefix(name)?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The zone that the last argument names, and the arguments before it.
fn zone_of(args: &[String]) -> (Option<u16>, &[String]) {
    match args.split_last() {
        Some((last, rest)) if number::<u16>(last, "zone=").is_some() => {
            (number(last, "zone="), rest)
        }
        _ => (None, args),
    }
}

/// The arguments behind the datapath's name: `count` of them, or the name is that of no datapath.
pub(super) fn plain(args: &[String], count: usize) -> Result<&[String], String> {
    match operands(args) {
        rest if rest.len() <= count => Ok(rest),
        _ => fail("datapath not found", INVALID),
    }
}

/// All that is left over is the name of a datapath that there is not.
fn nothing_left(rest: &[String]) -> Result<(), String> {
    match rest.first() {
        Some(_) => fail("datapath not found", INVALID),
        None => Ok(()),
    }
}

fn dump(s: &mut State, args: &[String]) -> Result<Job, String> {
    let style = style(args);
    let (zone, rest) = zone_of(operands(args));
    nothing_left(rest)?;
    let walk = s.ct.walker.walk(zone);
    Ok(Box::new(move |_, reply| Box::pin(send_dump(walk, style, reply))))
}

async fn send_dump(mut walk: Walk, style: Style, reply: Reply) {
    let to = reply.pieces();
    loop {
        let mut out = String::new();
        let more = walk.go_on(|conn, parent, now| {
            out += &text::conn(conn, parent, style, now);
            out.push('\n');
        });
        let more = more.await;
        if to.send(out).await.is_err() || !more {
            return;
        }
    }
}

fn flush(s: &mut State, args: &[String]) -> Result<Job, String> {
    let (walker, filter) = (s.ct.walker.clone(), filter(args)?);
    Ok(Box::new(move |_, reply| {
        Box::pin(async move {
            reply.send(match walker.flush(filter).await {
                Ok(()) => Ok(String::new()),
                Err(Absent) => fail("failed to flush conntrack", ABSENT),
            });
        })
    }))
}

/// Which connections are to be flushed.
fn filter(args: &[String]) -> Result<Filter, String> {
    let mut rest = operands(args);
    let mut filter = Filter::default();
    if let Some(first) = rest.first().filter(|a| a.starts_with("zone=")) {
        filter.zone = number(first, "zone=");
        if filter.zone.is_none() {
            return fail("failed to parse zone", INVALID);
        }
        rest = &rest[1..];
    }
    let mut v6 = None;
    for (i, arg) in rest.iter().take(2).enumerate() {
        let parsed = tuple(arg, &mut filter.proto, &mut v6);
        let parsed = parsed.or_else(|e| fail(&e, INVALID))?;
        *(if i == 0 { &mut filter.orig } else { &mut filter.reply }) = parsed;
    }
    if rest.len() > 2 {
        return fail("invalid arguments", INVALID);
    }
    Ok(filter)
}

/// `ct_nw_src=A,...`: what is said of a tuple. Protocol and family are those of both tuples.
fn tuple(text: &str, proto: &mut Option<u8>, v6: &mut Option<bool>) -> Result<TupleFilter, String> {
    let mut t = TupleFilter::default();
    for pair in text.split([',', ' ']).filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if value.is_empty() {
            return Err(format!("field {key} missing value"));
        }
        let bad = || format!("failed to parse field {key}");
        match key {
            "ct_nw_src" | "ct_ipv6_src" => {
                set(&mut t.src, address(key, value, v6)?, key)?;
            }
            "ct_nw_dst" | "ct_ipv6_dst" => {
                set(&mut t.dst, address(key, value, v6)?, key)?;
            }
            "ct_nw_proto" => *proto = Some(value.parse().map_err(|_| bad())?),
            "ct_tp_src" => t.sport = Some(value.parse().map_err(|_| bad())?),
            "ct_tp_dst" => t.dport = Some(value.parse().map_err(|_| bad())?),
            "icmp_type" | "icmp_code" | "icmp_id" if !matches!(proto, Some(1 | 58)) => {
                return Err("invalid L4 fields".into());
            }
            "icmp_type" => t.icmp_type = Some(value.parse().map_err(|_| bad())?),
            "icmp_code" => t.icmp_code = Some(value.parse().map_err(|_| bad())?),
            "icmp_id" => t.sport = Some(value.parse().map_err(|_| bad())?),
            _ => return Err(format!("invalid conntrack tuple field: {key}")),
        }
    }
    match proto.is_none() && (t.sport.is_some() || t.dport.is_some()) {
        true => Err("port is set without protocol".into()),
        false => Ok(t),
    }
}

fn set(slot: &mut Option<IpAddr>, value: IpAddr, key: &str) -> Result<(), String> {
    match slot.replace(value) {
        Some(_) => Err(format!("{key} is set multiple times")),
        None => Ok(()),
    }
}

fn address(key: &str, value: &str, v6: &mut Option<bool>) -> Result<IpAddr, String> {
    let wants = key.starts_with("ct_ipv6");
    if v6.is_some_and(|is| is != wants) {
        return Err(format!("the L3 protocol does not match {value}"));
    }
    *v6 = Some(wants);
    let parsed = value.parse::<IpAddr>().ok().filter(|a| a.is_ipv6() == wants);
    parsed.ok_or_else(|| format!("failed to parse field {key}"))
}

/// Connections per protocol, in the order that OVS prints them.
const PROTOCOLS: [(&str, u8); 8] = [
    ("TCP", 6),
    ("UDP", 17),
    ("UDPLITE", 136),
    ("SCTP", 132),
    ("ICMP", 1),
    ("DCCP", 33),
    ("IGMP", 2),
    ("ICMPV6", 58),
];

fn stats(s: &mut State, args: &[String]) -> Result<Job, String> {
    let mut verbose = style(args).verbose;
    let mut rest = operands(args);
    if let Some((last, before)) = rest.split_last()
        && last.starts_with("verbose")
    {
        (verbose, rest) = (true, before);
    }
    let (zone, rest) = zone_of(rest);
    nothing_left(rest)?;
    let mut walk = s.ct.walker.walk(zone);
    Ok(Box::new(move |_, reply| {
        Box::pin(async move {
            let mut stats = Stats::default();
            while walk.go_on(|conn, _, _| stats.add(conn)).await {}
            reply.send(Ok(stats.text(verbose)));
        })
    }))
}

/// How many connections there are: in all, per protocol (None: others than [`PROTOCOLS`]), per
/// state of TCP.
#[derive(Default)]
struct Stats {
    total: u64,
    protocols: BTreeMap<Option<u8>, u64>,
    states: BTreeMap<u8, u64>,
}

impl Stats {
    fn add(&mut self, conn: &Conn) {
        self.total += 1;
        let Conn { orig, peers: [a, b], .. } = conn;
        let known = PROTOCOLS.iter().any(|(_, p)| *p == orig.proto);
        *self.protocols.entry(known.then_some(orig.proto)).or_default() += 1;
        if orig.proto == wire::IP_TCP {
            *self.states.entry(text::tcp_state_of_both(a.state, b.state)).or_default() += 1;
        }
    }

    fn text(&self, verbose: bool) -> String {
        let mut out = format!("Connections Stats:\n    Total: {}\n", self.total);
        // ICMPv6 is counted, and never printed (as in OVS).
        for (name, proto) in &PROTOCOLS[..7] {
            let Some(n) = self.protocols.get(&Some(*proto)) else { continue };
            let _ = writeln!(out, "  {name}: {n}");
            if *name == "TCP" && verbose {
                out += "    Conn per TCP states:\n";
                for (state, n) in &self.states {
                    let _ = writeln!(out, "\t  [{}]={n}", text::tcp_state(*state));
                }
            }
        }
        if let Some(n) = self.protocols.get(&None) {
            let _ = writeln!(out, "  Other: {n}");
        }
        out
    }
}

fn buckets(s: &mut State, args: &[String]) -> Result<Job, String> {
    let mut rest = operands(args);
    let mut least = 0;
    if let Some((last, before)) = rest.split_last()
        && let Some(n) = number::<usize>(last, "gt=")
    {
        (least, rest) = (n, before);
    }
    nothing_left(rest)?;
    let walker = s.ct.walker.clone();
    Ok(Box::new(move |_, reply| Box::pin(send_buckets(walker, least, reply))))
}

async fn send_buckets(walker: Walker, least: usize, reply: Reply) {
    let (table, to) = (walker.table(), reply.pieces());
    let (buckets, connections) = (table.bucket_count(), table.len());
    let mut out = format!("Total Buckets: {buckets}\nCurrent Connections: {connections}\n\n");
    if connections == 0 {
        return drop(to.send(out).await);
    }
    let line = format!("+{}+{}+\n", "-".repeat(11), "-".repeat(41));
    let title = "|  Buckets  |         Connections per Buckets         |\n";
    let _ = write!(out, "{line}{title}{}", line.trim_end());
    let mut next = 0;
    while next < buckets {
        if to.send(std::mem::take(&mut out)).await.is_err() {
            return;
        }
        let some = walker.buckets(next..buckets).await;
        next = some.end;
        rows(&mut out, table, some, least);
    }
    let _ = to.send(out + "\n\n").await;
}

/// Shows some buckets, in rows.
fn rows(out: &mut String, table: &Table, which: Range<u32>, least: usize) {
    for (at, n) in which.clone().zip(table.buckets(which)) {
        if at % BUCKETS_PER_ROW == 0 {
            let _ = write!(out, "\n {at:3}..{:3}   | ", at + BUCKETS_PER_ROW - 1);
        }
        let _ = match n > least {
            true => write!(out, "{n:5}"),
            false => write!(out, "{:>5}", "."),
        };
    }
}

fn get_maxconns(s: &mut State, args: &[String]) -> Result<String, String> {
    plain(args, 0)?;
    Ok(format!("{}\n", s.dp.conntrack().limits.total()))
}

fn set_maxconns(s: &mut State, args: &[String]) -> Result<String, String> {
    match args.last().and_then(|a| number::<u32>(a, "")) {
        Some(n) => {
            plain(args, 1)?;
            s.dp.conntrack().limits.set_total(n);
            Ok("setting maxconns successful\n".into())
        }
        None => fail("maxconns missing or malformed", INVALID),
    }
}

fn get_nconns(s: &mut State, args: &[String]) -> Result<String, String> {
    plain(args, 0)?;
    Ok(format!("{}\n", s.dp.conntrack().len()))
}

fn get_check(s: &mut State, args: &[String]) -> Result<String, String> {
    plain(args, 0)?;
    let on = s.dp.conntrack().limits.checks_sequence();
    Ok(format!("TCP sequence checking: {}\n", if on { "enabled" } else { "disabled" }))
}

fn set_check(s: &mut State, args: &[String], on: bool) -> Result<String, String> {
    plain(args, 0)?;
    s.dp.conntrack().limits.set_checks_sequence(on);
    let verb = if on { "enabling" } else { "disabling" };
    Ok(format!("{verb} TCP sequence checking successful\n"))
}

fn set_limits(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut rest = operands(args);
    let mut default = None;
    if let Some(first) = rest.first().filter(|a| a.starts_with("default=")) {
        default = number::<u32>(first, "default=");
        if default.is_none() {
            return fail("invalid default limit", INVALID);
        }
        rest = &rest[1..];
    }
    let zones: Result<Vec<_>, String> = rest.iter().map(|a| zone_limit(a)).collect();
    let zones = zones.or_else(|e| fail(&e, INVALID))?;
    let limits = &s.dp.conntrack().limits;
    default.inspect(|n| limits.set_of_others(*n));
    zones.iter().for_each(|(zone, n)| limits.set_zone(*zone, Some(*n)));
    Ok(String::new())
}

/// `zone=N,limit=N`.
fn zone_limit(text: &str) -> Result<(u16, u32), String> {
    let (mut zone, mut limit) = (None, None);
    for pair in text.split([',', ' ']).filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let bad = || format!("failed to parse field {key}");
        match key {
            _ if value.is_empty() => return Err(format!("field {key} missing value")),
            "zone" => zone = Some(value.parse().map_err(|_| bad())?),
            "limit" => limit = Some(value.parse().map_err(|_| bad())?),
            _ => return Err(format!("invalid zone limit field: {key}")),
        }
    }
    zone.zip(limit).ok_or_else(|| "failed to parse zone limit".into())
}

/// `zone=N1,N2...`.
fn zones(arg: &str) -> Result<Vec<u16>, String> {
    let Some(list) = arg.strip_prefix("zone=") else {
        return fail(&format!("invalid argument {arg}"), INVALID);
    };
    let all: Option<Vec<u16>> = list.split(',').map(|z| number(z, "")).collect();
    all.map_or_else(|| fail("invalid zone", INVALID), Ok)
}

fn del_limits(s: &mut State, args: &[String]) -> Result<String, String> {
    let limits = &s.dp.conntrack().limits;
    for zone in zones(operands(args).first().map_or("", String::as_str))? {
        limits.set_zone(zone, None);
    }
    Ok(String::new())
}

fn get_limits(s: &mut State, args: &[String]) -> Result<String, String> {
    let table = s.dp.conntrack();
    let limits = &table.limits;
    let asked = operands(args).first().map(|a| zones(a)).transpose()?;
    let zones = asked.unwrap_or_else(|| limits.own().into_iter().map(|(zone, _)| zone).collect());
    let mut out = format!("default limit={}", limits.of_others());
    for zone in zones {
        let limit = limits.of(zone).unwrap_or(0);
        let _ = write!(out, "\nzone={zone},limit={limit},count={}", table.zone_len(zone));
    }
    Ok(out + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_as_ovs_reads_them() {
        let read = |text| tuple(text, &mut None, &mut None);
        let all = "ct_nw_src=10.1.1.1,ct_nw_dst=10.1.1.2,ct_nw_proto=17,ct_tp_src=1,ct_tp_dst=2";
        let t = read(all).unwrap();
        assert_eq!((t.sport, t.dport), (Some(1), Some(2)));
        for (text, error) in [
            ("foo=1", "invalid conntrack tuple field: foo"),
            ("ct_nw_src", "field ct_nw_src missing value"),
            ("ct_tp_src=1", "port is set without protocol"),
            ("ct_nw_src=x", "failed to parse field ct_nw_src"),
            ("ct_nw_proto=17,icmp_id=1", "invalid L4 fields"),
            ("ct_nw_src=1.1.1.1,ct_ipv6_dst=::1", "the L3 protocol does not match ::1"),
        ] {
            assert_eq!(read(text).unwrap_err(), error);
        }
    }

    #[test]
    fn zone_limits_as_ovs_reads_them() {
        assert_eq!(zone_limit("zone=5,limit=20"), Ok((5, 20)));
        assert_eq!(zone_limit("zone=5").unwrap_err(), "failed to parse zone limit");
        assert_eq!(zone_limit("zone=5,x=1").unwrap_err(), "invalid zone limit field: x");
    }
}
