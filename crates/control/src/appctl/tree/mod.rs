//! `weft/state [PATH]`: everything an operator may ask about, as one tree of JSON objects.
//!
//! It is put together from what the control thread has: counters that PMD threads write for
//! themselves, and the database. Reading it sends nothing to a PMD thread and stops none. A part is
//! only put together when the path asks for it; `megaflows`, the only one whose size traffic
//! decides, only when the path names it. What counters mean is said where they are defined; all but
//! those of `cores` and `queues` (which `pmd-stats-clear` clears) count from the start of the
//! daemon, or of their port.

mod bonds;
mod bridges;
mod cores;
mod engine_tree;
mod megaflows;
mod port_tree;

use crate::OVS_VERSION;
use crate::appctl::{Job, coverage};
use crate::ct_walk::Walker;
use crate::state::{Shared, State};
use crate::unixctl::Reply;
use serde_json::{Map, Value, json};
use telemetry::Drop;

/// Interfaces that are looked at in one turn: each takes some system calls.
const TURN_INTERFACES_MAX: usize = 32;
/// Bytes of an answer that are sent in one turn, about.
const PIECE_BYTES: usize = 64 << 10;

/// How a part of the tree is made.
#[derive(Clone, Copy)]
enum Make {
    /// A subtree that is read at once.
    Whole(fn(&mut State) -> Value),
    /// A subtree with an entry for each interface, of which some are read a turn, by their names.
    Interfaces(fn(&mut State, &port_tree::Interface) -> Option<Value>),
    /// Megaflows, some of which are read a turn.
    Megaflows,
}

/// A part of the tree: its name, whether the whole tree has it, what makes it.
struct Part(&'static str, bool, Make);

const PARTS: &[Part] = &[
    Part("switch", true, Make::Whole(switch)),
    Part("cores", true, Make::Whole(cores::cores)),
    Part("caches", true, Make::Whole(cores::caches)),
    Part("engines", true, Make::Whole(engine_tree::engines)),
    Part("ports", true, Make::Interfaces(port_tree::port)),
    Part("bonds", true, Make::Whole(bonds::bonds)),
    Part("guests", true, Make::Interfaces(port_tree::guest)),
    Part("tunnels", true, Make::Whole(bridges::tunnels)),
    Part("bridges", true, Make::Whole(bridges::bridges)),
    Part("connections", true, Make::Whole(bridges::connections)),
    Part("drops", true, Make::Whole(drops)),
    Part("events", true, Make::Whole(events)),
    Part("memory", true, Make::Whole(memory)),
    Part("megaflows", false, Make::Megaflows),
];

/// Paths that one command may name.
pub const PATHS_MAX: usize = 16;
/// Names that an error lists.
const NAMES_TOLD_MAX: usize = 20;

/// `weft/state [PATH]`. A path is names between slashes, such as `cores/1/cycles`; several paths
/// may be given, and make one tree of their parts.
pub fn show(_: &mut State, args: &[String]) -> Result<Job, String> {
    let args = args.to_vec();
    Ok(Box::new(move |state, reply| Box::pin(answer(state, args, reply))))
}

async fn answer(state: Shared, args: Vec<String>, reply: Reply) {
    let value = match tree(&state, &args).await {
        Ok(value) => value,
        Err(error) => return reply.send(Err(error)),
    };
    // With very many ports the text has megabytes: it is made elsewhere and sent piece by piece.
    let text = tokio::task::spawn_blocking(move || format!("{value:#}\n"));
    let (Ok(text), to) = (text.await, reply.pieces()) else { return };
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.ceil_char_boundary(PIECE_BYTES));
        if to.send(piece.into()).await.is_err() {
            return;
        }
        rest = more;
        tokio::task::yield_now().await;
    }
}

