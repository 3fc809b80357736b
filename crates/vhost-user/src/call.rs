//! Notifying a guest by its call eventfd, without ever waiting
//! (docs/decisions/0011-guests-are-notified-by-the-kernel.md).
//!
//! The guest's front-end has the same open file. It can make the file blocking and full at any
//! time, so `write` may never return. The kernel's own signal of an eventfd never waits: a read of
//! zero bytes from /dev/null by Linux AIO, submitted with the eventfd as the one to signal,
//! completes at once and signals it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Completions that a context holds before they are collected. Each thread that notifies guests
/// takes this many of the 65,536 of fs.aio-max-nr.
const COMPLETIONS_MAX: usize = 64;
/// linux/aio_abi.h: a read at an offset, and "signal the eventfd at the end".
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// The descriptor is not an eventfd.
#[derive(Debug, PartialEq, Eq)]
pub struct NoEventfd;

/// struct io_event of linux/aio_abi.h.
type Completion = [u64; 4];

/// One thread's AIO context.
struct Context {
    id: libc::c_ulong,
    null: File,
    /// Completions not yet collected.
    completions: usize,
}

impl Context {
    fn new() -> io::Result<Context> {
        let null = File::open("/dev/null")?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the call writes only to `id`.
        match unsafe { libc::syscall(libc::SYS_io_setup, COMPLETIONS_MAX, &raw mut id) } {
            0 => Ok(Context { id, null, completions: 0 }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Signals `fd` once.
    fn signal(&mut self, fd: RawFd) -> io::Result<()> {
        if self.completions == COMPLETIONS_MAX {
            self.collect();
        }
        // SAFETY: plain data, for which all-zero is valid.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        let mut nothing = 0u8;
        request.aio_lio_opcode = IOCB_CMD_PREAD;
        request.aio_fildes = self.null.as_raw_fd() as u32;
        request.aio_buf = (&raw mut nothing).addr() as u64;
        request.aio_flags = IOCB_FLAG_RESFD;
        request.aio_resfd = fd as u32;
        let requests = [&raw mut request];
        // SAFETY: the context is ours; the kernel copies the request, which writes no byte.
        match unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1, requests.as_ptr()) } {
            1 => self.completions += 1,
            _ => return Err(io::Error::last_os_error()),
        }
        Ok(())
    }

    /// Collects the available completions, without waiting.
    #[cold]
    fn collect(&mut self) {
        let mut events: [Completion; COMPLETIONS_MAX] = [[0; 4]; COMPLETIONS_MAX];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, at_once) = (events.as_mut_ptr(), &raw const at_once);
        // SAFETY: the array has room for as many completions as are asked for.
        let n = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, 0, COMPLETIONS_MAX, events, at_once)
        };
        self.completions -= usize::try_from(n).unwrap_or(0);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and is not used afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

thread_local! {
    /// AIO context of the thread; None: the kernel has none, or fs.aio-max-nr is used up.
    static CONTEXT: RefCell<Option<Context>> = RefCell::new(Context::new().ok());
}

/// Adds one to the eventfd `fd`. Never waits, whether the eventfd is full or blocking.
///
/// # Errors
/// `fd` is not an eventfd, or is closed. Nothing was written to it.
#[cold]
pub fn signal(fd: RawFd) -> Result<(), NoEventfd> {
    CONTEXT.with_borrow_mut(|context| {
        let done = context.as_mut().map(|context| context.signal(fd));
        match done.map(|done| done.map_err(|e| e.raw_os_error())) {
            Some(Ok(())) => Ok(()),
            Some(Err(Some(libc::EINVAL | libc::EBADF))) => Err(NoEventfd),
            None | Some(Err(_)) => write_if_ready(fd),
        }
    })
}

/// Does what [`signal`] does, where there is no AIO: first polls whether `write` would wait. A
/// front-end that fills the eventfd between the poll and the write can still make the thread wait.
fn write_if_ready(fd: RawFd) -> Result<(), NoEventfd> {
    if !is_eventfd(fd) {
        return Err(NoEventfd);
    }
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let one = 1u64;
    // SAFETY: the poll entry and the eight bytes are locals that outlive the calls.
    unsafe {
        if libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLOUT != 0 {
            libc::write(fd, (&raw const one).cast(), 8);
        }
    }
    Ok(())
}

/// Whether `fd` is an eventfd.
pub(crate) fn is_eventfd(fd: RawFd) -> bool {
    let what = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    what.is_ok_and(|what| what.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Longer than any machine takes for a call that does not hang.
    const HANG_AFTER: Duration = Duration::from_secs(30);

    fn eventfd(value: u64) -> OwnedFd {
        // SAFETY: a descriptor that is then ours.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) };
        if value > 0 {
            File::from(fd.try_clone().unwrap()).write_all(&value.to_ne_bytes()).unwrap();
        }
        fd
    }

    fn value(fd: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        io::Read::read_exact(&mut File::from(fd.try_clone().unwrap()), &mut value).unwrap();
        u64::from_ne_bytes(value)
    }

    /// What each way says, on a thread of its own: it must come back.
    fn comes_back(fd: &OwnedFd) -> [Result<(), NoEventfd>; 2] {
        let (raw, (sender, receiver)) = (fd.as_raw_fd(), mpsc::channel());
        std::thread::spawn(move || sender.send([signal(raw), write_if_ready(raw)]));
        receiver.recv_timeout(HANG_AFTER).expect("the notification hangs")
    }

    #[test]
    fn there_is_aio_here() {
        assert!(CONTEXT.with_borrow(Option::is_some));
    }

    #[test]
    fn an_eventfd_counts_every_signal() {
        let fd = eventfd(0);
        for _ in 0..10 * COMPLETIONS_MAX {
            assert_eq!(signal(fd.as_raw_fd()), Ok(()));
        }
        assert!(CONTEXT.with_borrow(|c| c.as_ref().unwrap().completions <= COMPLETIONS_MAX));
        assert_eq!(value(&fd), 10 * COMPLETIONS_MAX as u64);
        assert_eq!(write_if_ready(fd.as_raw_fd()), Ok(()));
        assert_eq!(value(&fd), 1);
    }

    /// What a front-end does that wants to stop a thread: the eventfd blocks, and has no room.
    #[test]
    fn a_full_blocking_eventfd_does_not_hold_the_caller() {
        let fd = eventfd(u64::MAX - 1);
        assert_eq!(comes_back(&fd), [Ok(()), Ok(())]);
        assert_eq!(comes_back(&fd), [Ok(()), Ok(())]);
        assert!(value(&fd) >= u64::MAX - 1);
    }

    #[test]
    fn a_pipe_is_refused_full_or_closed() {
        for closed in [false, true] {
            let (reader, writer) = io::pipe().unwrap();
            let writer = OwnedFd::from(writer);
            if closed {
                drop(reader);
            } else {
                // SAFETY: our own descriptor; the flag is for filling it only.
                unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
                let mut pipe = File::from(writer.try_clone().unwrap());
                while pipe.write(&[0; 4096]).is_ok() {}
                // SAFETY: as above.
                unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, 0) };
            }
            assert!(!is_eventfd(writer.as_raw_fd()));
            assert_eq!(comes_back(&writer), [Err(NoEventfd), Err(NoEventfd)]);
        }
        assert!(!is_eventfd(-1) && signal(-1) == Err(NoEventfd));
    }
}
