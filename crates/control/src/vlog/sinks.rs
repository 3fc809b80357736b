//! The destinations: standard error, the log file, and syslog over its socket or UDP.

use super::levels::{Destination, SpecError};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// How messages reach syslog (`--syslog-method`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogMethod {
    /// Messages are dropped.
    Null,
    /// Syslog by a unix datagram socket; `/dev/log` for the method `libc`.
    Unix(PathBuf),
    /// Syslog by UDP to `address:port`.
    Udp(String),
}

impl Default for SyslogMethod {
    fn default() -> Self {
        Self::Unix("/dev/log".into())
    }
}

impl SyslogMethod {
    /// Reads `libc`, `null`, `unix:FILE` or `udp:IP:PORT`.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            Some(("udp", address)) => Ok(Self::Udp(address.into())),
            None if text == "libc" => Ok(Self::default()),
            None if text == "null" => Ok(Self::Null),
            _ => Err(SpecError(format!("unsupported syslog method \"{text}\""))),
        }
    }
}

#[derive(Default)]
enum Syslog {
    #[default]
    Closed,
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

/// The open destinations. A failure to write is not reported: there is no place left to tell.
pub(super) struct Sinks {
    file: Option<File>,
    path: Option<PathBuf>,
    syslog: Syslog,
    target: Option<UdpSocket>,
    facility: u8,
}

const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "clock", "authpriv",
    "ftp", "ntp", "audit", "alert", "clock2", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];
const DAEMON: u8 = 3;

impl Sinks {
    pub(super) const fn new() -> Self {
        Self { file: None, path: None, syslog: Syslog::Closed, target: None, facility: DAEMON }
    }

    pub(super) fn facility(&self) -> u8 {
        self.facility
    }

    pub(super) fn set_facility(&mut self, name: &str) -> Result<(), SpecError> {
        let found = FACILITIES.iter().position(|f| f.eq_ignore_ascii_case(name));
        self.facility = found.ok_or_else(|| SpecError("invalid facility".into()))? as u8;
        Ok(())
    }

    pub(super) fn is_open(&self, destination: Destination) -> bool {
        match destination {
            Destination::Console => true,
            Destination::File => self.file.is_some(),
            Destination::Syslog => !matches!(self.syslog, Syslog::Closed) || self.target.is_some(),
        }
    }

    pub(super) fn write(&mut self, destination: Destination, line: &str) {
        let _ = match destination {
            Destination::Console => writeln!(io::stderr().lock(), "{line}"),
            Destination::File => self.write_file(line),
            Destination::Syslog => self.write_syslog(line),
        };
    }

    fn write_file(&mut self, line: &str) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(format!("{line}\n").as_bytes()))
    }

    fn write_syslog(&mut self, line: &str) -> io::Result<()> {
        if let Some(target) = &self.target {
            let _ = target.send(line.as_bytes());
        }
        match &self.syslog {
            Syslog::Closed => Ok(()),
            Syslog::Unix(socket) => socket.send(line.as_bytes()).map(drop),
            Syslog::Udp(socket) => socket.send(line.as_bytes()).map(drop),
        }
    }

    pub(super) fn open_file(&mut self, path: PathBuf) -> io::Result<()> {
        let file = OpenOptions::new().create(true).append(true).mode(0o660).open(&path)?;
        self.file = Some(file);
        self.path = Some(path);
        Ok(())
    }

    pub(super) fn close_file(&mut self) {
        self.file = None;
    }

    pub(super) fn file_path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(super) fn open_syslog(&mut self, method: &SyslogMethod) -> io::Result<()> {
        self.syslog = match method {
            SyslogMethod::Null => Syslog::Closed,
            SyslogMethod::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Syslog::Unix(socket)
            }
            SyslogMethod::Udp(address) => Syslog::Udp(udp_to(address)?),
        };
        Ok(())
    }

    pub(super) fn add_syslog_target(&mut self, address: &str) -> io::Result<()> {
        self.target = Some(udp_to(address)?);
        Ok(())
    }
}

fn udp_to(address: &str) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"))?;
    socket.set_nonblocking(true)?;
    socket.connect(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_methods_are_read() {
        assert_eq!(SyslogMethod::parse("null"), Ok(SyslogMethod::Null));
        assert_eq!(SyslogMethod::parse("unix:/x"), Ok(SyslogMethod::Unix("/x".into())));
        assert_eq!(SyslogMethod::parse("udp:1.2.3.4:5"), Ok(SyslogMethod::Udp("1.2.3.4:5".into())));
        assert!(SyslogMethod::parse("smoke").is_err());
    }

    #[test]
    fn syslog_messages_arrive_on_the_socket() {
        let path = std::env::temp_dir().join(format!("vlog-sinks-{}.sock", std::process::id()));
        let receiver = UnixDatagram::bind(&path).unwrap();
        let mut sinks = Sinks::new();
        assert!(!sinks.is_open(Destination::Syslog));
        sinks.open_syslog(&SyslogMethod::Unix(path.clone())).unwrap();
        sinks.write(Destination::Syslog, "<29> hello");
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(&buffer[..length], b"<29> hello");
    }
}
