//! `dpctl/dump-flows` and `dpif/dump-flows`: cached flows, of which there may be millions: some at
//! a time, with everybody else's turn in between.

use super::Job;
use super::dpctl::{self, DumpTypes, Style};
use crate::ct_walk::Walker;
use crate::state::{Shared, State};
use crate::unixctl::Reply;
use datapath::{FlowDump, WorkerId};
use flow::at;
use std::collections::BTreeMap;

/// Places of megaflows that are looked at in one turn: some milliseconds' work, if all of them are
/// printed.
const PLACES_PER_TURN: usize = 1024;

/// Which flows are wanted.
#[derive(Default)]
struct Wanted {
    core: Option<i64>,
    types: Option<DumpTypes>,
    /// Only from these input ports.
    ports: Option<Vec<u16>>,
}

/// A walk over the flows of workers.
struct Walk {
    style: Style,
    names: BTreeMap<u16, (String, String)>,
    wanted: Wanted,
    /// Workers to come, the last one first, and where the first of them goes on.
    workers: Vec<WorkerId>,
    from: usize,
    /// Each worker's flows come under a title, which is still to be written.
    title: bool,
    titles: bool,
}

/// `dpctl/dump-flows`.
pub fn of_datapath(s: &mut State, args: &[String]) -> Result<Job, String> {
    dpctl::check_name(args)?;
    let core = args.iter().find_map(|a| a.strip_prefix("pmd="));
    let core = core.and_then(|core| core.parse::<i64>().ok());
    let wanted = Wanted { core, types: dpctl::dump_types(args)?, ports: None };
    Ok(walk(s, args, wanted, true))
}

/// `dpif/dump-flows BRIDGE`.
pub fn of_bridge(s: &mut State, args: &[String]) -> Result<Job, String> {
    let name = args.iter().find(|a| !a.starts_with('-')).ok_or("bridge name missing")?;
    let bridge = s.bridges.get(name).ok_or("no such bridge")?;
    let ports = Some(bridge.ifaces.values().filter_map(|i| i.dp_port).collect());
    Ok(walk(s, args, Wanted { ports, ..Wanted::default() }, false))
}

fn walk(s: &State, args: &[String], wanted: Wanted, titles: bool) -> Job {
    let (style, names) = (Style::of(args), dpctl::port_names(s));
    let mut workers: Vec<WorkerId> = s.dp.pmd_info().iter().map(|p| p.worker).collect();
    workers.sort();
    let mut walk = Walk { style, names, wanted, workers, from: 0, title: titles, titles };
    let turns = s.ct.walker.clone();
    Box::new(move |state: Shared, reply| {
        Box::pin(send(move || walk.turn(&mut state.borrow_mut()), turns, reply))
    })
}

/// Sends what `turn` makes, until it says that this was all.
async fn send(mut turn: impl FnMut() -> (String, bool), turns: Walker, reply: Reply) {
    let to = reply.pieces();
    loop {
        turns.turn().await;
        let (text, more) = turn();
        if to.send(text).await.is_err() || !more {
            return;
        }
    }
}

impl Walk {
    /// Some flows as text; true: there may be more.
    fn turn(&mut self, s: &mut State) -> (String, bool) {
        let (mut out, mut flows) = (String::new(), Vec::new());
        let Some(worker) = self.workers.last().copied() else { return (out, false) };
        let next = s.dp.flows_of(worker, self.from, PLACES_PER_TURN, &mut flows);
        for f in flows.iter().filter(|f| !f.dead && self.wanted.has(f, s)) {
            if std::mem::take(&mut self.title) {
                out += &title(worker);
            }
            out += &dpctl::one(f, &self.style, &self.names, s.offload.how(f));
        }
        self.from = next.unwrap_or_else(|| {
            self.workers.pop();
            self.title = self.titles;
            0
        });
        (out, !self.workers.is_empty())
    }
}

impl Wanted {
    fn has(&self, f: &FlowDump, s: &State) -> bool {
        let core = if let WorkerId::Pmd(core) = f.worker { core as i64 } else { -1 };
        self.core.is_none_or(|wanted| wanted == core)
            && self.types.as_ref().is_none_or(|types| types.take(s.offload.how(f)))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&f.key.u16(at::IN_PORT)))
    }
}

fn title(worker: WorkerId) -> String {
    match worker {
        WorkerId::Pmd(core) => format!("flow-dump from pmd on cpu core: {core}\n"),
        WorkerId::Kernel => "flow-dump from the main thread:\n".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unixctl::Answer;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    const PIECES: usize = 10;

    async fn dump(turns: Walker) -> String {
        let (reply, answer) = Reply::channel(&Arc::default());
        let mut left = PIECES;
        let turn = move || {
            left -= 1;
            (left.to_string(), left > 0)
        };
        spawn_local(send(turn, turns, reply));
        let Ok(Answer::Pieces(mut pieces)) = answer.await else { panic!("no pieces") };
        let mut all = String::new();
        while let Some(piece) = pieces.recv().await {
            all += &piece;
        }
        all
    }

    #[test]
    fn others_have_a_turn_after_each_piece_of_all_dumps() {
        let walker = Walker::new(&Arc::new(conntrack::Table::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let turns = LocalSet::new().block_on(&runtime, async {
            let turns = Rc::new(Cell::new(0));
            let count = turns.clone();
            let others = spawn_local(async move {
                loop {
                    count.set(count.get() + 1);
                    yield_now().await;
                }
            });
            let dumps = [0, 1].map(|_| spawn_local(dump(walker.clone())));
            for dump in dumps {
                assert_eq!(dump.await.unwrap(), "9876543210");
            }
            others.abort();
            turns.get()
        });
        assert!(turns >= 2 * PIECES - 1, "{turns} turns of others");
    }
}
