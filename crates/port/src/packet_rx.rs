//! The receive side of a packet socket: recvmmsg directly into packet buffers, then what the kernel
//! left undone: the VLAN tag that it removed, checksums, segmentation.
//!
//! A frame that the kernel did not segment is segmented when packets are asked for. Between two
//! calls a queue holds at most [`BURST`] received frames and as many empty packets, whatever the
//! frames contain; one in which no frame waits holds none.

use crate::RxQueue;
use crate::cutting::{Cutting, Spill, complete};
use crate::stats::Stats;
use libc::{c_int, c_void, iovec, mmsghdr, msghdr};
use packet::{BURST, Packet, Pool};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use telemetry::Drop as Reason;
use wire::vnet::{VNET_LEN, VnetHeader};

const PACKET_AUXDATA: c_int = 8;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
/// Errors in a row after which a call gives up until the next one.
const MAX_ERRORS: usize = BURST;

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Auxdata {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// Room for one control message, aligned as the kernel wants it.
type Control = [u64; 8];

/// Receive queue of a system port.
pub struct PacketRx {
    fd: Arc<OwnedFd>,
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
    /// Empty packets, at most [`BURST`] between two calls.
    spare: Vec<Packet>,
    /// The packets of the last system call, by index.
    batch: Vec<Packet>,
    /// Frames of the last system call that are not packets yet, in order.
    waiting: VecDeque<Received>,
    cutting: Cutting,
    vnet: Vec<[u8; VNET_LEN]>,
    control: Vec<Control>,
    /// Memory for each index, for the part of a frame that does not fit into its packet buffer.
    spill: Spill,
}

/// What is known of a received frame besides its bytes.
struct Received {
    index: usize,
    len: usize,
    truncated: bool,
    tag: Option<[u8; 4]>,
}

impl PacketRx {
    pub fn new(fd: Arc<OwnedFd>, pool: Arc<dyn Pool>, stats: Arc<Stats>) -> io::Result<Self> {
        Ok(PacketRx {
            fd,
            pool,
            stats,
            spare: Vec::with_capacity(2 * BURST),
            batch: Vec::with_capacity(BURST),
            waiting: VecDeque::with_capacity(BURST),
            cutting: Cutting::default(),
            vnet: vec![[0; VNET_LEN]; BURST],
            control: vec![Control::default(); BURST],
            spill: Spill::new(BURST)?,
        })
    }

    /// Receives as many frames as `batch` has packets, and queues them.
    fn receive(&mut self) {
        let n = self.batch.len();
        let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut iov = [[none; 3]; BURST];
        // SAFETY: plain data for which all-zero is valid.
        let mut msgs: [mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        for i in 0..n {
            let spill = self.spill.tail_mut(i);
            let tail = iovec { iov_base: spill.as_mut_ptr().cast(), iov_len: spill.len() };
            iov[i] = [whole_iov(&mut self.vnet[i]), head_iov(&mut self.batch[i]), tail];
            msgs[i].msg_hdr.msg_iov = iov[i].as_mut_ptr();
            msgs[i].msg_hdr.msg_iovlen = iov[i].len() as _;
            msgs[i].msg_hdr.msg_control = self.control[i].as_mut_ptr().cast::<c_void>();
            msgs[i].msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        let got = self.recvmmsg(&mut msgs[..n]);
        let of = |i: usize| Received {
            index: i,
            len: (msgs[i].msg_len as usize).saturating_sub(VNET_LEN),
            truncated: msgs[i].msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            tag: stripped_tag(&msgs[i].msg_hdr),
        };
        self.waiting.extend((0..got).map(of));
        // Frames are in the order of indices: packets without a frame are the last ones.
        self.spare.extend(self.batch.drain(got..));
    }

    fn recvmmsg(&self, msgs: &mut [mmsghdr]) -> usize {
        for _ in 0..MAX_ERRORS {
            // SAFETY: the headers and all they point to live in our caller and in `self`.
            let n = unsafe {
                libc::recvmmsg(
                    self.fd.as_raw_fd(),
                    msgs.as_mut_ptr(),
                    msgs.len() as u32,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            if n >= 0 {
                return n as usize;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                // A frame whose offloads a virtio header cannot express; the kernel dropped it.
                Some(libc::EINVAL) => self.stats.rx.drop(Reason::BadOffload, 1),
                // This is reported once when the device goes down or is removed; reading continues,
                // as it may return.
                Some(libc::ENETDOWN) => {}
                Some(libc::EAGAIN) => return 0,
                _ => {
                    self.stats.rx.error();
                    return 0;
                }
            }
        }
        0
    }

    /// Makes a packet of a received frame, or begins to segment it and keeps its buffer as spare.
    fn finish(&mut self, r: &Received, out: &mut Vec<Packet>) {
        // SAFETY: a frame is finished once, and its place gets another buffer before it is used.
        let mut p = unsafe { self.batch[r.index].duplicate() };
        let h = VnetHeader::read(&self.vnet[r.index]);
        let head = r.len.min(Spill::head_len(&p));
        let tail = r.len - head;
        let _ = p.set_len(head);
        let result = if r.truncated {
            Err(Reason::TooLong)
        } else if h.gso != 0 {
            let frame = (r.index, p.data(), tail);
            let begun = self.cutting.begin(&mut self.spill, frame, &h, r.tag);
            let _ = p.set_len(0);
            self.spare.push(p);
            return begun.unwrap_or_else(|reason| self.stats.rx.drop(reason, 1));
        } else if tail > 0 {
            let large = self.spill.large(r.index, (p.data(), tail), &*self.pool);
            let _ = p.set_len(0);
            self.spare.push(p);
            match large {
                Ok(large) => p = large,
                Err(reason) => return self.stats.rx.drop(reason, 1),
            }
            complete(&mut p, &h, r.tag)
        } else {
            complete(&mut p, &h, r.tag)
        };
        match result {
            Ok(()) => out.push(p),
            Err(reason) => {
                self.stats.rx.drop(reason, 1);
                self.pool.free(&[p]);
            }
        }
    }

    /// Discards up to `n` waiting frames for which there are no buffers: otherwise they would keep
    /// the descriptor readable, and its thread would spin.
    fn discard(&self, n: usize) {
        let mut some = [0u8; 2 * VNET_LEN];
        for _ in 0..n {
            // SAFETY: the buffer is writable for its length.
            let got = unsafe {
                let (fd, to) = (self.fd.as_raw_fd(), some.as_mut_ptr().cast());
                libc::recv(fd, to, some.len(), libc::MSG_DONTWAIT | libc::MSG_TRUNC)
            };
            if got < 0 {
                return;
            }
            self.stats.rx.drop(Reason::NoBuffer, 1);
        }
    }

    /// Receives up to `n` frames, if all frames of the last call are packets.
    fn ask(&mut self, n: usize) {
        // Its packets were returned or moved to `spare`.
        self.batch.clear();
        let have = self.spare.len();
        if have < n {
            let _ = self.pool.alloc(&mut self.spare, n - have);
        }
        let keep = self.spare.len().saturating_sub(n);
        self.batch.extend(self.spare.drain(keep..));
        match self.batch.is_empty() {
            true => self.discard(n),
            false => self.receive(),
        }
    }
}

impl RxQueue for PacketRx {
    /// Makes one system call, or continues with the frames of the last one: handles up to [`BURST`]
    /// frames, and makes up to `max` packets of them.
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let before = out.len();
        if self.cutting.is_done() && self.waiting.is_empty() {
            self.ask(max.min(BURST));
        }
        while out.len() - before < max {
            let buffers = (&mut self.spare, &*self.pool);
            let n = max - (out.len() - before);
            self.cutting.segment(n, &self.spill, buffers, &self.stats, out);
            if out.len() - before == max {
                break;
            }
            let Some(r) = self.waiting.pop_front() else { break };
            self.finish(&r, out);
        }
        let n = out.len() - before;
        if n < max && self.waiting.is_empty() {
            // There may be thousands of ports: who waits for frames holds no buffers.
            self.pool.free(&self.spare);
            self.spare.clear();
        }
        self.stats.rx.pass(n, out[before..].iter().map(Packet::len).sum());
        n
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }
}

impl Drop for PacketRx {
    fn drop(&mut self) {
        self.pool.free(&self.spare);
        // SAFETY: those that wait are not finished; the batch is forgotten.
        let packet_of = |r: &Received| unsafe { self.batch[r.index].duplicate() };
        let unfinished: Vec<Packet> = self.waiting.iter().map(packet_of).collect();
        self.pool.free(&unfinished);
    }
}

/// The tag that the kernel removed from the frame, as it was on the wire.
fn stripped_tag(hdr: &msghdr) -> Option<[u8; 4]> {
    // SAFETY: the kernel filled the control buffer that `hdr` points to, which still lives.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(hdr);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_PACKET && (*c).cmsg_type == PACKET_AUXDATA {
                return tag_of(&libc::CMSG_DATA(c).cast::<Auxdata>().read_unaligned());
            }
            c = libc::CMSG_NXTHDR(hdr, c);
        }
    }
    None
}

fn tag_of(aux: &Auxdata) -> Option<[u8; 4]> {
    let known = aux.status & VLAN_TPID_VALID != 0;
    let tpid = if known { aux.vlan_tpid } else { wire::ETH_VLAN };
    let tag = wire::VlanTag { tpid, tci: aux.vlan_tci };
    (aux.status & VLAN_VALID != 0).then(|| tag.to_bytes())
}

fn whole_iov(b: &mut [u8]) -> iovec {
    iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }
}

/// Where the kernel writes a frame's head: the free room of an empty packet.
fn head_iov(p: &mut Packet) -> iovec {
    iovec { iov_base: p.data_mut().as_mut_ptr().cast(), iov_len: Spill::head_len(p) }
}
