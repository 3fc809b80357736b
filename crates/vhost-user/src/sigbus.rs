//! Handles SIGBUS in memory that a front-end shares with us.
//!
//! A process that has the file of a mapping can truncate it at any time; the next access beyond its
//! end is a SIGBUS, which by default ends the process. This handler checks whether the address is
//! in a registered mapping. If so it maps a page of zeros there, and makes the mapping's eventfd
//! readable; the connection's thread then unmaps the memory. Any other SIGBUS has the action that
//! was set before.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// Most mappings registered at a time: eight regions and a log for each of 900 guests.
const MAPPINGS_MAX: usize = 8192;

/// A registered mapping. Written by the thread that registers it, read by the handler.
struct Entry {
    /// Address of the first byte; 0: the entry is free, 1: it is being written.
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

/// All entries ever used are before this index.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A registration; dropped before the mapping is unmapped.
pub(crate) struct Registered(&'static Entry);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Release);
    }
}

/// Registers `bytes` bytes mapped at `start`, in pages of `page` bytes. `event` is made readable
/// when one of them is lost; it must stay open as long as the registration lives. None when too
/// many mappings are registered.
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

/// The action of SIGBUS before; set once, before the handler is installed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

fn install() {
    // SAFETY: all zero is a valid action, which the call then fills.
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
    // SAFETY: errno is this thread's; its value is restored.
    let errno = unsafe { *libc::__errno_location() };
    if !faulted || !replace(at) {
        let before = BEFORE.load(Ordering::Acquire);
        // SAFETY: set before the handler was installed, never freed.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
        // An instruction that faulted is run again, and its signal has the action from before.
        if !faulted {
            // SAFETY: sends a signal, which is delivered when this handler returns.
            unsafe { libc::raise(libc::SIGBUS) };
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Maps zeros in place of the page at `at`, if the page is in a registered mapping.
fn replace(at: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    for entry in &ENTRIES[..used] {
        let start = entry.start.load(Ordering::Acquire);
        if start <= 1 || at.wrapping_sub(start) >= entry.bytes.load(Ordering::Relaxed) {
            continue;
        }
        let page = entry.page.load(Ordering::Relaxed);
        // The entry may have been reused for another mapping meanwhile.
        if entry.start.load(Ordering::Acquire) != start {
            continue;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let from = (at & !(page - 1)) as *mut libc::c_void;
        let one = 1u64;
        // SAFETY: the page belongs to a mapping that lives as long as it is registered, and that is
        // used by raw pointers only; the event is open as long.
        unsafe {
            let to = libc::mmap(from, page, access, flags, -1, 0);
            let event = entry.event.load(Ordering::Relaxed);
            libc::write(event, (&raw const one).cast(), 8);
            return to != libc::MAP_FAILED;
        }
    }
    false
}
