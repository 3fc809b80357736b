//! `dpdk` ports on virtual devices. One test function: EAL starts once, and
//! the leak checks need quiet.

mod common;

use common::{config, devices, dir};
use packet::{Packet, Pool};
use port::{Port, PortError};
use std::collections::HashSet;

fn open(name: &str, devargs: &str) -> Result<Box<dyn Port>, PortError> {
    devices().open(&config(name, "dpdk", &[("dpdk-devargs", devargs)]))
}

fn frames(sizes: &[usize]) -> Vec<Packet> {
    sizes.iter().map(|n| devices().pools.packet(&vec![*n as u8; *n]).unwrap()).collect()
}

#[test]
fn virtual_devices() {
    let _cleanup = common::Cleanup(dir());
    start_leaves_the_thread_alone();
    null_receives_and_sends();
    ring_keeps_content();
    pcap_in_and_out();
    jumbo_has_its_own_pool();
    a_thread_reuses_its_buffers();
    bad_devices_are_refused();
    a_device_belongs_to_one_port();
    admin_down_stops_packets();
    open_and_close_many_times();
}

fn start_leaves_the_thread_alone() {
    let cpus = || std::thread::available_parallelism().unwrap();
    let before = cpus();
    let eal = devices().pools.eal();
    assert_eq!(cpus(), before, "EAL pinned the calling thread");
    assert!(dpdk::dpdk_version().starts_with("DPDK 22.11"));
    let runtime = format!("/var/run/dpdk/weft-{}", std::process::id());
    assert!(!std::path::Path::new(&runtime).exists(), "EAL left {runtime} behind");
    let registered = std::thread::spawn(move || eal.register_thread().is_ok()).join().unwrap();
    assert!(registered);
}

fn null_receives_and_sends() {
    let before = devices().pools.in_use();
    let mut port = open("null", "net_null0,size=64").unwrap();
    assert_eq!((port.n_rxq(), port.n_txq(), port.mtu()), (1, 2, 1500));
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(1).unwrap());
    assert!(port.take_rx(0).is_none() && port.take_rx(9).is_none());
    let mut packets = Vec::with_capacity(64);
    assert_eq!(rx.rx(&mut packets, 32), 32);
    assert!(packets.iter().all(|p| p.len() == 64 && p.segments() == 1));
    assert_eq!(tx.tx(&packets), 32);
    let counters = port.counters();
    assert_eq!((counters["rx_packets"], counters["tx_packets"]), (32, 32));
    let status = port.status();
    assert_eq!(status["driver_name"], "net_null");
    assert_eq!(status["bus_info"], "bus_name=vdev");
    assert_eq!(status["if_type"], "6");
    assert!(port.link().up);
    drop((port, rx, tx));
    assert_eq!(devices().pools.in_use(), before);
}

fn ring_keeps_content() {
    let before = devices().pools.in_use();
    let mut port = open("ring", "net_ring0").unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    assert_eq!(tx.tx(&frames(&[60, 61, 200])), 3);
    let mut packets = Vec::with_capacity(2);
    assert_eq!(rx.rx(&mut packets, 32), 2, "no more than the vector has room for");
    packets.reserve(32);
    assert_eq!(rx.rx(&mut packets, 32), 1);
    assert_eq!(packets.iter().map(|p| p.data()[0]).collect::<Vec<_>>(), [60, 61, 200]);
    devices().pools.free(&packets);
    // What was not fetched goes with the device; every ring it can be sent to is one we receive
    // from.
    assert_eq!(port.n_txq(), port.n_rxq());
    assert_eq!(tx.tx(&frames(&[60; 40])), 40);
    drop((port, rx, tx));
    assert_eq!(devices().pools.in_use(), before);
}

