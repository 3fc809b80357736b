//! Patterns that lay out a message for a destination (ovs-appctl(8), "Log patterns").

use super::levels::{Destination, Level, SpecError};
use std::ffi::CString;
use std::time::{SystemTime, UNIX_EPOCH};

/// The program whose place this one takes, as `%A` and in texts of the daemon.
pub(crate) const PROGRAM: &str = "ovs-vswitchd";

const SYSLOG_PREFIX: &str = "<%B> %D{%h %e %T} %E %A:";

/// One message with everything a pattern may ask for.
pub(super) struct LogRecord<'a> {
    pub(super) time: SystemTime,
    pub(super) serial: u64,
    pub(super) level: Level,
    pub(super) module: &'a str,
    pub(super) message: &'a str,
}

/// Bytes of a pattern, at most: each message costs what its pattern asks for, on the thread that
/// has something to say.
const PATTERN_LEN_MAX: usize = 1_024;

/// The patterns by destination; `None` is the default.
pub(super) struct Patterns {
    set: [Option<String>; 3],
}

impl Patterns {
    pub(super) const fn new() -> Self {
        Self { set: [const { None }; 3] }
    }

    fn pattern(&self, destination: Destination) -> &str {
        let default = match destination {
            Destination::Syslog => "ovs|%05N|%c%T|%p|%m",
            Destination::Console => "%D{%Y-%m-%dT%H:%M:%SZ}|%05N|%c%T|%p|%m",
            Destination::File => "%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m",
        };
        self.set[destination as usize].as_deref().unwrap_or(default)
    }

    /// Takes `destination:pattern`, `ANY` for all destinations.
    pub(super) fn set(&mut self, spec: &str) -> Result<(), SpecError> {
        let (name, pattern) = spec.split_once(':').unwrap_or((spec, ""));
        let found = Destination::from_name(name);
        if found.is_none() && !name.eq_ignore_ascii_case("any") {
            return Err(SpecError(format!("unknown destination \"{name}\"")));
        }
        if pattern.len() > PATTERN_LEN_MAX {
            return Err(SpecError(format!("pattern has more than {PATTERN_LEN_MAX} bytes")));
        }
        for destination in Destination::ALL {
            if found.is_none_or(|one| one == destination) {
                self.set[destination as usize] = Some(pattern.to_owned());
            }
        }
        Ok(())
    }

    /// The table of `vlog/list-pattern`.
    pub(super) fn list(&self) -> String {
        let mut text = format!("{:9}{:34}format\n{:9}{:34}------\n", "", "prefix", "", "------");
        for destination in Destination::ALL {
            let prefix = if destination == Destination::Syslog { SYSLOG_PREFIX } else { "none" };
            let name = destination.name().to_ascii_uppercase();
            text += &format!("{name:9}{prefix:34}{}\n", self.pattern(destination));
        }
        text
    }

    /// One line for a destination, without the final newline.
    pub(super) fn format(
        &self,
        destination: Destination,
        record: &LogRecord,
        facility: u8,
    ) -> String {
        let mut line = String::new();
        if destination == Destination::Syslog {
            expand(SYSLOG_PREFIX, record, facility, &mut line);
            line.push(' ');
        }
        expand(self.pattern(destination), record, facility, &mut line);
        line
    }
}

fn expand(pattern: &str, record: &LogRecord, facility: u8, out: &mut String) {
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let digits =
            rest.len() - rest.trim_start_matches(|c: char| c == '-' || c.is_ascii_digit()).len();
        let (format, after) = rest.split_at(digits);
        let Some(letter) = after.chars().next() else { break };
        rest = &after[letter.len_utf8()..];
        let mut argument = None;
        if let Some((inside, behind)) = rest.strip_prefix('{').and_then(|r| r.split_once('}')) {
            argument = Some(inside);
            rest = behind;
        }
        pad(&field(letter, argument, record, facility), format, out);
    }
    out.push_str(rest);
}

