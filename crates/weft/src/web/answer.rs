//! What is answered to which request.

use super::guard::Hosts;
use super::metrics;
use super::sampler::Sampler;
use crate::dirs::Dirs;
use crate::view::{Connection, View};
use anyhow::{Result, ensure};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use std::time::Duration;
use tokio::sync::Mutex;

type Answer = Response<Full<Bytes>>;

/// Nothing from elsewhere, no script but ours, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
/// Characters of a flow to trace.
const FLOW_LENGTH_MAX: usize = 4096;

/// How long after a trace the next one begins: traces take the switch's control thread up to some
/// milliseconds each, whoever asks for them.
const TRACE_PAUSE: Duration = Duration::from_millis(200);

/// The site.
pub struct Site {
    dirs: Dirs,
    hosts: Hosts,
    sampler: Sampler,
    /// Held by who traces.
    tracing: Mutex<()>,
}

impl Site {
    /// A site about the switch of these directories.
    pub fn new(dirs: &Dirs, hosts: Hosts) -> Site {
        Site { dirs: dirs.clone(), hosts, sampler: Sampler::new(dirs), tracing: Mutex::default() }
    }

    /// The answer to a request.
    pub async fn answer(&self, request: Request<Incoming>) -> Answer {
        if let Err(why) = self.hosts.admit(request.headers()) {
            return text(StatusCode::FORBIDDEN, "text/plain", format!("{why}\n"));
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".into());
        }
        let page = |kind, body: &str| text(StatusCode::OK, kind, body.into());
        match request.uri().path() {
            "/" => page("text/html; charset=utf-8", include_str!("page/index.html")),
            "/page.css" => page("text/css; charset=utf-8", include_str!("page/page.css")),
            "/page.js" => page("text/javascript; charset=utf-8", include_str!("page/page.js")),
            "/view.json" => json(self.view().await),
            "/trace.json" => self.trace(request.uri().query().unwrap_or_default()).await,
            "/metrics" => {
                let sample = self.sampler.sample().await;
                let body = metrics::text(sample.as_ref().ok().map(|s| &s.tree));
                page("text/plain; version=0.0.4; charset=utf-8", &body)
            }
            _ => text(StatusCode::NOT_FOUND, "text/plain", "there is no such page\n".into()),
        }
    }

    async fn view(&self) -> Result<serde_json::Value> {
        Ok(serde_json::to_value(&self.sampler.sample().await?.view)?)
    }

    /// `bridge=..&flow=..`: what `ofproto/trace` says. It sends nothing and learns nothing.
    async fn trace(&self, query: &str) -> Answer {
        match self.sampler.sample().await {
            // A packet that cannot be traced is who asks' to change; the switch is there.
            Ok(sample) => json_or(StatusCode::BAD_REQUEST, self.traced(&sample.view, query).await),
            Err(e) => json(Err(e)),
        }
    }

    async fn traced(&self, view: &View, query: &str) -> Result<serde_json::Value> {
        let get = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(n, _)| *n == name).map(|(_, v)| decode(v)).next().unwrap_or_default()
        };
        let (bridge, flow) = (get("bridge"), get("flow"));
        ensure!(view.ports.iter().any(|p| p.bridge == bridge), "there is no bridge {bridge}");
        // No option of the command, such as -generate, which sends the packet.
        ensure!(!flow.trim_start().starts_with('-'), "a flow does not begin with a dash");
        ensure!(flow.len() <= FLOW_LENGTH_MAX, "a flow has at most {FLOW_LENGTH_MAX} characters");
        let turn = self.tracing.lock().await;
        let dirs = self.dirs.clone();
        let ask =
            move || Connection::open(&dirs)?.ask("ofproto/trace", &["--names", &bridge, &flow]);
        let said = tokio::task::spawn_blocking(ask).await?;
        tokio::time::sleep(TRACE_PAUSE).await;
        drop(turn);
        let said = said?;
        Ok(json!({"trace": said}))
    }
}

fn json(value: Result<serde_json::Value>) -> Answer {
    json_or(StatusCode::SERVICE_UNAVAILABLE, value)
}

/// The value, or the error with a status.
fn json_or(otherwise: StatusCode, value: Result<serde_json::Value>) -> Answer {
    let (status, value) = match value {
        Ok(value) => (StatusCode::OK, value),
        Err(e) => (otherwise, json!({"error": format!("{e:#}")})),
    };
    text(status, "application/json", value.to_string())
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Answer {
    Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("cache-control", "no-store")
        .header("content-security-policy", POLICY)
        .header("cross-origin-resource-policy", "same-origin")
        .header("referrer-policy", "no-referrer")
        .header("x-content-type-options", "nosniff")
        .body(Full::new(Bytes::from(body)))
        .expect("constant header names and values are valid")
}

/// Percent-encoded text; what is not valid stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while i < bytes.len() {
        let hex = text.get(i + 1..i + 3).filter(|_| bytes[i] == b'%');
        match (bytes[i], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (_, Some(byte)) => {
                out.push(byte);
                i += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        assert_eq!(decode("in_port%3D1%2Cicmp+x"), "in_port=1,icmp x");
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%4"), "%zz%4");
        assert_eq!(decode("%e2%82%ac%€"), "€%€");
    }
}
