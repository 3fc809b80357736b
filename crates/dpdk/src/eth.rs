//! Ethdev ports: attach, configure, receive, send, remove.

use crate::eth_info::{self, EthInfo, EthLink, EthStats};
use crate::link_watch::{LinkWatch, OnLinkChange};
use crate::pool::{self, drop_chains};
use crate::registry::{self, Claims};
use crate::upsets::Upsets;
use crate::{DpdkError, DpdkPool, Eal, xdp};
use dpdk_sys as sys;
use packet::Packet;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What to configure. Queue and ring sizes are wishes that are fitted to the device.
#[derive(Clone)]
pub struct EthConfig {
    /// Receive queues.
    pub n_rxq: u16,
    /// Transmit queues.
    pub n_txq: u16,
    /// Descriptors per receive queue.
    pub n_rxd: u16,
    /// Descriptors per transmit queue.
    pub n_txd: u16,
    /// Layer-3 MTU; None: the device's own.
    pub mtu: Option<u16>,
    /// Where received packets are put.
    pub pool: Arc<DpdkPool>,
    /// Called when the link changes. None: the device does not interrupt for that.
    pub on_link_change: Option<OnLinkChange>,
}

/// A device that is attached and claimed, not yet started.
pub struct EthDev {
    dev: Arc<Dev>,
}

/// Stops, closes and (if attached here) removes the device when the last handle goes.
pub(crate) struct Dev {
    pub port: u16,
    pub info: EthInfo,
    /// Rules were asked for.
    pub has_rules: AtomicBool,
    pub upsets: Mutex<Upsets>,
    /// Present while the device interrupts when its link changes.
    link_watch: Mutex<Option<LinkWatch>>,
    remove: bool,
    /// Packets that arrived as chains and were dropped.
    chained: AtomicU64,
    /// True if this driver may deliver chains of buffers although scattering is off.
    may_chain: bool,
    /// Administrative state: bursts go through to the driver.
    is_up: AtomicBool,
    /// Sockets of an AF_XDP device.
    sockets: Mutex<BTreeSet<RawFd>>,
    _eal: Eal,
}

/// A started queue to receive from; keeps the device open.
pub struct EthRx {
    dev: Arc<Dev>,
    queue: u16,
    _pool: Arc<DpdkPool>,
}

/// A started queue to send to; keeps the device open.
pub struct EthTx {
    dev: Arc<Dev>,
    queue: u16,
}

/// DPDK's loop-back device: what is sent to queue N waits in ring N until it is received from queue
/// N, also when the device closes.
const RING: &str = "net_ring";

/// DPDK's driver for TAP devices, which wants as many receive queues as transmit queues.
const TAP: &str = "net_tap";

/// The queues of a started device.
pub type EthQueues = (Vec<EthRx>, Vec<EthTx>);

impl EthDev {
    /// Attaches (hot-plugs if needed) and claims the device `devargs` names: a PCI address, a
    /// virtual device with its arguments, or `class=eth,mac=...` for one already attached.
    pub fn attach(eal: Eal, devargs: &str) -> Result<EthDev, DpdkError> {
        let mut claims = registry::lock();
        let (port, remove) = claims.attach(devargs.trim())?;
        let info = match eth_info::info(port) {
            Some(info) => info,
            None => {
                claims.release(port);
                return Err(DpdkError::new(format!("device '{devargs}'"), "vanished"));
            }
        };
        // Hardware keeps to its configuration, and net_null has no chains to give.
        let may_chain = info.bus.starts_with("bus_name=vdev") && info.driver != "net_null";
        let (chained, is_up) = (AtomicU64::new(0), AtomicBool::new(true));
        let sockets = Mutex::default();
        let has_rules = AtomicBool::new(false);
        let dev = Dev {
            port,
            info,
            has_rules,
            upsets: Mutex::default(),
            link_watch: Mutex::default(),
            remove,
            chained,
            may_chain,
            is_up,
            sockets,
            _eal: eal,
        };
        Ok(EthDev { dev: Arc::new(dev) })
    }

