//! `Open_vSwitch.statistics`, in the layout of ovs-vswitchd.conf.db(5): what the machine and Open
//! vSwitch's daemons use.

use super::pidfile;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::path::Path;

/// All that can be known; `run`: the directory of the daemons' pidfiles.
pub fn read(run: &Path) -> BTreeMap<String, String> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut all = BTreeMap::new();
    let mut put = |name: &str, value: Option<String>| {
        all.extend(value.filter(|v| !v.is_empty()).map(|v| (name.to_string(), v)));
    };
    put("cpu", std::thread::available_parallelism().ok().map(|n| n.to_string()));
    put("load_average", load(&text("/proc/loadavg")));
    put("memory", memory(&text("/proc/meminfo")));
    put("file_systems", Some(file_systems(&text("/proc/self/mounts"))));
    for (name, value) in processes(run) {
        put(&format!("process_{name}"), Some(value));
    }
    all
}

/// The three averages of /proc/loadavg.
fn load(text: &str) -> Option<String> {
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    (averages.len() == 3).then(|| averages.join(","))
}

/// KiB: all, in use, in use by caches, swap, swap in use.
fn memory(text: &str) -> Option<String> {
    let value = |name: &str| -> Option<u64> {
        let line = text.lines().find(|l| l.split(':').next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let (total, swap) = (value("MemTotal")?, value("SwapTotal")?);
    let used = total.saturating_sub(value("MemFree")?);
    let caches = value("Buffers")? + value("Cached")?;
    let swapped = swap.saturating_sub(value("SwapFree")?);
    Some(format!("{total},{used},{caches},{swap},{swapped}"))
}

/// Local file systems that can be written: mount point, KiB, KiB in use.
fn file_systems(mounts: &str) -> String {
    let local = mounts.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [device, dir, _, options, ..] = words[..] else { return None };
        let usable = device.starts_with('/') && !options.split(',').any(|o| o == "ro");
        let (total, used) = sizes(dir).filter(|_| usable)?;
        // Blanks are octal in this file.
        let dir = dir.replace("\\040", "_").replace(',', "_");
        Some(format!("{dir},{total},{used}"))
    });
    local.collect::<Vec<_>>().join(" ")
}

/// KiB of the file system at a mount point, all and in use.
fn sizes(dir: &str) -> Option<(u64, u64)> {
    let dir = CString::new(dir.replace("\\040", " ")).ok()?;
    // SAFETY: all-zero is a valid `statvfs`; the path is NUL-terminated, both outlive the call.
    let about = unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(dir.as_ptr(), &mut about) == 0).then_some(about)?
    };
    let kib = |blocks: u64| blocks.saturating_mul(about.f_frsize) / 1024;
    Some((kib(about.f_blocks), kib(about.f_blocks.saturating_sub(about.f_bfree))))
}

/// Daemons whose pidfiles are locked, by their names.
fn processes(run: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(run).into_iter().flatten().flatten();
    let found = files.filter_map(|file| {
        let name = file.file_name().to_str()?.strip_suffix(".pid")?.to_string();
        let pid = pidfile::holder(&file.path()).ok()??;
        Some((name, process(pid)?))
    });
    found.collect()
}

/// KiB of memory and in RAM, milliseconds of CPU, crashes, milliseconds since it was first and last
/// started, the core that it ran on last. The monitor's count of crashes is not known here: 0.
fn process(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    // What follows the name in parentheses begins with field 3 of proc(5).
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    // SAFETY: numbers are asked for, no pointers are involved.
    let (tick, page) =
        unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    let ms = |ticks: u64| ticks.saturating_mul(1000) / tick.max(1) as u64;
    let since = ((uptime * 1000.0) as u64).saturating_sub(ms(field(22)?));
    let (size, resident) = (field(23)? / 1024, field(24)? * page.max(0) as u64 / 1024);
    let (cpu, core) = (ms(field(14)? + field(15)?), field(39)?);
    Some(format!("{size},{resident},{cpu},0,{since},{since},{core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(load("0.08 0.32 1.37 1/234 567\n").as_deref(), Some("0.08,0.32,1.37"));
        let text = "MemTotal: 100 kB\nMemFree: 40 kB\nBuffers: 5 kB\nCached: 7 kB\nSwapCached: 1 kB\n\
                    SwapTotal: 10 kB\nSwapFree: 9 kB\n";
        assert_eq!(memory(text).as_deref(), Some("100,60,12,10,1"));
        assert_eq!((load(""), memory("MemTotal: 1 kB")), (None, None));
        let line =
            file_systems("proc /proc proc rw 0 0\n/dev/x / ext4 ro,x 0 0\n/dev/y / ext4 rw 0 0\n");
        assert!(line.starts_with("/,") && line.split(',').count() == 3, "{line}");
        let own = process(std::process::id()).unwrap();
        let numbers: Vec<u64> = own.split(',').map(|n| n.parse().unwrap()).collect();
        assert!(numbers.len() == 7 && numbers[1] > 0 && numbers[0] > numbers[1], "{own}");
    }
}
