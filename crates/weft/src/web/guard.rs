//! Who is answered: requests that name this server, from no page of another site. A page elsewhere
//! could otherwise have its visitor's browser read what only this machine may (cross-site requests,
//! DNS rebinding).

use hyper::HeaderMap;
use std::net::SocketAddr;

/// Names by which this server may be called.
pub struct Hosts(Vec<String>);

impl Hosts {
    /// The address listened on, loopback's names, and `more` names, each with any port or none.
    pub fn new(at: SocketAddr, more: &[String]) -> Hosts {
        let own = match at {
            SocketAddr::V4(a) => a.ip().to_string(),
            SocketAddr::V6(a) => format!("[{}]", a.ip()),
        };
        let names = ["localhost", "127.0.0.1", "[::1]"].map(String::from);
        Hosts(names.into_iter().chain([own]).chain(more.iter().cloned()).collect())
    }

    /// Checks that a request with this head may be answered; the error says why not.
    pub fn admit(&self, head: &HeaderMap) -> Result<(), &'static str> {
        let get = |name: &str| head.get(name).map(|v| v.to_str().unwrap_or("?"));
        let Some(host) = get("host") else { return Err("the request names no host") };
        if !self.0.iter().any(|name| name.eq_ignore_ascii_case(without_port(host))) {
            return Err("this server is not called so (weft web --host NAME allows a name)");
        }
        let same = |origin: &str| origin.split_once("://").is_some_and(|(_, o)| o == host);
        if get("origin").is_some_and(|origin| !same(origin)) {
            return Err("pages of other origins are not answered");
        }
        // What browsers say of the page that asks (Fetch Metadata); `none`: the user typed it.
        match get("sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            // A link on another site may lead here; its page sees nothing of the answer.
            Some(_) if get("sec-fetch-mode") == Some("navigate") => Ok(()),
            Some(_) => Err("pages of other sites are not answered"),
        }
    }
}

fn without_port(host: &str) -> &str {
    let is_port = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
    host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(head: &[(&'static str, &'static str)]) -> bool {
        let hosts = Hosts::new("10.1.2.3:9478".parse().unwrap(), &["switch1".into()]);
        let map = head.iter().map(|(k, v)| ((*k).try_into().unwrap(), v.parse().unwrap()));
        hosts.admit(&map.collect::<HeaderMap>()).is_ok()
    }

    #[test]
    fn only_this_server_is_meant_and_only_its_own_page_asks() {
        for host in ["localhost:9478", "127.0.0.1", "[::1]:80", "10.1.2.3:9478", "SWITCH1:1"] {
            assert!(admits(&[("host", host)]), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9478", "127.0.0.1.evil.example", "", "localhost:"]
        {
            assert!(!admits(&[("host", host)]), "{host}");
        }
        assert!(!admits(&[]));
        let host = ("host", "localhost:9478");
        assert!(admits(&[host, ("origin", "http://localhost:9478")]));
        assert!(!admits(&[host, ("origin", "http://evil.example")]));
        assert!(!admits(&[host, ("origin", "http://localhost:1")]));
        assert!(!admits(&[host, ("origin", "null")]));
        assert!(admits(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(!admits(&[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]));
        assert!(admits(&[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]));
    }
}
