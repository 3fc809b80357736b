//! From files to what handshakes are made with.

use super::conf::{Authority, Identity, Stamp, TlsConf};
use crate::vlog;
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions};
use openssl::ssl::{SslSessionCacheMode, SslVerifyMode};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use std::path::{Path, PathBuf};

const MODULE: &str = "stream_ssl";

/// Longest file with keys or certificates that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Ciphers unless `--ssl-ciphers` names others, in OpenSSL's words: the default of ovs-vswitchd.
const CIPHERS: &str = "HIGH:!aNULL:!MD5";
/// Versions that `--ssl-protocols` may name, and what leaves each out.
const PROTOCOLS: [(&str, SslOptions); 4] = [
    ("TLSv1", SslOptions::NO_TLSV1),
    ("TLSv1.1", SslOptions::NO_TLSV1_1),
    ("TLSv1.2", SslOptions::NO_TLSV1_2),
    ("TLSv1.3", SslOptions::NO_TLSV1_3),
];

/// What connections are made with.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) ssl: SslContext,
    /// The file that an authority is to be put in; until then who connects here is not let in.
    pub(super) bootstrap: Option<PathBuf>,
}

/// What was read last, and of which versions of the files.
#[derive(Default)]
pub(super) struct Loaded {
    of: [Stamp; 4],
    result: Option<Result<Context, String>>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("of", &self.of).finish_non_exhaustive()
    }
}

impl Loaded {
    /// What the files say now. Files that have become unusable leave what was read before; the log
    /// says once what is wrong.
    pub(super) fn current(&mut self, conf: &TlsConf) -> Result<Context, String> {
        let now = conf.stamps(self.of);
        let before = self.result.take();
        if let Some(result) = &before
            && self.of == now
        {
            return self.result.insert(result.clone()).clone();
        }
        self.of = now;
        let result = match (load(conf), before) {
            (Err(why), Some(Ok(before))) => {
                vlog::warn!(MODULE, "{why}; the files as they were before stay in use");
                Ok(before)
            }
            (Err(why), _) => {
                vlog::warn!(MODULE, "{why}");
                Err(why)
            }
            (Ok(context), _) => Ok(context),
        };
        self.result.insert(result).clone()
    }
}

fn load(conf: &TlsConf) -> Result<Context, String> {
    let mut builder = builder(conf).map_err(|e| reason(&e))?;
    set_protocols(&mut builder, conf)?;
    set_identity(&mut builder, conf)?;
    let bootstrap = set_authority(&mut builder, &conf.identity.authority)?;
    for (_, certificate) in certificates(conf.peer_ca_cert.as_deref())? {
        builder.add_extra_chain_cert(certificate).map_err(|e| reason(&e))?;
    }
    Ok(Context { ssl: builder.build(), bootstrap })
}

/// No session is kept and none is resumed, so peers that come and go leave nothing behind; a peer
/// cannot have the handshake made again.
fn builder(conf: &TlsConf) -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContextBuilder::new(SslMethod::tls())?;
    builder.set_options(
        SslOptions::NO_SSLV2
            | SslOptions::NO_SSLV3
            | SslOptions::NO_RENEGOTIATION
            | SslOptions::NO_TICKET
            | SslOptions::IGNORE_UNEXPECTED_EOF,
    );
    builder.set_num_tickets(0)?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    // What waits to be written grows and moves between attempts.
    builder.set_mode(
        SslMode::ENABLE_PARTIAL_WRITE
            | SslMode::ACCEPT_MOVING_WRITE_BUFFER
            | SslMode::RELEASE_BUFFERS,
    );
    builder.set_cipher_list(conf.ciphers.as_deref().unwrap_or(CIPHERS))?;
    Ok(builder)
}

