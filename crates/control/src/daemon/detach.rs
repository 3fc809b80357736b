//! Into the background: a parent that waits until the daemon is ready, and a monitor that starts it
//! again after a crash.
//!
//! ```text
//! started by a script ── fork ──> monitor (with --monitor) ── fork ──> daemon
//!      waits on the pipe             waits for the daemon's end        writes one byte when ready
//! ```

use super::args::Args;
use super::pidfile::{self, Pidfile};
use super::takeover;
use super::user::User;
use crate::vlog::{self, PROGRAM};
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The least time between two restarts, as in ovs-vswitchd.
const CRASH_PAUSE: Duration = Duration::from_secs(10);

/// Signals that stand for a crash: the daemon is started again.
const CRASHES: [i32; 9] = [
    libc::SIGABRT,
    libc::SIGALRM,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGPIPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

/// Set in a process that started itself again: the pipe to the process that waits for it, or
/// nothing.
const AGAIN: &str = "WEFT_STARTED_AGAIN";

/// Why the daemon did not start; one line for standard error.
#[derive(Debug, Error)]
pub enum StartError {
    /// The pidfile belongs to a live process.
    #[error("{PROGRAM}: {path}: already running as pid {pid}, aborting")]
    Running {
        /// The pidfile.
        path: String,
        /// The process.
        pid: u32,
    },
    /// The pidfile cannot be read or written.
    #[error("{PROGRAM}: {path}: create failed ({source})")]
    Pidfile {
        /// The pidfile.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// `--standby` with what it cannot go with.
    #[error("{PROGRAM}: --standby needs --detach, and goes with neither --monitor nor --user")]
    Standby,
    /// The user of `--user` cannot be had.
    #[error("{PROGRAM}: {0}")]
    User(String),
    /// The system refuses a process, a pipe or an identity.
    #[error("{PROGRAM}: {0} failed ({1})")]
    System(&'static str, io::Error),
}

/// The running daemon process. Dropped, it removes the pidfile.
#[derive(Debug)]
pub struct Daemon {
    ready: Option<File>,
    reported: bool,
    detached: bool,
    chdir: bool,
    is_second: bool,
    pidfile: Option<Pidfile>,
}

impl Daemon {
    /// Takes the process to where the daemon runs: returns there only, while the parent and the
    /// monitor never return. The process must have no other thread yet.
    pub fn start(args: &Args) -> Result<Self, StartError> {
        let again = started_again();
        let is_plain = args.detach && !args.monitor && args.user.is_none();
        if args.standby && !is_plain {
            return Err(StartError::Standby);
        }
        if !args.standby {
            refuse_running(args)?;
        }
        if is_plain && !args.standby && again.is_none() && takeover::is_daemon_now(args) {
            std::process::exit(0);
        }
        // Rust's handler only knows overflowing stacks; it takes one SIGSEGV that was sent (`kill
        // -SEGV`) and goes on. SAFETY: back to the default, which runs no code of ours.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        let is_second = again.is_some();
        // A process that started itself again is that user already.
        if let Some(spec) = args.user.as_deref().filter(|_| !is_second) {
            User::find(spec)?.become_it()?;
        }
        let ready = match again {
            Some(ready) => ready,
            None => into_background(args)?,
        };
        let pidfile = if args.standby { None } else { create_pidfile(args)? };
        if args.mlockall {
            lock_memory();
        }
        Ok(Self {
            ready,
            reported: false,
            detached: args.detach,
            chdir: !args.no_chdir,
            is_second,
            pidfile,
        })
    }

    /// True if this process [started again](Daemon::start_again).
    pub fn is_second(&self) -> bool {
        self.is_second
    }

    /// Starts the program again in this process, under the same id and with whoever waits for it
    /// still waiting; only once. Returns when that is not possible.
    pub fn start_again(&self) -> io::Error {
        if self.is_second {
            return io::Error::other("it was started again before");
        }
        let pipe = self.ready.as_ref().map(|f| f.as_raw_fd());
        // SAFETY: these change flags of descriptors. Nothing else is to be inherited: what DPDK
        // opened may keep hugepages.
        unsafe {
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
            if let Some(fd) = pipe {
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
        }
        let mut words = std::env::args_os();
        // As it was called, since scripts look at the process's name.
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command.env(AGAIN, pipe.map_or(String::new(), |fd| fd.to_string()));
        command.exec()
    }

    /// In the background: lets go of the parent's terminal and directory. Once is enough, more do
    /// no harm.
    pub fn leave_terminal(&mut self) {
        if std::mem::take(&mut self.detached) {
            let _ = vlog::set("console:off");
            leave_terminal();
            if self.chdir {
                let _ = std::env::set_current_dir("/");
            }
        }
    }

    /// Lets the parent leave with success.
    pub fn let_parent_go(&mut self) {
        self.leave_terminal();
        if let Some(mut pipe) = self.ready.take() {
            let _ = pipe.write_all(&[0]);
        }
    }

    /// The process that stood by becomes the daemon: it takes the pidfile, and whoever waits at
    /// this end of a socket or pipe is let go once it is configured.
    pub fn take_place(&mut self, args: &Args, waiting: File) -> Result<(), StartError> {
        refuse_running(args)?;
        self.pidfile = create_pidfile(args)?;
        self.ready = Some(waiting);
        Ok(())
    }

    /// The daemon is configured: lets the parent leave with success. Once is enough, more do no
    /// harm.
    pub fn ready(&mut self) {
        self.leave_terminal();
        if !std::mem::replace(&mut self.reported, true) {
            vlog::info!("bridge", "{PROGRAM} (Open vSwitch) {}", super::OVS_VERSION);
            vlog::info!("bridge", "served by Weft {}", env!("CARGO_PKG_VERSION"));
        }
        self.let_parent_go();
    }
}

/// Forks as asked; returns the pipe to the process that waits for the daemon.
fn into_background(args: &Args) -> Result<Option<File>, StartError> {
    let ready = if args.detach { Some(fork_and_wait_ready()?) } else { None };
    if args.monitor { monitor(ready) } else { Ok(ready) }
}

/// What [`Daemon::start_again`] left for us: the pipe, if there is one, in the second start only.
fn started_again() -> Option<Option<File>> {
    let pipe = std::env::var(AGAIN).ok()?;
    // SAFETY: no other thread runs that might read the environment.
    unsafe { std::env::remove_var(AGAIN) };
    // SAFETY: the descriptor was left open for us alone.
    Some(pipe.parse().ok().map(|fd| unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        File::from_raw_fd(fd)
    }))
}

fn refuse_running(args: &Args) -> Result<(), StartError> {
    let Some(path) = args.pidfile.as_deref().filter(|_| !args.overwrite_pidfile) else {
        return Ok(());
    };
    let shown = || path.display().to_string();
    match pidfile::holder(path) {
        Ok(None) => Ok(()),
        Ok(Some(pid)) => Err(StartError::Running { path: shown(), pid }),
        Err(source) => Err(StartError::Pidfile { path: shown(), source }),
    }
}

fn create_pidfile(args: &Args) -> Result<Option<Pidfile>, StartError> {
    let create = |path: &PathBuf| {
        Pidfile::create(path)
            .map_err(|source| StartError::Pidfile { path: path.display().to_string(), source })
    };
    args.pidfile.as_ref().map(create).transpose()
}

/// Locks all memory that is used, now or later: address space that was reserved for large tables
/// takes none. Nothing is locked where this process may lock only some: what is mapped beyond that
/// would fail later, wherever the daemon happens to be.
fn lock_memory() {
    if let Some(bytes) = locked_bytes_max() {
        return vlog::err!(
            "vswitchd",
            "mlockall failed: this process may lock {bytes} bytes and not all that it will have \
             (it needs CAP_IPC_LOCK, or RLIMIT_MEMLOCK without a limit): memory is not locked"
        );
    }
    let which = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: takes flags only.
    if unsafe { libc::mlockall(which) } != 0 {
        vlog::err!("vswitchd", "mlockall failed: {}", io::Error::last_os_error());
    }
}

/// Bytes that this process may lock; None: any number. The kernel is asked by an attempt, as a
/// capability that holds in a user namespace only does not count.
fn locked_bytes_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    if !known || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    let more = limit.rlim_cur as usize + 1;
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_NONE);
    // SAFETY: a mapping of our own without access, which no other thread knows and which ends here.
    let may = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), more, prot, flags, -1, 0);
        let may = at != libc::MAP_FAILED && libc::mlock2(at, more, libc::MLOCK_ONFAULT as _) == 0;
        libc::munmap(at, more);
        may
    };
    (!may).then_some(limit.rlim_cur)
}

