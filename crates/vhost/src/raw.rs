//! The only functions that access guest memory. All take raw pointers whose range the caller has
//! checked against [`crate::Memory`]; what they read is a private copy.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Reads 16 bits; nothing after it is read earlier.
///
/// # Safety
/// `ptr` is valid for reads and writes, and aligned to two bytes.
#[inline]
pub(crate) unsafe fn load16(ptr: *mut u16) -> u16 {
    // SAFETY: the caller vouches for the pointer; atomics may race with the guest.
    unsafe { AtomicU16::from_ptr(ptr) }.load(Ordering::Acquire)
}

/// Writes 16 bits; everything before it is visible first.
///
/// # Safety
/// As [`load16`].
#[inline]
pub(crate) unsafe fn store16(ptr: *mut u16, value: u16) {
    // SAFETY: as above.
    unsafe { AtomicU16::from_ptr(ptr) }.store(value, Ordering::Release);
}

/// Writes 32 bits, in no particular order.
///
/// # Safety
/// `ptr` is valid for writes and aligned to four bytes.
#[inline]
pub(crate) unsafe fn store32(ptr: *mut u32, value: u32) {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(ptr) }.store(value, Ordering::Relaxed);
}

/// Writes 8 bytes (little-endian), in no particular order and perhaps not at once.
///
/// # Safety
/// `ptr` is valid for writes of 8 bytes.
#[inline]
pub(crate) unsafe fn store64(ptr: *mut u8, value: u64) {
    // SAFETY: the caller vouches for the pointer; unaligned is allowed.
    unsafe { ptr.cast::<u64>().write_unaligned(value.to_le()) };
}

/// Copies `len` bytes between guest memory and this process's, in either direction. A byte that the
/// guest changes meanwhile has its old or its new value.
///
/// # Safety
///
/// Both ranges are valid and do not overlap.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the ranges; in each case the parts, which may overlap each
    // other, lie in them.
    unsafe {
        match len {
            64..=96 => {
                block::<64>(from, to);
                block::<32>(from.add(len - 32), to.add(len - 32));
            }
            97..=128 => {
                block::<64>(from, to);
                block::<64>(from.add(len - 64), to.add(len - 64));
            }
            32..64 => {
                block::<32>(from, to);
                block::<32>(from.add(len - 32), to.add(len - 32));
            }
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies `N` bytes at once.
///
/// # Safety
/// Both ranges are valid and do not overlap.
#[inline(always)]
unsafe fn block<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller vouches for the ranges; unaligned is allowed.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) };
}

/// Writes a virtio-net header (virtio 1.1, section 5.1.6) with all fields zero, except the number
/// of buffers, which the short header does not have.
///
/// # Safety
///
/// `ptr` is valid for writes of 12 bytes if `long`, else of 10.
#[inline]
pub(crate) unsafe fn header(ptr: *mut u8, long: bool, buffers: u16) {
    // SAFETY: the caller vouches for the pointer; unaligned is allowed.
    unsafe {
        ptr.cast::<u64>().write_unaligned(0);
        match long {
            true => ptr.add(8).cast::<u32>().write_unaligned((u32::from(buffers) << 16).to_le()),
            false => ptr.add(8).cast::<u16>().write_unaligned(0),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn headers() {
        let mut to = [9u8; 13];
        // SAFETY: 12 bytes are there.
        unsafe { super::header(to.as_mut_ptr(), true, 0x102) };
        assert_eq!(to, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 9]);
        let mut to = [9u8; 13];
        // SAFETY: 12 bytes are there.
        unsafe { super::header(to.as_mut_ptr(), false, 7) };
        assert_eq!(to, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9]);
    }

    #[test]
    fn copies_every_length_and_nothing_else() {
        let from: Vec<u8> = (0..300).map(|i| i as u8 ^ 0xa5).collect();
        for len in 0..300 {
            let mut to = vec![0u8; 302];
            // SAFETY: 300 bytes are there on both sides.
            unsafe { super::copy(from.as_ptr(), to.as_mut_ptr().add(1), len) };
            assert_eq!(to[1..=len], from[..len]);
            assert!(to[0] == 0 && to[len + 1..].iter().all(|b| *b == 0));
        }
    }
}
