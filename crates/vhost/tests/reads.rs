//! What a guest writes is read once: it may be another thing a moment later, so what was checked
//! must be what is used.
//!
//! The page in question is taken away. Whoever reads it faults, gets it back for one instruction
//! (x86's trap flag), and the address is written down.

#![cfg(all(target_arch = "x86_64", not(miri)))]

mod common;

use common::{DATA, DESC, Driver, TABLES};
use libc::{PROT_NONE, PROT_READ, PROT_WRITE, REG_EFL, SIGSEGV, SIGTRAP};
use packet::{HeapPool, Pool};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use vhost::{Batch, Moved, feature};

const PAGE: usize = 4096;
const TRAP_FLAG: i64 = 1 << 8;
const READS_MAX: usize = 256;

/// The page that is watched, 0: none; the reads of it, as offsets.
static WATCHED: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static READS: [AtomicUsize; READS_MAX] = [const { AtomicUsize::new(0) }; READS_MAX];

fn protect(page: usize, how: i32) {
    // SAFETY: a whole page of the guest's memory, which only the code under test reads.
    let done = unsafe { libc::mprotect(page as *mut libc::c_void, PAGE, how) };
    assert_eq!(done, 0);
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let page = WATCHED.load(SeqCst);
    // SAFETY: the kernel passes both to handlers that were installed with SA_SIGINFO.
    let (at, flags) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        ((*info).si_addr() as usize, &mut (*context).uc_mcontext.gregs[REG_EFL as usize])
    };
    if signal == SIGTRAP {
        *flags &= !TRAP_FLAG;
        return protect(page, PROT_NONE);
    }
    let offset = at.wrapping_sub(page);
    if page == 0 || offset >= PAGE {
        // SAFETY: a fault of other code, and the end of the process.
        unsafe { libc::abort() }
    }
    READS[COUNT.fetch_add(1, SeqCst) % READS_MAX].store(offset, SeqCst);
    protect(page, PROT_READ | PROT_WRITE);
    *flags |= TRAP_FLAG;
}

fn install() {
    // SAFETY: the handler only uses what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [SIGSEGV, SIGTRAP] {
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Which offsets of a page are read while `run` runs, in order.
fn reads(page: *mut u8, run: impl FnOnce()) -> Vec<usize> {
    COUNT.store(0, SeqCst);
    WATCHED.store(page as usize, SeqCst);
    protect(page as usize, PROT_NONE);
    run();
    protect(page as usize, PROT_READ | PROT_WRITE);
    WATCHED.store(0, SeqCst);
    let n = COUNT.load(SeqCst);
    assert!(n <= READS_MAX, "{n} reads");
    READS[..n].iter().map(|offset| offset.load(SeqCst)).collect()
}

/// The double words of so many descriptors.
fn words(descriptors: usize) -> Vec<usize> {
    (0..2 * descriptors).map(|i| 8 * i).collect()
}

#[test]
fn descriptors_are_read_once() {
    const ENTRIES: usize = 5;
    install();
    for features in [feature::VERSION_1, feature::VERSION_1 | feature::RING_PACKED] {
        for sends in [true, false] {
            let mut driver = Driver::new(64, features);
            let mut ring = driver.ring();
            let parts: Vec<_> = (0..ENTRIES as u64).map(|i| (DATA + 512 * i, 400)).collect();
            driver.offer(&parts, !sends, true).unwrap();
            let pool = HeapPool::new();
            let (mut batch, mut moved) = (Batch::default(), Moved::default());
            let (mut out, packet) = (Vec::new(), [pool.packet(&[7; 1500]).unwrap()]);
            let seen = reads(driver.memory.at(TABLES), || match sends {
                true => ring.dequeue(&mut batch, &pool, &mut out, 1, &mut moved),
                false => ring.enqueue(&mut batch, &packet, &mut moved),
            });
            assert_eq!(moved.packets, 1);
            assert_eq!(seen, words(ENTRIES), "features {features:#x}, the guest sends: {sends}");
            pool.free(&out);
            pool.free(&packet);
        }
    }
    // A split ring's own table. (A packed ring's is also where it is polled.)
    let mut driver = Driver::new(64, feature::VERSION_1);
    let mut ring = driver.ring();
    for i in 0..8 {
        driver.offer(&[(DATA + 512 * i, 100)], false, false).unwrap();
    }
    let pool = HeapPool::new();
    let (mut batch, mut moved, mut out) = (Batch::default(), Moved::default(), Vec::new());
    let seen = reads(driver.memory.at(DESC), || {
        (0..2).for_each(|step| ring.prepare(step, 8, true));
        ring.dequeue(&mut batch, &pool, &mut out, 8, &mut moved);
    });
    assert_eq!((moved.packets, seen), (8, words(8)));
    pool.free(&out);
}