/// Points the standard streams at nothing, so that a process that waits for their end goes on.
fn leave_terminal() {
    let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    for stream in 0..=2 {
        // SAFETY: both descriptors are open; dup2 replaces the second one atomically.
        unsafe { libc::dup2(null.as_raw_fd(), stream) };
    }
}

fn pipe() -> Result<(File, File), StartError> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(StartError::System("pipe", io::Error::last_os_error()));
    }
    // SAFETY: pipe2 succeeded, both descriptors are open and have no other owner.
    let [read, write] = ends.map(|end| File::from(unsafe { OwnedFd::from_raw_fd(end) }));
    Ok((read, write))
}

/// Forks: the child's id in the parent, `None` in the child.
fn fork() -> Result<Option<libc::pid_t>, StartError> {
    // SAFETY: the caller of `Daemon::start` guarantees that this is the only thread, so the child
    // finds every lock and the heap in a usable state.
    match unsafe { libc::fork() } {
        -1 => Err(StartError::System("fork", io::Error::last_os_error())),
        0 => Ok(None),
        child => Ok(Some(child)),
    }
}

fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    while unsafe { libc::waitpid(child, &mut status, 0) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    status
}

/// How a child ended, as `ovs-vswitchd` puts it.
fn describe(status: i32) -> String {
    if libc::WIFEXITED(status) {
        return format!("exit status {}", libc::WEXITSTATUS(status));
    }
    let core = if libc::WCOREDUMP(status) { ", core dumped" } else { "" };
    // SAFETY: the text is NUL-terminated; the process has one thread.
    let name = unsafe { CStr::from_ptr(libc::strsignal(libc::WTERMSIG(status))) };
    format!("killed ({}){core}", name.to_string_lossy())
}

