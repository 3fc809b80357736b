//! `--user USER[:GROUP]`: the daemon gives up root but for the capabilities that ovs-vswitchd
//! keeps.

use super::detach::StartError;
use crate::vlog;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::fs::chown;

/// What stays (capability numbers of linux/capability.h): ports below 1024; devices, TAPs and
/// routes; packets for all on a network; packet sockets; memory that DPDK locks.
const KEPT: [u32; 5] = [10, 11, 12, 13, 14];
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// The user and group that the daemon runs as (`--user`).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

impl User {
    /// Looks USER and GROUP up; without GROUP it is the user's own. Needs root. The errors are
    /// ovs-vswitchd's.
    pub(super) fn find(spec: &str) -> Result<Self, StartError> {
        let fail = |why: String| StartError::User(format!("{why}, aborting."));
        let spec = spec.trim();
        // SAFETY: no arguments.
        if unsafe { libc::getuid() != 0 || libc::getgid() != 0 } {
            return Err(fail("only root can use --user option".into()));
        }
        let (user, group) = spec.split_once(':').unwrap_or((spec, ""));
        let invalid = |why: String| fail(format!("Invalid --user option {spec} ({why})"));
        let mut found = match user {
            "" if group.is_empty() => return Err(fail("user string is empty".into())),
            "" => passwd("root"),
            name => passwd(name),
        }
        .ok_or_else(|| invalid(format!("no such user {user}")))?;
        if !group.is_empty() {
            let (gid, members) =
                group_of(group).ok_or_else(|| invalid(format!("no such group {group}")))?;
            let is_member =
                user.is_empty() || gid == found.gid || members.iter().any(|m| m == user);
            if !is_member {
                return Err(invalid(format!("user {user} is not in group {group}")));
            }
            found.gid = gid;
        }
        Ok(found)
    }

    /// Becomes this user, with [`KEPT`] only. The process has one thread: the system calls are
    /// about the calling one.
    pub(super) fn become_it(&self) -> Result<(), StartError> {
        let Self { name, uid, gid } = self;
        // The log must be writable when it is opened anew.
        if let Some(path) = vlog::file_path() {
            let _ = chown(path, Some(*uid), Some(*gid));
        }
        let check = |what, ret: libc::c_int| match ret {
            -1 => Err(StartError::System(what, io::Error::last_os_error())),
            _ => Ok(()),
        };
        // SAFETY: numbers and a NUL-terminated name; capabilities stay permitted over the change of
        // ids.
        unsafe {
            check("prctl", libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
            check("setresgid", libc::setresgid(*gid, *gid, *gid))?;
            check("initgroups", libc::initgroups(name.as_ptr(), *gid))?;
            check("setresuid", libc::setresuid(*uid, *uid, *uid))?;
        }
        keep()?;
        for cap in KEPT {
            // For a program that starts itself again; a kernel without ambient capabilities need
            // not have them. SAFETY: numbers only.
            unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap, 0, 0) };
        }
        Ok(())
    }
}

/// Sets this thread's capabilities, of which all it has may be inherited.
fn keep() -> Result<(), StartError> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let set = KEPT.iter().fold(0, |set, cap| set | 1 << cap);
    let low = Data { effective: set, permitted: set, inheritable: set };
    let data = [low, Data { effective: 0, permitted: 0, inheritable: 0 }];
    let header = Header { version: VERSION, pid: 0 };
    // SAFETY: version 3 reads a header and two data structures of capset(2)'s layout; they outlive
    // the call.
    let ret = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if ret != 0 {
        return Err(StartError::System("capset", io::Error::last_os_error()));
    }
    Ok(())
}

fn passwd(name: &str) -> Option<User> {
    let name = CString::new(name).ok()?;
    // SAFETY: the process has one thread, so the static entry stays as it is while it is read.
    let (uid, gid) = unsafe {
        let entry = libc::getpwnam(name.as_ptr()).as_ref()?;
        (entry.pw_uid, entry.pw_gid)
    };
    Some(User { name, uid, gid })
}

/// A group's number, and who is in it besides those whose own group it is.
fn group_of(name: &str) -> Option<(libc::gid_t, Vec<String>)> {
    let name = CString::new(name).ok()?;
    let mut members = Vec::new();
    // SAFETY: as above; the list of names ends with a null pointer.
    unsafe {
        let entry = libc::getgrnam(name.as_ptr()).as_ref()?;
        let mut next = entry.gr_mem;
        while !(*next).is_null() {
            members.push(CStr::from_ptr(*next).to_string_lossy().into_owned());
            next = next.add(1);
        }
        Some((entry.gr_gid, members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vlog::PROGRAM;

    #[test]
    fn users_and_groups_are_looked_up() {
        // SAFETY: no arguments.
        if unsafe { libc::getuid() } != 0 {
            return;
        }
        let why = |spec: &str| User::find(spec).unwrap_err().to_string();
        assert_eq!(User::find("root").unwrap(), User { name: c"root".into(), uid: 0, gid: 0 });
        assert_eq!(User::find("root:root").unwrap(), User::find("root:").unwrap());
        let nobody = User::find("nobody").unwrap();
        assert!(nobody.uid > 0 && nobody.gid > 0);
        assert!(why(":").ends_with("user string is empty, aborting."));
        let text =
            "Invalid --user option nobody:daemon (user nobody is not in group daemon), aborting.";
        assert_eq!(why("nobody:daemon"), format!("{PROGRAM}: {text}"));
        assert!(why("no-such-user").contains("(no such user no-such-user)"));
        assert!(why("nobody:no-such-group").contains("(no such group no-such-group)"));
    }
}
