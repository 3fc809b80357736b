//! Actions on fields and parts of them.

use super::error::{Parsed, err};
use super::values::number;
use super::words::{Word, arrow};
use crate::action_text::subfields::parse_subfield;
use flow::{Field, PortNumber, TUN_METADATA_MAX, TunMetadata};
use openflow::{Action, Subfield};

/// A tag is there (OFPVID_PRESENT).
const PRESENT: u128 = 0x1000;
/// Bits of TOS that are its own; the others are ECN.
const TOS_BITS: u128 = 0xfc;
/// Bits of one load in a message.
const LOAD_BITS: u16 = 64;

/// `VALUE[/MASK]->FIELD`.
pub(super) fn set_field(text: &str, ports: PortNumber) -> Parsed<Action> {
    let (value, name) = arrow(text)?;
    if let Some(option) = TunMetadata::parse(name, Some(value)) {
        return match option {
            Ok(option) => Ok(Action::SetTunMetadata(Box::new(partial(option, value)))),
            Err(why) => err(format!("{why} (as a value of {name})")),
        };
    }
    let Some(field) = flow::field_named(name) else {
        return err(format!("{name} is not a valid OXM field name"));
    };
    if !field.writable() {
        return err(format!("{name} is read-only"));
    }
    let wrong = |why: flow::TextError| err(format!("{why} (as a value of {name})"));
    let (value, mask) = flow::parse_value(field, value, ports).or_else(wrong)?;
    let (value, mask) = match field {
        Field::VlanVid => (value | PRESENT, mask | PRESENT),
        Field::IpTos => (value, mask & TOS_BITS),
        _ => (value, mask),
    };
    Ok(Action::SetField { field, value: value & mask, mask })
}

/// A mask that was given says nothing of the bits above it, which a longer option may have.
fn partial(option: TunMetadata, text: &str) -> TunMetadata {
    let wider = option.value.len() + 1;
    if !text.contains('/') || !option.is_exact() || wider > TUN_METADATA_MAX {
        return option;
    }
    let longer = |bytes: &[u8]| [&[0], bytes].concat();
    TunMetadata::masked(option.index, &longer(&option.value), &longer(&option.mask))
}

/// A subfield that actions may write.
pub(super) fn writable(text: &str) -> Parsed<Subfield> {
    let s = parse_subfield(text)?;
    if s.field.writable() { Ok(s) } else { err(format!("{text}: the field is read-only")) }
}

/// Checks that a value fits into so many bits.
pub(super) fn fits(text: &str, value: u128, bits: u16) -> Parsed<()> {
    match bits < 128 && value >> bits != 0 {
        true => err(format!("{text}: value {value:#x} does not fit into {bits} bits")),
        false => Ok(()),
    }
}

/// `VALUE->SUBFIELD`: as many loads as messages have of it.
pub(super) fn load(text: &str, out: &mut Vec<Action>) -> Parsed<()> {
    let (value, dst) = arrow(text)?;
    let Ok(value) = flow::number(value) else {
        return err(format!("{text}: cannot parse integer value"));
    };
    let dst = writable(dst)?;
    fits(text, value, dst.bits)?;
    if (dst.field, dst.ofs, dst.bits) == (Field::InPort, 0, 16) {
        let value = if value >= 0xff00 { 0xffff_0000 | value } else { value };
        out.push(Action::Load { dst: Subfield { bits: 32, ..dst }, value: value as u64 });
        return Ok(());
    }
    let mut done = 0;
    while done < dst.bits {
        let bits = LOAD_BITS.min(dst.bits - done);
        let part = value.checked_shr(u32::from(done)).unwrap_or(0) as u64;
        out.push(Action::Load { dst: Subfield { ofs: dst.ofs + done, bits, ..dst }, value: part });
        done += bits;
    }
    Ok(())
}

/// `SUBFIELD->SUBFIELD`.
pub(super) fn copy(text: &str) -> Parsed<Action> {
    let (src, dst) = arrow(text)?;
    let (src, dst) = (parse_subfield(src)?, writable(dst)?);
    match src.bits == dst.bits {
        true => Ok(Action::Move { src, dst }),
        false => err(format!(
            "{text}: source field is {} bits wide but destination is {} bits wide",
            src.bits, dst.bits
        )),
    }
}

/// `(LENGTH)->BIT`.
pub(super) fn check_length(w: &Word) -> Parsed<Action> {
    let Some(target) = w.target else { return err(format!("{}: missing `->'", w.value)) };
    let dst = writable(target)?;
    match dst.bits {
        1 => Ok(Action::CheckPktLarger { len: number(w.value, "length", 0xffff)?, dst }),
        _ => err(format!("{target}: Only 1-bit destination field is allowed")),
    }
}

/// Only tunnel options can be deleted.
pub(super) fn delete_field(text: &str) -> Parsed<Action> {
    match parse_subfield(text)?.field {
        field @ Field::TunMetadata(_) => Ok(Action::DeleteField(field)),
        _ => err(format!("{text}: the field cannot be deleted")),
    }
}