async fn tree(state: &Shared, paths: &[String]) -> Result<Value, String> {
    match paths {
        [] => Ok(whole(state).await),
        [path] => find(state, path).await,
        paths => {
            let mut found = Map::new();
            for path in paths {
                found.insert(path.clone(), find(state, path).await?);
            }
            Ok(Value::Object(found))
        }
    }
}

async fn whole(state: &Shared) -> Value {
    let mut all = Map::new();
    for Part(name, _, make) in PARTS.iter().filter(|Part(_, always, _)| *always) {
        all.insert(name.to_string(), part(state, *make).await);
    }
    Value::Object(all)
}

/// Makes a part, with turns of others in between.
async fn part(state: &Shared, make: Make) -> Value {
    let turns = state.borrow().ct.walker.clone();
    turns.turn().await;
    let each = match make {
        Make::Whole(make) => return make(&mut state.borrow_mut()),
        Make::Megaflows => return megaflows::megaflows(state, &turns).await,
        Make::Interfaces(each) => each,
    };
    let (all, mut made) = (port_tree::interfaces(&mut state.borrow_mut()), Map::new());
    in_turns(&turns, &all, |some| {
        let mut s = state.borrow_mut();
        made.extend(some.iter().filter_map(|i| Some((i.name.clone(), each(&mut s, i)?))));
    })
    .await;
    Value::Object(made)
}

/// Looks at some interfaces in each of these turns.
async fn in_turns<T>(turns: &Walker, all: &[T], mut look: impl FnMut(&[T])) {
    for some in all.chunks(TURN_INTERFACES_MAX) {
        turns.turn().await;
        look(some);
    }
}

async fn find(state: &Shared, path: &str) -> Result<Value, String> {
    let mut names = path.split('/').filter(|n| !n.is_empty());
    let Some(first) = names.next() else { return Ok(whole(state).await) };
    let found = PARTS.iter().find(|Part(name, ..)| *name == first);
    let parts = PARTS.iter().map(|Part(name, ..)| *name);
    let Part(_, _, make) = found.ok_or_else(|| missing(path, first, parts))?;
    let mut value = part(state, *make).await;
    for name in names {
        value = step(value, name).map_err(|there| match there {
            Value::Object(o) => missing(path, name, o.keys().map(String::as_str)),
            _ => format!("{path}: nothing is below {name}'s parent"),
        })?;
    }
    Ok(value)
}

/// What is below `value` under this name, or `value` if there is no such thing.
fn step(mut value: Value, name: &str) -> Result<Value, Value> {
    let found = match &mut value {
        Value::Object(o) => o.get_mut(name).map(Value::take),
        Value::Array(a) => name.parse::<usize>().ok().and_then(|i| a.get_mut(i)).map(Value::take),
        _ => None,
    };
    found.ok_or(value)
}

fn missing<'a>(path: &str, name: &str, there: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = there.take(NAMES_TOLD_MAX + 1).collect();
    if names.len() > NAMES_TOLD_MAX {
        names[NAMES_TOLD_MAX] = "...";
    }
    let names = if names.is_empty() { "nothing".to_string() } else { names.join(", ") };
    format!("{path}: there is no {name}; there is {names}")
}

/// The daemon as a whole, with the clock that rates are to be computed by.
fn switch(s: &mut State) -> Value {
    let set = s.dp.settings();
    let moved = s.dp.totals();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ovs_version": OVS_VERSION,
        "dpdk_version": dpdk::dpdk_version(),
        "pid": std::process::id(),
        "cycles": datapath::cycles(),
        "cycles_per_second": datapath::cycles_per_second(),
        "forwarding": !s.applied.restoring,
        "other_config": s.applied.other_config,
        "flow_limit": set.flow_limit,
        "max_idle_ms": set.max_idle_ms,
        "tx_flush_interval_us": set.tx_flush_interval_us,
        "parser": set.level.name(),
        "validating": set.validate,
        "packets": {
            "received": moved.rx_packets,
            "sent": moved.tx_packets,
            "dropped": moved.drops.iter().sum::<u64>(),
            "copies": moved.copies,
            "punted": moved.punted,
            "injected": moved.injected,
        },
    })
}

