//! A guest's driver fills its rings with tables of very many descriptors of no bytes.

use crate::lab::*;
use crate::measure::*;
use std::sync::{Arc, Mutex};
use testkit::front_end::{DESC_INDIRECT, DESC_NEXT, FREE, FrontEnd, RING_SIZE};
use testkit::{Netns, Switch, privileged};

/// Entries of the table: as many as fit a table of descriptors whose successors are 16 bits.
const ENTRIES: u16 = 32_768;
/// How often a second the guest looks at its rings.
const RATE: u32 = 2000;

/// The victim's side goes through a port that the same PMD thread polls.
fn victim<'a>(ns: &Netns, sw: &'a Switch<'a>) -> Victim<'a> {
    add_bridge(sw, "victim");
    let (a, b) = (host(ns, 1), host(ns, 2));
    vsctl(sw, "add-port victim v2");
    vsctl(
        sw,
        "add-port victim polled -- set interface polled type=dpdk \
         options:dpdk-devargs=net_af_packet0,iface=v1",
    );
    // Frames whose checksums and segments are left to a device would stay unfinished behind a
    // packet socket.
    for (ns, dev) in [(&a, "eth0"), (&b, "eth0")] {
        ns.offloads_off(dev).unwrap();
    }
    Victim::of(sw, a, b)
}

fn guest(sw: &Switch<'_>) -> FrontEnd {
    let mut guest = FrontEnd::connect(&sw.dir().join("vhu")).unwrap();
    guest.negotiate(4 << 20).unwrap();
    guest.start(None).unwrap();
    guest
}

/// All descriptors of both rings are one table of empty entries, or a good buffer.
fn fill(guest: &FrontEnd, empty: bool) {
    if empty {
        for i in 0..ENTRIES {
            let flags = if i + 1 < ENTRIES { DESC_NEXT } else { 0 };
            guest.put_desc(FREE + 16 * u64::from(i), 0, 0, flags, i + 1);
        }
    }
    for ring in 0..2 {
        for i in 0..RING_SIZE {
            let at = guest.desc(ring, i);
            match empty {
                true => guest.put_desc(at, FREE, 16 * u32::from(ENTRIES), DESC_INDIRECT, 0),
                false => guest.put_desc(at, FREE, 76, if ring == 0 { 2 } else { 0 }, 0),
            }
        }
    }
}

#[test]
fn empty_descriptors_cost_their_port_only() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    vsctl(&sw, "add-port br0 vhu -- set interface vhu type=dpdkvhostuser");
    ofctl(&sw, "del-flows br0");
    let victim = victim(&ns, &sw);
    let guest = Arc::new(Mutex::new(guest(&sw)));
    wait_for("the guest", || iface(&sw, "vhu", "link_state") == "up");
    let traffic = |empty: bool| {
        fill(&guest.lock().unwrap(), empty);
        let guest = guest.clone();
        vec![Traffic::run(RATE, move |_| {
            let mut guest = guest.lock().unwrap();
            for ring in 0..2 {
                let room = RING_SIZE - guest.under_way(ring).min(RING_SIZE);
                guest.offer(ring, room.min(32));
            }
        })]
    };
    judge("empty descriptors", &victim, || traffic(false), || traffic(true));
    println!("{}", appctl(&sw, "dpif-netdev/pmd-rxq-show"));
}
