//! What a guest's port costs alone, by our rings and by DPDK's vhost library, cycles per packet:
//!
//! `guests BARE-GUESTS GUESTS-CORE CORE [N [BURST [SIZE,...]]]`
//!
//! BARE-GUESTS is what lab/guests/build.sh builds: N guests (1) on a core of their own. To a guest
//! a burst (32 packets) is sent every [`PACE_CYCLES`] per packet, as by a switch that does
//! something else as well; from a guest the same number is received. Only calls that moved whole
//! bursts count, each for itself: printed are the lower quartile and the median, and how many
//! calls those were. With several guests the next ones prefetch, as the switch does.

use packet::Pool;
use port::{Port, PortConfig, RxQueue, TxQueue};
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a switch does with a packet, at least, between two bursts.
const PACE_CYCLES: u64 = 200;
/// Each case lasts so long.
const CASE: Duration = Duration::from_millis(150);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC has no preconditions.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// The process that plays guests; killed when dropped.
struct Guests(Child);

impl Drop for Guests {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sockets and counters; removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Result<Dir> {
        let path = std::env::temp_dir().join(format!("weft-guests-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Dir(path))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What all cases have in common.
struct Bench {
    program: String,
    guests_core: String,
    n: usize,
    burst: usize,
    devices: port_dpdk::Devices,
    pools: Arc<dpdk::Pools>,
    dir: Dir,
}

struct Case {
    layout: &'static str,
    rings: &'static str,
    sends: bool,
    bytes: usize,
}

/// Ports of guests, and the queue of each that is measured.
struct Ends {
    // Queues go before their ports.
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    _ports: Vec<Box<dyn Port>>,
}

impl Bench {
    fn sockets(&self) -> Vec<PathBuf> {
        (0..self.n).map(|i| self.dir.0.join(format!("guest{i}"))).collect()
    }

    fn start(&self, case: &Case) -> Result<Guests> {
        let role = if case.sends { format!("source={}", case.bytes) } else { "sink".into() };
        let mut command = Command::new("taskset");
        command.args(["-c", &self.guests_core, &self.program, case.layout, &role]);
        command.arg(self.dir.0.join("counters")).args(self.sockets());
        // SAFETY: only makes a system call, which a child may.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Ok(Guests(command.spawn()?))
    }

    fn open(&self, case: &Case) -> Result<Ends> {
        let mut ends = Ends { rx: vec![], tx: vec![], _ports: vec![] };
        for (i, socket) in self.sockets().iter().enumerate() {
            wait("a guest's socket", || socket.exists())?;
            let mut port = self.devices.open(&config(i, socket, case.rings))?;
            wait("a guest", || port.link().up)?;
            ends.rx.push(port.take_rx(0).ok_or("no receive queue")?);
            ends.tx.push(port.take_tx(0).ok_or("no send queue")?);
            ends._ports.push(port);
        }
        Ok(ends)
    }

    /// Cycles of one burst of guest `i`, if it was whole.
    fn burst(&self, ends: &mut Ends, i: usize, case: &Case) -> Option<u64> {
        let mut packets = Vec::with_capacity(self.burst);
        if case.sends {
            let began = cycles();
            ends.rx[i].rx(&mut packets, self.burst);
            let took = cycles() - began;
            self.pools.free(&packets);
            return (packets.len() == self.burst).then_some(took);
        }
        if !self.pools.alloc(&mut packets, self.burst) {
            return None;
        }
        for packet in &mut packets {
            assert!(packet.set_len(case.bytes), "a buffer holds {} bytes", case.bytes);
            packet.data_mut()[..64].fill(i as u8);
        }
        let began = cycles();
        let taken = ends.tx[i].tx(&packets);
        let took = cycles() - began;
        self.pools.free(&packets[taken..]);
        (taken == self.burst).then_some(took)
    }

    /// What guest `i` is prepared for; counted with the bursts.
    fn prepare(&self, ends: &mut Ends, i: usize, step: usize, case: &Case) -> u64 {
        let (began, i) = (cycles(), i % self.n);
        match case.sends {
            true => ends.rx[i].prepare(step),
            false => ends.tx[i].prepare(step, self.burst),
        }
        cycles() - began
    }

    fn run(&self, case: &Case) -> Result<String> {
        let guests = self.start(case)?;
        let mut ends = self.open(case)?;
        let (mut all, end) = (Vec::new(), Instant::now() + CASE);
        while Instant::now() < end {
            for i in 0..self.n {
                let began = cycles();
                let mut ahead = 0;
                if self.n > 1 {
                    ahead += self.prepare(&mut ends, i + 4, 0, case);
                    ahead += self.prepare(&mut ends, i + 2, 1, case);
                }
                let took = self.burst(&mut ends, i, case);
                all.extend(took.map(|took| took + ahead));
                while cycles() - began < PACE_CYCLES * self.burst as u64 {
                    std::hint::spin_loop();
                }
            }
        }
        drop((ends, guests));
        for socket in self.sockets() {
            let _ = std::fs::remove_file(socket);
        }
        // The first ones find cold caches.
        let mut all = all.split_off(all.len() / 4);
        all.sort_unstable();
        let at = |part: usize| {
            all.get(all.len() * part / 4).map_or(f64::NAN, |c| *c as f64 / self.burst as f64)
        };
        Ok(format!("{:7.1} {:7.1} {:7}", at(1), at(2), all.len()))
    }
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > Duration::from_secs(10) {
            return Err(format!("{what} did not come").into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn config(i: usize, socket: &Path, rings: &str) -> PortConfig {
    let options = [("vhost-server-path", &*socket.to_string_lossy()), ("vhost-rings", rings)];
    PortConfig {
        name: format!("guest{i}"),
        kind: "dpdkvhostuserclient".into(),
        options: options.map(|(k, v)| (k.to_string(), v.to_string())).into_iter().collect(),
        n_txq: 1,
        ..PortConfig::default()
    }
}

fn pin(core: usize) {
    // SAFETY: plain data, for which zero is valid; the set lives here.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [program, guests_core, core, rest @ ..] = args.as_slice() else {
        return Err("usage: guests BARE-GUESTS GUESTS-CORE CORE [N [BURST [SIZE,...]]]".into());
    };
    let number = |i: usize, default: usize| rest.get(i).map_or(Ok(default), |n| n.parse());
    let (n, burst) = (number(0, 1)?, number(1, 32)?);
    let sizes = rest.get(2).map_or("64,256,1518", |s| s);
    let sizes = sizes.split(',').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
    let eal = dpdk::Eal::init(&dpdk::EalConfig::default())?;
    let pools = Arc::new(dpdk::Pools::new(eal)?);
    let bench = Bench {
        program: program.clone(),
        guests_core: guests_core.clone(),
        n,
        burst,
        devices: port_dpdk::Devices::new(pools.clone(), "/nonexistent"),
        pools,
        dir: Dir::new()?,
    };
    pin(core.parse()?);
    let _lcore = eal.register_thread()?;
    println!("{:6} {:4} {:>5}      own: quartile, median, calls  library", "ring", "way", "bytes");
    for layout in ["split", "packed"] {
        for sends in [false, true] {
            for bytes in &sizes {
                let case = |rings| Case { layout, rings, sends, bytes: *bytes };
                let [own, library] = [bench.run(&case("own"))?, bench.run(&case("library"))?];
                let way = if sends { "from" } else { "to" };
                println!("{layout:6} {way:4} {bytes:5} {own} {library}");
            }
        }
    }
    Ok(())
}
