//! Ports of type `tap` and `internal`: a TAP device that the switch makes, with the port's name.
//!
//! The device's transmit side is the switch's receive side. The device has no offloads, so each
//! frame comes complete: with checksums, segmented, with its VLAN tags. Offloads would stay on the
//! device if the daemon crashed, and ovs-vswitchd, which may take the device over, does not expect
//! them. Only with `userspace-tso-enable` the kernel leaves checksums and segments to the switch.
//! In the other direction segments that follow each other are merged ([`wire::merge`]).

use crate::cutting::{Cutting, Spill, complete};
use crate::device::Device;
use crate::inquiry::TapAnswer;
use crate::netlink::{KernelStats, LinkChange};
use crate::stats::Stats;
use crate::sys::{check, failed, ifreq, open_failed, socket};
use crate::tc::TrafficControl;
use crate::vectors::{FRAME_PACKETS_MAX, VECTORS_MAX, vectors_of};
use crate::{Counters, DeviceAnswer, Inquiry, Link, Port, PortConfig, PortError, RxQueue, TxQueue};
use libc::{c_int, iovec};
use packet::{BURST, Packet, Pool};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telemetry::Drop as Reason;
use wire::merge::Merged;
use wire::vnet::{VNET_LEN, VnetHeader};

const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETPERSIST: u64 = 0x4004_54cb;
const TUNGETIFF: u64 = 0x8004_54d2;
const TUNGETDEVNETNS: u64 = 0x54e3;
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`.
const TSO: c_int = 1 | 2 | 4;
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;

/// A TAP device.
pub struct TapPort {
    /// The interface's name, of which the device has the first letters.
    name: String,
    kind: String,
    device: Device,
    stats: Arc<Stats>,
    tap: Arc<Tap>,
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
}

/// The open device, shared by both queues and the port. Closing it removes the device.
struct Tap {
    fd: OwnedFd,
    gone: AtomicBool,
}

impl Tap {
    /// Makes the device, or takes over a persistent one of that name that is not in use.
    fn create(name: &str) -> io::Result<Self> {
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let mut req = ifreq(name).ok_or_else(invalid)?;
        req.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        let tap = Tap { fd: open.into(), gone: AtomicBool::new(false) };
        // SAFETY: TUNSETIFF reads and writes an ifreq.
        check(unsafe { libc::ioctl(tap.fd.as_raw_fd(), TUNSETIFF as _, &mut req) })?;
        let header = VNET_LEN as c_int;
        // SAFETY: TUNSETVNETHDRSZ reads a number.
        check(unsafe { libc::ioctl(tap.fd.as_raw_fd(), TUNSETVNETHDRSZ as _, &header) })?;
        tap.persist(false)?;
        Ok(tap)
    }

    fn persist(&self, on: bool) -> io::Result<()> {
        // SAFETY: TUNSETPERSIST takes a number.
        let ret = unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNSETPERSIST as _, c_int::from(on)) };
        check(ret).map(drop)
    }

    /// Sets whether the kernel leaves checksums and segments of TCP to the switch, or does all
    /// itself.
    fn set_tso(&self, on: bool) -> io::Result<()> {
        let bits = if on { TSO } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes a number.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNSETOFFLOAD as _, bits) }).map(drop)
    }

    /// An error if the device does not exist any more, in any namespace.
    fn attached(&self) -> io::Result<()> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        // SAFETY: plain data for which all-zero is valid.
        let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: TUNGETIFF writes an ifreq.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNGETIFF as _, &mut req) }).map(drop)
    }

    /// Finds the device, which may have been moved to another namespace.
    fn find(&self, name: &str, pool: &Arc<dyn Pool>) -> io::Result<Device> {
        // SAFETY: the request takes no argument; the descriptor that it returns is ours.
        let ns = unsafe {
            let fd = check(libc::ioctl(self.fd.as_raw_fd(), TUNGETDEVNETNS as _, 0))?;
            OwnedFd::from_raw_fd(fd)
        };
        let inside = || {
            // SAFETY: changes the namespace of this thread only, which ends at once.
            check(unsafe { libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNET) })?;
            Device::find_elsewhere(name, pool)
        };
        std::thread::scope(|s| s.spawn(inside).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread died")))
    }

    /// Silences the descriptor of a deleted device, which would report errors for ever: its number
    /// is given to a socket that never becomes readable and takes no data.
    fn silence(&self) {
        self.gone.store(true, Ordering::Relaxed);
        let Ok(quiet) = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0) else { return };
        // SAFETY: both descriptors are ours and open; `fd` keeps its number and its owner.
        unsafe { libc::dup3(quiet.as_raw_fd(), self.fd.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

impl TapPort {
    /// Makes the device and leaves it down: the user brings it up. If it refuses an MTU or MAC it
    /// is opened all the same: `mtu` and `mac` return the present values, and `reconfigure` the
    /// reason.
    pub fn open(config: &PortConfig, pool: Arc<dyn Pool>) -> Result<Self, PortError> {
        let fail = |e: io::Error| open_failed(&config.name, &e);
        let named = device_name(&config.name);
        let tap = Arc::new(Tap::create(named).map_err(fail)?);
        tap.set_tso(config.userspace_tso).map_err(fail)?;
        let mut device = Device::find(named, &pool).map_err(fail)?;
        let _ = device.configure(config);
        let stats = Arc::new(Stats::default());
        let rx = TapRx {
            tap: tap.clone(),
            pool: pool.clone(),
            stats: stats.clone(),
            spare: Vec::new(),
            spill: Spill::new(1).map_err(fail)?,
            cutting: Cutting::default(),
            tso: config.userspace_tso,
        };
        let tx = TapTx { tap: tap.clone(), pool, stats: stats.clone() };
        Ok(TapPort {
            name: config.name.clone(),
            kind: config.kind.clone(),
            device,
            stats,
            tap,
            rx: Some(Box::new(rx)),
            tx: Some(Box::new(tx)),
        })
    }
}

/// As much of an interface's name as the kernel takes, as in ovs-vswitchd.
fn device_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(libc::IFNAMSIZ - 1)]
}

struct TapRx {
    tap: Arc<Tap>,
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
    spare: Vec<Packet>,
    /// The part of a frame that does not fit into an ordinary packet buffer.
    spill: Spill,
    cutting: Cutting,
    /// The kernel may leave checksums and segments to the switch.
    tso: bool,
}

/// The result of one attempt to read a frame.
enum Read {
    Frame(Packet),
    /// The frame is being segmented, or was dropped and counted, or the call was interrupted:
    /// another attempt may succeed.
    Nothing,
    /// No frame waits.
    Empty,
}

impl TapRx {
    /// Reads a frame into an empty packet, and the part that does not fit into `spill`; returns its
    /// length, None if it is longer than both, and what is left to do. Of a frame for which no
    /// buffer is large enough, the kernel copies only as much as is needed to notice that, unless
    /// it may have to be cut.
    fn read(&mut self, p: &mut Packet) -> io::Result<(Option<usize>, VnetHeader)> {
        let room = Spill::head_len(p);
        let spill = self.spill.tail_mut(0);
        let most = if self.tso { spill.len() } else { self.pool.room().saturating_sub(room) + 1 };
        let usable = most.min(spill.len());
        let mut header = [0u8; VNET_LEN];
        let iov = [
            iovec { iov_base: header.as_mut_ptr().cast(), iov_len: VNET_LEN },
            iovec { iov_base: p.data_mut().as_mut_ptr().cast(), iov_len: room },
            iovec { iov_base: spill.as_mut_ptr().cast(), iov_len: usable },
        ];
        // SAFETY: the pieces are writable for the lengths given.
        let n = unsafe { libc::readv(self.tap.fd.as_raw_fd(), iov.as_ptr(), iov.len() as c_int) };
        let len = (check(n as c_int)? as usize).saturating_sub(VNET_LEN);
        Ok((Some(len).filter(|len| *len <= room + usable), VnetHeader::read(&header)))
    }

    /// Makes a packet of the frame of `len` bytes in `p` and `spill`, or begins to segment it. On
    /// return `p` is empty, or the packet.
    fn finish(&mut self, mut p: Packet, len: usize, h: &VnetHeader) -> Read {
        let head = len.min(Spill::head_len(&p));
        let tail = len - head;
        let _ = p.set_len(head);
        let result = if h.gso != 0 {
            let begun = self.cutting.begin(&mut self.spill, (0, p.data(), tail), h, None);
            let _ = p.set_len(0);
            self.spare.push(p);
            begun.map(|()| Read::Nothing)
        } else {
            let whole = if tail == 0 {
                Ok(p)
            } else {
                let large = self.spill.large(0, (p.data(), tail), &*self.pool);
                let _ = p.set_len(0);
                self.spare.push(p);
                large
            };
            whole.and_then(|mut p| match complete(&mut p, h, None) {
                Ok(()) => Ok(Read::Frame(p)),
                Err(reason) => {
                    self.pool.free(&[p]);
                    Err(reason)
                }
            })
        };
        result.unwrap_or_else(|reason| {
            self.stats.rx.drop(reason, 1);
            Read::Nothing
        })
    }

    /// Discards up to `n` waiting frames for which there are no buffers: otherwise they would keep
    /// the descriptor readable, and its thread would spin.
    fn discard(&self, n: usize) {
        let mut some = [0u8; VNET_LEN + 1];
        for _ in 0..n {
            // SAFETY: the buffer is writable for its length.
            let n = unsafe {
                libc::read(self.tap.fd.as_raw_fd(), some.as_mut_ptr().cast(), some.len())
            };
            if n < 0 {
                let gone = io::Error::last_os_error().raw_os_error() == Some(libc::EBADFD);
                return if gone {
                    self.tap.silence()
                };
            }
            self.stats.rx.drop(Reason::NoBuffer, 1);
        }
    }

    /// Makes segments of the frame that is being segmented, until `out` has `end` packets.
    fn segment(&mut self, end: usize, out: &mut Vec<Packet>) {
        let buffers = (&mut self.spare, &*self.pool);
        self.cutting.segment(end - out.len(), &self.spill, buffers, &self.stats, out);
    }

    /// Attempts to read one frame. There is a spare packet.
    fn next(&mut self) -> Read {
        let Some(mut p) = self.spare.pop() else { return Read::Empty };
        let error = match self.read(&mut p) {
            Ok((Some(len), h)) => return self.finish(p, len, &h),
            Ok((None, _)) => {
                self.spare.push(p);
                self.stats.rx.drop(Reason::TooLong, 1);
                return Read::Nothing;
            }
            Err(e) => e.raw_os_error().unwrap_or(0),
        };
        self.spare.push(p);
        match error {
            libc::EINTR => return Read::Nothing,
            libc::EAGAIN => {}
            libc::EBADFD | libc::ENODEV => self.tap.silence(),
            _ => self.stats.rx.error(),
        }
        Read::Empty
    }
}

impl RxQueue for TapRx {
    /// Makes at most `max` attempts, whatever their results, and up to `max` packets.
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        if self.tap.gone.load(Ordering::Relaxed) {
            return 0;
        }
        let before = out.len();
        let end = before + max;
        self.segment(end, out);
        for attempt in 0..max {
            if out.len() == end {
                break;
            }
            if self.spare.is_empty() && !self.pool.alloc(&mut self.spare, BURST) {
                self.discard(max - attempt);
                break;
            }
            match self.next() {
                Read::Frame(p) => out.push(p),
                Read::Nothing => self.segment(end, out),
                Read::Empty => {
                    // There may be thousands of ports: who waits for frames holds no buffers.
                    self.pool.free(&self.spare);
                    self.spare.clear();
                    break;
                }
            }
        }
        let n = out.len() - before;
        self.stats.rx.pass(n, out[before..].iter().map(Packet::len).sum());
        n
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.tap.fd.as_raw_fd())
    }
}

impl Drop for TapRx {
    fn drop(&mut self) {
        self.pool.free(&self.spare);
    }
}

struct TapTx {
    tap: Arc<Tap>,
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
}

impl TapTx {
    /// Writes one frame made of these packets; Err(None): the kernel is to be asked again later.
    fn write(&self, packets: &[Packet], merged: Option<&Merged>) -> Result<(), Option<Reason>> {
        if self.tap.gone.load(Ordering::Relaxed) {
            return Err(Some(Reason::TxDown));
        }
        let mut iov = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; VECTORS_MAX];
        let pieces = vectors_of(packets, merged, &mut iov) as c_int;
        loop {
            // SAFETY: the packets' data and the headers are readable for their lengths.
            let n = unsafe { libc::writev(self.tap.fd.as_raw_fd(), iov.as_ptr(), pieces) };
            let Err(e) = check(n as c_int) else { return Ok(()) };
            return Err(match e.raw_os_error().unwrap_or(0) {
                libc::EINTR => continue,
                libc::EAGAIN => None,
                libc::EINVAL => Some(Reason::Truncated),
                libc::ENOMEM | libc::ENOBUFS => Some(Reason::TxFull),
                _ => Some(Reason::TxDown),
            });
        }
    }

    /// Sends a frame of the first packets, as many as can be merged; how many those are, and what
    /// became of them. A frame that the kernel refuses is sent as the packet that is the first.
    fn send(&self, packets: &[Packet]) -> (usize, Result<(), Option<Reason>>) {
        let whole = packets.iter().take(FRAME_PACKETS_MAX).take_while(|p| p.segments() == 1);
        let Some(merged) = Merged::new(whole.map(|p| (p.data(), p.has_sound_checksums()))) else {
            return (1, self.write(&packets[..1], None));
        };
        match self.write(&packets[..merged.segments], Some(&merged)) {
            Err(Some(Reason::Truncated)) => (1, self.write(&packets[..1], None)),
            result => (merged.segments, result),
        }
    }
}

impl TxQueue for TapTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        self.tx_some(packets, packets.len())
    }

    fn tx_some(&mut self, packets: &[Packet], enough: usize) -> usize {
        let mut taken = 0;
        while let [first, ..] = &packets[taken..]
            && taken < enough
        {
            let (n, result) = match first.segments() {
                1 => self.send(&packets[taken..]),
                _ => (1, Err(Some(Reason::Segmented))),
            };
            let sent = &packets[taken..taken + n];
            match result {
                Ok(()) => self.stats.tx.pass(n, sent.iter().map(Packet::len).sum()),
                Err(Some(reason)) => self.stats.tx.drop(reason, n as u64),
                Err(None) => break,
            }
            taken += n;
        }
        self.pool.free(&packets[..taken]);
        taken
    }
}

/// The kernel's counters from the switch's point of view: packets that the device could not
/// transmit for lack of room in its queue are not received here. Its receive side needs no change:
/// the switch counts writes that fail.
fn as_switch_sees(kernel: &KernelStats) -> KernelStats {
    let mut out = KernelStats::default();
    out.0[KernelStats::RX_DROPPED] = kernel.0[KernelStats::TX_DROPPED];
    out.0[KernelStats::RX_ERRORS] = kernel.0[KernelStats::TX_ERRORS];
    out
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &str {
        &self.kind
    }
    fn take_rx(&mut self, i: usize) -> Option<Box<dyn RxQueue>> {
        if i == 0 { self.rx.take() } else { None }
    }
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        if i == 0 { self.tx.take() } else { None }
    }
    fn mac(&self) -> [u8; 6] {
        self.device.last().mac
    }
    fn mtu(&self) -> u16 {
        u16::try_from(self.device.last().mtu).unwrap_or(u16::MAX)
    }
    fn ifindex(&self) -> Option<u32> {
        Some(self.device.ifindex)
    }
    fn traffic_control(&self) -> Option<TrafficControl> {
        Some(self.device.traffic_control())
    }
    fn health(&mut self) -> Result<(), PortError> {
        self.tap.attached().map_err(|e| open_failed(&self.name, &e))
    }
    fn complaint(&mut self) -> Option<String> {
        self.device.complaint()
    }
    fn set_persistent(&mut self, on: bool) -> Result<(), PortError> {
        self.tap.persist(on).map_err(|e| failed(&self.name, "setting persistence", e))
    }
    fn link(&mut self) -> Link {
        if self.device.refresh().is_err()
            && let Ok(found) = self.tap.find(&self.device.name, self.device.pool())
        {
            self.device.moved(found);
        }
        self.device.link()
    }
    fn last_link(&mut self) -> Link {
        self.device.last_link()
    }
    fn inquiry(&mut self) -> Option<Inquiry> {
        let (tap, name, pool) =
            (self.tap.clone(), self.device.name.clone(), self.device.pool().clone());
        let ask = move |is_here: bool| {
            let attached = tap.attached();
            let is_elsewhere = attached.is_ok() && !is_here;
            let moved = if is_elsewhere { tap.find(&name, &pool).ok() } else { None };
            TapAnswer { attached, moved }
        };
        Some(Inquiry { tap: Some(Box::new(ask)), ..self.device.inquiry() })
    }
    fn answered(&mut self, mut answer: DeviceAnswer) -> Result<(), PortError> {
        let moved = match answer.tap.take() {
            Some(TapAnswer { attached, moved }) => {
                attached.map_err(|e| open_failed(&self.name, &e))?;
                moved
            }
            None => None,
        };
        match moved {
            Some(found) => self.device.moved(found),
            // One that is seen in no namespace is on its way to another, or is going.
            None => drop(self.device.answered(answer)),
        }
        Ok(())
    }
    fn set_admin_up(&mut self, up: bool) -> Result<(), PortError> {
        self.device.change(LinkChange::AdminUp(up), "setting the administrative state")
    }
    fn counters(&mut self) -> Counters {
        let kernel = as_switch_sees(&self.device.stats());
        self.stats.counters(&kernel)
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        self.device.status()
    }
    fn reconfigure(&mut self, config: &PortConfig) -> Result<bool, PortError> {
        if config.name != self.name || config.kind != self.kind {
            return Ok(false);
        }
        self.device.configure(config).map(|()| true)
    }
}
