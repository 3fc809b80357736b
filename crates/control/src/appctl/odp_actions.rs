//! Datapath actions as text: `dpctl/parse-actions` and `dpctl/normalize-actions` read them and
//! print them as `dpctl/dump-flows` does. Nothing is carried out.

use flow::{odp_text, parse_odp};

/// Lists in lists that are read, as ovs-vswitchd's: whoever types more gets an error.
const NESTED_MAX: usize = 32;

/// What ovs-vswitchd shows as user data where none was typed.
const NO_USER_DATA_BYTES: usize = 48;

/// A VLAN tag: Ethertype, and priority and identifier. Zeros: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    pub tpid: u16,
    pub tci: u16,
}

/// A datapath action that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OdpAction {
    Output(u32),
    PushVlan(Tag),
    PopVlan,
    /// Any other one, as it is printed.
    Other(String),
}

/// Finds the number of a port by the name that was typed.
pub type PortNamed<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// Reads a list of actions; `None` if something is not understood, or the text is longer than a
/// flow's may be.
pub fn parse(text: &str, ports: PortNamed) -> Option<Vec<OdpAction>> {
    match text.eq_ignore_ascii_case("drop") {
        true => Some(vec![OdpAction::Other("drop".into())]),
        false if text.len() > flow::TEXT_MAX => None,
        false => list(text, ports, 1),
    }
}

/// The text of a list; `drop` if it is empty.
pub fn text(actions: &[OdpAction]) -> String {
    if actions.is_empty() {
        return "drop".into();
    }
    actions.iter().map(one_text).collect::<Vec<_>>().join(",")
}

fn one_text(action: &OdpAction) -> String {
    match action {
        OdpAction::Output(port) => port.to_string(),
        OdpAction::PushVlan(t) => {
            let cfi = if t.tci & 0x1000 == 0 { ",cfi=0" } else { "" };
            format!("push_vlan({}{cfi})", tag_text(*t))
        }
        OdpAction::PopVlan => "pop_vlan".into(),
        OdpAction::Other(text) => text.clone(),
    }
}

/// Identifier and priority of a tag, and its Ethertype unless it is the usual one.
pub fn tag_text(t: Tag) -> String {
    let tpid = if t.tpid == 0x8100 { String::new() } else { format!("tpid={:#06x},", t.tpid) };
    format!("{tpid}vid={},pcp={}", t.tci & 0xfff, t.tci >> 13)
}

fn list(text: &str, ports: PortNamed, depth: usize) -> Option<Vec<OdpAction>> {
    if depth > NESTED_MAX {
        return None;
    }
    items(text)?.into_iter().map(|item| action(item, ports, depth)).collect()
}