    /// Identity and capabilities.
    pub fn info(&self) -> &EthInfo {
        &self.dev.info
    }

    pub(crate) fn shared(&self) -> &Arc<Dev> {
        &self.dev
    }

    /// Configures and starts the device. On an error it is left stopped, and can be started again;
    /// but an AF_XDP device of DPDK 22.11 has to be attached anew.
    pub fn start(&self, config: &EthConfig) -> Result<EthQueues, DpdkError> {
        let claims = registry::lock();
        if self.dev.info.driver != xdp::DRIVER {
            return self.start_locked(&claims, config);
        }
        let before = xdp::sockets();
        let queues = self.start_locked(&claims, config);
        // A start that failed leaves some, too.
        let mut sockets = self.dev.sockets.lock().unwrap_or_else(|e| e.into_inner());
        sockets.extend(xdp::sockets().difference(&before));
        queues
    }

    fn start_locked(&self, claims: &Claims, config: &EthConfig) -> Result<EthQueues, DpdkError> {
        let info = &self.dev.info;
        let mut n_rxq = config.n_rxq.clamp(1, info.max_rx_queues.max(1));
        let mut n_txq = config.n_txq.clamp(1, info.max_tx_queues.max(1));
        if [RING, TAP].contains(&info.driver.as_str()) {
            // Of a loop-back device no thread would receive from the others.
            n_txq = n_txq.min(n_rxq);
        }
        // A device may offer more queues than it can set up: take what works.
        loop {
            if let Err(error) = self.configure(claims, config, n_rxq, n_txq) {
                // Some drivers want as many of one kind as of the other.
                if n_rxq == n_txq {
                    return Err(error);
                }
                (n_rxq, n_txq) = (n_rxq.min(n_txq), n_rxq.min(n_txq));
                continue;
            }
            match self.set_up_queues(config, n_rxq, n_txq) {
                Ok(()) => break,
                Err((rx, tx, error)) if rx == 0 || tx == 0 => return Err(error),
                Err((rx, tx, _)) => (n_rxq, n_txq) = (rx, tx),
            }
        }
        let port = self.dev.port;
        let watch = config.on_link_change.as_ref().and_then(|f| LinkWatch::new(port, f));
        *self.dev.link_watch.lock().unwrap_or_else(|e| e.into_inner()) = watch;
        // SAFETY: the port is claimed by us and configured.
        let ret = unsafe { sys::rte_eth_dev_start(port) };
        if ret < 0 {
            return Err(self.error("cannot start", ret));
        }
        // SAFETY: as above; drivers that know no such modes receive everything anyway.
        unsafe {
            sys::rte_eth_promiscuous_enable(port);
            sys::rte_eth_allmulticast_enable(port);
        }
        let rx = |queue| EthRx { dev: self.dev.clone(), queue, _pool: config.pool.clone() };
        let tx = |queue| EthTx { dev: self.dev.clone(), queue };
        Ok(((0..n_rxq).map(rx).collect(), (0..n_txq).map(tx).collect()))
    }

    fn error(&self, what: &str, ret: i32) -> DpdkError {
        DpdkError::code(format!("{what} {} port {}", self.dev.info.driver, self.dev.port), ret)
    }