fn pcap_in_and_out() {
    let (input, output) = (dir().join("in.pcap"), dir().join("out.pcap"));
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    // The last one is longer than a buffer: it comes as a chain and is dropped and counted.
    for size in [60u32, 1514, 9000] {
        for word in [0, 0, size, size] {
            file.extend(word.to_le_bytes());
        }
        file.extend(vec![size as u8; size as usize]);
    }
    std::fs::write(&input, file).unwrap();
    let before = devices().pools.in_use();
    let devargs = format!("net_pcap0,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let mut port = open("pcap", &devargs).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let mut packets = Vec::with_capacity(32);
    rx.rx(&mut packets, 32);
    assert_eq!(packets.iter().map(|p| p.len()).collect::<Vec<_>>(), [60, 1514]);
    assert_eq!(port.counters()["rx_segmented_drops"], 1);
    assert_eq!(tx.tx(&packets), 2);
    drop((port, rx, tx));
    assert_eq!(std::fs::read(&output).unwrap().len(), 24 + 2 * 16 + 60 + 1514);
    assert_eq!(devices().pools.in_use(), before);
}

fn jumbo_has_its_own_pool() {
    let mut asked = config("jumbo", "dpdk", &[("dpdk-devargs", "net_ring1")]);
    asked.mtu_request = Some(9000);
    let mut port = devices().open(&asked).unwrap();
    assert_eq!(port.mtu(), 9000);
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let jumbo = devices().pools.packet(&[7; 9014]).expect("a jumbo packet");
    assert_eq!(tx.tx(&[jumbo]), 1);
    let mut packets = Vec::with_capacity(1);
    assert_eq!(rx.rx(&mut packets, 1), 1);
    assert_eq!((packets[0].len(), packets[0].segments()), (9014, 1));
    devices().pools.free(&packets);
    assert!(devices().pools.packet(&vec![0; 60_000]).is_none());
    assert!(port.reconfigure(&asked).unwrap());
    asked.mtu_request = None;
    assert!(!port.reconfigure(&asked).unwrap());
}

/// A PMD thread's vectors of 256 packets, of which up to 248 wait for the next one, as bursts to
/// guests do: the thread goes on with the buffers that it has, which are in its core's cache.
fn a_thread_reuses_its_buffers() {
    const VECTORS: usize = 500;
    const DISTINCT_BUFFERS_MAX: usize = 4096;
    let turn = || {
        let pools = &devices().pools;
        let _registered = pools.eal().register_thread().unwrap();
        let (mut held, mut seen) = (Vec::new(), HashSet::new());
        for vector in 0..VECTORS {
            for _ in 0..packet::VECTOR / packet::BURST {
                assert!(pools.alloc(&mut held, packet::BURST));
            }
            seen.extend(held.iter().map(|p| p.as_raw() as usize));
            let waiting = vector * 97 % 249;
            let sent: Vec<Packet> = held.drain(..held.len() - waiting).collect();
            sent.chunks(packet::BURST).for_each(|burst| pools.free(burst));
        }
        pools.free(&held);
        seen.len()
    };
    let distinct = std::thread::spawn(turn).join().unwrap();
    assert!(distinct <= DISTINCT_BUFFERS_MAX, "{distinct} buffers for 504 packets");
}

fn bad_devices_are_refused() {
    let error = |devargs| open("bad", devargs).err().expect(devargs).to_string();
    assert!(error("").contains("'options:dpdk-devargs'"));
    for devargs in [
        "net_nonsense0",
        "0000:ff:1f.7",
        "net_pcap7,rx_pcap=/nonexistent",
        "net_af_packet9,iface=nonexistent",
        "class=eth,mac=02:00:00:00:00:99",
        "class=eth,mac=zz",
        ",,,===",
    ] {
        let text = error(devargs);
        assert!(text.contains(devargs) && text.len() < 300, "{text}");
    }
    assert!(devices().open(&config("x", "nonsense", &[])).is_err());
    assert!(devices().open(&config("nonexistent0", "afxdp", &[])).is_err());
    let mut tiny = config("tiny", "dpdk", &[("dpdk-devargs", "net_null5")]);
    tiny.mtu_request = Some(10);
    assert!(devices().open(&tiny).is_err());
    open("ok", "net_null5").expect("a refused configuration leaves the device free");
}

fn a_device_belongs_to_one_port() {
    let first = open("first", "net_null2").unwrap();
    let error = open("second", "net_null2").err().unwrap().to_string();
    assert!(error.contains("another port"), "{error}");
    let mac = first.mac();
    drop(first);
    let text: Vec<String> = mac.iter().map(|b| format!("{b:02x}")).collect();
    assert!(open("third", &format!("class=eth,mac={}", text.join(":"))).is_err());
    open("second", "net_null2").unwrap();
}

fn admin_down_stops_packets() {
    let mut port = open("admin", "net_null3").unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    port.set_admin_up(false).unwrap();
    let mut packets = frames(&[60]);
    packets.reserve(32);
    assert_eq!((rx.rx(&mut packets, 32), tx.tx(&packets)), (0, 0));
    assert!(!port.link().admin_up);
    port.set_admin_up(true).unwrap();
    assert_eq!(tx.tx(&packets), 1);
}

fn open_and_close_many_times() {
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = (devices().pools.in_use(), fds(), threads());
    for round in 0..50 {
        let mut port = open("again", "net_null4").unwrap();
        let mut rx = port.take_rx(0).unwrap();
        let mut packets = Vec::with_capacity(32);
        assert_eq!(rx.rx(&mut packets, 32), 32, "round {round}");
        devices().pools.free(&packets);
    }
    assert_eq!((devices().pools.in_use(), fds(), threads()), before);
}
