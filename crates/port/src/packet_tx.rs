//! The transmit side of a packet socket: sendmmsg from packet buffers.

use crate::TxQueue;
use crate::stats::Stats;
use crate::vectors::{FRAME_PACKETS_MAX, VECTORS_MAX, vectors_of};
use libc::{iovec, mmsghdr};
use packet::{BURST, Packet, Pool};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use telemetry::Drop as Reason;
use wire::merge::Merged;

/// Transmit queue of a system port.
pub struct PacketTx {
    /// Shared with the port, whose end closes it.
    fd: Arc<OwnedFd>,
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
    /// The frames of the next system call.
    frames: Vec<Frame>,
}

/// A frame for the kernel.
struct Frame {
    /// Number of packets that it is made of.
    packets: usize,
    /// Their common headers, if they are more than one.
    merged: Option<Merged>,
}

impl PacketTx {
    pub fn new(fd: Arc<OwnedFd>, pool: Arc<dyn Pool>, stats: Arc<Stats>) -> Self {
        PacketTx { fd, pool, stats, frames: Vec::with_capacity(BURST) }
    }

    /// Makes frames of the first packets, until those are `enough`, or one has several segments;
    /// the first one has one.
    fn plan(&mut self, packets: &[Packet], enough: usize) {
        self.frames.clear();
        let mut at = 0;
        while at < enough && packets[at].segments() == 1 {
            let whole = packets[at..].iter().take(FRAME_PACKETS_MAX);
            let whole = whole.take_while(|p| p.segments() == 1);
            let merged = Merged::new(whole.map(|p| (p.data(), p.has_sound_checksums())));
            let packets = merged.as_ref().map_or(1, |m| m.segments);
            self.frames.push(Frame { packets, merged });
            at += packets;
        }
    }

    /// Sends the planned frames; returns how many were sent.
    fn send(&self, packets: &[Packet]) -> io::Result<usize> {
        // SAFETY: plain data for which all-zero is valid.
        let mut msgs: [mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        let mut iov = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; VECTORS_MAX];
        let (mut rest, mut packets) = (&mut iov[..], packets);
        for (msg, frame) in msgs.iter_mut().zip(&self.frames) {
            let (own, others) = packets.split_at(frame.packets);
            let n = vectors_of(own, frame.merged.as_ref(), rest);
            msg.msg_hdr.msg_iov = rest.as_mut_ptr();
            msg.msg_hdr.msg_iovlen = n as _;
            (rest, packets) = (&mut rest[n..], others);
        }
        // SAFETY: headers, vectors and the packets' data live until the call returns; the kernel
        // only reads the data.
        let ret = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                msgs.as_mut_ptr(),
                self.frames.len() as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        crate::sys::check(ret).map(|n| n as usize)
    }

    /// Sends packets from the front of `packets` by one system call, until those are `enough`, or
    /// a burst; returns how many were sent. A frame that the kernel refuses is sent as the packets
    /// of which it is made.
    fn send_burst(&mut self, packets: &[Packet], enough: usize) -> io::Result<usize> {
        self.plan(packets, enough.min(BURST));
        let sent = match self.send(packets) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.frames[0].merged.is_some() => {
                let single = || Frame { packets: 1, merged: None };
                let first = self.frames[0].packets.min(BURST);
                self.frames.clear();
                self.frames.resize_with(first, single);
                self.send(packets)?
            }
            sent => sent?,
        };
        Ok(self.frames[..sent].iter().map(|f| f.packets).sum())
    }

    /// Sends as many packets as possible, until `enough` were taken; returns how many were.
    fn send_some(&mut self, packets: &[Packet], enough: usize) -> usize {
        let (mut taken, mut told_down) = (0, false);
        while let [first, ..] = &packets[taken..]
            && taken < enough
        {
            if first.segments() != 1 {
                self.stats.tx.drop(Reason::Segmented, 1);
                taken += 1;
                continue;
            }
            let error = match self.send_burst(&packets[taken..], enough - taken) {
                Ok(n) => {
                    let sent = &packets[taken..taken + n];
                    self.stats.tx.pass(n, sent.iter().map(Packet::len).sum());
                    taken += n;
                    continue;
                }
                Err(e) => e.raw_os_error().unwrap_or(0),
            };
            match error {
                libc::EINTR => continue,
                libc::EAGAIN => return taken,
                // The socket reports this once, even if the device is up again by now.
                libc::ENETDOWN if !told_down => {
                    told_down = true;
                    continue;
                }
                _ => self.refused(error),
            }
            taken += 1;
        }
        taken
    }

    /// Counts a packet that the kernel refused.
    fn refused(&self, error: i32) {
        let reason = match error {
            libc::EMSGSIZE => Reason::TooLong,
            libc::ENETDOWN | libc::ENXIO | libc::ENODEV => Reason::TxDown,
            libc::EINVAL => Reason::Truncated,
            _ => Reason::TxFull,
        };
        self.stats.tx.drop(reason, 1);
    }
}

impl TxQueue for PacketTx {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        self.tx_some(packets, packets.len())
    }

    fn tx_some(&mut self, packets: &[Packet], enough: usize) -> usize {
        let taken = self.send_some(packets, enough);
        self.pool.free(&packets[..taken]);
        taken
    }
}
