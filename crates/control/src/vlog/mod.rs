//! The log: console, syslog and file, with a level for each destination and module.
//!
//! Module names, levels, specifications and layout are those of ovs-appctl(8), because scripts set
//! and read them. Use [`info!`](crate::vlog::info) and its kin with a module name first:
//! `vlog::info!("bridge", "bridge {name}: deleted")`. A message from one place in the source is
//! written at most [`limit::BURST`] times at once and [`limit::RATE`] times per second after that;
//! what is left out is counted, and the count is logged.
//!
//! PMD threads never log. Everything else may, from any thread.

mod commands;
mod levels;
pub mod limit;
mod pattern;
mod sinks;

pub use commands::register;
pub use levels::{Destination, Level, SpecError};
pub use limit::Site;
pub(crate) use pattern::PROGRAM;
pub use pattern::timestamp;
pub use sinks::SyslogMethod;

use levels::Levels;
use pattern::{LogRecord, Patterns};
use sinks::Sinks;
use std::fmt::Arguments;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant, SystemTime};

/// No destination of any module takes a level above this; the cheap test before the lock.
static MOST_VERBOSE: AtomicU8 = AtomicU8::new(Level::Info as u8);
static LOG: Mutex<Log> = Mutex::new(Log::new());

struct Log {
    levels: Levels,
    patterns: Patterns,
    sinks: Sinks,
    serial: u64,
}

impl Log {
    const fn new() -> Self {
        Self { levels: Levels::new(), patterns: Patterns::new(), sinks: Sinks::new(), serial: 0 }
    }

    fn write(&mut self, level: Level, module: &str, text: &str) {
        let wanted = self.levels.of(module);
        if !Destination::ALL.iter().any(|&d| level.passes(wanted[d as usize])) {
            return;
        }
        self.serial += 1;
        let record = LogRecord {
            time: SystemTime::now(),
            serial: self.serial,
            level,
            module,
            message: text,
        };
        for destination in Destination::ALL {
            if level.passes(wanted[destination as usize]) && self.sinks.is_open(destination) {
                let line = self.patterns.format(destination, &record, self.sinks.facility());
                self.sinks.write(destination, &line);
            }
        }
    }
}

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether any destination takes messages of this level; false spares their formatting.
pub fn enabled(level: Level) -> bool {
    level as u8 <= MOST_VERBOSE.load(Ordering::Relaxed)
}

/// Whether any destination takes messages of this level from a module.
pub fn enabled_in(module: &str, level: Level) -> bool {
    enabled(level) && log().levels.of(module).iter().any(|wanted| level.passes(*wanted))
}

/// Writes one message, subject to the levels and the limit of its place in the source. The macros
/// call this.
pub fn write(site: &Site, level: Level, module: &str, text: Arguments<'_>) {
    let mut log = log();
    if log.levels.is_limited(module) {
        let verdict = site.admit(Instant::now());
        if let Some(dropped) = verdict.dropped {
            log.write(level, module, &dropped.to_string());
        }
        if !verdict.admitted {
            return;
        }
    }
    log.write(level, module, &text.to_string());
}

/// Tries to write the process's last message, a millisecond apart.
const LAST_TRIES: u32 = 100;

/// Writes what the process says last, from a thread that panicked: the thread that holds the log
/// may be this very one, so that it is not waited for longer than a moment.
pub fn last_words(module: &str, text: &str) {
    for _ in 0..LAST_TRIES {
        match LOG.try_lock() {
            Ok(mut log) => return log.write(Level::Emer, module, text),
            Err(TryLockError::Poisoned(log)) => {
                return log.into_inner().write(Level::Emer, module, text);
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    eprintln!("{PROGRAM}: {text}");
}

/// Sets levels or a pattern by one specification such as `bridge:file:dbg` (ovs-appctl(8)).
pub fn set(spec: &str) -> Result<(), SpecError> {
    let mut log = log();
    let log = &mut *log;
    if let Some(rest) = levels::strip_word(spec, "PATTERN") {
        return log.patterns.set(rest);
    }
    if let Some(name) = levels::strip_word(spec, "FACILITY") {
        return log.sinks.set_facility(name);
    }
    log.levels.set(spec)?;
    MOST_VERBOSE.store(log.levels.most_verbose() as u8, Ordering::Relaxed);
    Ok(())
}

/// All modules to the highest verbosity (a bare `-v`).
pub fn set_all_debug() {
    log().levels.set_all(Level::Dbg);
    MOST_VERBOSE.store(Level::Dbg as u8, Ordering::Relaxed);
}

/// Opens a log file for appending and logs that it did.
pub fn open_file(path: PathBuf) -> std::io::Result<()> {
    log().sinks.open_file(path.clone())?;
    info!("vlog", "opened log file {}", path.display());
    Ok(())
}

/// The path of the log file that is open or was open last.
pub fn file_path() -> Option<PathBuf> {
    log().sinks.file_path().map(Path::to_path_buf)
}

/// Chooses the way to syslog, and opens it.
pub fn open_syslog(method: &SyslogMethod) -> std::io::Result<()> {
    log().sinks.open_syslog(method)
}

/// Sends syslog messages to this UDP address as well.
pub fn add_syslog_target(address: &str) -> std::io::Result<()> {
    log().sinks.add_syslog_target(address)
}

/// The time of day in UTC as `HH:MM:SS.mmm`, as reports print it.
pub fn time_of_day() -> String {
    timestamp(SystemTime::now(), "%H:%M:%S.###", true)
}

/// Logs at a level that is known only when it runs; see [`info!`](crate::vlog::info).
#[macro_export]
macro_rules! vlog_at {
    ($level:expr, $module:expr, $($text:tt)+) => {{
        if $crate::vlog::enabled($level) {
            static SITE: $crate::vlog::Site = $crate::vlog::Site::new();
            $crate::vlog::write(&SITE, $level, $module, format_args!($($text)+));
        }
    }};
}

/// Logs what ends the daemon: `emer!(module, format, ...)`.
#[macro_export]
macro_rules! vlog_emer {
    ($($t:tt)+) => { $crate::vlog_at!($crate::vlog::Level::Emer, $($t)+) };
}

/// Logs a failure of something asked for: `err!(module, format, ...)`.
#[macro_export]
macro_rules! vlog_err {
    ($($t:tt)+) => { $crate::vlog_at!($crate::vlog::Level::Err, $($t)+) };
}

/// Logs what an operator should look at: `warn!(module, format, ...)`.
#[macro_export]
macro_rules! vlog_warn {
    ($($t:tt)+) => { $crate::vlog_at!($crate::vlog::Level::Warn, $($t)+) };
}

/// Logs what happened: `info!(module, format, ...)`.
#[macro_export]
macro_rules! vlog_info {
    ($($t:tt)+) => { $crate::vlog_at!($crate::vlog::Level::Info, $($t)+) };
}

/// Logs what helps to find a fault: `dbg!(module, format, ...)`.
#[macro_export]
macro_rules! vlog_dbg {
    ($($t:tt)+) => { $crate::vlog_at!($crate::vlog::Level::Dbg, $($t)+) };
}

pub use crate::{
    vlog_at as at, vlog_dbg as dbg, vlog_emer as emer, vlog_err as err, vlog_info as info,
    vlog_warn as warn,
};
