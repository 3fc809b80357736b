//! What a process inherits from the one that starts it, compared and taken over from another
//! process: the one that stood by is then what the new one would have become.

use super::paths::Dirs;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Lines of /proc/PID/status that have to be the same.
const STATUS: [&str; 9] = [
    "Umask:",
    "Uid:",
    "Gid:",
    "Groups:",
    "CapEff:",
    "NoNewPrivs:",
    "Seccomp:",
    "Cpus_allowed:",
    "Mems_allowed:",
];
/// Variables that systemd sets anew for each process.
const EACH_START: [&str; 7] = [
    "INVOCATION_ID=",
    "JOURNAL_STREAM=",
    "SYSTEMD_EXEC_PID=",
    "PIDFILE=",
    "MAINPID=",
    "NOTIFY_SOCKET=",
    "MEMORY_PRESSURE",
];
/// Fields of /proc/PID/stat: what they are, and where behind the name.
const STAT: [(&str, usize); 2] = [("nice value", 16), ("scheduling policy", 38)];
/// Resource limits that there are (`RLIMIT_*`).
const LIMITS: u32 = 16;

/// The words of the command line with which this process would be the daemon at once.
pub(super) fn command_line() -> Vec<u8> {
    let words = std::env::args_os().filter(|word| word != "--standby");
    words.collect::<Vec<OsString>>().join("\0".as_ref()).as_bytes().to_vec()
}

/// What cannot be changed from outside, of the process with this id or of `self`.
pub(super) fn inherited(process: &str, with_folder: bool) -> io::Result<Vec<String>> {
    let place = PathBuf::from("/proc").join(process);
    let status = fs::read_to_string(place.join("status"))?;
    let is_wanted = |line: &&str| STATUS.iter().any(|name| line.starts_with(name));
    let mut all: Vec<String> = status.lines().filter(is_wanted).map(String::from).collect();
    let stat = fs::read_to_string(place.join("stat"))?;
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |(name, at): &(&str, usize)| Some(format!("{name}: {}", fields.get(*at)?));
    all.extend(STAT.iter().filter_map(field));
    let namespaces = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let links = namespaces.iter().map(|name| format!("ns/{name}"));
    for link in links.chain(["root".into()]).chain(with_folder.then(|| "cwd".into())) {
        all.push(fs::read_link(place.join(link))?.to_string_lossy().into_owned());
    }
    let environment = fs::read(place.join("environ"))?;
    let variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut variables: Vec<String> = variables
        .filter(|v| !v.is_empty() && !EACH_START.iter().any(|name| v.starts_with(name)))
        .map(|v| v.into_owned())
        .collect();
    variables.sort_unstable();
    all.extend(variables);
    Ok(all)
}

/// Gives this process the resource limits, the out-of-memory score and the control groups of
/// another one, as if it had been forked there.
pub(super) fn take_on(pid: i32) -> io::Result<()> {
    for resource in 0..LIMITS {
        let mut limit = MaybeUninit::<libc::rlimit>::uninit();
        // SAFETY: the first call fills the limit, the second one reads it.
        let failed = unsafe {
            libc::prlimit(pid, resource, std::ptr::null(), limit.as_mut_ptr()) != 0
                || libc::prlimit(0, resource, limit.as_ptr(), std::ptr::null_mut()) != 0
        };
        if failed {
            return Err(io::Error::last_os_error());
        }
    }
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    fs::write("/proc/self/oom_score_adj", score)?;
    let theirs = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let ours = fs::read_to_string("/proc/self/cgroup")?;
    for line in theirs.lines().filter(|line| !ours.lines().any(|own| own == *line)) {
        if let Some(group) = group(line) {
            fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
        }
    }
    Ok(())
}

/// The folder of a control group, as /proc/PID/cgroup has it: of version 2, or of version 1 the
/// hierarchy by which systemd knows processes, and others.
fn group(line: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let root = match controllers {
        "" => ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .into_iter()
            .find(|root| fs::exists(format!("{root}/cgroup.procs")).unwrap_or(false))?
            .to_string(),
        named => format!("/sys/fs/cgroup/{}", named.strip_prefix("name=").unwrap_or(named)),
    };
    Some(PathBuf::from(root).join(path.trim_start_matches('/')))
}

/// Where a process that stands by listens.
pub(super) fn socket(dirs: &Dirs) -> PathBuf {
    dirs.run.join("weft-standby.sock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_inherits_all_but_what_is_changed() {
        let same = |command: &mut Command| {
            let mut child = command.arg("5").spawn().unwrap();
            let own = inherited("self", true).unwrap();
            // What it is before it has executed the program does not count.
            let theirs = (0..500).find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(2));
                let name = fs::read_to_string(format!("/proc/{}/comm", child.id())).ok()?;
                (name.trim() == "sleep").then(|| inherited(&child.id().to_string(), true).ok())?
            });
            child.kill().unwrap();
            child.wait().unwrap();
            theirs.unwrap() == own
        };
        assert!(same(&mut Command::new("sleep")));
        assert!(same(Command::new("sleep").env("INVOCATION_ID", "x")));
        assert!(!same(Command::new("sleep").env("OVS_RUNDIR", "/x")));
        assert!(!same(Command::new("sleep").current_dir("/")));
        // SAFETY: a call without memory. 19 is the greatest niceness, to which more adds nothing.
        let other =
            if unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } > 16 { "-3" } else { "3" };
        assert!(!same(Command::new("nice").args(["-n", other, "sleep"])));
    }

    #[test]
    fn control_groups_have_folders() {
        let v1 = group("1:name=systemd:/system.slice/a.service");
        assert_eq!(v1, Some("/sys/fs/cgroup/systemd/system.slice/a.service".into()));
        assert_eq!(group("4:cpu:/"), Some("/sys/fs/cgroup/cpu/".into()));
        assert_eq!(group("x"), None);
    }
}
