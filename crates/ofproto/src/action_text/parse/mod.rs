//! Actions from their text, in the grammar of ovs-actions(7).
//!
//! What comes out may go into a packet-out, so what a decoder of messages checks of one action is
//! checked here, too. Whether actions fit a packet and a bridge is not.
//!
//! A text is bounded: [`TEXT_MAX`] bytes, [`ACTIONS_MAX`] actions, lists in lists as deep as in
//! messages. Each byte is looked at a few times at each depth.

mod arguments;
mod bits;
mod connection;
pub(crate) mod error;
mod learn_parts;
mod outputs;
mod values;
mod words;

use super::subfields::parse_subfield;
use error::{ActionTextError, Parsed, err};
use flow::PortNumber;
use openflow::actions::{ListOf, MAX_DEPTH, verify, verify_one};
use openflow::{Action, TestAction, port};
use std::cell::Cell;
use words::{Word, Words};

/// Bytes of the longest text: as an OpenFlow message.
pub const TEXT_MAX: usize = 0xffff;
/// Actions of one text, those inside others among them.
pub const ACTIONS_MAX: usize = 4096;

/// Reads a list of actions, as in `ovs-ofctl add-flow`: separated by commas or blanks; `drop` or
/// nothing is an empty one. Names of ports are looked up in `ports`.
pub fn parse_actions(text: &str, ports: PortNumber) -> Parsed<Vec<Action>> {
    if text.len() > TEXT_MAX {
        return err(format!("actions have more than {TEXT_MAX} bytes"));
    }
    Parser { ports, left: Cell::new(ACTIONS_MAX) }.list(text, ListOf::Flow, 0)
}

struct Parser<'a> {
    ports: PortNumber<'a>,
    /// Actions that may come.
    left: Cell<usize>,
}

impl Parser<'_> {
    /// A list inside `depth` others.
    fn list(&self, text: &str, outer: ListOf, depth: u8) -> Parsed<Vec<Action>> {
        if depth > MAX_DEPTH {
            return err(format!("actions are more than {MAX_DEPTH} lists deep"));
        }
        let mut out = Vec::new();
        let (mut words, mut drops) = (0, false);
        for word in Words::of(text) {
            let word = word?;
            words += 1;
            drops |= word.name == "drop";
            let left = self.left.get().checked_sub(1);
            self.left.set(left.ok_or_else(too_many)?);
            let first = out.len();
            self.action(&word, &mut out, depth)?;
            for action in &out[first..] {
                verify_one(action, outer).or_else(|_| err(misplaced(&word, outer)))?;
            }
        }
        if drops && words > 1 {
            return err("\"drop\" must not be accompanied by any other action or instruction");
        }
        verify(&out, outer).or_else(|_| {
            err("\"conjunction\" actions may be used along with \"note\" but not any other kind of action")
        })?;
        Ok(out)
    }

    /// Appends the action of a word: none for `drop`, several where a message has several.
    fn action(&self, w: &Word, out: &mut Vec<Action>, depth: u8) -> Parsed<()> {
        let name = w.name.to_ascii_lowercase();
        let one = match name.as_str() {
            "drop" => return Ok(()),
            "load" => return bits::load(w.value, out),
            "clone" => Some(Action::Clone(self.list(w.value, ListOf::Clone, depth + 1)?)),
            "ct" => {
                let exec = |text: &str| self.list(text, ListOf::Ct, depth + 1);
                Some(connection::ct(w.value, exec)?)
            }
            name => match outputs::action(name, w, self.ports)? {
                Some(a) => Some(a),
                None => match values::action(name, w)? {
                    Some(a) => Some(a),
                    None => self.other(name, w)?,
                },
            },
        };
        match one {
            Some(action) => out.push(action),
            None if name == "apply_actions" => {
                return err("apply_actions is the default instruction");
            }
            None if INSTRUCTIONS.contains(&name.as_str()) => {
                return err(format!("{name} instruction not allowed here"));
            }
            None => out.push(self.bare_port(w)?),
        }
        Ok(())
    }

    /// Actions that are neither outputs nor a value for a field of OpenFlow 1.0's.
    fn other(&self, name: &str, w: &Word) -> Parsed<Option<Action>> {
        use Action as A;
        Ok(Some(match name {
            "set_field" => bits::set_field(w.value, self.ports)?,
            "move" => bits::copy(w.value)?,
            "push" => A::Push(parse_subfield(w.value)?),
            "pop" => A::Pop(bits::writable(w.value)?),
            "check_pkt_larger" => bits::check_length(w)?,
            "delete_field" => bits::delete_field(w.value)?,
            "learn" => learn_parts::learn(w.value, self.ports)?,
            "multipath" => arguments::multipath(w.value)?,
            "bundle" => arguments::bundle(w.value, false, self.ports)?,
            "bundle_load" => arguments::bundle(w.value, true, self.ports)?,
            "sample" => arguments::sample(w.value, self.ports)?,
            "conjunction" => arguments::conjunction(w.value)?,
            "fin_timeout" => arguments::fin_timeout(w.value)?,
            "encap" => values::encap(w.value)?,
            "decap" => values::decap(w.value)?,
            "note" => A::Note(values::bytes(w.value, "note")?),
            "nat" => connection::nat(w.value)?,
            "ct_clear" => A::CtClear,
            "exit" => A::Exit,
            "debug_recirc" => A::Test(TestAction::Recirc),
            "debug_slow" => A::Test(TestAction::Slow),
            _ => return Ok(None),
        }))
    }

    /// A port alone is an output.
    fn bare_port(&self, w: &Word) -> Parsed<Action> {
        let known = match w.value {
            "" => flow::parse_port(w.name, self.ports).ok(),
            _ => None,
        };
        match known {
            Some(port::CONTROLLER) => Ok(Action::to_controller(u16::MAX)),
            Some(port) => Ok(Action::output(port)),
            None => err(format!("unknown action {}", w.name)),
        }
    }
}

/// What is an instruction from OpenFlow 1.1 on.
const INSTRUCTIONS: [&str; 4] = ["clear_actions", "write_actions", "write_metadata", "goto_table"];

fn too_many() -> ActionTextError {
    ActionTextError(format!("more than {ACTIONS_MAX} actions"))
}

fn misplaced(w: &Word, outer: ListOf) -> String {
    match outer {
        ListOf::Flow if w.name == "nat" => "Cannot have NAT action outside of \"ct\" action".into(),
        ListOf::Flow | ListOf::Set => {
            format!("{}: cannot set CT fields outside of ct action", w.name)
        }
        ListOf::Clone => format!("{}: not allowed inside a clone", w.name),
        ListOf::Ct => format!("{}: not allowed inside a ct action", w.name),
    }
}

#[cfg(test)]
mod round_trips;
