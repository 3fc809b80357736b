//! `weft web`: the running switch as a page and as Prometheus metrics, over HTTP. It changes
//! nothing, so it asks no client who it is; it listens on loopback if no address is given, and
//! answers no page of another site.

mod answer;
mod connections;
mod guard;
mod metrics;
mod sampler;

use crate::dirs::Dirs;
use answer::Site;
use anyhow::{Context, Result};
use connections::{WebConnection, WebConnections};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Connections that are served at once; beyond, one that comes has another one end.
const CONNECTIONS_MAX: usize = 64;
/// How long a peer may take to say what it wants, and then to take the answer.
const PEER_SECONDS_MAX: u64 = 30;
/// How long a request's head may take.
const HEAD_SECONDS_MAX: u64 = 5;

/// Arguments of `weft web`.
#[derive(clap::Args)]
pub struct WebArgs {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:9478")]
    listen: SocketAddr,
    /// A further name by which browsers and Prometheus reach it (the Host of their requests).
    #[arg(long)]
    host: Vec<String>,
}

/// Serves until it is ended.
pub fn web(dirs: &Dirs, options: &WebArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(dirs, options))
}

async fn serve(dirs: &Dirs, options: &WebArgs) -> Result<()> {
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("cannot listen on {}", options.listen))?;
    let at = listener.local_addr()?;
    println!("weft: http://{at}/ shows the switch, http://{at}/metrics is for Prometheus");
    let site = Arc::new(Site::new(dirs, guard::Hosts::new(at, &options.host)));
    let places = WebConnections::new(CONNECTIONS_MAX);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: some will be free again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (site, place) = (site.clone(), Arc::new(places.take()));
        tokio::spawn(async move {
            let most = Duration::from_secs(PEER_SECONDS_MAX);
            tokio::select! {
                _ = tokio::time::timeout(most, connection(stream, site, place.clone())) => {}
                () = place.lost() => {}
            }
        });
    }
}

async fn connection(stream: TcpStream, site: Arc<Site>, place: Arc<WebConnection>) {
    let service = service_fn(move |request| {
        let (site, place) = (site.clone(), place.clone());
        async move {
            place.set_busy(true);
            let answer = site.answer(request).await;
            place.set_busy(false);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(HEAD_SECONDS_MAX))
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let _ = served.await;
}
