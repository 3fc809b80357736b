//! A pool on the plain heap: for tests and tools that run without DPDK.

use crate::{HEADROOM, Mbuf, Packet, Pool};
use std::sync::atomic::{AtomicUsize, Ordering};

const BUF: usize = 2048 + HEADROOM;

/// A [`Pool`] of heap mbufs that counts what is out, so that tests can see a leak.
#[derive(Default)]
pub struct HeapPool {
    out: AtomicUsize,
}

#[repr(C, align(64))]
struct Cell {
    mbuf: Mbuf,
    buf: [u8; BUF],
}

impl HeapPool {
    /// An unlimited pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packets allocated and not yet given back.
    pub fn in_use(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }
}

impl Pool for HeapPool {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        for _ in 0..n {
            // SAFETY: Cell is plain data for which all-zero is valid.
            let mut cell: Box<Cell> = Box::new(unsafe { std::mem::zeroed() });
            cell.mbuf.buf_addr = cell.buf.as_mut_ptr();
            cell.mbuf.buf_len = BUF as u16;
            cell.mbuf.data_off = HEADROOM as u16;
            cell.mbuf.refcnt = 1;
            cell.mbuf.nb_segs = 1;
            // SAFETY: the cell lives until `free`; mbuf is its first field.
            out.push(unsafe { Packet::from_raw(Box::into_raw(cell).cast()) });
        }
        self.out.fetch_add(n, Ordering::Relaxed);
        true
    }

    fn free(&self, packets: &[Packet]) {
        for p in packets {
            // SAFETY: made by `alloc` from a Box<Cell> and owned by the caller.
            drop(unsafe { Box::from_raw(p.as_raw().cast::<Cell>()) });
        }
        self.out.fetch_sub(packets.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_pull_and_count() {
        let pool = HeapPool::new();
        let mut p = pool.packet(&[7; 60]).unwrap();
        assert!(p.push_front(4) && p.len() == 64);
        assert!(p.pull_front(4) && p.data()[0] == 7);
        assert!(!p.push_front(HEADROOM + 1) && !p.pull_front(61) && !p.set_len(100_000));
        assert_eq!(pool.in_use(), 1);
        pool.free(&[p]);
        assert_eq!(pool.in_use(), 0);
    }
}