    fn configure(
        &self,
        _: &Claims,
        config: &EthConfig,
        n_rxq: u16,
        n_txq: u16,
    ) -> Result<(), DpdkError> {
        let port = self.dev.port;
        let (least, most) = self.dev.info.mtu;
        if let Some(mtu) = config.mtu.filter(|mtu| !(least..=most).contains(mtu)) {
            let what = format!("cannot set MTU {mtu} of port {port}");
            return Err(DpdkError::new(what, format!("the device takes {least} to {most}")));
        }
        let rss = self.dev.info.rss & sys::WEFT_RSS;
        let checks = self.dev.info.checks_checksums();
        // SAFETY: all-zero is the default configuration; the call copies it.
        let ret = unsafe {
            let mut conf: sys::rte_eth_conf = std::mem::zeroed();
            conf.rxmode.mtu = config.mtu.unwrap_or(0).into();
            conf.rxmode.offloads = if checks { sys::WEFT_RX_CHECKSUMS } else { 0 };
            conf.intr_conf.set_lsc(config.on_link_change.is_some().into());
            if n_rxq > 1 && rss != 0 {
                conf.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
                conf.rx_adv_conf.rss_conf.rss_hf = rss;
            }
            sys::rte_eth_dev_configure(port, n_rxq, n_txq, &conf)
        };
        if ret < 0 {
            return Err(self.error("cannot configure", ret));
        }
        if let Some(mtu) = config.mtu {
            // SAFETY: the port is ours and configured.
            let ret = unsafe { sys::rte_eth_dev_set_mtu(port, mtu) };
            // A driver without the call keeps what the configuration said.
            if ret < 0 && ret != -libc::ENOTSUP {
                return Err(self.error(&format!("cannot set MTU {mtu} of"), ret));
            }
        }
        Ok(())
    }

    /// Sets up the queues; an error says how many queues of each kind worked.
    fn set_up_queues(
        &self,
        config: &EthConfig,
        n_rxq: u16,
        n_txq: u16,
    ) -> Result<(), (u16, u16, DpdkError)> {
        let (port, info) = (self.dev.port, &self.dev.info);
        // SAFETY (each call): the port is ours and configured with at least this many queues;
        // null means the driver's default thresholds; the pool lives for ever.
        for queue in 0..n_txq {
            let (n, numa) = (info.tx_desc.fit(config.n_txd), info.numa as u32);
            // SAFETY: see above.
            let ret =
                unsafe { sys::rte_eth_tx_queue_setup(port, queue, n, numa, std::ptr::null()) };
            if ret < 0 {
                let error = self.error(&format!("cannot set up transmit queue {queue} of"), ret);
                return Err((n_rxq, queue, error));
            }
        }
        for queue in 0..n_rxq {
            let (n, numa) = (info.rx_desc.fit(config.n_rxd), info.numa as u32);
            let pool = config.pool.raw();
            // SAFETY: see above.
            let ret = unsafe {
                sys::rte_eth_rx_queue_setup(port, queue, n, numa, std::ptr::null(), pool)
            };
            if ret < 0 {
                let error = self.error(&format!("cannot set up receive queue {queue} of"), ret);
                return Err((queue, n_txq, error));
            }
        }
        Ok(())
    }

    /// MAC address.
    pub fn mac(&self) -> [u8; 6] {
        eth_info::mac(self.dev.port)
    }

    /// Layer-3 MTU.
    pub fn mtu(&self) -> u16 {
        let mut mtu = 1500;
        // SAFETY: writes one u16.
        unsafe { sys::rte_eth_dev_get_mtu(self.dev.port, &mut mtu) };
        mtu
    }

    /// Link state now.
    pub fn link(&self) -> EthLink {
        eth_info::link(self.dev.port)
    }

    /// Counters since the device was started.
    pub fn stats(&self) -> EthStats {
        eth_info::stats(self.dev.port)
    }

    /// Packets dropped because they came as chains of buffers.
    pub fn chained_drops(&self) -> u64 {
        self.dev.chained.load(Ordering::Relaxed)
    }

    /// Administrative state: down, nothing is received or sent.
    pub fn set_up(&self, up: bool) {
        let _claims = registry::lock();
        self.dev.is_up.store(up, Ordering::Relaxed);
        // SAFETY: the port is ours. Drivers without the call are held by the flag alone.
        unsafe {
            match up {
                true => sys::rte_eth_dev_set_link_up(self.dev.port),
                false => sys::rte_eth_dev_set_link_down(self.dev.port),
            };
        }
    }

    /// Administrative state.
    pub fn is_up(&self) -> bool {
        self.dev.is_up.load(Ordering::Relaxed)
    }

