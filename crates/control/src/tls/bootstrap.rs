//! The authority of the first server that is connected to, kept for all later ones.

use crate::vlog;
use openssl::ssl::SslRef;
use openssl::x509::{X509Ref, X509VerifyResult};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MODULE: &str = "stream_ssl";

/// Puts the authority at the end of the peer's chain into `file`, where none may be, and says why
/// this connection ends: the next one is made with the authority.
pub(super) fn store(peer: &SslRef, file: &Path) -> io::Error {
    match authority(peer).and_then(|certificate| write(certificate, file)) {
        Ok(()) => {
            vlog::info!(MODULE, "successfully bootstrapped CA cert to {}", file.display());
            io::Error::other("CA certificate obtained, connecting again with it")
        }
        Err(why) => {
            let why = format!("could not bootstrap CA cert: {why}");
            vlog::err!(MODULE, "{why}");
            io::Error::other(why)
        }
    }
}

fn authority(peer: &SslRef) -> Result<&X509Ref, String> {
    let chain = peer.peer_cert_chain().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or("the peer sent no certificate")?;
    let last = chain.iter().last().ok_or("the peer sent no certificate")?;
    let signed = last.issued(last);
    match signed {
        X509VerifyResult::OK => Ok(last),
        _ if chain.len() < 2 => Err(format!(
            "only one certificate came, so probably the peer does not send its authority's ({})",
            signed.error_string()
        )),
        _ => Err(format!("the last certificate is not self-signed ({})", signed.error_string())),
    }
}

/// All of it, or no file; one that another process made meanwhile is as good.
fn write(certificate: &X509Ref, file: &Path) -> Result<(), String> {
    let wrong = |e: &io::Error| format!("{}: {}", file.display(), crate::of::io::error_text(e));
    let pem = certificate.to_pem().map_err(|e| e.to_string())?;
    let mut options = OpenOptions::new();
    let mut opened = match options.write(true).create_new(true).mode(0o444).open(file) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        opened => opened.map_err(|e| wrong(&e))?,
    };
    opened.write_all(&pem).map_err(|e| {
        let _ = std::fs::remove_file(file);
        wrong(&e)
    })
}
