//! The listening socket and its connections.

use super::{Answer, Reply, Request};
use crate::listener::{self, ConnectionSlot, ConnectionSlots, EvictionQueue, Peer};
use crate::vlog;
use ovsdb::framing::Framer;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

/// No request is longer, in bytes: the kernel passes at most 2 MiB of arguments to ovs-appctl.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Clients that are served at once; with [`REQUEST_BYTES_MAX`] this bounds what they can have the
/// daemon keep.
const CLIENTS_MAX: usize = 64;
/// Longer requests are read on another thread, one at a time.
const SHORT_BYTES_MAX: usize = 16 << 10;
/// No request has more arguments.
const ARGS_COUNT_MAX: usize = 1024;
/// Requests that may wait for the main loop, over all connections.
const QUEUE: usize = 64;
/// How long the end of the daemon waits for clients to take their answers.
const WAIT_TIME_MAX: Duration = Duration::from_millis(200);

/// The server's end of the control socket; removes the socket when dropped.
pub struct Server {
    path: PathBuf,
    requests: mpsc::Receiver<Request>,
    listener: JoinHandle<()>,
    owed: Arc<AtomicUsize>,
}

/// Where ovs-appctl(8) looks for the process of this id: `RUNDIR/ovs-vswitchd.PID.ctl`.
pub fn default_path(run_dir: &Path) -> PathBuf {
    run_dir.join(format!("{}.{}.ctl", vlog::PROGRAM, std::process::id()))
}

impl Server {
    /// Listens on `path`, in place of what a dead process left there. Needs a tokio runtime.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        let socket = listener::bind_unix(path)?;
        let (sender, requests) = mpsc::channel(QUEUE);
        let owed = Arc::new(AtomicUsize::new(0));
        let listener = tokio::spawn(listen(socket, sender, owed.clone()));
        Ok(Self { path: path.to_owned(), requests, listener, owed })
    }

    /// The next request. Cancel-safe; never returns `None` while the runtime lives.
    pub async fn next(&mut self) -> Option<Request> {
        self.requests.recv().await
    }

    /// Takes no more connections and waits, for a moment at most, until the answers given have
    /// reached their clients.
    pub async fn finish(mut self) {
        self.listener.abort();
        self.requests.close();
        while self.requests.recv().await.is_some() {}
        for _ in 0..WAIT_TIME_MAX.as_millis() {
            if self.owed.load(Ordering::Relaxed) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.abort();
        let _ = fs::remove_file(&self.path);
    }
}

/// One answer that a client waits for.
struct Owed(Arc<AtomicUsize>);

