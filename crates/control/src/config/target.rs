//! Where the database server listens.

use crate::address::Address;
use crate::tls::Tls;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// An active connection method of ovsdb(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `unix:FILE`.
    Unix(PathBuf),
    /// `tcp:HOST[:PORT]`, IPv6 addresses in brackets.
    Tcp(String, u16),
    /// `ssl:HOST[:PORT]`, in the same way.
    Tls(String, u16),
}

/// A connection method that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}: unsupported connection method (unix:FILE, tcp:HOST:PORT and ssl:HOST:PORT are)")]
pub struct TargetError(String);

/// The port assigned to OVSDB.
const OVSDB_PORT: u16 = 6640;

impl Target {
    /// Reads a connection method; a relative file is one in `run_dir`.
    pub fn parse(text: &str, run_dir: &Path) -> Result<Self, TargetError> {
        let unusable = || TargetError(text.to_owned());
        match text.split_once(':') {
            Some(("unix", file)) if !file.is_empty() => Ok(Self::Unix(run_dir.join(file))),
            Some(("tcp", address)) => {
                host_port(address).map(|(host, port)| Self::Tcp(host, port)).ok_or_else(unusable)
            }
            Some(("ssl", address)) => {
                host_port(address).map(|(host, port)| Self::Tls(host, port)).ok_or_else(unusable)
            }
            _ => Err(unusable()),
        }
    }

    /// Whether only an exchange of messages can tell that the peer has gone.
    pub(super) fn needs_probes(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }

    pub(super) async fn connect(self, tls: Tls) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(path) => Box::pin(UnixStream::connect(path).await?),
            Self::Tcp(host, port) => Box::pin(TcpStream::connect((host.as_str(), port)).await?),
            Self::Tls(host, port) => {
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                let place = format!("{host}:{port}");
                Box::pin(tls.connect(Address { place, dscp: 0 }).await?)
            }
        })
    }
}

fn host_port(address: &str) -> Option<(String, u16)> {
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
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// A connection to the server.
pub(super) type Stream = Pin<Box<dyn Bytes>>;

/// Bytes to and from the server.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Bytes for T {}

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
        assert_eq!(parse("ssl:[::1]:99"), Some(Target::Tls("::1".into(), 99)));
        assert_eq!(parse("ssl:h"), Some(Target::Tls("h".into(), 6640)));
        for bad in ["", "unix:", "tcp:", "tcp:h:x", "tcp:[::1", "ssl:", "pssl:h:1", "db.sock"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
