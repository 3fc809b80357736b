//! Start-up of EAL, once per process, and the threads it knows.

use crate::{DpdkError, args};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::sync::{Mutex, OnceLock};

/// How to start EAL. The strings are `Open_vSwitch.other_config` values, passed as they are.
#[derive(Clone, Debug, Default)]
pub struct EalConfig {
    /// True if ports may name PCI devices; this cannot be changed later. Nothing is probed before a
    /// port names it.
    pub pci: bool,
    /// `dpdk-lcore-mask`; None: one lcore on the first CPU we may use.
    pub lcore_mask: Option<String>,
    /// `dpdk-alloc-mem`, MiB.
    pub alloc_mem: Option<String>,
    /// `dpdk-socket-mem`, MiB per NUMA node.
    pub socket_mem: Option<String>,
    /// `dpdk-socket-limit`, MiB per NUMA node.
    pub socket_limit: Option<String>,
    /// `dpdk-hugepage-dir`.
    pub hugepage_dir: Option<String>,
    /// `dpdk-extra`: further EAL options, which win over ours.
    pub extra: String,
    /// Do without hugepages, whatever the machine has.
    pub no_huge: bool,
    /// Gets each of DPDK's log lines, without newline, with its level (`RTE_LOG_*`), on the thread
    /// that logs it.
    pub log: Option<fn(u32, &str)>,
}

impl EalConfig {
    /// Reads the `dpdk-*` keys of `Open_vSwitch.other_config`.
    pub fn from_other_config(map: &BTreeMap<String, String>) -> Self {
        let get = |key: &str| map.get(key).filter(|v| !v.is_empty()).cloned();
        EalConfig {
            pci: true,
            lcore_mask: get("dpdk-lcore-mask"),
            alloc_mem: get("dpdk-alloc-mem"),
            socket_mem: get("dpdk-socket-mem"),
            socket_limit: get("dpdk-socket-limit"),
            hugepage_dir: get("dpdk-hugepage-dir"),
            extra: get("dpdk-extra").unwrap_or_default(),
            ..Default::default()
        }
    }
}

/// Proof that EAL runs. Copies are free; it runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    huge: bool,
}

static EAL: OnceLock<Eal> = OnceLock::new();
static ARGUMENTS: OnceLock<String> = OnceLock::new();
static STARTING: Mutex<bool> = Mutex::new(false);
static LOG: OnceLock<fn(u32, &str)> = OnceLock::new();

impl Eal {
    /// Ok if EAL can start while another switch runs that will end soon, with the same result as if
    /// it started afterwards; else why not.
    pub fn can_start_beside(config: &EalConfig) -> Result<(), String> {
        args::beside(config, &machine())
    }

    /// Starts EAL. It can be tried once per process: DPDK does not support a second attempt, not
    /// even after a failure (which comes by itself when another process takes the hugepages that
    /// were free a moment ago). The caller's CPU affinity does not change and no file stays behind.
    pub fn init(config: &EalConfig) -> Result<Eal, DpdkError> {
        if let Some(option) = args::fatal(config) {
            let reason = format!("'{option}' is not an option for a running switch");
            return Err(DpdkError::new("cannot start DPDK", reason));
        }
        let mut tried = STARTING.lock().unwrap_or_else(|e| e.into_inner());
        if std::mem::replace(&mut *tried, true) {
            return Err(DpdkError::new("cannot start DPDK", "it was started before"));
        }
        if let Some(sink) = config.log {
            let _ = LOG.set(sink);
        }
        let (argv, huge) = args::build(config, &machine());
        let _ = ARGUMENTS.set(argv.join(" "));
        start_aside(argv)?;
        Ok(*EAL.get_or_init(|| Eal { huge }))
    }

    /// The running EAL, if it was started.
    pub fn get() -> Option<Eal> {
        EAL.get().copied()
    }

    /// What EAL was started with, options and values separated by blanks.
    pub fn arguments(&self) -> &'static str {
        ARGUMENTS.get().map_or("", String::as_str)
    }

    /// True if devices are given virtual addresses (IOVA mode VA).
    pub fn maps_virtual_addresses(&self) -> bool {
        // SAFETY: reads what EAL decided when it began.
        unsafe { dpdk_sys::rte_eal_iova_mode() == dpdk_sys::RTE_IOVA_VA }
    }

    /// True if packet memory is on hugepages.
    pub fn hugepages(&self) -> bool {
        self.huge
    }

    /// Makes the calling thread known to EAL, so that its mempool operations use a cache of its
    /// own. Threads that are not registered work, more slowly. Fails when 128 threads are.
    pub fn register_thread(&self) -> Result<ThreadGuard, DpdkError> {
        // SAFETY: EAL runs; the thread is not registered twice because of the check.
        unsafe {
            if dpdk_sys::weft_lcore_id() != u32::MAX {
                return Ok(ThreadGuard { registered: false, _here: PhantomData });
            }
            match dpdk_sys::rte_thread_register() {
                0 => Ok(ThreadGuard { registered: true, _here: PhantomData }),
                ret => Err(DpdkError::code("cannot register the thread with DPDK", ret)),
            }
        }
    }
}

