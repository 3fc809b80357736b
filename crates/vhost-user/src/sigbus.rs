//! SIGBUS in memory that a front-end shares with us, survived.
//!
//! Whoever made the file of a mapping can make it shorter at any time, and the next access to what
//! is gone is a SIGBUS, which ends a process. The handler here looks whether the address lies in a
//! registered mapping. If so it puts a page of zeros there, and makes the mapping's eventfd
//! readable; the connection's thread then gives the memory up. Any other SIGBUS does what it did
//! before.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// Mappings that can be registered at once: eight regions and a log of 900 guests.
const MAPPINGS_MAX: usize = 8192;

/// A registered mapping. Written by the thread that registers it, read by the handler.
struct Entry {
    /// First byte; 0 if the entry is free, 1 while it is being written.
    start: AtomicUsize,
    bytes: AtomicUsize,
    page: AtomicUsize,
    event: AtomicI32,
}

static ENTRIES: [Entry; MAPPINGS_MAX] = [const {
    Entry {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        event: AtomicI32::new(-1),
    }
}; MAPPINGS_MAX];

/// Entries that were ever used are before this one.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A registration; dropped before the mapping goes.
pub(crate) struct Registered(&'static Entry);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Release);
    }
}

/// Registers `bytes` mapped at `start`, in pages of `page` bytes. `event` is made readable when a
/// page of it is found to be gone; it must stay open while the registration lives. None when too
/// many are registered.
pub(crate) fn register(
    start: usize,
    bytes: usize,
    page: usize,
    event: BorrowedFd,
) -> Option<Registered> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    let free = |entry: &&Entry| {
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        entry.start.compare_exchange(0, 1, success, failure).is_ok()
    };
    let index = ENTRIES.iter().position(|entry| free(&entry))?;
    let entry = &ENTRIES[index];
    entry.bytes.store(bytes, Ordering::Relaxed);
    entry.page.store(page, Ordering::Relaxed);
    entry.event.store(event.as_raw_fd(), Ordering::Relaxed);
    entry.start.store(start, Ordering::Release);
    USED.fetch_max(index + 1, Ordering::AcqRel);
    Some(Registered(entry))
}

/// What SIGBUS did before; set once, before the handler is there.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

fn install() {
    // SAFETY: all zero is a valid action, which is then filled.
    unsafe {
        let before = Box::into_raw(Box::new(std::mem::zeroed::<libc::sigaction>()));
        libc::sigaction(libc::SIGBUS, std::ptr::null(), before);
        BEFORE.store(before, Ordering::Release);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Async-signal-safe: atomics, mmap(2), write(2) and sigaction(2) only.
extern "C" fn handle(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a filled siginfo.
    let (at, faulted) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    // SAFETY: errno is this thread's; it is put back.
    let errno = unsafe { *libc::__errno_location() };
    if !faulted || !replace(at) {
        let before = BEFORE.load(Ordering::Acquire);
        // SAFETY: set before the handler was installed, never freed.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
        // An instruction that faulted is run again, and then what was there before is asked.
        if !faulted {
            // SAFETY: sends a signal, which comes when this one was handled.
            unsafe { libc::raise(libc::SIGBUS) };
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts zeros in place of the page at `at`, if it is one of a registered mapping.
fn replace(at: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    for entry in &ENTRIES[..used] {
        let start = entry.start.load(Ordering::Acquire);
        if start <= 1 || at.wrapping_sub(start) >= entry.bytes.load(Ordering::Relaxed) {
            continue;
        }
        let page = entry.page.load(Ordering::Relaxed);
        // The entry of another mapping may have changed since.
        if entry.start.load(Ordering::Acquire) != start {
            continue;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let from = (at & !(page - 1)) as *mut libc::c_void;
        let one = 1u64;
        // SAFETY: the page belongs to a mapping whose owner lives while it is registered, and uses
        // it by raw pointers only; the event is open as long.
        unsafe {
            let to = libc::mmap(from, page, access, flags, -1, 0);
            let event = entry.event.load(Ordering::Relaxed);
            libc::write(event, (&raw const one).cast(), 8);
            return to != libc::MAP_FAILED;
        }
    }
    false
}
