//! Which files are used, and how.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Who says which peers are let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    /// No authority is known: no peer is let in.
    #[default]
    Missing,
    /// The certificates in a file.
    File(PathBuf),
    /// The certificates in a file; while the file does not exist, the authority of the first peer
    /// that is connected to is written into it.
    Bootstrap(PathBuf),
    /// Whoever comes (`--ca-cert=none`).
    Anyone,
}

impl Authority {
    /// As `--ca-cert` and the column `SSL.ca_cert` name it.
    pub fn named(file: &str, bootstrap: bool) -> Self {
        match file {
            "none" => Authority::Anyone,
            _ if bootstrap => Authority::Bootstrap(file.into()),
            _ => Authority::File(file.into()),
        }
    }

    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Authority::File(file) | Authority::Bootstrap(file) => Some(file),
            Authority::Missing | Authority::Anyone => None,
        }
    }
}

/// Who this side is and whom it lets in: what the row of the table `SSL` may put in the place of
/// the daemon's options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `--private-key`.
    pub private_key: Option<PathBuf>,
    /// `--certificate`; more certificates in the file are sent with it.
    pub certificate: Option<PathBuf>,
    /// `--ca-cert` or `--bootstrap-ca-cert`.
    pub authority: Authority,
}

/// The daemon's options for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConf {
    /// The files that may come from the database, too.
    pub identity: Identity,
    /// `--peer-ca-cert`: certificates that are sent with the own one.
    pub peer_ca_cert: Option<PathBuf>,
    /// `--ssl-protocols`, separated by commas; None: those of the system.
    pub protocols: Option<String>,
    /// `--ssl-ciphers`, as in openssl-ciphers(1), for TLS up to 1.2.
    pub ciphers: Option<String>,
}

/// A file's version; None where none can be seen.
pub(super) type Stamp = Option<(i64, i64, u64, u64)>;

impl TlsConf {
    /// True if an option names a file.
    pub fn names_files(&self) -> bool {
        self.files().iter().any(Option::is_some)
    }

    /// Files by names that do not depend on the present directory.
    pub(super) fn absolute(mut self) -> Self {
        use Authority::{Bootstrap, File};
        let authority = match &mut self.identity.authority {
            File(file) | Bootstrap(file) => Some(file),
            _ => None,
        };
        let own = [&mut self.identity.private_key, &mut self.identity.certificate];
        let all = own.into_iter().chain([&mut self.peer_ca_cert]).flatten().chain(authority);
        for file in all {
            if let Ok(absolute) = std::path::absolute(&*file) {
                *file = absolute;
            }
        }
        self
    }

    /// The versions of all files. One that may not be seen any more, because the daemon is another
    /// user now, is as it was `before`.
    pub(super) fn stamps(&self, before: [Stamp; 4]) -> [Stamp; 4] {
        let mut stamps = before;
        for (stamp, file) in stamps.iter_mut().zip(self.files()) {
            *stamp = match file.map(Path::metadata) {
                Some(Ok(data)) => Some((data.mtime(), data.mtime_nsec(), data.len(), data.ino())),
                Some(Err(e)) if e.kind() == ErrorKind::PermissionDenied => *stamp,
                Some(Err(_)) | None => None,
            };
        }
        stamps
    }

    fn files(&self) -> [Option<&Path>; 4] {
        let Identity { private_key, certificate, authority } = &self.identity;
        let [key, certificate] = [private_key.as_deref(), certificate.as_deref()];
        [key, certificate, authority.file(), self.peer_ca_cert.as_deref()]
    }
}