/// One core file is enough: more of the same would fill the disk.
fn no_more_cores() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) } != 0 {
        let error = io::Error::last_os_error();
        vlog::warn!("daemon_unix", "failed to disable core dumps: {error}");
    }
}

/// Forks a child in a session of its own, which gets the pipe's writing end. The parent waits for
/// a byte and leaves; if the child ends before, with its failure.
fn fork_and_wait_ready() -> Result<File, StartError> {
    let (mut reader, writer) = pipe()?;
    let Some(child) = fork()? else {
        // SAFETY: no arguments; a fresh child leads no process group, so it cannot fail.
        unsafe { libc::setsid() };
        return Ok(writer);
    };
    drop(writer);
    let mut byte = [0];
    if reader.read_exact(&mut byte).is_ok() {
        std::process::exit(0);
    }
    let status = wait_for(child);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
        // The child has said why.
        std::process::exit(libc::WEXITSTATUS(status));
    }
    eprintln!("{PROGRAM}: child died before signaling startup ({})", describe(status));
    std::process::exit(1);
}

/// Forks the daemon and becomes its monitor; returns in the daemon, each time it is started. Only
/// the first one has a parent to tell.
fn monitor(mut ready: Option<File>) -> Result<Option<File>, StartError> {
    let (mut last_restart, mut crashes): (Option<Instant>, u32) = (None, 0);
    loop {
        let (mut is_ready, tell) = pipe()?;
        let Some(child) = fork()? else {
            return Ok(Some(tell));
        };
        drop(tell);
        let came_up = is_ready.read_exact(&mut [0]).is_ok();
        if let (true, Some(mut parent)) = (came_up, ready.take()) {
            let _ = parent.write_all(&[0]);
            leave_terminal();
        }
        let status = wait_for(child);
        let crashed = libc::WIFSIGNALED(status) && CRASHES.contains(&libc::WTERMSIG(status));
        if !crashed {
            vlog::info!("daemon_unix", "pid {child} died, {}, exiting", describe(status));
            let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1 };
            std::process::exit(if came_up { 0 } else { code });
        }
        crashes += 1;
        let how = format!("{crashes} crashes: pid {child} died, {}", describe(status));
        if libc::WCOREDUMP(status) {
            no_more_cores();
        }
        let since = last_restart.map_or(CRASH_PAUSE, |last| last.elapsed());
        if since < CRASH_PAUSE {
            let s = CRASH_PAUSE.as_secs();
            vlog::warn!("daemon_unix", "{how}, waiting until {s} seconds since last restart");
            std::thread::sleep(CRASH_PAUSE - since);
        }
        vlog::err!("daemon_unix", "{how}, restarting");
        last_restart = Some(Instant::now());
    }
}
