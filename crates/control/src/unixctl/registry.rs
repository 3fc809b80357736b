//! Commands by name, and their dispatch to handlers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use tokio::sync::{mpsc, oneshot};

/// Pieces of an answer that wait for a client that reads slowly.
const PIECES_COUNT_MAX: usize = 2;

/// What a command answers.
#[derive(Debug)]
pub enum Answer {
    /// The result, or the text of an error.
    Whole(Result<String, String>),
    /// A result, piece by piece.
    Pieces(mpsc::Receiver<String>),
}

/// The answer owed to a client. Dropped without one, the client's connection is closed.
#[derive(Debug)]
pub struct Reply {
    to: oneshot::Sender<Answer>,
    client: Weak<()>,
}

impl Reply {
    /// A reply to a client, which lives as long as its connection, and the place where it arrives.
    pub fn channel(client: &Arc<()>) -> (Self, oneshot::Receiver<Answer>) {
        let (to, receiver) = oneshot::channel();
        (Self { to, client: Arc::downgrade(client) }, receiver)
    }

    /// What is gone when the client's connection is.
    pub fn client(&self) -> Weak<()> {
        self.client.clone()
    }

    /// Sends the result, or the text of an error. A client that has gone does not matter.
    pub fn send(self, answer: Result<String, String>) {
        let _ = self.to.send(Answer::Whole(answer));
    }

    /// Begins a result that is too long to be kept; it ends when what is returned is dropped.
    /// Sending waits for the client, and fails when that has gone.
    pub fn pieces(self) -> mpsc::Sender<String> {
        let (sender, receiver) = mpsc::channel(PIECES_COUNT_MAX);
        let _ = self.to.send(Answer::Pieces(receiver));
        sender
    }
}

/// A command as it came from a client.
#[derive(Debug)]
pub struct Request {
    /// The command's name.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where the answer goes.
    pub reply: Reply,
}

type Handler<S> = dyn Fn(&mut S, &[String], Reply);

struct Command<S> {
    usage: String,
    args: RangeInclusive<usize>,
    handler: Rc<Handler<S>>,
}

/// The commands that work on a state `S`.
pub struct Registry<S> {
    commands: BTreeMap<String, Command<S>>,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Self { commands: BTreeMap::new() }
    }
}

/// The usage of a command that `list-commands` does not show: an old name of another one.
pub const UNLISTED: &str = "(unlisted)";

impl<S> Registry<S> {
    /// Adds a command that answers at once. `usage` names its arguments as `list-commands` shows
    /// them; `args` is how many it takes. A command of the same name is replaced.
    pub fn add(
        &mut self,
        name: &str,
        usage: &str,
        args: RangeInclusive<usize>,
        handler: impl Fn(&mut S, &[String]) -> Result<String, String> + 'static,
    ) {
        self.add_later(name, usage, args, move |state, args, reply| {
            reply.send(handler(state, args));
        });
    }

    /// Adds a command that may answer after it returns.
    pub fn add_later(
        &mut self,
        name: &str,
        usage: &str,
        args: RangeInclusive<usize>,
        handler: impl Fn(&mut S, &[String], Reply) + 'static,
    ) {
        let command = Command { usage: usage.to_owned(), args, handler: Rc::new(handler) };
        self.commands.insert(name.to_owned(), command);
    }

    /// Runs a request's command on the state, or answers what is wrong with it.
    pub fn dispatch(&self, state: &mut S, request: Request) {
        let Request { command: name, args, reply } = request;
        if name == "list-commands" && args.is_empty() {
            return reply.send(Ok(self.list()));
        }
        match self.check(&name, args.len()) {
            Ok(command) => (command.handler)(state, &args, reply),
            Err(text) => reply.send(Err(text)),
        }
    }

    fn check(&self, name: &str, given: usize) -> Result<&Command<S>, String> {
        if name == "list-commands" {
            return Err("\"list-commands\" command takes at most 0 arguments".into());
        }
        let command = self.commands.get(name).ok_or_else(|| {
            format!(
                "\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
            )
        })?;
        let (least, most) = (*command.args.start(), *command.args.end());
        if given < least {
            return Err(format!("\"{name}\" command requires at least {least} arguments"));
        }
        if given > most {
            return Err(format!("\"{name}\" command takes at most {most} arguments"));
        }
        Ok(command)
    }

    fn list(&self) -> String {
        let listed = self.commands.iter().filter(|(_, c)| c.usage != UNLISTED);
        let mut lines: BTreeMap<&str, &str> =
            listed.map(|(name, c)| (name.as_str(), c.usage.as_str())).collect();
        lines.insert("list-commands", "");
        let mut text = String::from("The available commands are:\n");
        for (name, usage) in lines {
            text += &format!("  {name:<23} {usage}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(registry: &Registry<u32>, command: &str, args: &[&str]) -> Result<String, String> {
        let (reply, mut answer) = Reply::channel(&Arc::default());
        let args = args.iter().map(|&a| a.to_owned()).collect();
        registry.dispatch(&mut 7, Request { command: command.into(), args, reply });
        match answer.try_recv().unwrap() {
            Answer::Whole(answer) => answer,
            Answer::Pieces(_) => panic!("{command} answers at once"),
        }
    }

    #[test]
    fn commands_run_on_the_state_and_check_their_arguments() {
        let mut registry = Registry::<u32>::default();
        registry
            .add("sum", "N [M]", 1..=2, |state, args| Ok(format!("{state}+{}", args.join("+"))));
        assert_eq!(ask(&registry, "sum", &["1", "2"]).unwrap(), "7+1+2");
        assert_eq!(
            ask(&registry, "sum", &[]).unwrap_err(),
            "\"sum\" command requires at least 1 arguments"
        );
        assert_eq!(
            ask(&registry, "sum", &["", "", ""]).unwrap_err(),
            "\"sum\" command takes at most 2 arguments"
        );
        assert_eq!(
            ask(&registry, "foo", &[]).unwrap_err(),
            "\"foo\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
        );
        assert_eq!(
            ask(&registry, "list-commands", &[]).unwrap(),
            "The available commands are:\n  list-commands           \n  sum                     N [M]\n"
        );
        assert!(ask(&registry, "list-commands", &["x"]).is_err());
    }
}
