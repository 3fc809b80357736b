//! Actions that send packets somewhere.

use super::error::{Parsed, err};
use super::values::{bytes, number, port_named};
use super::words::{Word, Words};
use crate::action_text::numbered::REASONS;
use crate::action_text::subfields::parse_subfield;
use flow::PortNumber;
use openflow::{Action, Reason, port};

/// Bytes of a packet that a truncating output leaves at least: its Ethernet header.
const TRUNC_MIN: u32 = 14;

/// An output; None: it is something else.
pub(super) fn action(name: &str, w: &Word, ports: PortNumber) -> Parsed<Option<Action>> {
    Ok(Some(match name {
        "output" if w.value.contains('=') => output_truncated(w.value, ports)?,
        "output" => port_or_field(w.value, ports)?,
        "controller" => controller(w.value)?,
        "enqueue" => enqueue(w.value, ports)?,
        "resubmit" => resubmit(w.value, ports)?,
        _ => return Ok(None),
    }))
}

/// `port=PORT,max_len=BYTES`.
fn output_truncated(text: &str, ports: PortNumber) -> Parsed<Action> {
    let (mut port, mut max_len) = (None, None);
    for word in Words::of(text) {
        let word = word?;
        match word.name {
            "port" => {
                port = Some(port_named(word.value, ports, "output to unknown truncate port")?)
            }
            "max_len" => max_len = Some(number::<u32>(word.value, "max_len", u32::MAX.into())?),
            name => return err(format!("invalid key '{name}' in output_trunc argument")),
        }
    }
    match (port, max_len) {
        (Some(_), Some(n)) if n < TRUNC_MIN => {
            err(format!("max_len {n} is less than the minimum value {TRUNC_MIN}"))
        }
        (Some(port), Some(trunc)) => Ok(Action::Output { port, max_len: 0, trunc }),
        _ => err(format!("{text}: a truncating output needs port and max_len")),
    }
}

/// `PORT:QUEUE` or `PORT,QUEUE`.
fn enqueue(text: &str, ports: PortNumber) -> Parsed<Action> {
    let Some((port, queue)) = text.rsplit_once([':', ',']) else {
        return err("\"enqueue\" syntax is \"enqueue:PORT:QUEUE\" or \"enqueue(PORT,QUEUE)\"");
    };
    let port = port_named(port.trim(), ports, "enqueue to unknown port")?;
    Ok(Action::Enqueue { port, queue: number(queue.trim(), "queue", u32::MAX.into())? })
}

/// `PORT` or `[PORT],[TABLE][,ct]`.
fn resubmit(text: &str, ports: PortNumber) -> Parsed<Action> {
    let mut parts = text.split(',').map(str::trim);
    let [port, table] = [(); 2].map(|()| parts.next().unwrap_or(""));
    let in_port = match port {
        "" => None,
        name => Some(port_named(name, ports, "resubmit to unknown port")?),
    };
    let table = match table {
        "" => None,
        id => Some(number::<u8>(id, "table", 0xff)?),
    };
    let ct = match parts.next() {
        None | Some("") => false,
        Some("ct") => true,
        Some(other) => return err(format!("{other}: unknown parameter")),
    };
    let (in_port, table) = (in_port.filter(|p| *p != port::IN_PORT), table.filter(|t| *t != 0xff));
    if in_port.is_none() && table.is_none() {
        return err("at least one \"in_port\" or \"table\" must be specified on resubmit");
    }
    Ok(Action::Resubmit { in_port, table, ct })
}

/// The port, or the field whose value is one, behind `output:`.
fn port_or_field(text: &str, ports: PortNumber) -> Parsed<Action> {
    match flow::parse_port(text, ports) {
        Ok(port::CONTROLLER) => Ok(Action::to_controller(u16::MAX)),
        Ok(port) => Ok(Action::output(port)),
        Err(_) => match parse_subfield(text) {
            Ok(src) => Ok(Action::OutputReg { src, max_len: u16::MAX }),
            Err(_) => err(format!("{text}: output to unknown port")),
        },
    }
}

/// `BYTES`, or what a controller is to know.
fn controller(text: &str) -> Parsed<Action> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Action::to_controller(number(text, "max_len", 0xffff)?));
    }
    let (mut max_len, mut reason, mut id) = (u16::MAX, Reason::Action, 0);
    let (mut userdata, mut pause, mut meter) = (Vec::new(), false, None);
    for word in Words::of(text) {
        let word = word?;
        match word.name {
            "max_len" => max_len = number(word.value, "max_len", 0xffff)?,
            "reason" => reason = reason_named(word.value)?,
            "id" => id = number(word.value, "controller id", 0xffff)?,
            "userdata" => userdata = bytes(word.value, "userdata")?,
            "pause" => pause = true,
            "meter_id" => {
                meter = Some(number(word.value, "meter_id", u32::MAX.into())?).filter(|m| *m != 0);
            }
            name => return err(format!("unknown key \"{name}\" parsing controller action")),
        }
    }
    Ok(Action::Controller { max_len, reason, id, userdata, pause, meter })
}

fn reason_named(text: &str) -> Parsed<Reason> {
    let found = REASONS.iter().find(|(_, name)| *name == text);
    found.map_or_else(|| err(format!("unknown reason \"{text}\"")), |(reason, _)| Ok(*reason))
}
