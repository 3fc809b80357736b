//! What requests about many flows cost: `cargo run --release -p ofproto --example million [FLOWS]`.

use flow::{at, parse_match};
use ofproto::{BridgeConfig, BridgeId, BundleItem, Switch};
use openflow::*;
use std::time::Instant;

// As in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn flow_mod(command: FlowModCommand, matching: Match, cookie: u64) -> FlowMod {
    let instructions = vec![Instruction::Apply(vec![Action::output(2)])];
    FlowMod { priority: 10, cookie, instructions, ..FlowMod::new(command, 0, matching) }
}

fn matching(text: &str) -> Match {
    let (key, mask) = parse_match(text, &|_| None).unwrap_or_default();
    Match::new(key, mask)
}

/// Flow `i`: to one address.
fn add(i: u32) -> FlowMod {
    let mut m = matching("ip,nw_dst=10.0.0.0");
    m.key.set_u32(at::IP_DST, 0x0a00_0000 + i);
    flow_mod(FlowModCommand::Add, m, u64::from(i % 10))
}

fn timed<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let start = cpu_ns();
    let out = f();
    println!("{what}: {:.1} ms", (cpu_ns() - start) as f64 / 1e6);
    out
}

/// CPU time of this thread so far: other work on the machine does not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The changes, each on all flows.
fn changes(sw: &mut Switch, br: BridgeId, n: u32) {
    let part = matching("ip,nw_dst=10.1.0.0/16");
    let run = |sw: &mut Switch, m: FlowMod| {
        let _ = sw.flow_mod(br, &m, 0);
        sw.take_regions();
    };
    timed("modify a /16", || run(sw, flow_mod(FlowModCommand::Modify, part.clone(), 0)));
    timed("delete a /16", || run(sw, flow_mod(FlowModCommand::Delete, part, 0)));
    let tenth = FlowMod {
        cookie_old: 7,
        cookie_mask: 15,
        ..flow_mod(FlowModCommand::Delete, Match::default(), 0)
    };
    timed("delete a tenth by cookie", || run(sw, tenth));
    timed("housekeeping", || {
        while sw.has_garbage() {
            sw.reclaim(4096);
        }
        sw.expire(0, 0, 1);
    });
    timed("delete all", || {
        run(sw, flow_mod(FlowModCommand::Delete, Match::default(), 0));
    });
    timed("housekeeping", || {
        while sw.has_garbage() {
            sw.reclaim(4096);
        }
        sw.expire(0, 0, 1);
    });
    timed("add all in a bundle", || {
        let items = (0..n).map(|i| Ok(BundleItem::Flow(add(i))));
        let Ok(change) = sw.begin(br, Box::new(items), 0) else { return };
        while sw.advance(&change, 2048).is_none() {}
        sw.take_regions();
    });
    timed("replace all in a bundle", || {
        let items = (0..n).map(|i| Ok(BundleItem::Flow(add(i))));
        let Ok(change) = sw.begin(br, Box::new(items), 0) else { return };
        while sw.advance(&change, 2048).is_none() {}
        sw.take_regions();
    });
    timed("housekeeping", || {
        while sw.has_garbage() {
            sw.reclaim(4096);
        }
        sw.expire(0, 0, 1);
    });
}

fn main() {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let mut sw = Switch::new(sync::Domain::new().writer());
    let Ok(br) = sw.add_bridge("br0", BridgeConfig::default(), 0) else { return };
    let mut longest = 0;
    timed("add all", || {
        for i in 0..n {
            let m = add(i);
            let start = Instant::now();
            let _ = sw.flow_mod(br, &m, 0);
            if i % 64 == 0 {
                sw.take_regions();
            }
            longest = longest.max(start.elapsed().as_micros());
        }
    });
    println!("the longest took {longest} us");
    let _ = timed("aggregate", || sw.aggregate(br, &FlowSelect::default()));
    timed("dump", || {
        let Ok(mut dump) = timed("  of which the list", || sw.dump(br, &FlowSelect::default()))
        else {
            return;
        };
        while sw.dump_next(&mut dump, 512, 0, &mut |f| drop(std::hint::black_box(f))) {}
    });
    changes(&mut sw, br, n);
}