    /// Resets and removals of the adapter, counted from the first call on.
    pub fn upsets(&self) -> Arc<AtomicU32> {
        self.dev.upsets.lock().unwrap_or_else(|e| e.into_inner()).watch(self.dev.port)
    }

    /// Resets of the adapter that its driver reports (`RTE_ETH_EVENT_INTR_RESET`), counted from the
    /// first call on: that of a virtual function does so when its physical function was changed.
    pub fn resets(&self) -> Arc<AtomicU32> {
        self.dev.upsets.lock().unwrap_or_else(|e| e.into_inner()).watch_resets(self.dev.port)
    }
}

impl Dev {
    /// Frees what waits in the rings of a loop-back device, which its driver forgets.
    fn empty_rings(&self, n_rxq: u16) {
        let mut packets: Vec<Packet> = Vec::with_capacity(256);
        for queue in 0..n_rxq {
            // SAFETY: the queue exists and no other thread polls it any more; room for 256 packets.
            while unsafe {
                let n = sys::weft_rx_burst(self.port, queue, packets.as_mut_ptr().cast(), 256);
                packets.set_len(n as usize);
                n > 0
            } {
                pool::free(&packets);
            }
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let mut claims = registry::lock();
        let raw = eth_info::raw_info(self.port);
        if self.info.driver == RING {
            self.empty_rings(raw.as_ref().map_or(0, |raw| raw.nb_rx_queues));
        }
        let device = raw.map(|raw| raw.device);
        self.upsets.get_mut().unwrap_or_else(|e| e.into_inner()).end(self.port);
        drop(self.link_watch.get_mut().unwrap_or_else(|e| e.into_inner()).take());
        if *self.has_rules.get_mut() {
            crate::rules::flush(self.port);
        }
        // SAFETY: no queue handle is left, so no thread polls; the port is ours. The device is
        // removed only if we attached it and no other port lives on it.
        unsafe {
            sys::rte_eth_dev_stop(self.port);
            sys::rte_eth_dev_close(self.port);
            if let Some(device) = device.filter(|d| self.remove && !d.is_null()) {
                let shared = |port| eth_info::raw_info(port).is_some_and(|i| i.device == device);
                if !registry::ports().any(shared) {
                    sys::rte_dev_remove(device);
                }
            }
        }
        xdp::close(self.sockets.get_mut().unwrap_or_else(|e| e.into_inner()));
        claims.release(self.port);
    }
}

impl EthRx {
    /// Appends up to `max` packets to `out`, as far as it has room; returns how many.
    #[inline]
    pub fn burst(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let room = (out.capacity() - out.len()).min(max).min(u16::MAX as usize) as u16;
        if room == 0 || !self.dev.is_up.load(Ordering::Relaxed) {
            return 0;
        }
        // SAFETY: the queue is started (type invariant) and polled by its one owner; `room`
        // pointers fit behind the vector's end, and the driver writes the first `n` of them.
        let n = unsafe {
            let end = out.as_mut_ptr().add(out.len());
            let n = sys::weft_rx_burst(self.dev.port, self.queue, end.cast(), room) as usize;
            out.set_len(out.len() + n);
            n
        };
        if !self.dev.may_chain || n == 0 {
            return n;
        }
        let start = out.len() - n;
        let chains = drop_chains(out, start);
        if chains > 0 {
            self.dev.chained.fetch_add(chains as u64, Ordering::Relaxed);
        }
        n - chains
    }
}

impl EthTx {
    /// Sends from the front; returns how many packets the driver took. A device that is
    /// administratively down takes none.
    #[inline]
    pub fn burst(&mut self, packets: &[Packet]) -> usize {
        if !self.dev.is_up.load(Ordering::Relaxed) {
            return 0;
        }
        let n = packets.len().min(u16::MAX as usize) as u16;
        // SAFETY: the queue is started and used by its one owner; the caller owns the packets and
        // gives up those taken. Drivers do not write the array of pointers.
        unsafe {
            let pointers = packets.as_ptr().cast_mut().cast();
            sys::weft_tx_burst(self.dev.port, self.queue, pointers, n) as usize
        }
    }
}
