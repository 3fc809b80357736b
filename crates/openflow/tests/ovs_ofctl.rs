//! A minimal switch made of the codecs, driven by `ovs-ofctl` over a unix socket (skipped where
//! that is not installed): negotiation, framing, and flows that read back as they were added.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openflow::codec::{Dialect, agree, decode, decode_hello, encode, encode_hello};
use openflow::framing::Framer;
use openflow::*;

const OURS: u32 = 0x72;

/// Flows of one switch; what the messages here can change.
#[derive(Default)]
struct Switch {
    flows: Vec<FlowStats>,
}

impl Switch {
    fn add(&mut self, fm: FlowMod) {
        self.flows.push(FlowStats {
            table: fm.table,
            priority: fm.priority,
            matching: fm.matching,
            cookie: fm.cookie,
            idle_timeout: fm.idle_timeout,
            hard_timeout: fm.hard_timeout,
            importance: fm.importance,
            flags: fm.flags & flow_flag::SEND_FLOW_REM,
            duration_ns: 0,
            idle_age: None,
            hard_age: None,
            packets: 0,
            bytes: 0,
            instructions: fm.instructions,
        });
    }

    fn handle(&mut self, request: Request) -> Option<Reply> {
        Some(match request {
            Request::EchoRequest(data) => Reply::EchoReply(data),
            Request::Barrier => Reply::Barrier,
            Request::Features => {
                Reply::Features { dpid: 1, n_buffers: 0, n_tables: 254, ports: Vec::new() }
            }
            Request::Multipart(MultipartRequest::PortDesc(_)) => {
                Reply::Multipart(MultipartReply::PortDesc(Vec::new()))
            }
            Request::Multipart(MultipartRequest::Table) => {
                Reply::Multipart(MultipartReply::Table(vec![TableStats::default()]))
            }
            Request::Multipart(MultipartRequest::TableFeatures(_)) => {
                Reply::Multipart(MultipartReply::TableFeatures(vec![TableStats::default()]))
            }
            Request::Multipart(MultipartRequest::Flow(_)) => {
                Reply::Multipart(MultipartReply::Flow(self.flows.clone()))
            }
            Request::BundleControl { id, step, flags } => {
                let step = match step {
                    BundleStep::OpenRequest => BundleStep::OpenReply,
                    _ => BundleStep::CommitReply,
                };
                Reply::BundleControl { id, step, flags }
            }
            Request::BundleAdd { inner, .. } => return self.handle(*inner),
            Request::FlowMod(fm) => {
                self.add(fm);
                return None;
            }
            _ => Reply::Error { error: OfError::BadType, data: Vec::new() },
        })
    }

    /// Serves one connection until the peer closes it.
    fn serve(&mut self, mut stream: UnixStream) {
        if stream.write_all(&encode_hello(1, OURS)).is_err() {
            return;
        }
        let (mut framer, mut buf) = (Framer::new(), [0; 4096]);
        let mut dialect: Option<Dialect> = None;
        loop {
            let Ok(n @ 1..) = stream.read(&mut buf) else { return };
            framer.push(&buf[..n]);
            while let Some(message) = framer.next() {
                let message = message.unwrap();
                let Some(known) = dialect else {
                    let theirs = decode_hello(message).unwrap();
                    dialect = agree(OURS, theirs).map(Dialect::from);
                    continue;
                };
                let (to, reply) = match decode(known, message) {
                    Ok((_, Request::FlowModTableId(on))) => {
                        dialect = Some(Dialect { table_id: on, ..known });
                        continue;
                    }
                    Ok((to, request)) => (to, self.handle(request)),
                    Err(e) => (e.xid.into(), Some(e.reply())),
                };
                let messages = reply.map_or(Vec::new(), |r| encode(known, to, &r));
                if messages.iter().any(|m| stream.write_all(m).is_err()) {
                    return;
                }
            }
        }
    }
}

fn socket(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("openflow-codec-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(name)
}

/// Runs the commands one after another against a fresh switch; their standard output.
fn run(version: &str, commands: &[&[&str]]) -> Option<Vec<String>> {
    Command::new("ovs-ofctl").arg("--version").output().ok()?;
    let path = socket(version);
    let listener = UnixListener::bind(&path).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let server = std::thread::spawn(move || {
        let mut switch = Switch::default();
        // A command may connect several times; the last connection only wakes this thread.
        for stream in listener.incoming().take_while(|_| !stop.load(Ordering::SeqCst)) {
            switch.serve(stream.unwrap());
        }
    });
    let mut outputs = Vec::new();
    for command in commands {
        let (verb, rest) = command.split_at(1);
        let out = Command::new("ovs-ofctl")
            .args(["-t", "10", "-O", version])
            .args(verb[0].split(' '))
            .arg(&path)
            .args(rest)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{version} {command:?}: {stderr}");
        outputs.push(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    done.store(true, Ordering::SeqCst);
    let _ = UnixStream::connect(&path);
    server.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    let _ = std::fs::remove_dir(path.parent().unwrap());
    Some(outputs)
}

const FLOWS: &[&str] = &[
    "table=3,priority=7,tcp,in_port=1,tp_dst=80 actions=mod_nw_ttl:9,output:2",
    "table=1,priority=5,arp,arp_tpa=10.0.0.0/8 actions=CONTROLLER:128",
    "priority=9,dl_vlan=10 actions=pop_vlan,NORMAL",
    "priority=0 actions=drop",
    "table=2,priority=1,ipv6,ipv6_dst=fe80::1 actions=set_field:0x5->reg1,resubmit(,4)",
];

#[test]
fn flows_read_back_as_they_were_added() {
    for version in ["OpenFlow13", "OpenFlow14", "OpenFlow15"] {
        let adds: Vec<[&str; 2]> = FLOWS.iter().map(|f| ["add-flow", *f]).collect();
        let mut commands: Vec<&[&str]> = adds.iter().map(|a| &a[..]).collect();
        commands.push(&["--bundle add-flow", "table=9,priority=3,udp actions=IN_PORT"]);
        commands.push(&["--no-stats --no-names dump-flows"]);
        commands.push(&["probe"]);
        let Some(out) = run(version, &commands) else { return };
        let dump = &out[FLOWS.len() + 1];
        for flow in FLOWS.iter().chain(&["table=9,priority=3,udp actions=IN_PORT"]) {
            // The dump writes `table=N, priority=...`.
            let wanted = flow.split_once(",priority").map_or(*flow, |(_, rest)| rest);
            let wanted = wanted.trim_start_matches("priority").trim_start_matches('=');
            assert!(dump.contains(&format!("priority={wanted}")), "{version} {flow}:\n{dump}");
        }
    }
}

#[test]
fn openflow10_with_tables() {
    let commands: &[&[&str]] = &[
        &["add-flow", "table=3,priority=7,tcp,tp_dst=80 actions=output:2"],
        &["--no-names dump-flows"],
    ];
    let Some(out) = run("OpenFlow10", commands) else { return };
    assert!(out[1].contains("table=3"), "{}", out[1]);
    assert!(out[1].contains("priority=7,tcp,tp_dst=80 actions=output:2"), "{}", out[1]);
}
