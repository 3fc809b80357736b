//! TLS for OpenFlow and the database: the one place that knows of it.
//!
//! Keys, certificates and authorities are those of `ovs-pki`, read by OpenSSL as in ovs-vswitchd.
//! Both ends of a connection show a certificate that the other one's authority signed; names in
//! certificates are not looked at.
//!
//! Threads: files are read and handshakes made on a thread of its own, with few rights to the
//! processor, so that peers that are not known yet cost the control thread nothing. A connection
//! whose handshake is over belongs to the thread that asked for it.

mod bootstrap;
mod conf;
mod handshake;
mod handshake_thread;
mod listen;
mod loaded;
mod stream;

pub use conf::{Authority, Identity, TlsConf};
pub use listen::{ListenEvent, TlsListener};
pub use stream::TlsStream;

use crate::address::Address;
use handshake::Unusable;
use loaded::Loaded;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys and authorities, from files that may change; and what makes connections with them. Copies
/// are the same thing.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    options: Arc<Files>,
    row: Arc<Mutex<Option<Arc<Files>>>>,
}

/// Files by their names, and what was read from them.
#[derive(Debug, Default)]
struct Files {
    conf: TlsConf,
    /// Locked while files are read: not by the control thread once others exist.
    loaded: Mutex<Loaded>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tls {
    /// TLS with the daemon's options; their files are looked for from the present directory on.
    pub fn new(conf: TlsConf) -> Self {
        let conf = conf.absolute();
        Tls { options: Arc::new(Files { conf, loaded: Mutex::default() }), row: Arc::default() }
    }

    /// TLS with the same options, whatever [`Self::set_row`] says here.
    pub fn without_row(&self) -> Self {
        Tls { options: self.options.clone(), row: Arc::default() }
    }

    /// Puts what the row of the table `SSL` names in the options' place; without a row the options
    /// count again. Connections that are there stay. Returns false if nothing is new.
    pub fn set_row(&self, row: Option<&Identity>) -> bool {
        let mut current = lock(&self.row);
        if current.as_ref().map(|files| &files.conf.identity) == row {
            return false;
        }
        *current = row.map(|identity| {
            let conf = TlsConf { identity: identity.clone(), ..self.options.conf.clone() };
            Arc::new(Files { conf, loaded: Mutex::default() })
        });
        true
    }

    /// Reads the files that the options name, if any, on this thread, which may have rights that
    /// it gives up later.
    pub fn load_now(&self) {
        if self.options.conf.names_files() {
            let _ = self.context();
        }
    }

    /// Checks that connections can be made with the files as they are.
    ///
    /// # Errors
    /// What is wrong with them.
    pub async fn check(&self) -> io::Result<()> {
        let tls = self.clone();
        handshake_thread::spawn(async move { tls.context().map(drop) })?.result().await?
    }

    /// A connection with its handshake over, which ends after [`handshake::TIME_MAX`] at the
    /// latest. For a task of the control thread; all ends when this is dropped.
    ///
    /// # Errors
    /// No connection, or why the handshake failed; [`is_unusable`] if it did not begin.
    pub async fn connect(&self, address: Address) -> io::Result<TlsStream> {
        let tls = self.clone();
        let job = handshake_thread::spawn(async move {
            let context = tls.context()?;
            let tcp = address.connect().await?;
            handshake::client(&context, tcp, &address.place).await
        })?;
        let mut stream = job.result().await??;
        stream.settle()?;
        Ok(stream)
    }

    /// What connections are made with, from the files as they are now.
    fn context(&self) -> io::Result<loaded::Context> {
        let files = lock(&self.row).clone().unwrap_or_else(|| self.options.clone());
        let context = lock(&files.loaded).current(&files.conf);
        context.map_err(|why| io::Error::other(Unusable(why)))
    }
}

/// True if a connection failed because of the own files, which the log has named.
pub fn is_unusable(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|e| e.is::<Unusable>())
}
