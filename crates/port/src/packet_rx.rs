//! The receive end of a packet socket: recvmmsg straight into packet buffers, then what the kernel
//! left undone: the VLAN tag it took out, checksums, segmentation.

use crate::RxQueue;
use crate::gso::Plan;
use crate::stats::Stats;
use crate::vnet::{VNET_LEN, VnetHeader, complete_checksum};
use libc::{c_int, c_void, iovec, mmsghdr, msghdr};
use packet::{BURST, Packet, Pool};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use telemetry::Drop as Reason;

const PACKET_AUXDATA: c_int = 8;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
/// What a frame may be longer than a packet buffer: the largest unsegmented frame.
const SPILL: usize = 64 * 1024 + 256;
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
    spare: Vec<Packet>,
    batch: Vec<Packet>,
    pending: VecDeque<Packet>,
    vnet: Vec<[u8; VNET_LEN]>,
    control: Vec<Control>,
    /// One piece per slot for the part of a frame that does not fit its packet buffer.
    spill: Vec<u8>,
    whole: Vec<u8>,
}

/// What is known of one received frame beside its bytes.
struct Received {
    slot: usize,
    len: usize,
    truncated: bool,
    tag: Option<[u8; 4]>,
}

impl PacketRx {
    pub fn new(fd: Arc<OwnedFd>, pool: Arc<dyn Pool>, stats: Arc<Stats>) -> Self {
        PacketRx {
            fd,
            pool,
            stats,
            spare: Vec::with_capacity(BURST),
            batch: Vec::with_capacity(BURST),
            pending: VecDeque::with_capacity(2 * BURST),
            vnet: vec![[0; VNET_LEN]; BURST],
            control: vec![Control::default(); BURST],
            spill: vec![0; BURST * SPILL],
            whole: Vec::new(),
        }
    }