/// Every reason for a drop: packets so far, and its sentence.
fn drops(s: &mut State) -> Value {
    let all = s.dp.drops().into_iter();
    let one =
        |(why, n): (Drop, u64)| (why.name().to_string(), json!({"packets": n, "help": why.help()}));
    Value::Object(all.map(one).collect())
}

/// The counters of `coverage/show` that are no drops.
fn events(s: &mut State) -> Value {
    let all = coverage::totals(s).into_iter();
    json!(
        all.filter(|(n, _)| !n.starts_with("datapath_drop_"))
            .map(|(n, v)| (n, json!(v)))
            .collect::<Map<_, _>>()
    )
}

/// What uses how much of the daemon's memory.
fn memory(s: &mut State) -> Value {
    let pool = |p: &std::sync::Arc<dpdk::DpdkPool>| json!({"buffers": p.capacity(), "in_use": p.in_use(), "bytes_each": p.data_room()});
    json!({
        "packet_pools": s.devices.pools.all().iter().map(pool).collect::<Vec<_>>(),
        "packets_in_use": s.devices.pools.in_use(),
        "connections_bytes": s.conns.values().map(|c| c.held()).sum::<usize>(),
        "connections_bytes_max": crate::of::account::ALL_CONNECTIONS_BYTES_MAX,
        "flows": s.bridges.values().map(|b| s.ofproto.n_flows(b.id).unwrap_or(0)).sum::<usize>(),
        "megaflows": s.dp.pmd_info().iter().map(|p| u64::from(p.flows)).sum::<u64>(),
        "resident_bytes": resident(),
    })
}

/// Bytes of this process in memory.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    #[test]
    fn a_path_that_leads_nowhere_says_what_is_there() {
        let many: Vec<String> = (0..30).map(|i| format!("p{i}")).collect();
        let said = missing("ports/x", "x", many.iter().map(String::as_str));
        assert!(said.starts_with("ports/x: there is no x; there is p0, p1, "), "{said}");
        assert!(said.ends_with("p19, ...") && !said.contains("p20"), "{said}");
        let none: [&str; 0] = [];
        assert!(missing("guests/x", "x", none.into_iter()).ends_with("there is nothing"));
    }

    #[test]
    fn others_have_a_turn_after_each_32_interfaces_of_all_answers() {
        const INTERFACES: usize = 1000;
        let walker = Walker::new(&Arc::new(conntrack::Table::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // Interfaces that were looked at, by turn of others.
        let looked = Rc::new(RefCell::new(vec![0]));
        LocalSet::new().block_on(&runtime, async {
            let seen = looked.clone();
            let others = spawn_local(async move {
                loop {
                    seen.borrow_mut().push(0);
                    yield_now().await;
                }
            });
            let answers = [0, 1, 2].map(|_| {
                let (walker, looked) = (walker.clone(), looked.clone());
                let look =
                    move |some: &[()]| *looked.borrow_mut().last_mut().unwrap() += some.len();
                spawn_local(async move { in_turns(&walker, &[(); INTERFACES], look).await })
            });
            for answer in answers {
                answer.await.unwrap();
            }
            others.abort();
        });
        let looked = looked.borrow();
        assert_eq!(looked.iter().sum::<usize>(), 3 * INTERFACES);
        assert!(looked.iter().all(|n| *n <= TURN_INTERFACES_MAX), "{looked:?}");
    }

    #[test]
    fn steps_go_into_objects_and_arrays() {
        let tree = json!({"a": [1, {"b": 2}]});
        let at = |path: &str| path.split('/').try_fold(tree.clone(), step);
        assert_eq!(at("a/1/b"), Ok(json!(2)));
        assert_eq!(at("a/2"), Err(json!([1, {"b": 2}])));
        assert_eq!(at("a/0/b"), Err(json!(1)));
    }
}
