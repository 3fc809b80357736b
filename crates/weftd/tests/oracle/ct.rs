//! Connection tracking in flows.

use crate::actions::Context;
use crate::flows::{TABLES, v4_text, v6_text};
use crate::packets::{Fact, Form, Kind, ip4, ip6, ipv4};
use testkit::Rng;

/// What a match may say of a connection.
pub fn facts(r: &mut Rng) -> Vec<Fact> {
    let states =
        ["+trk", "-trk", "+new", "-new+est", "+est-rpl", "+trk+inv", "-inv", "+rel", "+snat"];
    let state = Fact { name: "ct_state", value: 0, form: Form::Text(r.pick(&states)) };
    let number = |name, value, form| Fact { name, value, form };
    let small = r.below(4) as u128;
    vec![
        state,
        number("ct_zone", small, Form::Dec),
        number("ct_mark", small, Form::Hex(32)),
        number("ct_label", small << 96 | small, Form::Hex(127)),
    ]
}

/// A `ct` or a `ct_clear`.
pub fn action(r: &mut Rng, c: &Context) -> String {
    if r.percent(15) {
        return "ct_clear".into();
    }
    let (left, commit) = (TABLES - 1 - c.table, r.percent(50));
    let mut words: Vec<String> = Vec::new();
    if commit {
        words.push("commit".into());
        words.extend(r.percent(20).then(|| "force".into()));
    }
    if left > 0 && r.percent(70) {
        words.push(format!("table={}", c.table + 1 + r.below(left)));
    }
    words.extend(match r.below(3) {
        0 => None,
        1 => Some(format!("zone={}", r.below(4))),
        _ => Some("zone=NXM_NX_REG0[0..15]".into()),
    });
    match r.below(4) {
        0 => words.push("nat".into()),
        1 if commit => words.push(nat(r, c)),
        _ => {}
    }
    if commit && r.percent(40) {
        words.push(format!("exec({})", exec(r)));
    }
    if c.proto == Some(6) && r.percent(20) {
        words.push("alg=ftp".into());
    }
    format!("ct({})", words.join(","))
}

fn nat(r: &mut Rng, c: &Context) -> String {
    let side = r.pick(&["src", "dst"]);
    let range = match (c.kind, r.below(3)) {
        (_, 0) => String::new(),
        (Kind::V4, n) => {
            let a = ipv4(ip4(r)).max(1);
            let last = if n == 1 { String::new() } else { format!("-{}", v4_text(a | 7)) };
            let port = if r.percent(50) { ":1000-2000" } else { "" };
            format!("={}{last}{port}", v4_text(a))
        }
        (_, n) => {
            let a = u128::from_be_bytes(ip6(r)) | 1;
            match n {
                1 => format!("={}", v6_text(a)),
                _ => format!("=[{}]-[{}]:77", v6_text(a), v6_text(a | 0xf)),
            }
        }
    };
    let flag =
        if range.is_empty() { "" } else { r.pick(&["", "", ",persistent", ",hash", ",random"]) };
    format!("nat({side}{range}{flag})")
}

/// What a connection is marked with.
fn exec(r: &mut Rng) -> String {
    let n = r.below(16);
    let all = [
        format!("set_field:{n:#x}->ct_mark"),
        format!("set_field:{:#x}/0x3->ct_mark", n & 3),
        format!("load:{n:#x}->NXM_NX_CT_MARK[8..15]"),
        format!("set_field:{n:#x}000000000000000{n:x}->ct_label"),
        "move:NXM_NX_REG1[]->NXM_NX_CT_LABEL[96..127]".into(),
        "move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47]".into(),
    ];
    let words: Vec<_> = (0..1 + r.below(2)).map(|_| r.pick(&all)).collect();
    words.join(",")
}

/// What connection tracking is to have said, for a trace: one after the other.
pub fn next(r: &mut Rng) -> Vec<&'static str> {
    let states = ["trk,new", "trk,est", "trk,est,rpl", "trk,inv", "trk,rel", "trk,new,snat", "trk"];
    (0..r.below(3)).flat_map(|_| ["--ct-next", r.pick(&states)]).collect()
}