    /// Receives up to `n` frames into `batch`; what came of each.
    fn receive(&mut self, n: usize) -> Vec<Received> {
        let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut iov = [[none; 3]; BURST];
        // SAFETY: plain data for which all-zero is valid.
        let mut msgs: [mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        for i in 0..n {
            let spill = &mut self.spill[i * SPILL..(i + 1) * SPILL];
            iov[i] =
                [whole_iov(&mut self.vnet[i]), buffer_iov(&mut self.batch[i]), whole_iov(spill)];
            msgs[i].msg_hdr.msg_iov = iov[i].as_mut_ptr();
            msgs[i].msg_hdr.msg_iovlen = iov[i].len() as _;
            msgs[i].msg_hdr.msg_control = self.control[i].as_mut_ptr().cast::<c_void>();
            msgs[i].msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        let got = self.recvmmsg(&mut msgs[..n]);
        let of = |i: usize| Received {
            slot: i,
            len: (msgs[i].msg_len as usize).saturating_sub(VNET_LEN),
            truncated: msgs[i].msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            tag: stripped_tag(&msgs[i].msg_hdr),
        };
        (0..got).map(of).collect()
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
                // A frame whose offloads have no place in a virtio header; the kernel dropped it.
                Some(libc::EINVAL) => self.stats.rx.drop(Reason::BadOffload, 1),
                // Told once when the device goes down or away; reading on is right when it returns.
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

    /// Makes packets of one received frame and queues them; its buffer becomes spare otherwise.
    fn finish(&mut self, r: &Received) {
        let mut p = self.batch[r.slot];
        let h = VnetHeader::read(&self.vnet[r.slot]);
        let result = if r.truncated {
            Err(Reason::TooLong)
        } else if h.gso != 0 {
            self.gather(&p, r);
            self.spare.push(p);
            return self.segment(&h, r.tag);
        } else {
            single(&mut p, &h, r)
        };
        match result {
            Ok(()) => self.pending.push_back(p),
            Err(reason) => {
                self.stats.rx.drop(reason, 1);
                let _ = p.set_len(0);
                self.spare.push(p);
            }
        }
    }

    /// Puts a frame's bytes, from packet buffer and spill, into `whole`.
    fn gather(&mut self, p: &Packet, r: &Received) {
        let room = p.tailroom().min(r.len);
        let spill = &self.spill[r.slot * SPILL..][..r.len - room];
        let mut head = *p;
        let _ = head.set_len(room);
        self.whole.clear();
        self.whole.extend_from_slice(head.data());
        self.whole.extend_from_slice(spill);
        let _ = head.set_len(0);
    }

    /// Cuts `whole` into packets.
    fn segment(&mut self, h: &VnetHeader, tag: Option<[u8; 4]>) {
        let Some(plan) = Plan::new(&self.whole, h) else {
            return self.stats.rx.drop(Reason::BadOffload, 1);
        };
        let n = plan.count();
        let first = self.spare.len();
        if !self.pool.alloc(&mut self.spare, n) {
            return self.stats.rx.drop(Reason::NoBuffer, n as u64);
        }
        let fresh = self.spare.split_off(first);
        for (i, mut p) in fresh.into_iter().enumerate() {
            let fits = p.set_len(plan.len(i));
            if fits && plan.write(&self.whole, i, p.data_mut()).is_some() && insert_tag(&mut p, tag)
            {
                self.pending.push_back(p);
            } else {
                self.stats.rx.drop(Reason::TooLong, 1);
                self.pool.free(&[p]);
            }
        }
    }

    /// Throws away up to `n` waiting frames for which there is no buffer: left where they are, they
    /// would keep the descriptor readable and its thread spinning.
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

    /// Makes sure of up to `n` empty packets in `batch`; how many there are.
    fn fill_batch(&mut self, n: usize) -> usize {
        let have = self.spare.len();
        if have < n {
            let _ = self.pool.alloc(&mut self.spare, n - have);
        }
        let n = n.min(self.spare.len());
        let keep = self.spare.len() - n;
        self.batch.extend(self.spare.drain(keep..));
        n
    }
}

impl RxQueue for PacketRx {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        if self.pending.len() < max {
            let n = self.fill_batch((max - self.pending.len()).min(BURST));
            let received = if n > 0 { self.receive(n) } else { Vec::new() };
            if n == 0 {
                self.discard(max.min(BURST));
            }
            for r in &received {
                self.finish(r);
            }
            let rest = self.batch.drain(received.len()..);
            self.spare.extend(rest);
            self.batch.clear();
        }
        let n = self.pending.len().min(max);
        let before = out.len();
        out.extend(self.pending.drain(..n));
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
        self.pool.free(self.pending.make_contiguous());
    }
}

/// A frame that is one packet: it must fit its buffer.
fn single(p: &mut Packet, h: &VnetHeader, r: &Received) -> Result<(), Reason> {
    if !p.set_len(r.len) {
        return Err(Reason::TooLong);
    }
    if h.needs_csum && !complete_checksum(p.data_mut(), h.csum_start, h.csum_offset) {
        return Err(Reason::BadOffload);
    }
    if insert_tag(p, r.tag) { Ok(()) } else { Err(Reason::NoHeadroom) }
}

/// Puts a tag behind the addresses, when there is one; false without headroom.
fn insert_tag(p: &mut Packet, tag: Option<[u8; 4]>) -> bool {
    let Some(tag) = tag else { return true };
    if p.len() < wire::ETH_LEN || !p.push_front(wire::VLAN_LEN) {
        return false;
    }
    let data = p.data_mut();
    data.copy_within(4..16, 0);
    data[12..16].copy_from_slice(&tag);
    true
}

/// The tag that the kernel took out of the frame, as it stood on the wire.
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

/// The free room of an empty packet.
fn buffer_iov(p: &mut Packet) -> iovec {
    let room = p.tailroom();
    iovec { iov_base: p.data_mut().as_mut_ptr().cast(), iov_len: room }
}