impl Owed {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

type Queue = mpsc::Sender<Request>;

async fn listen(socket: UnixListener, requests: Queue, owed: Arc<AtomicUsize>) {
    let slots = ConnectionSlots::new(CLIENTS_MAX);
    loop {
        match socket.accept().await {
            Ok((stream, _)) => match slots.take(Peer::of_unix(&stream)).await {
                Some(slot) => {
                    tokio::spawn(serve(stream, slot, requests.clone(), owed.clone()));
                }
                None => vlog::warn!(
                    "unixctl",
                    "{CLIENTS_MAX} connections at once are the most: refusing another"
                ),
            },
            Err(error) => {
                vlog::warn!("unixctl", "accept failed: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(
    mut stream: UnixStream,
    slot: ConnectionSlot,
    requests: Queue,
    owed: Arc<AtomicUsize>,
) {
    let eviction = slot.eviction();
    let work = run_connection(&mut stream, &requests, &owed, eviction);
    let why = match eviction.unless_evicted(work).await {
        Some(Ok(())) => return,
        Some(Err(error)) => error.to_string(),
        None => "another client has its place".into(),
    };
    vlog::warn!("unixctl", "closing connection: {why}");
}

async fn run_connection(
    stream: &mut UnixStream,
    requests: &Queue,
    owed: &Arc<AtomicUsize>,
    eviction: &EvictionQueue,
) -> io::Result<()> {
    let mut framer = Framer::with_limit(REQUEST_BYTES_MAX);
    let mut buffer = vec![0; 4096];
    let client = Arc::new(());
    loop {
        while let Some(message) = framer.next_bytes().map_err(invalid)? {
            let Called { id, command, args } = read(message).await.map_err(invalid)?;
            let (reply, answer) = Reply::channel(&client);
            let _owed = Owed::new(owed);
            if requests.send(Request { command, args, reply }).await.is_err() {
                return Ok(());
            }
            match answer.await {
                Ok(Answer::Whole(answer)) => {
                    eviction.idle(stream.write_all(response(&id, answer).as_bytes())).await?;
                }
                Ok(Answer::Pieces(pieces)) => write_pieces(stream, &id, pieces, eviction).await?,
                Err(_) => return Ok(()),
            }
        }
        match eviction.idle(stream.read(&mut buffer)).await? {
            0 => return Ok(()),
            n => framer.push(&buffer[..n]),
        }
    }
}

/// Writes a result as it comes; nothing of it is kept.
async fn write_pieces(
    stream: &mut UnixStream,
    id: &str,
    mut pieces: mpsc::Receiver<String>,
    eviction: &EvictionQueue,
) -> io::Result<()> {
    stream.write_all(format!("{{\"error\":null,\"id\":{id},\"result\":\"").as_bytes()).await?;
    while let Some(piece) = pieces.recv().await {
        let quoted = json!(piece).to_string();
        eviction.idle(stream.write_all(&quoted.as_bytes()[1..quoted.len() - 1])).await?;
    }
    stream.write_all(b"\"}").await
}

fn invalid(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// What a request says.
#[derive(Debug)]
struct Called {
    /// As JSON.
    id: String,
    command: String,
    args: Vec<String>,
}

/// Reads a request. What takes long does not keep the main loop waiting, and what many clients send
/// does not take more than one thread.
async fn read(message: Vec<u8>) -> Result<Called, String> {
    static LONG: Semaphore = Semaphore::const_new(1);
    if message.len() <= SHORT_BYTES_MAX {
        return parse(&message);
    }
    let _mine = LONG.acquire().await;
    let read = tokio::task::spawn_blocking(move || parse(&message)).await;
    read.unwrap_or_else(|e| Err(e.to_string()))
}

fn parse(message: &[u8]) -> Result<Called, String> {
    let mut message = ovsdb::framing::parse(message).map_err(|e| e.to_string())?;
    let id = message.get("id").filter(|id| !id.is_null()).ok_or("request without id")?.to_string();
    let command = message.get("method").and_then(Value::as_str).ok_or("request without method")?;
    let command = command.to_owned();
    let Some(Value::Array(params)) = message.get_mut("params").map(Value::take) else {
        return Err("request without params".into());
    };
    if params.len() > ARGS_COUNT_MAX {
        return Err(format!("more than {ARGS_COUNT_MAX} arguments"));
    }
    let args = params.into_iter().map(|param| match param {
        Value::String(text) => Ok(text),
        _ => Err("argument is not a string"),
    });
    Ok(Called { id, command, args: args.collect::<Result<_, _>>()? })
}

/// Texts end with a newline, as in ovs-vswitchd: ovs-appctl prints them as they are.
fn response(id: &str, answer: Result<String, String>) -> String {
    let line = |text: String| match text.is_empty() || text.ends_with('\n') {
        true => text,
        false => text + "\n",
    };
    let (result, error) = match answer {
        Ok(result) => (json!(line(result)), Value::Null),
        Err(text) => (Value::Null, json!(line(text))),
    };
    format!("{{\"error\":{error},\"id\":{id},\"result\":{result}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: usize, bytes: usize) -> Vec<u8> {
        let args = vec!["a".repeat(bytes); args];
        json!({"id": [1, "x"], "method": "version", "params": args}).to_string().into_bytes()
    }

    #[tokio::test]
    async fn requests_of_any_length_are_read_and_say_the_same() {
        for (n, bytes) in [(0, 0), (2, 5), (ARGS_COUNT_MAX, 0), (ARGS_COUNT_MAX, 100)] {
            let Called { id, command, args } = read(request(n, bytes)).await.unwrap();
            assert_eq!((id.as_str(), command.as_str(), args.len()), ("[1,\"x\"]", "version", n));
        }
    }

    /// While a long request is read, the thread of the main loop goes on; of two, one is read.
    #[tokio::test]
    async fn a_long_request_is_read_elsewhere() {
        let mut turns = 0;
        let work = async { tokio::join!(read(request(1, 3 << 20)), read(request(1, 3 << 20))) };
        tokio::pin!(work);
        let (a, b) = loop {
            tokio::select! {
                biased;
                both = &mut work => break both,
                () = tokio::task::yield_now() => turns += 1,
            }
        };
        assert!(a.is_ok() && b.is_ok() && turns > 2, "{turns}");
    }

    #[tokio::test]
    async fn too_many_arguments_are_no_request() {
        for bytes in [0, 100] {
            let refused = read(request(ARGS_COUNT_MAX + 1, bytes)).await.unwrap_err();
            assert_eq!(refused, "more than 1024 arguments");
        }
    }
}
