//! A daemon that was prepared beside the switch that runs, and the start that makes it the switch.
//!
//! The starting process says with which words it was called; the one that stands by compares them
//! and the rest of what both have inherited with its own, takes on what may differ, and answers one
//! byte when it is configured. Whatever goes wrong closes the connection before it has the pidfile,
//! and the starting process becomes the daemon itself.

use super::args::Args;
use super::context;
use super::paths::Dirs;
use crate::{listener, vlog};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;

/// No command line is longer, in bytes: longer ones are started without help.
const WORDS_BYTES_MAX: usize = 64 << 10;
/// How long a peer that connects may take to say its words.
const WORDS_TIME_MAX: Duration = Duration::from_secs(1);

/// Waits until a process that stands by for these arguments is the daemon; true once it is
/// configured.
pub(super) fn is_daemon_now(args: &Args) -> bool {
    let Ok(mut stream) = UnixStream::connect(context::socket(&args.dirs)) else { return false };
    let done = stream
        .write_all(&context::command_line())
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.read_exact(&mut [0]));
    if done.is_err() {
        vlog::info!("vswitchd", "the process that stood by did not take over");
    }
    done.is_ok()
}

/// The socket at which a process stands by; removed when dropped.
#[derive(Debug)]
pub struct Standby {
    path: PathBuf,
    inode: u64,
    socket: UnixListener,
}

impl Standby {
    /// Listens, in the place of a process that stood by earlier. Needs a tokio runtime.
    pub fn listen(dirs: &Dirs) -> io::Result<Standby> {
        let path = context::socket(dirs);
        let _ = fs::remove_file(&path);
        let socket = listener::bind_unix(&path)?;
        Ok(Standby { inode: fs::metadata(&path)?.ino(), path, socket })
    }

    /// Waits for the process that starts the daemon; where it waits for an answer. Fails when this
    /// process cannot be what that one would become. Cancel-safe.
    pub async fn asked(&self, args: &Args) -> io::Result<File> {
        let (stream, _) = self.socket.accept().await?;
        let peer = stream.peer_cred()?;
        let stream = stream.into_std()?;
        // Nothing else happens in this process, which may wait here.
        stream.set_nonblocking(false)?;
        let words = words(&stream)?;
        let pid = peer.pid().ok_or_else(|| io::Error::other("who asks is in no process"))?;
        // SAFETY: no arguments.
        if peer.uid() != unsafe { libc::geteuid() } || words != context::command_line() {
            return Err(io::Error::other("the daemon is started with other arguments"));
        }
        let theirs = context::inherited(&pid.to_string(), args.no_chdir)?;
        let ours = context::inherited("self", args.no_chdir)?;
        if let Some(other) = theirs.iter().find(|value| !ours.contains(value)) {
            return Err(io::Error::other(format!("the daemon is started with another {other}")));
        }
        if let Some(lacks) = ours.iter().find(|value| !theirs.contains(value)) {
            return Err(io::Error::other(format!("the daemon is started without {lacks}")));
        }
        // An upgrade has replaced the program of one of them.
        let program = |process: &str| fs::read_link(format!("/proc/{process}/exe"));
        let (theirs, ours) = (program(&pid.to_string())?, program("self")?);
        if theirs != ours {
            return Err(io::Error::other(format!(
                "the daemon is started from {}, this is {}",
                theirs.display(),
                ours.display()
            )));
        }
        context::take_on(pid)?;
        Ok(File::from(OwnedFd::from(stream)))
    }
}

/// What a process that connected says until it ends its side; fails when that is too long, or
/// takes too long, however often something comes.
fn words(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + WORDS_TIME_MAX;
    let (mut words, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let late = || io::Error::other("who asks does not come to an end");
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(words),
            Ok(n) => words.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(e) => return Err(e),
        }
        if words.len() > WORDS_BYTES_MAX {
            return Err(io::Error::other("who asks says too much"));
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        // Unless a later one has its place.
        if fs::metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
