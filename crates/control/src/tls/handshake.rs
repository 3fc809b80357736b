//! Handshakes, on the thread for them.

use super::bootstrap;
use super::loaded::{Context, reason};
use super::stream::{Socket, TlsStream};
use openssl::ssl::{Error, Ssl, SslRef, SslVerifyMode};
use openssl::x509::X509VerifyResult;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// How long a handshake may take, as long as a controller may take for its hello.
pub(super) const TIME_MAX: Duration = Duration::from_secs(8);

/// This side's files cannot be used: why.
#[derive(Debug)]
pub(super) struct Unusable(pub(super) String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// Performs the handshake with a server at `HOST:PORT`. Its authority goes into a file if none is
/// known yet; the connection ends then.
pub(super) async fn client(
    context: &Context,
    tcp: TcpStream,
    address: &str,
) -> io::Result<TlsStream> {
    let mut ssl = Ssl::new(&context.ssl)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let is_name = host.trim_matches(['[', ']']).parse::<IpAddr>().is_err();
    if is_name {
        ssl.set_hostname(host)?;
    }
    if context.bootstrap.is_some() {
        ssl.set_verify(SslVerifyMode::NONE);
    }
    let mut stream = start(ssl, tcp)?;
    within(async {
        let done = Pin::new(&mut stream).connect().await;
        done.map_err(|e| failure(&e, stream.ssl()))
    })
    .await?;
    match &context.bootstrap {
        Some(file) => Err(bootstrap::store(stream.ssl(), file)),
        None => Ok(TlsStream::new(stream)),
    }
}

/// Performs the handshake with a client that has connected.
pub(super) async fn server(context: &Context, tcp: TcpStream) -> io::Result<TlsStream> {
    let mut stream = start(Ssl::new(&context.ssl)?, tcp)?;
    within(async {
        let done = Pin::new(&mut stream).accept().await;
        done.map_err(|e| failure(&e, stream.ssl()))
    })
    .await?;
    Ok(TlsStream::new(stream))
}

fn start(ssl: Ssl, tcp: TcpStream) -> io::Result<SslStream<Socket>> {
    let _ = tcp.set_nodelay(true);
    Ok(SslStream::new(ssl, Socket::new(tcp))?)
}

async fn within<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::from_raw_os_error(libc::ETIMEDOUT);
    tokio::time::timeout(TIME_MAX, handshake).await.map_err(late)?
}

/// Why a handshake failed.
fn failure(error: &Error, ssl: &SslRef) -> io::Error {
    let verified = ssl.verify_result();
    let text = match (error.ssl_error(), error.io_error()) {
        (Some(_), _) if verified != X509VerifyResult::OK => {
            format!("certificate verify failed ({})", verified.error_string())
        }
        (Some(errors), _) => reason(errors),
        (None, Some(error)) => crate::of::io::error_text(error),
        (None, None) => "the peer closed the connection".into(),
    };
    io::Error::other(format!("SSL handshake: {text}"))
}