/// Parts of a text between commas or blanks that are outside of parentheses, without empty ones.
pub fn items(text: &str) -> Option<Vec<&str>> {
    let (mut depth, mut from, mut out) = (0usize, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' | ' ' | '\t' | '\r' | '\n' if depth == 0 => {
                out.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    out.retain(|item| !item.is_empty());
    (depth == 0).then_some(out)
}

/// A number as C's `%i` reads it.
fn number(text: &str) -> Option<i64> {
    let (minus, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let hex = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
    let octal = digits.strip_prefix('0').filter(|rest| !rest.is_empty());
    let (digits, radix) = match (hex, octal) {
        (Some(hex), _) => (hex, 16),
        (None, Some(octal)) => (octal, 8),
        (None, None) => (digits, 10),
    };
    let plain = digits.chars().all(|c| c.is_ascii_hexdigit());
    i64::from_str_radix(digits, radix).ok().filter(|_| plain).map(|n| minus * n)
}

fn up_to(text: &str, max: i64) -> Option<i64> {
    number(text).filter(|n| (0..=max).contains(n))
}

fn action(item: &str, ports: PortNamed, depth: usize) -> Option<OdpAction> {
    if let Some(n) = number(item) {
        return Some(OdpAction::Output(n as u32));
    }
    if let Some(n) = ports(item) {
        return Some(OdpAction::Output(n));
    }
    let Some((name, rest)) = item.split_once('(') else {
        return match item {
            "pop_vlan" => Some(OdpAction::PopVlan),
            "ct_clear" | "ct" => Some(OdpAction::Other(item.into())),
            _ => None,
        };
    };
    let body = rest.strip_suffix(')')?;
    if name == "push_vlan" {
        return push_vlan(body);
    }
    let inner = |text: &str| list(text, ports, depth + 1).map(|all| self::text(&all));
    let decimal = |max: i64| up_to(body, max).map(|n| format!("{name}({n})"));
    let text = match name {
        "trunc" | "tnl_pop" | "meter" => decimal(u32::MAX.into())?,
        // Only digits, as they are read without a prefix.
        "lb_output" | "recirc" if !body.bytes().all(|b| b.is_ascii_digit()) => return None,
        "lb_output" => decimal(u32::MAX.into())?,
        "recirc" => format!("recirc({:#x})", body.parse::<u32>().ok()?),
        "clone" => format!("clone({})", inner(body)?),
        "sample" => sample(body, &inner)?,
        "check_pkt_len" => check_pkt_len(body, &inner)?,
        "set" => set(body)?,
        "userspace" => userspace(body)?,
        "ct" => ct(body)?,
        "add_mpls" => add_mpls(body)?,
        "push_nsh" => push_nsh(body)?,
        "pop_nsh" if body.is_empty() => item.into(),
        "tnl_push" => tnl_push(body)?,
        _ => return None,
    };
    Some(OdpAction::Other(text))
}

type Inner<'a> = &'a dyn Fn(&str) -> Option<String>;

fn push_vlan(body: &str) -> Option<OdpAction> {
    let parts: Option<Vec<_>> = body.split(',').map(|part| part.split_once('=')).collect();
    let parts = parts?;
    let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
    let with_type = names.first() == Some(&"tpid");
    if !matches!(names[usize::from(with_type)..], ["vid", "pcp"] | ["vid", "pcp", "cfi"]) {
        return None;
    }
    let mut tag = Tag { tpid: 0x8100, tci: 0x1000 };
    for (name, value) in parts {
        match name {
            "tpid" => tag.tpid = up_to(value, 0xffff)? as u16,
            "vid" => tag.tci |= up_to(value, 0xfff)? as u16,
            "pcp" => tag.tci |= (up_to(value, 7)? as u16) << 13,
            _ if number(value)? == 0 => tag.tci &= !0x1000,
            _ => {}
        }
    }
    Some(OdpAction::PushVlan(tag))
}

fn sample(body: &str, inner: Inner) -> Option<String> {
    let (share, rest) = body.strip_prefix("sample=")?.split_once("%,actions(")?;
    let share: f64 = share.parse().ok().filter(|share| (0.0..=100.0).contains(share))?;
    Some(format!("sample(sample={share:.1}%,actions({}))", inner(rest.strip_suffix(')')?)?))
}

fn check_pkt_len(body: &str, inner: Inner) -> Option<String> {
    let [size, more, others] = items(body)?[..] else { return None };
    let size = up_to(size.strip_prefix("size=")?, 0xffff)?;
    let branch = |text: &str| match text.eq_ignore_ascii_case("drop") {
        true => Some("drop".to_string()),
        false => inner(text),
    };
    let more = branch(more.strip_prefix("gt(")?.strip_suffix(')')?)?;
    let others = branch(others.strip_prefix("le(")?.strip_suffix(')')?)?;
    Some(format!("check_pkt_len(size={size},gt({more}),le({others}))"))
}

/// One attribute of a flow's key, with masks or without.
fn set(body: &str) -> Option<String> {
    let name = body.split('(').next()?;
    // What a key needs so that it has such fields.
    let context = match name {
        "tcp" => "eth_type(0x0800),ipv4(proto=6),",
        "udp" => "eth_type(0x0800),ipv4(proto=17),",
        "sctp" => "eth_type(0x0800),ipv4(proto=132),",
        "icmp" => "eth_type(0x0800),ipv4(proto=1),",
        "icmpv6" | "nd" | "nd_ext" => "eth_type(0x86dd),ipv6(proto=58),",
        "arp" => "eth_type(0x0806),",
        "mpls" => "eth_type(0x8847),",
        "nsh" => return None,
        _ => "",
    };
    if items(body)?.len() != 1 {
        return None;
    }
    let (key, mask) = parse_odp(&format!("{context}{body}"), &|_| None).ok()?;
    let printed = odp_text(&key, &mask, false, &|_| None);
    Some(format!("set({})", attribute(&printed, name).unwrap_or(body)))
}

/// The attribute of this name in a key's text.
pub fn attribute<'a>(key: &'a str, name: &str) -> Option<&'a str> {
    let is = |item: &&str| item.strip_prefix(name).is_some_and(|rest| rest.starts_with('('));
    items(key)?.into_iter().find(is)
}