fn set_protocols(builder: &mut SslContextBuilder, conf: &TlsConf) -> Result<(), String> {
    let Some(names) = &conf.protocols else { return Ok(()) };
    let mut left_out: SslOptions = PROTOCOLS.iter().map(|(_, without)| *without).collect();
    for name in names.split([',', ' ', '\t']).filter(|name| !name.is_empty()) {
        let known = PROTOCOLS.iter().find(|(known, _)| *known == name);
        let (_, without) = known.ok_or(format!("{name}: SSL protocol not recognized"))?;
        left_out.remove(*without);
    }
    builder.set_options(left_out);
    Ok(())
}

fn set_identity(builder: &mut SslContextBuilder, conf: &TlsConf) -> Result<(), String> {
    let Identity { private_key: key, certificate, .. } = &conf.identity;
    let file = key.as_deref().ok_or("Private key must be configured to use SSL")?;
    let key = private_key(file)?;
    let file = certificate.as_deref().ok_or("Certificate must be configured to use SSL")?;
    let mut chain = certificates(Some(file))?.into_iter();
    let Some((file, own)) = chain.next() else { return Ok(()) };
    let wrong = |e| format!("{}: {}", file.display(), reason(&e));
    builder.set_certificate(&own).map_err(wrong)?;
    builder.set_private_key(&key).and_then(|()| builder.check_private_key()).map_err(|e| {
        format!("Private key does not match certificate public key: {}", reason(&e))
    })?;
    for (_, next) in chain {
        builder.add_extra_chain_cert(next).map_err(wrong)?;
    }
    Ok(())
}

/// Some: the file that the authority is yet to be put in.
fn set_authority(
    builder: &mut SslContextBuilder,
    authority: &Authority,
) -> Result<Option<PathBuf>, String> {
    let file = match authority {
        Authority::Missing => return Err("CA certificate must be configured to use SSL".into()),
        Authority::Anyone => {
            vlog::warn!(MODULE, "Peer certificate validation disabled (this is a security risk)");
            builder.set_verify(SslVerifyMode::NONE);
            return Ok(None);
        }
        Authority::File(file) | Authority::Bootstrap(file) => file,
    };
    builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    let awaited = matches!(authority, Authority::Bootstrap(_))
        && file.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    if awaited {
        return Ok(Some(file.clone()));
    }
    let wrong = |e| format!("{}: {}", file.display(), reason(&e));
    let mut store = X509StoreBuilder::new().map_err(wrong)?;
    for (_, certificate) in certificates(Some(file))? {
        builder.add_client_ca(&certificate).map_err(wrong)?;
        store.add_cert(certificate).map_err(wrong)?;
    }
    builder.set_cert_store(store.build());
    Ok(None)
}

/// The certificates in a file, at least one; without a file none.
fn certificates(file: Option<&Path>) -> Result<Vec<(&Path, X509)>, String> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let found = X509::stack_from_pem(&read(file)?);
    let found = found.map_err(|e| format!("{}: {}", file.display(), reason(&e)))?;
    if found.is_empty() {
        return Err(format!("{}: no certificate in the file", file.display()));
    }
    Ok(found.into_iter().map(|certificate| (file, certificate)).collect())
}

/// A key that a passphrase protects is an error: there is no one to ask.
fn private_key(file: &Path) -> Result<PKey<Private>, String> {
    let key = PKey::private_key_from_pem_callback(&read(file)?, |_| Ok(0));
    key.map_err(|e| format!("{}: no private key: {}", file.display(), reason(&e)))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let why = |e| format!("{}: {}", file.display(), crate::of::io::error_text(&e));
    let data = file.metadata().map_err(why)?;
    if !data.is_file() || data.len() > FILE_BYTES_MAX {
        return Err(format!("{}: not a file with keys or certificates", file.display()));
    }
    std::fs::read(file).map_err(why)
}

/// OpenSSL's words for the first of its errors.
pub(super) fn reason(errors: &ErrorStack) -> String {
    let first = errors.errors().iter().find_map(|e| e.reason());
    first.unwrap_or("unknown error").to_owned()
}
