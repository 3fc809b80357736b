//! `learn`: what the learned flow is, part by part.

use super::bits::{fits, writable};
use super::error::{Parsed, err};
use super::values::number;
use super::words::{Word, Words, arrow};
use crate::action_text::subfields::parse_subfield;
use flow::PortNumber;
use openflow::{Action, Learn, LearnSource, LearnSpec, LearnTarget, Subfield, learn_flag};

/// The table and priority of a learned flow, if the action does not say.
const TABLE: u8 = 1;
const PRIORITY: u16 = 0x8000;

/// The arguments of a `learn`.
pub(super) fn learn(text: &str, ports: PortNumber) -> Parsed<Action> {
    let mut learn = Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        priority: PRIORITY,
        cookie: 0,
        flags: 0,
        table: TABLE,
        limit: 0,
        result: None,
        specs: vec![],
    };
    for word in Words::of(text) {
        let word = word?;
        if !attribute(&word, &mut learn)? {
            learn.specs.push(spec(&word, ports)?);
        }
    }
    Ok(Action::Learn(Box::new(learn)))
}

fn spec(w: &Word, ports: PortNumber) -> Parsed<LearnSpec> {
    match w.name {
        "load" => {
            let (src, dst) = arrow(w.value)?;
            let dst = writable(dst)?;
            Ok(LearnSpec { bits: dst.bits, src: source(src, dst)?, dst: LearnTarget::Load(dst) })
        }
        "output" => {
            let src = parse_subfield(w.value)?;
            let (src, bits) = (LearnSource::Field(src), src.bits);
            Ok(LearnSpec { bits, src, dst: LearnTarget::Output })
        }
        _ => matching(w, ports),
    }
}

/// What the learned flow matches: `FIELD`, `FIELD=FIELD` or `FIELD=VALUE`.
fn matching(w: &Word, ports: PortNumber) -> Parsed<LearnSpec> {
    let Ok(dst) = parse_subfield(w.name) else {
        return err(format!("{}: unknown keyword {}", w.name, w.name));
    };
    let literal = || -> Option<u128> {
        let whole = dst.ofs == 0 && flow::field_named(w.name) == Some(dst.field);
        let (value, mask) = flow::parse_value(dst.field, w.value, ports).ok().filter(|_| whole)?;
        (mask == dst.field.full()).then_some(value)
    };
    let src = match (w.value, literal()) {
        ("", _) => LearnSource::Field(dst),
        (_, Some(value)) => LearnSource::Value(wire_value(dst, value)),
        (text, None) => source(text, dst)?,
    };
    Ok(LearnSpec { bits: dst.bits, src, dst: LearnTarget::Match(dst) })
}

/// Ports of sixteen bits are sent as such.
fn wire_value(dst: Subfield, value: u128) -> u128 {
    let narrow = dst.field == flow::Field::InPort && dst.bits == 16;
    if narrow { value & 0xffff } else { value }
}

/// Reads what is not a part of the learned flow. Returns false if it is a part.
fn attribute(w: &Word, learn: &mut Learn) -> Parsed<bool> {
    let seconds = || number(w.value, w.name, 0xffff);
    match w.name {
        "table" => match number(w.value, "table", 0xff)? {
            0xff => return err("table id 255 not valid for `learn' action"),
            table => learn.table = table,
        },
        "priority" => learn.priority = number(w.value, "priority", 0xffff)?,
        "idle_timeout" => learn.idle_timeout = seconds()?,
        "hard_timeout" => learn.hard_timeout = seconds()?,
        "fin_idle_timeout" => learn.fin_idle_timeout = seconds()?,
        "fin_hard_timeout" => learn.fin_hard_timeout = seconds()?,
        "cookie" => learn.cookie = number(w.value, "cookie", u64::MAX.into())?,
        "send_flow_rem" => learn.flags |= learn_flag::SEND_FLOW_REM,
        "delete_learned" => learn.flags |= learn_flag::DELETE_LEARNED,
        "limit" => learn.limit = number(w.value, "limit", u32::MAX.into())?,
        "result_dst" => match writable(w.value)? {
            bit if bit.bits == 1 => learn.result = Some(bit),
            _ => return err("result_dst in 'learn' action must be a single bit"),
        },
        _ => return Ok(false),
    }
    Ok(true)
}

/// A number or a field, as wide as `dst`.
fn source(text: &str, dst: Subfield) -> Parsed<LearnSource> {
    if let Ok(value) = flow::number(text) {
        fits(text, value, dst.bits)?;
        return Ok(LearnSource::Value(value));
    }
    let src = parse_subfield(text)?;
    match src.bits == dst.bits {
        true => Ok(LearnSource::Field(src)),
        false => err(format!(
            "{text}: the source has {} bits and the destination {}",
            src.bits, dst.bits
        )),
    }
}
