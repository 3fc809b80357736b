//! Where the database server listens.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};

/// An active connection method of ovsdb(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `unix:FILE`.
    Unix(PathBuf),
    /// `tcp:HOST[:PORT]`, IPv6 addresses in brackets.
    Tcp(String, u16),
}

/// A connection method that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}: unsupported connection method (unix:FILE and tcp:HOST:PORT are)")]
pub struct TargetError(String);

/// The port assigned to OVSDB.
const OVSDB_PORT: u16 = 6640;

impl Target {
    /// Reads a connection method; a relative file is one in `run_dir`.
    pub fn parse(text: &str, run_dir: &Path) -> Result<Self, TargetError> {
        let unusable = || TargetError(text.to_owned());
        match text.split_once(':') {
            Some(("unix", file)) if !file.is_empty() => Ok(Self::Unix(run_dir.join(file))),
            Some(("tcp", address)) => tcp(address).ok_or_else(unusable),
            _ => Err(unusable()),
        }
    }

    /// Whether only an exchange of messages can tell that the peer has gone.
    pub(super) fn needs_probes(&self) -> bool {
        matches!(self, Self::Tcp(..))
    }

    pub(super) async fn connect(self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
            Self::Tcp(host, port) => {
                TcpStream::connect((host.as_str(), port)).await.map(Stream::Tcp)
            }
        }
    }
}

fn tcp(address: &str) -> Option<Target> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':'))
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    let port = port.map_or(Some(OVSDB_PORT), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| Target::Tcp(host.to_owned(), port))
}

/// A connection to the server.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Unix(s) => s.readable().await,
            Self::Tcp(s) => s.readable().await,
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Unix(s) => s.writable().await,
            Self::Tcp(s) => s.writable().await,
        }
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(s) => s.try_read(buffer),
            Self::Tcp(s) => s.try_read(buffer),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(s) => s.try_write(bytes),
            Self::Tcp(s) => s.try_write(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_read() {
        let parse = |text| Target::parse(text, Path::new("/r")).ok();
        let tcp = |host: &str, port| Some(Target::Tcp(host.into(), port));
        assert_eq!(parse("unix:/x/db.sock"), Some(Target::Unix("/x/db.sock".into())));
        assert_eq!(parse("unix:db.sock"), Some(Target::Unix("/r/db.sock".into())));
        assert_eq!(parse("tcp:127.0.0.1:99"), tcp("127.0.0.1", 99));
        assert_eq!(parse("tcp:[::1]:99"), tcp("::1", 99));
        assert_eq!(parse("tcp:[::1]"), tcp("::1", 6640));
        for bad in ["", "unix:", "tcp:", "tcp:h:x", "tcp:[::1", "ssl:h:1", "db.sock"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
