//! Commands that go through all cached flows, of which there may be millions: some at a time, with
//! everybody else's turn in between. `dpctl/dump-flows`, `dpif/dump-flows` and `dpctl/get-flow`.

use super::Job;
use super::dpctl::{self, DumpTypes, Style};
use crate::ct_walk::Walker;
use crate::offload::How;
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

/// Where a walk over all megaflows is.
struct Walk {
    /// Workers to come, the last one first, and where the first of them goes on.
    workers: Vec<WorkerId>,
    from: usize,
}

/// What a dump prints.
struct Dump {
    walk: Walk,
    style: Style,
    names: BTreeMap<u16, (String, String)>,
    wanted: Wanted,
    /// Each worker's flows come under a title, which is still to be written.
    title: bool,
    titles: bool,
}

/// `dpctl/dump-flows`.
pub fn of_datapath(s: &mut State, args: &[String]) -> Result<Job, String> {
    dpctl::check_name(s, args)?;
    let core = args.iter().find_map(|a| a.strip_prefix("pmd="));
    let core = core.and_then(|core| core.parse::<i64>().ok());
    let wanted = Wanted { core, types: dpctl::dump_types(args)?, ports: None };
    Ok(dump(s, Style::of(args), wanted, true))
}

/// `dpif/dump-flows BRIDGE`.
pub fn of_bridge(s: &mut State, args: &[String]) -> Result<Job, String> {
    let name = args.last().ok_or("bridge name missing")?;
    let bridge = s.bridges.get(name).ok_or("no such bridge")?;
    let ports = Some(bridge.ifaces.values().filter_map(|i| i.dp_port).collect());
    Ok(dump(s, Style::of(args).terse(), Wanted { ports, ..Wanted::default() }, false))
}

/// `dpctl/get-flow [dp] ufid:...`.
pub fn get_flow(s: &mut State, args: &[String]) -> Result<Job, String> {
    let (want, rest) = args.split_last().ok_or("no flow named")?;
    dpctl::check_name(s, rest)?;
    let named = want.starts_with("ufid:");
    let want = want.strip_prefix("ufid:").unwrap_or(want).to_string();
    let is_ufid = want.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && want.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    if !is_ufid {
        let why = if named { " (Invalid argument)" } else { "" };
        return Err(format!("ovs-vswitchd: parsing flow ufid{why}"));
    }
    let (names, style) = (dpctl::port_names(s), Style::default());
    let none = "ovs-vswitchd: getting flow (No such file or directory)";
    Ok(search(s, none, move |s, f, out| {
        if dpctl::ufid(f) == want {
            *out += &dpctl::one(&s.ofproto, f, &style, &names, How::Not);
        }
    }))
}

fn dump(s: &State, style: Style, wanted: Wanted, titles: bool) -> Job {
    let names = dpctl::port_names(s);
    let mut dump = Dump { walk: Walk::new(s), style, names, wanted, title: titles, titles };
    in_turns(s, None, move |s| dump.turn(s))
}

/// Goes through all megaflows. `each` appends to the answer what there is to say of one; `none` is
/// the error if that is nothing of any.
pub(super) fn search(
    s: &State,
    none: &'static str,
    mut each: impl FnMut(&State, &FlowDump, &mut String) + 'static,
) -> Job {
    let mut walk = Walk::new(s);
    in_turns(s, Some(none), move |s| {
        let (flows, mut out) = (walk.next(s), String::new());
        flows.iter().for_each(|f| each(s, f, &mut out));
        (out, !walk.is_over())
    })
}

/// As [`search`], for an answer that is only made when all megaflows were seen, by `end`.
pub(super) fn survey<T: 'static>(
    s: &State,
    mut seen: T,
    mut each: impl FnMut(&State, &FlowDump, &mut T) + 'static,
    end: impl Fn(&State, &T) -> String + 'static,
) -> Job {
    let mut walk = Walk::new(s);
    in_turns(s, None, move |s| {
        let flows = walk.next(s);
        flows.iter().for_each(|f| each(s, f, &mut seen));
        match walk.is_over() {
            true => (end(s, &seen), false),
            false => (String::new(), true),
        }
    })
}

