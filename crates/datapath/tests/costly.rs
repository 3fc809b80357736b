//! Packets of new flows that take the pipeline long, beside those of another port.
mod common;

use action::{Decision, Op, Pipeline, Request};
use common::udp;
use datapath::testing::ring_port;
use datapath::{Config, Datapath, RxAffinity};
use flow::{Field, at};
use packet::HeapPool;
use port::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use sync::{Domain, Guard};
use telemetry::Drop;

/// Steps of packets of port 0, of which each flow is another one, and how long they take.
const STEPS: u32 = 20_000;
const STEPS_TAKE: Duration = Duration::from_millis(20);

/// Takes long for packets of port 0. All go to port 2.
#[derive(Default)]
struct Slow(AtomicUsize);

impl Pipeline for Slow {
    fn resolve(&self, _: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        if request.key.u16(at::IN_PORT) == 0 {
            self.0.fetch_add(1, Relaxed);
            let began = Instant::now();
            while began.elapsed() < STEPS_TAKE {}
            out.steps = STEPS;
        }
        Field::UdpSrc.unwildcard(&mut out.mask);
        out.ops.push(Op::Output(2));
    }
}

/// A vector of packets that cost 20 ms each would take 2.5 s. The port's packets are decided about
/// as far as the time of others allows, and the others' packets all go at once.
#[test]
fn a_port_of_costly_flows_has_others_wait_for_few_of_its_packets() {
    let (pool, pipeline) = (Arc::new(HeapPool::default()), Arc::new(Slow::default()));
    let mut config = Config::new(pool.clone(), Domain::new(), pipeline.clone());
    (config.manual, config.max_flows) = (true, 1 << 10);
    let mut dp = Datapath::new(config).unwrap();
    dp.set_pmd_cores(&[0]).unwrap();
    let mut ends = Vec::new();
    for i in 0..3 {
        let (port, end) = ring_port(&format!("p{i}"), Service::Poll, 1, 2, pool.clone());
        dp.add_port(port, RxAffinity::default()).unwrap();
        ends.push(end);
    }
    let mut asked = 0;
    for round in 0..5u16 {
        for n in 0..100 {
            ends[0].send(&udp(1, 2, 1000 + 100 * round + n, 4, 64));
            ends[1].send(&udp(3, 4, 7, 8, 64));
        }
        let mut of_other = 0;
        while of_other < 100 {
            dp.step();
            dp.poll(datapath::now_ms());
            of_other += ends[2].drain().iter().filter(|p| p[29] == 3).count();
        }
        let more = pipeline.0.load(Relaxed) - asked;
        asked += more;
        // At first it is not known what they cost: a batch of the pipeline.
        let most = if round == 0 { 20 } else { 10 };
        assert!(more <= most, "round {round}: {more} packets that cost much");
    }
    assert!(dp.totals().drops[Drop::MissTime as usize] > 0);
}
