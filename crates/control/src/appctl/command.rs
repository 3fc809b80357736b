//! What a command is, and what several of them do with their arguments.

use crate::state::{Shared, State};
use crate::unixctl::Reply;
use std::pin::Pin;

/// A command's implementation: the text to print, or the error.
pub type Handler = fn(&mut State, &[String]) -> Result<String, String>;

/// What is left to do of a command that takes long: a future that gives everybody else their
/// turn, and answers.
pub type Job = Box<dyn FnOnce(Shared, Reply) -> Pin<Box<dyn Future<Output = ()>>>>;

/// How a command is carried out.
#[derive(Clone, Copy)]
pub enum Run {
    /// A command that is answered at once.
    Now(Handler),
    /// Its arguments are read at once, the rest is done by a task.
    Later(fn(&mut State, &[String]) -> Result<Job, String>),
}

/// A command: name, usage, least and most arguments, what it does.
pub struct Command {
    /// As typed.
    pub name: &'static str,
    /// Arguments, for `list-commands`.
    pub usage: &'static str,
    /// Least arguments.
    pub min: usize,
    /// Most arguments.
    pub max: usize,
    /// The function that answers it.
    pub run: Run,
}

impl Command {
    /// Options that no command of `dpctl/` has are refused, whatever the command.
    pub fn check_options(&self, args: &[String]) -> Result<(), String> {
        const LONG: [&str; 6] =
            ["--statistics", "--clear", "--may-create", "--more", "--names", "--no-names"];
        if !self.name.starts_with("dpctl/") {
            return Ok(());
        }
        for arg in args.iter().take_while(|a| a.starts_with('-') && a.len() > 1) {
            match arg.as_str() {
                long if LONG.contains(&long) => {}
                long if long.starts_with("--") => {
                    return Err(format!("Unrecognized option {long}"));
                }
                short => {
                    if let Some(c) = short[1..].chars().find(|c| !"ms".contains(*c)) {
                        return Err(format!("Unrecognized option -{c}"));
                    }
                }
            }
        }
        Ok(())
    }
}

pub(super) const fn command(
    name: &'static str,
    usage: &'static str,
    min: usize,
    max: usize,
    run: Handler,
) -> Command {
    Command { name, usage, min, max, run: Run::Now(run) }
}

pub(super) const fn later(
    name: &'static str,
    usage: &'static str,
    min: usize,
    max: usize,
    begin: fn(&mut State, &[String]) -> Result<Job, String>,
) -> Command {
    Command { name, usage, min, max, run: Run::Later(begin) }
}

/// Ports of a kind (its name begins so), or the one of that name.
pub(super) fn ports_of_kind(s: &mut State, kind: &str, name: Option<&String>) -> Vec<flow::PortNo> {
    let ifaces = s.bridges.values().flat_map(|b| b.ifaces.iter());
    let named = ifaces.filter(|(n, _)| name.is_none_or(|name| *n == name));
    let numbers: Vec<_> = named.filter_map(|(_, i)| i.dp_port).collect();
    let is = |no: &_| s.dp.port_mut(*no).is_some_and(|p| p.kind().starts_with(kind));
    numbers.into_iter().filter(is).collect()
}

/// `[NETDEV] up|down` for ports of a kind; `unknown` is the error for a NETDEV of another kind.
pub(super) fn admin_state(
    s: &mut State,
    args: &[String],
    kind: &str,
    unknown: &str,
) -> Result<String, String> {
    let (state, name) = (&args[args.len() - 1], (args.len() > 1).then(|| &args[0]));
    let up = match state.as_str() {
        "up" => true,
        "down" => false,
        _ => return Err("Invalid Admin State".into()),
    };
    let numbers = ports_of_kind(s, kind, name);
    if numbers.is_empty() && name.is_some() {
        return Err(unknown.into());
    }
    for port in numbers {
        if let Some(port) = s.dp.port_mut(port) {
            port.set_admin_up(up).map_err(|e| e.to_string())?;
        }
    }
    crate::links::look(s);
    Ok("OK".into())
}

/// The bridge of that name, or the error that ovs-vswitchd gives.
pub(super) fn bridge(s: &State, name: &str) -> Result<ofproto::BridgeId, String> {
    s.bridges.get(name).map(|b| b.id).ok_or_else(|| "no such bridge".to_string())
}
