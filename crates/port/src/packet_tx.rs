//! The transmit side of a packet socket: sendmmsg from packet buffers.

use crate::TxQueue;
use crate::stats::Stats;
use libc::{iovec, mmsghdr};
use packet::{BURST, Packet, Pool};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use telemetry::Drop as Reason;

/// Transmit queue of a system port.
pub struct PacketTx {
    fd: OwnedFd,
    pool: Arc<dyn Pool>,
    stats: Arc<Stats>,
}

impl PacketTx {
    pub fn new(fd: OwnedFd, pool: Arc<dyn Pool>, stats: Arc<Stats>) -> Self {
        PacketTx { fd, pool, stats }
    }

    /// Sends at most [`BURST`] packets from the front of `packets`; returns how many were sent.
    fn send(&self, packets: &[Packet]) -> io::Result<usize> {
        // SAFETY: plain data for which all-zero is valid.
        let mut msgs: [mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        let mut iov = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BURST];
        let n = packets.iter().take(BURST).take_while(|p| p.segments() == 1).count();
        for (i, p) in packets[..n].iter().enumerate() {
            let data = p.data();
            iov[i] = iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
            msgs[i].msg_hdr.msg_iov = &raw mut iov[i];
            msgs[i].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: headers, vectors and the packets' data live until the call returns; the kernel
        // only reads the data.
        let ret = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                msgs.as_mut_ptr(),
                n as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        crate::sys::check(ret).map(|n| n as usize)
    }

    /// Sends as many packets as possible; returns how many were taken.
    fn send_all(&self, packets: &[Packet]) -> usize {
        let (mut taken, mut told_down) = (0, false);
        while let [first, ..] = &packets[taken..] {
            if first.segments() != 1 {
                self.stats.tx.drop(Reason::Segmented, 1);
                taken += 1;
                continue;
            }
            let error = match self.send(&packets[taken..]) {
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
        let taken = self.send_all(packets);
        self.pool.free(&packets[..taken]);
        taken
    }
}
