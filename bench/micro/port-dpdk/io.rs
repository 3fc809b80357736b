//! Forwards from one port to another through the port contract, with no lookup, and says what a
//! packet cost: the counterpart of `dpdk-testpmd --forward-mode=io`.
//!
//! `io RX-DEVARGS TX-DEVARGS CORE SECONDS` prints packets forwarded and CPU nanoseconds.

use packet::{BURST, Packet, Pool};
use port::{PortConfig, RxQueue, TxQueue};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rx, tx, core, seconds] = args.as_slice() else {
        return Err("usage: io RX-DEVARGS TX-DEVARGS CORE SECONDS".into());
    };
    let eal = dpdk::Eal::init(&dpdk::EalConfig::default())?;
    let pools = Arc::new(dpdk::Pools::new(eal)?);
    let devices = port_dpdk::Devices::new(pools.clone(), "/nonexistent");
    let mut from = devices.open(&config("from", rx))?;
    let mut to = devices.open(&config("to", tx))?;
    let mut rxq = from.take_rx(0).ok_or("no receive queue")?;
    let mut txq = to.take_tx(0).ok_or("no transmit queue")?;
    pin(core.parse()?);
    let _lcore = eal.register_thread()?;
    let mut burst = Vec::with_capacity(BURST);
    let run =
        |d: Duration, burst: &mut Vec<Packet>, rxq: &mut dyn RxQueue, txq: &mut dyn TxQueue| {
            let (end, mut packets) = (Instant::now() + d, 0);
            while Instant::now() < end {
                for _ in 0..1000 {
                    packets += forward(burst, rxq, txq, &*pools);
                }
            }
            packets
        };
    run(Duration::from_secs(1), &mut burst, &mut *rxq, &mut *txq);
    let start = cpu_ns();
    let packets = run(Duration::from_secs_f64(seconds.parse()?), &mut burst, &mut *rxq, &mut *txq);
    println!("{packets} {}", cpu_ns() - start);
    // Queues go back before their ports close.
    drop((rxq, txq));
    Ok(())
}

/// One burst; packets the port does not take are dropped.
fn forward(
    burst: &mut Vec<Packet>,
    rxq: &mut dyn RxQueue,
    txq: &mut dyn TxQueue,
    pool: &dyn Pool,
) -> usize {
    let n = rxq.rx(burst, BURST);
    let sent = if n > 0 { txq.tx(burst) } else { 0 };
    if sent < n {
        pool.free(&burst[sent..]);
    }
    burst.clear();
    sent
}

fn config(name: &str, devargs: &str) -> PortConfig {
    PortConfig {
        name: name.into(),
        kind: "dpdk".into(),
        options: [("dpdk-devargs".to_string(), format!("vdev:{devargs}"))].into(),
        n_txq: 1,
        ..Default::default()
    }
}

/// Moves this thread to a core.
fn pin(core: usize) {
    // SAFETY: an all-zero set is valid; CPU_SET stays inside for cores below CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid out pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
