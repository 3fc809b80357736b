//! What a decision, a flow-mod and a flow cost: `cargo run --release -p ofproto --example cost`.

use ::action::{Decision, Pipeline, Request};
use flow::{Field, Key, at, parse_match};
use ofproto::{BridgeConfig, PortSpec, Switch};
use openflow::*;
use std::time::Instant;

fn flow_mod(table: u8, m: Match, priority: u16, instructions: Vec<Instruction>) -> FlowMod {
    FlowMod { priority, instructions, ..FlowMod::new(FlowModCommand::Add, table, m) }
}

fn matching(text: &str) -> Match {
    let (key, mask) = parse_match(text, &|_| None).unwrap_or_default();
    Match::new(key, mask)
}

fn resident_kb() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4
}

fn main() {
    let mut sw = Switch::new(sync::Domain::new().writer());
    let Ok(br) = sw.add_bridge("br0", BridgeConfig::default(), 0) else { return };
    for i in 1..=2u16 {
        let spec = PortSpec {
            of_port: i.into(),
            name: format!("p{i}"),
            dp_port: Some(i),
            ..PortSpec::default()
        };
        let _ = sw.add_port(br, spec);
    }
    let out = Action::output(2);
    let set = Action::SetField { field: Field::EthDst, value: 5, mask: (1 << 48) - 1 };
    let go = |t| vec![Instruction::Goto(t)];
    let add = |sw: &mut Switch, m| sw.flow_mod(br, &m, 0).is_ok();
    add(&mut sw, flow_mod(0, matching("in_port=1"), 1, go(1)));
    add(&mut sw, flow_mod(1, matching("ip"), 1, go(2)));
    let n = 1_000_000u32;
    let before = resident_kb();
    let start = Instant::now();
    let mut m = matching("ip,nw_dst=10.0.0.0");
    let mut last = 0;
    for i in 0..n {
        m.key.set_u32(at::IP_DST, 0x0a00_0000 + i);
        let list = vec![Instruction::Apply(vec![set.clone(), out.clone()])];
        add(&mut sw, flow_mod(2, m.clone(), 10, list));
        if i + 1 == n / 100 || i + 1 == n {
            let us = start.elapsed().as_micros() as u32;
            println!(
                "{} flows: {:.2} us each so far",
                i + 1,
                f64::from(us - last) / f64::from(i + 1)
            );
            last = 0;
        }
    }
    let kb = resident_kb() - before;
    println!("{} bytes per flow in all", kb * 1024 / u64::from(n));
    sw.take_regions();
    decide(&sw, n);
}

fn decide(sw: &Switch, n: u32) {
    let pipeline: std::sync::Arc<dyn Pipeline> = sw.pipeline();
    let mut key: Key = matching("tcp,nw_ttl=64").key;
    key.set_u16(at::IN_PORT, 1);
    let mut d = Decision::default();
    for (what, flows) in [("one flow", 1), ("1000 flows", 1000), ("a million flows", n)] {
        let rounds = 1_000_000u32;
        let start = Instant::now();
        for i in 0..rounds {
            key.set_u32(at::IP_DST, 0x0a00_0000 + i.wrapping_mul(2_654_435_761) % flows);
            d.clear();
            pipeline.resolve(sw.pin(), &Request { key: &key, options: &[], packet: &[] }, &mut d);
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(rounds);
        println!("three tables, rewrite, output, {what}: {ns:.0} ns per decision");
    }
}
