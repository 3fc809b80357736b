//! A connection whose handshake is over.

use super::loaded::reason;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// What a peer may send that is no data, between two pieces of data, bytes: four of the longest
/// records, or 2,400 that say that it goes on to its next key (TLS 1.3, RFC 8446, 4.6.3), each of
/// which costs computation. OpenSSL reads these without end.
const BYTES_WITHOUT_DATA_MAX: usize = 64 << 10;

/// A connection. Dropped, it says goodbye to the peer, if there is room for that.
#[derive(Debug)]
pub struct TlsStream(SslStream<Socket>);

impl TlsStream {
    /// A stream whose handshake is over.
    pub(super) fn new(mut stream: SslStream<Socket>) -> Self {
        stream.get_mut().left = Some(BYTES_WITHOUT_DATA_MAX);
        TlsStream(stream)
    }

    /// Registers the socket with the thread that this runs on.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.0.get_mut().settle()
    }
}

/// An error with OpenSSL's words for it only.
fn named(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<openssl::ssl::Error>());
    match inner.and_then(|e| e.ssl_error()) {
        Some(errors) => io::Error::other(format!("SSL: {}", reason(errors))),
        None => error,
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.0).poll_read(cx, buf).map_err(named);
        if buf.filled().len() > before {
            self.0.get_mut().left = Some(BYTES_WITHOUT_DATA_MAX);
        }
        read
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes).map_err(named)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        let _ = Pin::new(&mut self.0).poll_shutdown(&mut Context::from_waker(Waker::noop()));
    }
}

/// A socket that may change the thread that waits for it.
#[derive(Debug)]
pub(super) struct Socket {
    /// The connection; None during the handshake.
    tcp: Option<TcpStream>,
    /// Bytes that may be read before there is data among them; None: during the handshake, which
    /// OpenSSL bounds.
    left: Option<usize>,
}

impl Socket {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Socket { tcp: Some(tcp), left: None }
    }

    fn settle(&mut self) -> io::Result<()> {
        if let Some(tcp) = self.tcp.take() {
            self.tcp = Some(TcpStream::from_std(tcp.into_std()?)?);
        }
        Ok(())
    }

    fn with<T>(
        mut self: Pin<&mut Self>,
        poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.tcp {
            Some(tcp) => poll(Pin::new(tcp)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == Some(0) {
            return Poll::Ready(Err(io::Error::other("SSL: the peer sends no data")));
        }
        let before = buf.filled().len();
        let read = self.as_mut().with(|tcp| tcp.poll_read(cx, buf));
        let bytes = buf.filled().len() - before;
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.with(|tcp| tcp.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|tcp| tcp.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|tcp| tcp.poll_shutdown(cx))
    }
}
