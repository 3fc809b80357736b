//! The pidfile: its lock tells a live process from a dead one's remains.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// This process's pidfile: its number, and the file's device and inode.
fn own() -> MutexGuard<'static, Option<(u32, u64, u64)>> {
    static OWN: Mutex<Option<(u32, u64, u64)>> = Mutex::new(None);
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pidfile held by this process; removed when dropped. The lock belongs to the process: a forked
/// child does not have it.
#[derive(Debug)]
pub(super) struct Pidfile {
    path: PathBuf,
    file: File,
    owner: u32,
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: all-zero is a valid `flock`: the whole file from its start.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// The live process that holds the pidfile, if any. The own one is not opened: closing any
/// descriptor of it would end its lock.
pub(super) fn holder(path: &Path) -> io::Result<Option<u32>> {
    let found = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if *own() == Some((std::process::id(), found.dev(), found.ino())) {
        return Ok(Some(std::process::id()));
    }
    let file = File::open(path)?;
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `lock` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock.l_pid as u32))
}

impl Pidfile {
    /// Writes and locks the pidfile beside its place, then moves it there, so that no process ever
    /// reads an incomplete one.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let owner = std::process::id();
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".tmp{owner}"));
        let temporary = PathBuf::from(name);
        // What a process of the same number left, or another user put there, is not written
        // through.
        let _ = fs::remove_file(&temporary);
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
        writeln!(file, "{owner}")?;
        let lock = whole_file(libc::F_WRLCK);
        // SAFETY: the descriptor is open and `lock` outlives the call.
        let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) } == 0;
        let moved =
            if locked { fs::rename(&temporary, path) } else { Err(io::Error::last_os_error()) };
        if let Err(error) = moved {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        let made = file.metadata()?;
        *own() = Some((owner, made.dev(), made.ino()));
        Ok(Self { path: path.to_owned(), file, owner })
    }

    /// Whether the path still leads to the file that this process locked.
    fn is_mine(&self) -> bool {
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let (here, there) = (self.file.metadata(), fs::metadata(&self.path));
        std::process::id() == self.owner && here.is_ok_and(|h| there.is_ok_and(|t| same(h, t)))
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        if self.is_mine() {
            let _ = fs::remove_file(&self.path);
            *own() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_replaced_and_the_own_one_removed() {
        let path = std::env::temp_dir().join(format!("pidfile-test-{}", std::process::id()));
        assert_eq!(holder(&path).unwrap(), None);
        fs::write(&path, "1\n").unwrap();
        assert_eq!(holder(&path).unwrap(), None);
        let pidfile = Pidfile::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(pidfile);
        assert!(!path.exists());
    }

    #[test]
    fn a_link_in_the_temporary_files_place_is_not_followed() {
        let path = std::env::temp_dir().join(format!("pidfile-link-{}", std::process::id()));
        let victim = path.with_extension("victim");
        fs::write(&victim, "precious").unwrap();
        let temporary = format!("{}.tmp{}", path.display(), std::process::id());
        std::os::unix::fs::symlink(&victim, &temporary).unwrap();
        drop(Pidfile::create(&path).unwrap());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(&victim).unwrap();
        assert!(!fs::exists(&temporary).unwrap());
    }

    #[test]
    fn a_file_put_in_its_place_stays() {
        let path = std::env::temp_dir().join(format!("pidfile-other-{}", std::process::id()));
        let pidfile = Pidfile::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(pidfile);
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
    }
}