/// A registered thread; it is unregistered (and its mempool cache is free for the next one) when
/// this is dropped, on the same thread.
#[derive(Debug)]
pub struct ThreadGuard {
    registered: bool,
    _here: PhantomData<*const ()>,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if self.registered {
            // SAFETY: this thread was registered by us (the guard is not Send).
            unsafe { dpdk_sys::rte_thread_unregister() };
        }
    }
}

/// EAL pins the thread that calls it to the main lcore: gives it one that then ends.
fn start_aside(argv: Vec<String>) -> Result<(), DpdkError> {
    let result = std::thread::Builder::new()
        .name("eal-init".into())
        .spawn(move || start(&argv))
        .map_err(|e| DpdkError::new("cannot start DPDK", e.to_string()))?
        .join();
    result.unwrap_or_else(|_| Err(DpdkError::new("cannot start DPDK", "panicked")))
}

fn start(argv: &[String]) -> Result<(), DpdkError> {
    let what = "cannot start DPDK";
    let strings: Result<Vec<CString>, _> = argv.iter().map(|a| CString::new(a.as_str())).collect();
    let strings = strings.map_err(|_| DpdkError::new(what, "an option contains a NUL byte"))?;
    // EAL keeps pointers into argv: it lives for ever.
    let mut pointers: Vec<*mut libc::c_char> = strings.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as i32;
    pointers.push(std::ptr::null_mut());
    let pointers = Vec::leak(pointers);
    // SAFETY: the sink is a plain function; argv is NUL-terminated and never freed.
    let ret = unsafe {
        dpdk_sys::weft_log_to(Some(log_sink));
        dpdk_sys::rte_eal_init(count, pointers.as_mut_ptr())
    };
    if ret < 0 {
        return Err(DpdkError::code(what, ret));
    }
    // SAFETY: EAL runs; the directory's name is a static string.
    let dir = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    hush(c"libxdp.so.1", c"libxdp_set_print");
    hush(c"libbpf.so.1", c"libbpf_set_print");
    // Without shared configuration nothing is in it. It stays if something is.
    let _ = std::fs::remove_dir(dir.to_string_lossy().as_ref());
    Ok(())
}

/// Tells a library that a driver brought along not to write to stderr, if it is loaded.
fn hush(library: &CStr, set_print: &CStr) {
    type SetPrint = unsafe extern "C" fn(*const libc::c_void) -> *const libc::c_void;
    // SAFETY: NOLOAD only looks; these functions take a print function, null for none. The
    // library stays loaded with the driver that needs it.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return;
        }
        let symbol = libc::dlsym(handle, set_print.as_ptr());
        if !symbol.is_null() {
            std::mem::transmute::<*mut libc::c_void, SetPrint>(symbol)(std::ptr::null());
        }
    }
}

thread_local! {
    /// DPDK's last log line on this thread: usually the reason of a failure that follows.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
    /// True while what DPDK logs on this thread is left out of the log.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`; what DPDK logs on this thread meanwhile is left out of the log.
pub(crate) fn without_log<T>(f: impl FnOnce() -> T) -> T {
    SILENT.set(true);
    let result = f();
    SILENT.set(false);
    result
}

/// Takes what this thread logged last; empty when nothing since the last call.
pub(crate) fn take_last_log() -> String {
    LAST.take()
}

/// Called by the C library with whatever was written, usually one line.
unsafe extern "C" fn log_sink(text: *const libc::c_char, len: usize) {
    // SAFETY: stdio hands us `len` readable bytes; the level is this thread's.
    let (bytes, level) = unsafe {
        let bytes = std::slice::from_raw_parts(text.cast::<u8>(), len);
        (bytes, dpdk_sys::rte_log_cur_msg_loglevel().max(0) as u32)
    };
    let log = LOG.get().copied().unwrap_or(|_, _| ());
    for line in String::from_utf8_lossy(bytes).lines().filter(|l| !l.trim().is_empty()) {
        // No destructor runs on a thread that is ending.
        if !SILENT.try_with(Cell::get).unwrap_or(false) {
            log(level, line.trim_end());
        }
        let _ = LAST.try_with(|last| last.replace(line.trim().to_string()));
    }
}

/// Looks at the machine: free hugepages, available memory, the first CPU of our affinity.
fn machine() -> args::Machine {
    args::Machine {
        huge_free: huge_mib("free_hugepages"),
        huge_total: huge_mib("nr_hugepages"),
        available: available_mib(),
        first_cpu: first_cpu(),
        pid: std::process::id(),
    }
}

/// MiB of hugepages, of all sizes: `free_hugepages` or `nr_hugepages` of them.
fn huge_mib(which: &str) -> u64 {
    let Ok(dir) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    dir.flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let kib: u64 =
                name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = std::fs::read_to_string(entry.path().join(which)).ok()?;
            Some(kib * count.trim().parse::<u64>().ok()? / 1024)
        })
        .sum()
}

fn available_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0)
        / 1024
}

fn first_cpu() -> usize {
    // SAFETY: an all-zero cpu_set_t is valid and large enough for the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return 0;
        }
        (0..libc::CPU_SETSIZE as usize).find(|c| libc::CPU_ISSET(*c, &set)).unwrap_or(0)
    }
}
