//! Very many hostile front-ends, one after the other, on a port of either kind, with split and
//! packed rings, beside a guest with traffic. `make test` runs some seconds of it;
//! `WEFT_HOSTILE_SECONDS=600` is what docs/SECURITY.md names.

use crate::hostile::{descriptors, resident, say_noise};
use crate::lab::*;
use crate::measure::Traffic;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use testkit::front_end::FrontEnd;
use testkit::{Frame, Net, Netns, Noise, Raw, Switch, privileged};

/// Seconds of the run, and the share of its frames that the neighbour keeps, if the environment
/// names none: on a busy machine its guest has no core now and then.
const SECONDS: u64 = 6;
const SHARE_MIN: f64 = 0.25;
/// The share in a run of the length that is asked for.
const SHARE_MIN_ALONE: f64 = 0.95;
/// Frames a second that the neighbour is sent.
const RATE: u32 = 1000;
/// One seed after the other has its share of the run.
const SEEDS: [u64; 3] = [0x5eed, 0xbad_c0de, 0x1234_5678];
/// Between two front-ends on a port: all of this machine's processes, the neighbour's too, share
/// its cores.
const PAUSE: Duration = Duration::from_millis(10);
/// Resident memory may have grown by so many kilobytes: rings and regions of connections that are
/// still being closed.
const GROWTH_KIB_MAX: u64 = 100 << 10;

/// A guest that sends back what host 1 sends: how much of it came back.
struct Neighbour<'a> {
    sw: &'a Switch<'a>,
    host: Netns,
    _guest: Guest,
}

impl<'a> Neighbour<'a> {
    fn start(ns: &Netns, sw: &'a Switch<'a>) -> Neighbour<'a> {
        add_bridge(sw, "victim");
        let host = host(ns, 1);
        vsctl(
            sw,
            "add-port victim v1 -- add-port victim vhn -- set interface vhn type=dpdkvhostuser",
        );
        ofctl(sw, "del-flows victim");
        ofctl(sw, "add-flow victim dl_type=0x88b5,in_port=v1,actions=output:vhn");
        ofctl(sw, "add-flow victim cookie=2,dl_type=0x88b5,in_port=vhn,actions=output:v1");
        let guest =
            Guest::start(&sw.dir().join("vhn"), Ring { queues: 1, ..Ring::default() }, "io");
        wait_for("the neighbour", || iface(sw, "vhn", "link_state") == "up");
        let neighbour = Neighbour { sw, host, _guest: guest };
        wait_for("the neighbour answers", || {
            let _ = neighbour.share(Duration::from_millis(100));
            neighbour.answered() > 0
        });
        neighbour
    }

    fn answered(&self) -> u64 {
        let text = ofctl(self.sw, "dump-aggregate victim cookie=2/-1");
        let count = text.split_whitespace().find_map(|w| w.strip_prefix("packet_count="));
        count.and_then(|n| n.parse().ok()).expect("a count")
    }

    /// The share of frames that came back while it was sent frames for so long.
    fn share(&self, time: Duration) -> f64 {
        let (sent, before) = (Arc::new(AtomicU64::new(0)), self.answered());
        let counted = sent.clone();
        let frame = Frame::new([2; 6], [2, 0, 0, 0, 0, 9], Net::Raw(0x88b5, vec![0; 46])).bytes();
        let raw = Raw::open(&self.host, "eth0").unwrap();
        let traffic = Traffic::start(raw, RATE, move |_| {
            counted.fetch_add(1, Relaxed);
            frame.clone()
        });
        std::thread::sleep(time);
        drop(traffic);
        // Counters of flows are a second old.
        let sent = sent.load(Relaxed);
        let end = Instant::now() + Duration::from_secs(3);
        while self.answered() - before < sent && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        (self.answered() - before) as f64 / sent.max(1) as f64
    }
}

/// One front-end after the other for as long as `time`; how many there were.
fn crowd(time: Duration, mut next: impl FnMut() -> Option<FrontEnd>) -> u64 {
    let (start, mut count) = (Instant::now(), 0);
    for (seed, turn) in SEEDS.into_iter().zip(1u32..) {
        let mut noise = Noise(seed);
        while start.elapsed() < time * turn / SEEDS.len() as u32 {
            let Some(mut guest) = next() else { continue };
            count += 1;
            say_noise(&mut guest, &mut noise);
            drop(guest);
            std::thread::sleep(PAUSE);
        }
    }
    count
}

#[test]
fn very_many_hostile_front_ends() {
    if !privileged() {
        return;
    }
    let seconds = std::env::var("WEFT_HOSTILE_SECONDS").ok().and_then(|n| n.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    // On two cores the guest is otherwise without one for seconds.
    vsctl(&sw, "set open . other_config:pmd-sleep-max=100");
    let (served, listening) = (sw.dir().join("vhu"), sw.dir().join("vhc"));
    let listener = UnixListener::bind(&listening).unwrap();
    vsctl(&sw, "add-port br0 vhu -- set interface vhu type=dpdkvhostuser");
    let client =
        format!("type=dpdkvhostuserclient options:vhost-server-path={}", listening.display());
    vsctl(&sw, &format!("add-port br0 vhc -- set interface vhc {client}"));
    let neighbour = Neighbour::start(&ns, &sw);
    let calm = neighbour.share(Duration::from_secs(2));
    let before = (sw.daemon_pid(), descriptors(&sw), resident(&sw));
    let (share, server, client) = std::thread::scope(|s| {
        let server = s.spawn(|| crowd(time, || FrontEnd::connect(&served).ok()));
        let accept = || FrontEnd::over(listener.accept().ok()?.0).ok();
        let client = s.spawn(move || crowd(time, accept));
        (neighbour.share(time), server.join().unwrap(), client.join().unwrap())
    });
    wait_for("descriptors are closed", || descriptors(&sw) <= before.1 + 12);
    let after = (sw.daemon_pid(), descriptors(&sw), resident(&sw));
    println!(
        "{server} and {client} front-ends in {time:?}: the neighbour had {calm:.3}, {share:.3}"
    );
    println!("process, descriptors, resident KiB: {before:?} before, {after:?} after");
    assert_eq!(after.0, before.0, "the same process");
    assert!(server > 0 && client > 0, "both ports were attacked");
    assert!(after.2 < before.2 + GROWTH_KIB_MAX, "memory comes back");
    let least = if seconds.is_some() { SHARE_MIN_ALONE } else { SHARE_MIN };
    assert!(share >= least * calm, "the neighbour's rate: {calm} and {share}");
}