fn userspace(body: &str) -> Option<String> {
    const COOKIES: [&str; 6] =
        ["sFlow(", "slow_path(", "flow_sample(", "ipfix(", "controller(", "userdata("];
    let parts = items(body)?;
    let (pid, rest) = parts.split_first()?;
    let pid = up_to(pid.strip_prefix("pid=")?, u32::MAX.into())?;
    let mut out = format!("userspace(pid={pid}");
    let cookie = rest.first().filter(|part| COOKIES.iter().any(|c| part.starts_with(c)));
    match cookie {
        Some(cookie) => out += &format!(",{}", user_data(cookie)?),
        None => out += &format!(",userdata({})", "00".repeat(NO_USER_DATA_BYTES)),
    }
    for part in &rest[usize::from(cookie.is_some())..] {
        match part.split_once('=') {
            None if *part == "actions" => out += ",actions",
            Some(("tunnel_out_port", port)) => {
                out += &format!(",tunnel_out_port={}", up_to(port, u32::MAX.into())?);
            }
            _ => return None,
        }
    }
    Some(out + ")")
}

/// User data of fewer than eight bytes is filled up.
fn user_data(cookie: &str) -> Option<String> {
    let Some(hex) = cookie.strip_prefix("userdata(").and_then(|rest| rest.strip_suffix(')')) else {
        return Some(cookie.into());
    };
    let is_hex = hex.len().is_multiple_of(2) && hex.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| format!("userdata({:0<16})", hex.to_ascii_lowercase()))
}

/// Parts of `ct` in the order in which they are printed.
fn ct(body: &str) -> Option<String> {
    const ORDER: [&str; 9] =
        ["commit", "force_commit", "zone", "mark", "label", "helper", "timeout", "nat", "nat("];
    let place = |part: &&str| {
        let name = match part.strip_prefix("nat(") {
            Some(_) => "nat(",
            None => part.split('=').next().unwrap_or_default(),
        };
        ORDER.iter().position(|n| *n == name)
    };
    let mut parts = items(body)?;
    if !parts.iter().all(|part| place(part).is_some()) {
        return None;
    }
    parts.sort_by_key(place);
    Some(if parts.is_empty() { "ct".into() } else { format!("ct({})", parts.join(",")) })
}

fn add_mpls(body: &str) -> Option<String> {
    let values = numbers(body, &["label", "tc", "ttl", "bos", "eth_type"])?;
    let [label, tc, ttl, bos, eth_type] = values[..] else { return None };
    (label < 1 << 20 && tc < 8 && ttl < 256 && bos < 2 && eth_type < 1 << 16).then(|| {
        format!("add_mpls(label={label},tc={tc},ttl={ttl},bos={bos},eth_type={eth_type:#x})")
    })
}

/// The values of `name=value` pairs that have these names in this order.
fn numbers(body: &str, names: &[&str]) -> Option<Vec<i64>> {
    let parts = items(body)?;
    let value = |(part, name): (&&str, &&str)| {
        let (n, value) = part.split_once('=')?;
        up_to(value, u32::MAX.into()).filter(|_| n == *name)
    };
    let values: Option<Vec<_>> = parts.iter().zip(names).map(value).collect();
    values.filter(|_| parts.len() == names.len())
}

