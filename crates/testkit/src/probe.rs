//! Packet sockets of the tests' own: a frame in at one device, whatever comes out at others.

use crate::{Netns, Result};
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// Bytes of memory for frames that were not read yet; the kernel's own limit is some 90 frames,
/// which a switch sends while its test waits for a core.
const WAITING_MAX: c_int = 4 << 20;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;

/// A raw socket on one device: sends frames as they are, receives all that come in, with the VLAN
/// tag that the kernel takes out put back. What it sends itself it does not see.
pub struct Raw {
    fd: OwnedFd,
}

impl Raw {
    /// Opens a device in a namespace.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn open(ns: &Netns, dev: &str) -> Result<Raw> {
        ns.run(|| Raw::here(dev)).map_err(|e| format!("raw socket on {dev}: {e}"))
    }

    /// Opens a device in the namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn here(dev: &str) -> io::Result<Raw> {
        let name = CString::new(dev)?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain calls; the descriptor that is returned is ours; addresses and options are
        // plain data of the lengths given.
        unsafe {
            let raw = check(libc::socket(libc::AF_PACKET, kind, 0))?;
            let fd = OwnedFd::from_raw_fd(raw);
            let mut addr: libc::sockaddr_ll = std::mem::zeroed();
            addr.sll_family = libc::AF_PACKET as u16;
            addr.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            addr.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            if addr.sll_ifindex == 0 {
                return Err(io::Error::last_os_error());
            }
            let one: c_int = 1;
            for option in [PACKET_IGNORE_OUTGOING, PACKET_AUXDATA] {
                let value = (&raw const one).cast();
                check(libc::setsockopt(raw, libc::SOL_PACKET, option, value, 4))?;
            }
            let (limit, force) = (WAITING_MAX, libc::SO_RCVBUFFORCE);
            check(libc::setsockopt(raw, libc::SOL_SOCKET, force, (&raw const limit).cast(), 4))?;
            let mut member: libc::packet_mreq = std::mem::zeroed();
            member.mr_ifindex = addr.sll_ifindex;
            member.mr_type = libc::PACKET_MR_PROMISC as u16;
            let (value, len) = ((&raw const member).cast(), size_of_val(&member) as u32);
            let add = libc::PACKET_ADD_MEMBERSHIP;
            check(libc::setsockopt(raw, libc::SOL_PACKET, add, value, len))?;
            check(libc::bind(raw, (&raw const addr).cast(), size_of_val(&addr) as u32))?;
            Ok(Raw { fd })
        }
    }

    /// From now on each frame to send begins with a virtio-net header (10 bytes), which may leave
    /// checksums and segmentation to the receiver.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn leave_work(&self) -> Result<()> {
        let one: c_int = 1;
        let value = (&raw const one).cast();
        // SAFETY: an option of four bytes.
        let ret = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, value, 4)
        };
        check(ret).map(drop).map_err(|e| format!("PACKET_VNET_HDR: {e}"))
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        // SAFETY: the frame is readable for its length.
        let n = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        let n = check(n as c_int).map_err(|e| format!("sending {} bytes: {e}", frame.len()))?;
        if n as usize == frame.len() { Ok(()) } else { Err("a frame was sent in part".into()) }
    }

    /// The next frame, if one comes before `deadline`.
    pub fn receive(&self, deadline: Instant) -> Option<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut p = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        let ready = unsafe { libc::poll(&mut p, 1, left.as_millis() as c_int) };
        if ready > 0 { self.read() } else { None }
    }

    /// All frames until `n` came for which `want` holds, or `deadline` passed.
    pub fn collect(
        &self,
        n: usize,
        deadline: Instant,
        want: impl Fn(&[u8]) -> bool,
    ) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < n {
            let Some(f) = self.receive(deadline) else { break };
            if want(&f) {
                out.push(f);
            }
        }
        out
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0u8; 70_000];
        let mut control = [0u64; 8];
        let mut iov =
            libc::iovec { iov_base: frame.as_mut_ptr().cast::<c_void>(), iov_len: frame.len() };
        // SAFETY: plain data for which all-zero is valid; what it points to outlives the call.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = size_of_val(&control) as _;
        // SAFETY: as above.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut msg, libc::MSG_DONTWAIT) };
        frame.truncate(usize::try_from(n).ok()?);
        if let Some(tag) = stripped_tag(&msg) {
            frame.splice(12..12, tag);
        }
        Some(frame)
    }
}

/// The VLAN tag that the kernel took out (`struct tpacket_auxdata`).
fn stripped_tag(msg: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the control buffer is the kernel's work and still lives; auxdata is 20 bytes.
    let aux = unsafe {
        let c = libc::CMSG_FIRSTHDR(msg);
        if c.is_null() || (*c).cmsg_type != PACKET_AUXDATA {
            return None;
        }
        libc::CMSG_DATA(c).cast::<[u8; 20]>().read_unaligned()
    };
    let status = u32::from_ne_bytes([aux[0], aux[1], aux[2], aux[3]]);
    let tci = u16::from_ne_bytes([aux[16], aux[17]]);
    let known = status & VLAN_TPID_VALID != 0;
    let tpid = if known { u16::from_ne_bytes([aux[18], aux[19]]) } else { wire::ETH_VLAN };
    (status & VLAN_VALID != 0).then(|| wire::VlanTag { tpid, tci }.to_bytes())
}

fn check(ret: c_int) -> io::Result<c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Sockets on the far ends of a switch's ports.
#[derive(Default)]
pub struct Probe {
    ends: BTreeMap<String, Raw>,
}

impl Probe {
    /// A probe without sockets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the end of a cable under its device name.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn add(&mut self, ns: &Netns, dev: &str) -> Result<()> {
        self.ends.insert(dev.into(), Raw::open(ns, dev)?);
        Ok(())
    }

    /// Sends `frame` into the cable at `dev` and gathers, by device, what comes out of all ends
    /// until nothing came for `quiet`. Ends at which nothing came are absent.
    ///
    /// # Errors
    /// When `dev` is not an end or the kernel refuses the frame.
    pub fn inject(&self, dev: &str, frame: &[u8], quiet: Duration) -> Result<Gathered> {
        self.gather(Duration::ZERO);
        self.ends.get(dev).ok_or_else(|| format!("no end {dev}"))?.send(frame)?;
        Ok(self.gather(quiet))
    }

    /// What comes out of all ends until nothing came for `quiet`.
    pub fn gather(&self, quiet: Duration) -> Gathered {
        let mut out = Gathered::new();
        let mut end = Instant::now() + quiet;
        loop {
            let mut any = false;
            for (dev, raw) in &self.ends {
                while let Some(f) = raw.read() {
                    out.entry(dev.clone()).or_default().push(f);
                    any = true;
                }
            }
            if any {
                end = Instant::now() + quiet;
            } else if Instant::now() >= end {
                return out;
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Frames by the device at which they came out.
type Gathered = BTreeMap<String, Vec<Vec<u8>>>;