/// A job whose turns make the pieces of its answer: true, there are more.
pub(super) fn in_turns(
    s: &State,
    none: Option<&'static str>,
    mut turn: impl FnMut(&mut State) -> (String, bool) + 'static,
) -> Job {
    let turns = s.ct.walker.clone();
    Box::new(move |state: Shared, reply| {
        Box::pin(send(move || turn(&mut state.borrow_mut()), turns, reply, none))
    })
}

/// Sends what `turn` makes, until it says that this was all. `none`: the error if it made nothing.
async fn send(
    mut turn: impl FnMut() -> (String, bool),
    turns: Walker,
    reply: Reply,
    none: Option<&'static str>,
) {
    let (mut text, mut more) = (String::new(), true);
    while more && text.is_empty() && reply.client().strong_count() > 0 {
        turns.turn().await;
        (text, more) = turn();
    }
    if let Some(error) = none.filter(|_| text.is_empty()) {
        return reply.send(Err(error.into()));
    }
    let to = reply.pieces();
    while to.send(text).await.is_ok() && more {
        turns.turn().await;
        (text, more) = turn();
    }
}

impl Walk {
    fn new(s: &State) -> Walk {
        let mut workers: Vec<WorkerId> = s.dp.pmd_info().iter().map(|p| p.worker).collect();
        workers.sort();
        Walk { workers, from: 0 }
    }

    fn is_over(&self) -> bool {
        self.workers.is_empty()
    }

    /// The megaflows of the next places, all of one worker.
    fn next(&mut self, s: &mut State) -> Vec<FlowDump> {
        let mut flows = Vec::new();
        let Some(worker) = self.workers.last().copied() else { return flows };
        let next = s.dp.flows_of(worker, self.from, PLACES_PER_TURN, &mut flows);
        self.from = next.unwrap_or_else(|| {
            self.workers.pop();
            0
        });
        flows.retain(|f| !f.dead);
        flows
    }
}

impl Dump {
    /// Some flows as text; true: there may be more.
    fn turn(&mut self, s: &mut State) -> (String, bool) {
        let (mut out, left) = (String::new(), self.walk.workers.len());
        for f in self.walk.next(s).iter().filter(|f| self.wanted.has(f, s)) {
            if std::mem::take(&mut self.title) {
                out += &title(f.worker);
            }
            out += &dpctl::one(&s.ofproto, f, &self.style, &self.names, s.offload.how(f));
        }
        if self.walk.workers.len() < left {
            self.title = self.titles;
        }
        (out, !self.walk.is_over())
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
        spawn_local(send(turn, turns, reply, None));
        let Ok(Answer::Pieces(mut pieces)) = answer.await else { panic!("no pieces") };
        let mut all = String::new();
        while let Some(piece) = pieces.recv().await {
            all += &piece;
        }
        all
    }

    /// What a search answers that finds something in these of three turns.
    async fn find(finds: [&'static str; 3]) -> Result<String, String> {
        let (client, walker) = (Arc::default(), Walker::new(&Arc::new(conntrack::Table::new())));
        let (reply, answer) = Reply::channel(&client);
        let mut turns = finds.into_iter();
        let turn = move || (turns.next().unwrap().to_string(), turns.len() > 0);
        spawn_local(send(turn, walker, reply, Some("none")));
        let mut pieces = match answer.await.unwrap() {
            Answer::Whole(answer) => return answer,
            Answer::Pieces(pieces) => pieces,
        };
        let mut all = String::new();
        while let Some(piece) = pieces.recv().await {
            all += &piece;
        }
        Ok(all)
    }

    #[test]
    fn a_search_that_finds_nothing_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            assert_eq!(find(["", "", ""]).await, Err("none".into()));
            assert_eq!(find(["", "a", "b"]).await, Ok("ab".into()));
            assert_eq!(find(["a", "", "b"]).await, Ok("ab".into()));
            assert_eq!(find(["", "", "b"]).await, Ok("b".into()));
        });
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