/// A network service header: as typed, metadata of variable length filled up to whole words.
fn push_nsh(body: &str) -> Option<String> {
    const NAMES: [&str; 11] =
        ["flags", "ttl", "mdtype", "np", "spi", "si", "c1", "c2", "c3", "c4", "md2"];
    let mut out = Vec::new();
    for part in items(body)? {
        let (name, value) = part.split_once('=').filter(|(name, _)| NAMES.contains(name))?;
        if name == "md2" {
            let hex = value.strip_prefix("0x")?;
            out.push(format!("md2=0x{hex:0<0$}", hex.len().next_multiple_of(8)));
        } else {
            up_to(value, u32::MAX.into())?;
            out.push(part.into());
        }
    }
    Some(format!("push_nsh({})", out.join(",")))
}

/// A tunnel's header: as typed.
fn tnl_push(body: &str) -> Option<String> {
    let [port, header, out_port] = items(body)?[..] else { return None };
    for (part, name) in [(port, "tnl_port("), (out_port, "out_port(")] {
        number(part.strip_prefix(name)?.strip_suffix(')')?)?;
    }
    header.starts_with("header(size=").then(|| format!("tnl_push({body})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(typed: &str) -> Option<String> {
        let ports = |name: &str| (name == "eth1").then_some(7);
        parse(typed, &ports).map(|all| text(&all))
    }

    #[test]
    fn actions_are_printed_as_by_ovs() {
        for typed in include_str!("odp_actions_same.txt").lines() {
            assert_eq!(printed(typed).as_deref(), Some(typed));
        }
        let zeros = "0".repeat(96);
        let user_data = format!("userspace(pid=12,userdata({zeros}),tunnel_out_port=1)");
        for (typed, as_printed) in [
            ("", "drop"),
            ("DROP", "drop"),
            ("1  2,,3", "1,2,3"),
            ("0x10,-1,010,eth1", "16,4294967295,8,7"),
            ("push_vlan(vid=0x10,pcp=3,cfi=0),2", "push_vlan(vid=16,pcp=3,cfi=0),2"),
            ("recirc(7)", "recirc(0x7)"),
            ("sample(sample=33.333%,actions())", "sample(sample=33.3%,actions(drop))"),
            ("clone()", "clone(drop)"),
            (
                "ct(zone=5,commit,nat(src=1.1.1.1-1.1.1.5:10-20,random))",
                "ct(commit,zone=5,nat(src=1.1.1.1-1.1.1.5:10-20,random))",
            ),
            ("set(ipv6(src=::1,label=5,tclass=4))", "set(ipv6(src=::1,label=0x5,tclass=0x4))"),
            ("set(tcp(dst=0x10))", "set(tcp(dst=16))"),
            ("set(skb_mark(5/0xf))", "set(skb_mark(0x5/0xf))"),
            ("userspace(pid=0x12,userdata(0102))", "userspace(pid=18,userdata(0102000000000000))"),
            ("userspace(pid=12,tunnel_out_port=1)", &user_data),
            (
                "push_nsh(flags=0,ttl=63,mdtype=2,np=3,spi=0x123,si=5,md2=0x1234)",
                "push_nsh(flags=0,ttl=63,mdtype=2,np=3,spi=0x123,si=5,md2=0x12340000)",
            ),
        ] {
            assert_eq!(printed(typed).as_deref(), Some(as_printed), "{typed}");
        }
    }

    #[test]
    fn what_ovs_does_not_read_is_refused() {
        let deep = "clone(".repeat(40) + "1" + &")".repeat(40);
        for typed in [
            "foo",
            "1 foo",
            "1,drop",
            "push_vlan(vid=5)",
            "push_vlan(vid=4096,pcp=0)",
            "push_vlan(pcp=1,vid=2)",
            "recirc(0x7)",
            "sample(sample=101%,actions(1))",
            "clone(1,clone(2,drop))",
            "clone(1",
            "1)",
            "ct(bad)",
            "set(nsh(flags=1))",
            "set(foo(1))",
            "userspace()",
            "userspace(pid=1,other)",
            "check_pkt_len(size=1,gt(1))",
            "hash(l4(0))",
            "meter(x)",
            &deep,
        ] {
            assert_eq!(printed(typed), None, "{typed}");
        }
    }
}
