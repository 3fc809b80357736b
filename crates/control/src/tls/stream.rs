//! A connection whose handshake is over.

use super::loaded::reason;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// A connection. Dropped, it says goodbye to the peer, if there is room for that.
#[derive(Debug)]
pub struct TlsStream(SslStream<Socket>);

impl TlsStream {
    pub(super) fn new(stream: SslStream<Socket>) -> Self {
        TlsStream(stream)
    }

    /// Has the socket waited for by the thread that this runs on.
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
        Pin::new(&mut self.0).poll_read(cx, buf).map_err(named)
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

/// A socket that may change the thread that waits for it; empty while it does.
#[derive(Debug)]
pub(super) struct Socket(Option<TcpStream>);

impl Socket {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Socket(Some(tcp))
    }

    fn settle(&mut self) -> io::Result<()> {
        if let Some(tcp) = self.0.take() {
            self.0 = Some(TcpStream::from_std(tcp.into_std()?)?);
        }
        Ok(())
    }

    fn with<T>(
        mut self: Pin<&mut Self>,
        poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.0 {
            Some(tcp) => poll(Pin::new(tcp)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.with(|tcp| tcp.poll_read(cx, buf))
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
