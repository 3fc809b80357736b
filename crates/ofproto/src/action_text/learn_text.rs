//! Learn, multipath, bundle and sample as `ofproto/trace` prints them.

use super::numbered::{BUNDLE_ALGORITHMS, HASH_FIELDS, MULTIPATH_ALGORITHMS};
use super::{sub, value_text};
use flow::{Field, port_text};
use openflow::{Action, Bundle, Learn, LearnSource, LearnSpec, LearnTarget, learn_flag, port};

/// One of these actions; None: another.
pub(super) fn text(a: &Action) -> Option<String> {
    Some(match a {
        Action::Learn(l) => learn(l),
        Action::Multipath { fields, basis, algorithm, max_link, arg, dst } => {
            let algorithm = MULTIPATH_ALGORITHMS.get(usize::from(*algorithm)).unwrap_or(&"unknown");
            let n = u32::from(*max_link) + 1;
            let dst = sub(*dst);
            format!("multipath({},{basis},{algorithm},{n},{arg},{dst})", hash_fields(*fields))
        }
        Action::Bundle(b) => bundle(b),
        Action::Sample { probability, collector_set, domain, point, port, direction } => {
            let mut out = format!(
                "sample(probability={probability},collector_set_id={collector_set},\
                 obs_domain_id={domain},obs_point_id={point}"
            );
            if *port != port::ANY {
                out += &format!(",sampling_port={}", port_text(*port, &|_| None));
            }
            out += ["", ",ingress", ",egress"].get(usize::from(*direction)).unwrap_or(&"");
            out + ")"
        }
        _ => return None,
    })
}

fn hash_fields(fields: u16) -> &'static str {
    HASH_FIELDS.get(usize::from(fields)).unwrap_or(&"unknown")
}

fn bundle(b: &Bundle) -> String {
    let (name, dst) = match b.dst {
        Some(dst) => ("bundle_load", format!("{},", sub(dst))),
        None => ("bundle", String::new()),
    };
    let algorithm = BUNDLE_ALGORITHMS[usize::from(b.algorithm != 0)];
    let members: Vec<String> = b.members.iter().map(|p| port_text(*p, &|_| None)).collect();
    let (fields, members) = (hash_fields(b.fields), members.join(","));
    format!("{name}({fields},{},{algorithm},ofport,{dst}members:{members})", b.basis)
}

fn learn(l: &Learn) -> String {
    let mut parts = vec![format!("table={}", l.table)];
    for (name, value) in [
        ("idle_timeout", l.idle_timeout),
        ("hard_timeout", l.hard_timeout),
        ("fin_idle_timeout", l.fin_idle_timeout),
        ("fin_hard_timeout", l.fin_hard_timeout),
    ] {
        parts.extend((value != 0).then(|| format!("{name}={value}")));
    }
    parts.extend((l.priority != 0x8000).then(|| format!("priority={}", l.priority)));
    for (flag, name) in [
        (learn_flag::SEND_FLOW_REM, "send_flow_rem"),
        (learn_flag::DELETE_LEARNED, "delete_learned"),
    ] {
        parts.extend((l.flags & flag != 0).then(|| name.into()));
    }
    parts.extend((l.cookie != 0).then(|| format!("cookie={:#x}", l.cookie)));
    parts.extend((l.limit != 0).then(|| format!("limit={}", l.limit)));
    parts.extend(l.result.map(|r| format!("result_dst={}", sub(r))));
    parts.extend(l.specs.iter().map(spec));
    format!("learn({})", parts.join(","))
}

fn spec(s: &LearnSpec) -> String {
    let src = match s.src {
        LearnSource::Field(f) => sub(f),
        LearnSource::Value(0) => "0".into(),
        LearnSource::Value(v) => format!("{v:#x}"),
    };
    match (s.dst, s.src) {
        (LearnTarget::Match(d), LearnSource::Value(v))
            if (d.field, d.ofs, d.bits) == (Field::InPort, 0, 16) =>
        {
            let reserved = if v >= 0xff00 { 0xffff_0000 } else { 0 };
            format!("in_port={}", value_text(Field::InPort, v | reserved))
        }
        (LearnTarget::Match(d), LearnSource::Value(v))
            if d.ofs == 0 && usize::from(d.bits) == d.field.bits() =>
        {
            format!("{}={}", d.field.name(), value_text(d.field, v))
        }
        (LearnTarget::Match(d), LearnSource::Field(f)) if f == d => sub(d),
        (LearnTarget::Match(d), _) => format!("{}={src}", sub(d)),
        (LearnTarget::Load(d), _) => format!("load:{src}->{}", sub(d)),
        (LearnTarget::Output, _) => format!("output:{src}"),
    }
}