fn field(letter: char, argument: Option<&str>, record: &LogRecord, facility: u8) -> String {
    match letter {
        'A' => PROGRAM.into(),
        'B' => (facility * 8 + syslog_severity(record.level)).to_string(),
        'c' => record.module.into(),
        'd' => timestamp(record.time, argument.unwrap_or("%Y-%m-%d %H:%M:%S.###"), false),
        'D' => timestamp(record.time, argument.unwrap_or("%Y-%m-%d %H:%M:%S.###"), true),
        'E' => hostname(),
        'm' => record.message.into(),
        'N' => record.serial.to_string(),
        'n' => "\n".into(),
        'p' => record.level.name().into(),
        'P' => std::process::id().to_string(),
        't' => thread_name(),
        'T' => Some(thread_name())
            .filter(|n| !n.is_empty())
            .map(|n| format!("({n})"))
            .unwrap_or_default(),
        '%' => "%".into(),
        _ => String::new(),
    }
}

fn pad(text: &str, format: &str, out: &mut String) {
    let left = format.starts_with('-');
    let digits = format.trim_start_matches('-');
    let width = digits.parse::<usize>().unwrap_or(0).min(80);
    let fill = width.saturating_sub(text.chars().count());
    let filler = if digits.starts_with('0') { "0" } else { " " }.repeat(fill);
    if left {
        out.push_str(text);
        out.push_str(&" ".repeat(fill));
    } else {
        out.push_str(&filler);
        out.push_str(text);
    }
}

fn syslog_severity(level: Level) -> u8 {
    match level {
        Level::Off | Level::Dbg => 7,
        Level::Emer => 1,
        Level::Err => 3,
        Level::Warn => 4,
        Level::Info => 5,
    }
}

/// Threads whose messages come without a name, as those of ovs-vswitchd's main thread do.
const UNNAMED: [&str; 2] = ["main", crate::config::DATABASE_THREAD];

fn thread_name() -> String {
    let current = std::thread::current();
    let name = current.name().filter(|name| !UNNAMED.contains(name));
    name.unwrap_or_default().to_owned()
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_else(|_| "localhost".into())
}

/// A moment by a `strftime` format in which `###` means milliseconds, in UTC or local time.
pub fn timestamp(time: SystemTime, format: &str, utc: bool) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() as libc::time_t;
    let Ok(format) = CString::new(format) else { return String::new() };
    let mut buffer = [0u8; 256];
    // SAFETY: all-zero is a valid `tm`; both conversions fill it from a valid time and keep no
    // pointer; strftime writes at most the buffer's length.
    let length = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if utc {
            libc::gmtime_r(&seconds, &mut parts);
        } else {
            libc::localtime_r(&seconds, &mut parts);
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    text.replace("###", &format!("{:03}", since.subsec_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn line(pattern: &str) -> String {
        let time = UNIX_EPOCH + Duration::from_millis(1_767_268_800_007);
        let record =
            LogRecord { time, serial: 42, level: Level::Warn, module: "bridge", message: "hi" };
        let mut out = String::new();
        expand(pattern, &record, 3, &mut out);
        out
    }

    #[test]
    fn the_file_pattern_gives_the_documented_line() {
        let name = std::thread::current().name().unwrap().to_owned();
        let expected = format!("2026-01-01T12:00:00.007Z|00042|bridge({name})|WARN|hi");
        assert_eq!(line(Patterns::new().pattern(Destination::File)), expected);
    }

    #[test]
    fn fields_pad_and_odd_patterns_do_no_harm() {
        assert_eq!(line("%-8c|%8c|%5N|<%B>|%%"), "bridge  |  bridge|   42|<28>|%");
        for odd in ["%", "%5", "%{", "%D{", "%é", "%D{%", "%999999999999c", "%-"] {
            line(odd);
        }
    }

    #[test]
    fn patterns_are_set_by_destination() {
        let mut patterns = Patterns::new();
        patterns.set("file:%m").unwrap();
        assert_eq!(patterns.pattern(Destination::File), "%m");
        assert!(patterns.set("foo:%m").is_err());
        patterns.set(&format!("file:{}", "%m".repeat(PATTERN_LEN_MAX / 2))).unwrap();
        assert!(patterns.set(&format!("any:{}%", "%m".repeat(PATTERN_LEN_MAX / 2))).is_err());
        assert!(
            patterns
                .list()
                .contains("SYSLOG   <%B> %D{%h %e %T} %E %A:          ovs|%05N|%c%T|%p|%m\n")
        );
    }
}
