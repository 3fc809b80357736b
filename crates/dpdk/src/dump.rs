//! What DPDK prints about itself, and what it logs.

use crate::pool::DpdkPool;
use crate::{DpdkError, registry};
use std::ffi::CString;

/// The log levels of `rte_log.h` by name, from 1.
const LEVELS: [&str; 8] =
    ["emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"];

/// What a function of DPDK writes to a stream.
fn written(by: impl FnOnce(*mut libc::FILE)) -> String {
    let (mut text, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the stream writes to memory of its own, which `text` and `len` tell once it is closed
    // and which is ours to free then; the function gets it open and does not keep it.
    unsafe {
        let stream = libc::open_memstream(&mut text, &mut len);
        if stream.is_null() {
            return String::new();
        }
        by(stream);
        libc::fclose(stream);
        let out = String::from_utf8_lossy(std::slice::from_raw_parts(text.cast(), len));
        let out = out.into_owned();
        libc::free(text.cast());
        out
    }
}

/// DPDK's heaps.
pub fn malloc_stats() -> String {
    // SAFETY: EAL has static heaps, empty before it runs; a null type means all.
    written(|f| unsafe { dpdk_sys::rte_malloc_dump_stats(f, std::ptr::null()) })
}

/// Threads that DPDK knows.
pub fn lcores() -> String {
    // SAFETY: prints a table under its lock.
    written(|f| unsafe { dpdk_sys::rte_lcore_dump(f) })
}

/// What is logged, and how much of it.
pub fn log_levels() -> String {
    // SAFETY: prints a static table.
    written(|f| unsafe { dpdk_sys::rte_log_dump(f) })
}

/// Logs from this level on, a name of `rte_log.h` such as `debug`, what matches a shell pattern.
pub fn set_log_level(pattern: &str, level: &str) -> Result<(), String> {
    let at = LEVELS.iter().position(|name| *name == level);
    let at = at.ok_or_else(|| format!("invalid log level: '{level}'"))?;
    let refused = || format!("cannot set log level for '{pattern}'");
    let c = CString::new(pattern).map_err(|_| refused())?;
    // SAFETY: the string ends with NUL and is copied.
    match unsafe { dpdk_sys::rte_log_set_level_pattern(c.as_ptr(), at as u32 + 1) } {
        0.. => Ok(()),
        _ => Err(refused()),
    }
}

impl DpdkPool {
    /// The pool as DPDK shows it.
    pub fn dump(&self) -> String {
        // SAFETY: the pool lives for ever.
        written(|f| unsafe { dpdk_sys::rte_mempool_dump(f, self.raw()) })
    }
}

/// Removes a device that no port uses. Ok(false): DPDK has none of that name. The error says why a
/// device stays.
pub fn detach(devargs: &str) -> Result<bool, DpdkError> {
    registry::lock().detach(devargs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names() {
        assert_eq!(set_log_level("*", "loud"), Err("invalid log level: 'loud'".into()));
        assert_eq!(set_log_level("weft.test", "debug"), Ok(()));
        assert!(log_levels().contains("lib.eal"), "{}", log_levels());
    }
}
