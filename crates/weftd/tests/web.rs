//! `weft web` beside a running switch: the page, the metrics, who is not answered.

mod lab;

use lab::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use testkit::{Netns, Switch, privileged};

/// `weft web` in the switch's namespace; ends with the value.
struct Web<'a> {
    ns: &'a Netns,
    child: Child,
    at: String,
}

impl Drop for Web<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn web<'a>(ns: &'a Netns, sw: &Switch) -> Web<'a> {
    // Cargo builds it next to the daemon (with the workspace's tests, or `cargo build -p weft`).
    let weft = std::path::Path::new(env!("CARGO_BIN_EXE_weftd")).with_file_name("weft");
    let mut c = sw.command(weft.to_str().unwrap());
    c.args(["web", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let at = line.split("http://").nth(1).and_then(|l| l.split('/').next()).unwrap().to_string();
    Web { ns, child, at }
}

impl Web<'_> {
    /// The whole answer to a request with these lines below its first one.
    fn ask(&self, request: &str, lines: &str) -> String {
        self.ns.run(|| {
            let mut s = TcpStream::connect(&self.at).unwrap();
            write!(s, "{request} HTTP/1.1\r\nConnection: close\r\n{lines}\r\n").unwrap();
            let mut answer = String::new();
            s.read_to_string(&mut answer).unwrap();
            answer
        })
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path}"), &format!("Host: {}\r\n", self.at))
    }

    fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }
}

#[test]
fn the_page_its_figures_and_the_metrics() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    ns.ip("link set lo up").unwrap();
    let hosts = [host_on(&ns, &sw, 1), host_on(&ns, &sw, 2)];
    ping(&hosts[0], 2);
    let web = web(&ns, &sw);
    let page = web.get("/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>Weft</title>"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(web.get("/page.js").contains("view.json") && web.get("/page.css").contains(".tile"));
    let view = web.json("/view.json");
    let names: Vec<_> = view["ports"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["br0", "v1", "v2"]);
    let metrics = web.get("/metrics");
    let sample = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse().unwrap()
    };
    assert_eq!(sample("weft_up"), 1.0);
    let v1 = r#"{bridge="br0",port="v1",type="system"}"#;
    assert!(sample(&format!("weft_port_received_packets_total{v1}")) >= 1.0);
    assert_eq!(sample(&format!("weft_port_up{v1}")), 1.0);
    // Every series has its type before it, and no name two types.
    let types: Vec<_> = metrics.lines().filter(|l| l.starts_with("# TYPE ")).collect();
    let mut names: Vec<_> = types.iter().map(|l| l.split(' ').nth(2)).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), types.len());

    let bond = "add-bond br0 bond0 i1 i2 -- set interface i1 type=internal \
                -- set interface i2 type=internal";
    vsctl(&sw, bond);
    let member = r#"weft_bond_member_enabled{bond="bond0",port="i1"} "#;
    wait_for("the bond to be among the metrics", || web.get("/metrics").contains(member));

    let way = web.json("/trace.json?bridge=br0&flow=in_port%3Dv1%2Cicmp");
    let way = way["trace"].as_str().unwrap();
    assert!(way.contains("bridge(\"br0\")") && way.contains("in_port=v1,"), "{way}");
    for (query, why) in [
        ("bridge=br0&flow=-generate", "does not begin with a dash"),
        ("bridge=br0&flow=nonsense", "nonsense"),
        ("bridge=brx&flow=icmp", "there is no bridge brx"),
    ] {
        let answer = web.get(&format!("/trace.json?{query}"));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        let said = web.json(&format!("/trace.json?{query}"));
        assert!(said["error"].as_str().unwrap().contains(why), "{said:#}");
    }
}

/// A switch with a bridge, and its page.
fn with_web(f: impl FnOnce(&Switch, &Web)) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    ns.ip("link set lo up").unwrap();
    let web = web(&ns, &sw);
    f(&sw, &web);
}

#[test]
fn foreign_pages_and_a_switch_that_left_get_a_sentence() {
    with_web(|sw, web| {
        let host = format!("Host: {}\r\n", web.at);
        for (request, lines, status, why) in [
            ("GET /view.json", "Host: evil.example\r\n".into(), 403, "not called so"),
            (
                "GET /view.json",
                format!("{host}Origin: http://evil.example\r\n"),
                403,
                "other origins",
            ),
            ("GET /metrics", format!("{host}Sec-Fetch-Site: cross-site\r\n"), 403, "other sites"),
            ("POST /", host.clone(), 405, "only GET"),
            ("GET /../etc/passwd", host.clone(), 404, "no such page"),
            ("GET /view.json", host.clone(), 200, "\"ports\""),
        ] {
            let answer = web.ask(request, &lines);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            assert!(answer.contains(why), "{request}: {answer}");
        }
        sw.stop_daemon().unwrap();
        wait_for("the page to know", || web.get("/view.json").starts_with("HTTP/1.1 503"));
        let said = web.json("/view.json");
        assert!(said["error"].as_str().unwrap().starts_with("no switch runs here"), "{said}");
        assert!(web.get("/metrics").ends_with("\nweft_up 0\n"));
    });
}

#[test]
fn silent_connections_hold_nobody_up() {
    with_web(|_, web| {
        let connect = || TcpStream::connect(&web.at).unwrap();
        let mut silent: Vec<TcpStream> = web.ns.run(|| (0..64).map(|_| connect()).collect());
        let begun = std::time::Instant::now();
        assert!(web.get("/").starts_with("HTTP/1.1 200"));
        // The head of a request may take five seconds.
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
        let mut byte = [0];
        assert_eq!(silent[0].read(&mut byte).unwrap_or(0), 0, "who was silent for longest is gone");
        silent[63].set_nonblocking(true).unwrap();
        let later = silent[63].read(&mut byte).map_err(|e| e.kind());
        assert_eq!(later, Err(std::io::ErrorKind::WouldBlock), "others are not");
    });
}
