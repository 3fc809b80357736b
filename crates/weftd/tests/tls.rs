//! OpenFlow and the database over TLS, with the keys of ovs-pki and the stock tools at the other
//! end: who is let in, files that change, and peers that want to cost something.

mod sandbox;

use openssl::ssl::{Ssl, SslConnector, SslFiletype, SslMethod, SslStream, SslVerifyMode};
use sandbox::{Sandbox, wait_for};
use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// OpenFlow 1.3: a hello, a request for an echo.
const HELLO: [u8; 8] = [4, 0, 0, 8, 0, 0, 0, 1];
const ECHO: [u8; 8] = [4, 2, 0, 8, 0, 0, 0, 2];

/// A switch with a bridge, and `sw`, `ctl` signed by authorities of ovs-pki, `odd` by another one.
struct Lab {
    s: Sandbox,
    children: Vec<Child>,
}

impl Lab {
    fn new() -> Self {
        let lab = Self::with_keys();
        lab.s.start_detached("");
        lab.s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy fail_mode=secure");
        lab
    }

    /// Neither daemon nor bridge yet.
    fn with_keys() -> Self {
        let lab = Lab { s: Sandbox::new(), children: Vec::new() };
        for pki in ["pki", "other"] {
            lab.run("ovs-pki", &format!("-d {pki} -l pki.log init"));
        }
        lab.sign("pki", "sw", "switch");
        lab.sign("pki", "ctl", "controller");
        lab.sign("other", "odd", "controller");
        for (pki, ca) in [("pki", "ca"), ("other", "oddca")] {
            for who in ["controller", "switch"] {
                let from = lab.s.path(pki).join(format!("{who}ca/cacert.pem"));
                fs::copy(from, lab.s.path(&format!("{who}{ca}.pem"))).unwrap();
            }
        }
        lab
    }

    fn sign(&self, pki: &str, name: &str, kind: &str) {
        self.run("ovs-pki", &format!("-u -d {pki} -l pki.log req+sign {name} {kind}"));
    }

    fn run(&self, program: &str, words: &str) -> String {
        let output = self.try_run(program, words);
        assert!(output.status.success(), "{program} {words}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn try_run(&self, program: &str, words: &str) -> Output {
        self.s.command(program).args(words.split_whitespace()).output().unwrap()
    }

    /// The absolute name of a file of the sandbox.
    fn file(&self, name: &str) -> String {
        self.s.path(name).display().to_string()
    }

    /// Points the row at the keys of `sw` and the authority of controllers.
    fn set_ssl(&self) {
        let [key, cert, ca] =
            ["sw-privkey.pem", "sw-cert.pem", "controllerca.pem"].map(|name| self.file(name));
        self.s.vsctl(&format!("set-ssl {key} {cert} {ca}"));
    }

    /// `ovs-ofctl` as `who`, whose authority of switches is in the file `ca`.
    fn ofctl(&self, who: &str, ca: &str, words: &str) -> Output {
        let keys = format!("--timeout=20 -p {who}-privkey.pem -c {who}-cert.pem -C {ca}");
        self.try_run("ovs-ofctl", &format!("{keys} {words}"))
    }

    /// `ovs-testcontroller` as `who`.
    fn start_controller(&mut self, who: &str, port: u16, more: &str) {
        let words = format!(
            "-p {who}-privkey.pem -c {who}-cert.pem -C switchca.pem --unixctl=ctl.{port} \
             -vconsole:warn {more} pssl:{port}:127.0.0.1"
        );
        let mut command = self.s.command("ovs-testcontroller");
        command.args(words.split_whitespace()).stderr(Stdio::null());
        self.children.push(command.spawn().expect("openvswitch-testcontroller"));
        wait_for("the controller", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    fn end_controllers(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn controller(&self, column: &str) -> String {
        self.s.vsctl(&format!("--bare --columns={column} list controller"))
    }

    /// How often the log has a text.
    fn logged(&self, text: &str) -> usize {
        self.s.log().matches(text).count()
    }

    /// A passive controller's port, on which ovs-ofctl is let in.
    fn listen(&self) -> u16 {
        let port = free_port();
        self.set_ssl();
        self.s.vsctl(&format!("set-controller br0 pssl:{port}:127.0.0.1"));
        port
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.end_controllers();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// As with ovs-vswitchd, whoever had ovs-vsctl configure a listener may connect at once.
#[test]
fn a_listener_is_there_when_ovs_vsctl_returns() {
    let lab = Lab::new();
    lab.set_ssl();
    for kind in ["ptcp", "pssl"].repeat(10) {
        let port = free_port();
        lab.s.vsctl(&format!("set-controller br0 {kind}:{port}:127.0.0.1"));
        TcpStream::connect(("127.0.0.1", port)).unwrap_or_else(|e| panic!("{kind}: {e}"));
    }
}

#[test]
fn a_listener_lets_those_in_whom_its_authority_signed() {
    let lab = Lab::new();
    let port = lab.listen();
    let show = format!("show ssl:127.0.0.1:{port}");
    let shown = lab.ofctl("ctl", "switchca.pem", &show);
    assert!(said(&shown).contains("OFPT_FEATURES_REPLY"), "{shown:?}");
    lab.s.vsctl("add-port br0 p1 -- set interface p1 type=dummy ofport_request=1");
    let flows = (0..2000).map(|n| format!("in_port=1,tcp,tp_dst={n},actions=drop\n"));
    fs::write(lab.s.path("flows"), flows.collect::<String>()).unwrap();
    let add = format!("--bundle add-flows ssl:127.0.0.1:{port} flows");
    let added = lab.ofctl("ctl", "switchca.pem", &add);
    assert!(added.status.success(), "{added:?}");
    let dump = lab.ofctl("ctl", "switchca.pem", &format!("dump-flows ssl:127.0.0.1:{port}"));
    assert_eq!(said(&dump).matches("tp_dst=").count(), 2000, "long replies come whole");
    // The other end does not know this switch's authority, or this one the other end's.
    for (who, ca, why) in [
        ("ctl", "switchoddca.pem", "tlsv1 alert unknown ca"),
        ("odd", "switchca.pem", "certificate verify failed"),
    ] {
        let refused = lab.ofctl(who, ca, &show);
        assert!(!refused.status.success(), "{refused:?}");
        lab.s.wait_for_log(why);
    }
    let certless = connect(port, None).and_then(|s| exchange(s, &HELLO));
    assert!(certless.is_err(), "{certless:?}");
    lab.s.wait_for_log("peer did not return a certificate");
    let plain = lab.try_run("ovs-ofctl", &format!("--timeout=5 show tcp:127.0.0.1:{port}"));
    assert!(!plain.status.success(), "{plain:?}");
    assert!(said(&lab.ofctl("ctl", "switchca.pem", &show)).contains("OFPT_FEATURES_REPLY"));
}

#[test]
fn a_controller_that_the_switch_connects_to_is_one_that_it_knows() {
    let mut lab = Lab::new();
    let (known, unknown) = (free_port(), free_port());
    lab.start_controller("ctl", known, "");
    lab.start_controller("odd", unknown, "");
    lab.set_ssl();
    lab.s.vsctl(&format!("set-controller br0 ssl:127.0.0.1:{known}"));
    wait_for("a connection", || lab.controller("is_connected") == "true");
    lab.s.vsctl(&format!("set-controller br0 ssl:127.0.0.1:{unknown}"));
    wait_for("the reason", || lab.controller("status").contains("certificate verify failed"));
    assert_eq!(lab.controller("is_connected"), "false");
    // A controller that does not know this switch says so.
    let strict = free_port();
    lab.start_controller("ctl", strict, "-C switchoddca.pem");
    lab.s.vsctl(&format!("set-controller br0 ssl:127.0.0.1:{strict}"));
    wait_for("the reason", || lab.controller("status").contains("unknown ca"));
    lab.s.vsctl(&format!("set-controller br0 ssl:127.0.0.1:{unknown}"));
    // Other authorities: the one that is connected stays, the next attempt is let in or not.
    let file = |name| lab.file(name);
    let keys = format!("{} {}", file("sw-privkey.pem"), file("sw-cert.pem"));
    lab.s.vsctl(&format!("set-ssl {keys} {}", file("controlleroddca.pem")));
    wait_for("a connection", || lab.controller("is_connected") == "true");
    lab.s.vsctl(&format!("set-ssl {keys} {}", file("controllerca.pem")));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lab.controller("is_connected"), "true");
    lab.end_controllers();
    wait_for("the end", || lab.controller("is_connected") == "false");
}

#[test]
fn the_authority_of_the_first_controller_is_kept_if_that_is_asked_for() {
    let mut lab = Lab::new();
    let (known, unknown) = (free_port(), free_port());
    lab.start_controller("ctl", known, "--peer-ca-cert=controllerca.pem");
    lab.start_controller("odd", unknown, "--peer-ca-cert=controlleroddca.pem");
    let [key, cert, ca] = ["sw-privkey.pem", "sw-cert.pem", "kept.pem"].map(|name| lab.file(name));
    lab.s.vsctl(&format!("--bootstrap set-ssl {key} {cert} {ca}"));
    lab.s.vsctl(&format!("set-controller br0 ssl:127.0.0.1:{known}"));
    wait_for("a connection", || lab.controller("is_connected") == "true");
    let pem = |name: &str| {
        let text = fs::read_to_string(lab.s.path(name)).unwrap();
        text[text.find("-----BEGIN").unwrap()..].trim().to_string()
    };
    assert_eq!(pem("kept.pem"), pem("controllerca.pem"));
    assert_eq!(lab.logged("successfully bootstrapped CA cert to"), 1);
    lab.s.vsctl(&format!("set-controller br0 ssl:127.0.0.1:{unknown}"));
    wait_for("the reason", || lab.controller("status").contains("certificate verify failed"));
    assert_eq!(pem("kept.pem"), pem("controllerca.pem"));
}

#[test]
fn files_that_cannot_be_used_are_named_once_and_cost_nothing_else() {
    let mut lab = Lab::new();
    let port = free_port();
    let plain = free_port();
    lab.start_controller("ctl", port, &format!("ptcp:{plain}:127.0.0.1"));
    lab.s.vsctl(&format!(
        "set-controller br0 tcp:127.0.0.1:{plain} -- set controller br0 max_backoff=1000"
    ));
    wait_for("a connection", || lab.controller("is_connected") == "true");
    let status = || {
        lab.s.vsctl(&format!(
            "--bare --columns=status find controller target=\"ssl:127.0.0.1:{port}\""
        ))
    };
    let both = format!("set-controller br0 tcp:127.0.0.1:{plain} ssl:127.0.0.1:{port}");
    lab.s.vsctl(&format!("set-ssl /none/key /none/cert /none/ca -- {both}"));
    wait_for("the reason", || status().contains("/none/key: No such file or directory"));
    let seconds = lab.s.vsctl("--bare --columns=is_connected list controller");
    assert!(seconds.contains("true"), "the other controller stays: {seconds}");
    // What is wrong with each file.
    fs::write(lab.s.path("bad"), "no key at all").unwrap();
    lab.run("openssl", "rsa -aes128 -passout pass:x -in sw-privkey.pem -out locked.pem");
    let file = |name| lab.file(name);
    for (key, cert, ca, why) in [
        ("bad", "sw-cert.pem", "controllerca.pem", "bad: no private key"),
        ("locked.pem", "sw-cert.pem", "controllerca.pem", "locked.pem: no private key"),
        ("sw-privkey.pem", "bad", "controllerca.pem", "bad: no certificate in the file"),
        ("ctl-privkey.pem", "sw-cert.pem", "controllerca.pem", "Private key does not match"),
        ("sw-privkey.pem", "sw-cert.pem", ".", "not a file with keys or certificates"),
        ("sw-privkey.pem", "sw-cert.pem", "later.pem", "later.pem: No such file or directory"),
    ] {
        lab.s.vsctl(&format!("set-ssl {} {} {}", file(key), file(cert), file(ca)));
        wait_for(why, || status().contains(why));
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(lab.logged("later.pem: No such file or directory"), 1, "{}", lab.s.log());
    // The file comes, without a change of the row.
    fs::copy(lab.s.path("controllerca.pem"), lab.s.path("later.pem")).unwrap();
    wait_for("both", || {
        let all = lab.s.vsctl("--bare --columns=is_connected list controller");
        all.split_whitespace().all(|connected| connected == "true")
    });
}

#[test]
fn files_that_change_are_read_again_and_broken_ones_leave_those_before() {
    let lab = Lab::new();
    let port = lab.listen();
    let serial = || {
        let s = connect(port, Some((&lab, "ctl"))).unwrap();
        let certificate = s.ssl().peer_certificate().unwrap();
        certificate.serial_number().to_bn().unwrap().to_dec_str().unwrap().to_string()
    };
    let before = serial();
    fs::remove_file(lab.s.path("sw-cert.pem")).unwrap();
    assert_eq!(serial(), before, "what was read stays while a file is away");
    lab.s.wait_for_log("the files as they were before stay in use");
    for name in ["sw-privkey.pem", "sw-req.pem"] {
        fs::remove_file(lab.s.path(name)).unwrap();
    }
    lab.sign("pki", "sw", "switch");
    assert_ne!(serial(), before);
    assert!(
        lab.ofctl("ctl", "switchca.pem", &format!("show ssl:127.0.0.1:{port}")).status.success()
    );
    // The row goes: without options there is no key any more.
    lab.s.vsctl("del-ssl");
    wait_for("the reason", || {
        connect(port, Some((&lab, "ctl"))).is_err()
            && lab.controller("status").contains("Private key must be configured to use SSL")
    });
}

#[test]
fn the_database_may_be_reached_over_tls_with_the_options_of_the_daemon() {
    let mut lab = Lab::with_keys();
    let port = free_port();
    lab.s.kill_server();
    let remote = format!("--remote=pssl:{port}:127.0.0.1");
    let keys = ["-pctl-privkey.pem", "-cctl-cert.pem", "-Cswitchca.pem"];
    lab.s.start_server_with(&[&remote, keys[0], keys[1], keys[2]]);
    // Names that are relative to where the daemon is started, and no row in the database.
    let options = format!(
        "-p sw-privkey.pem -c sw-cert.pem -C controllerca.pem --ssl-protocols=TLSv1.2 ssl:127.0.0.1:{port}"
    );
    lab.s.start_detached(&options);
    lab.s.wait_for_log(&format!("ssl:127.0.0.1:{port}: connected"));
    lab.s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(lab.s.vsctl("get interface br0 ofport"), "65534");
    // The options count for controllers, too, and the row for these alone.
    let own = free_port();
    lab.s.vsctl(&format!("set-controller br0 pssl:{own}:127.0.0.1"));
    let show = format!("show ssl:127.0.0.1:{own}");
    wait_for("ofctl", || lab.ofctl("ctl", "switchca.pem", &show).status.success());
    let stream = connect(own, Some((&lab, "ctl"))).unwrap();
    assert_eq!(stream.ssl().version_str(), "TLSv1.2");
    lab.s.vsctl("set-ssl /none/key /none/cert /none/ca");
    assert!(!lab.ofctl("ctl", "switchca.pem", &show).status.success());
    lab.s.kill_server();
    lab.s.start_server_with(&[&remote, keys[0], keys[1], keys[2]]);
    lab.s.vsctl("add-br br1 -- set bridge br1 datapath_type=dummy");
    lab.s.vsctl("del-ssl");
    wait_for("ofctl", || lab.ofctl("ctl", "switchca.pem", &show).status.success());
    // A server of another authority.
    lab.s.kill_server();
    lab.s.start_server_with(&[&remote, "-podd-privkey.pem", "-codd-cert.pem", "-Cswitchca.pem"]);
    lab.s.wait_for_log("certificate verify failed");
}

#[test]
fn the_authority_of_the_first_database_is_kept_if_that_is_asked_for() {
    let mut lab = Lab::with_keys();
    let port = free_port();
    lab.s.kill_server();
    let remote = format!("--remote=pssl:{port}:127.0.0.1");
    let server = [&remote, "-pctl-privkey.pem", "-cctl-cert.pem", "-Cswitchca.pem"];
    lab.s.start_server_with(&server);
    let keys = "-p sw-privkey.pem -c sw-cert.pem --bootstrap-ca-cert=kept.pem";
    lab.s.start(&format!("{keys} ssl:127.0.0.1:{port}"));
    lab.s.wait_for_log("only one certificate came");
    assert!(!lab.s.path("kept.pem").exists());
    lab.s.kill_server();
    lab.s.start_server_with(&[&server[..], &["--peer-ca-cert=controllerca.pem"]].concat());
    lab.s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    assert_eq!(lab.s.vsctl("get interface br0 ofport"), "65534");
    assert!(lab.s.path("kept.pem").exists());
    // The other authority is none any more.
    lab.s.kill_server();
    lab.s.start_server_with(&[&remote, "-podd-privkey.pem", "-codd-cert.pem", "-Cswitchca.pem"]);
    lab.s.wait_for_log("certificate verify failed");
}

#[test]
fn options_that_say_nothing_known_leave_no_connection_without_protection() {
    let lab = Lab::with_keys();
    lab.s.start_detached(
        "--ssl-protocols=TLSv9 -p sw-privkey.pem -c sw-cert.pem -C controllerca.pem",
    );
    let port = free_port();
    lab.s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    lab.s.vsctl(&format!("set-controller br0 pssl:{port}:127.0.0.1"));
    wait_for("the reason", || {
        lab.controller("status").contains("TLSv9: SSL protocol not recognized")
    });
    assert!(connect(port, Some((&lab, "ctl"))).is_err());
}

/// A client without a certificate, or as `who`; it takes any server.
fn connect(port: u16, who: Option<(&Lab, &str)>) -> Result<SslStream<TcpStream>, String> {
    let ssl = client(who);
    let tcp = TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
    tcp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    tcp.set_nodelay(true).unwrap();
    let mut stream = SslStream::new(ssl, tcp).unwrap();
    stream.connect().map_err(|e| e.to_string())?;
    // What the server thinks of the certificate comes after the handshake, with its hello or not.
    exchange(stream, &HELLO)
}

fn client(who: Option<(&Lab, &str)>) -> Ssl {
    let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
    connector.set_verify(SslVerifyMode::NONE);
    if let Some((lab, who)) = who {
        let file = |kind| lab.s.path(&format!("{who}-{kind}.pem"));
        connector.set_private_key_file(file("privkey"), SslFiletype::PEM).unwrap();
        connector.set_certificate_file(file("cert"), SslFiletype::PEM).unwrap();
    }
    connector.build().configure().unwrap().into_ssl("127.0.0.1").unwrap()
}

/// Sends a message and reads a whole one.
fn exchange(
    mut stream: SslStream<TcpStream>,
    message: &[u8],
) -> Result<SslStream<TcpStream>, String> {
    stream.write_all(message).map_err(|e| e.to_string())?;
    let mut header = [0; 8];
    stream.read_exact(&mut header).map_err(|e| e.to_string())?;
    let mut rest = vec![0; usize::from(header[3]).saturating_sub(8)];
    stream.read_exact(&mut rest).map_err(|e| e.to_string())?;
    Ok(stream)
}

/// The longest waits while others attack: for an answer on a connection that is there, on one over
/// `.mgmt`, and for a new connection.
#[derive(Debug, Default)]
struct Waits {
    answer: Duration,
    local: Duration,
    new: Duration,
    /// How often the attack was made.
    attacks: usize,
}

impl Waits {
    /// On a machine that has other things to do, too. A new connection that waited for the end of
    /// handshakes that hang would wait for 8 s.
    fn are_short(&self) -> bool {
        self.answer.max(self.local) < Duration::from_secs(1) && self.new < Duration::from_secs(6)
    }
}

fn attacked(lab: &Lab, port: u16, attack: impl Fn(&AtomicBool, &AtomicUsize) + Sync) -> Waits {
    const ATTACK_TIME: Duration = Duration::from_secs(4);
    let mut stream = connect(port, Some((lab, "ctl"))).unwrap();
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut waits = Waits::default();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| attack(&over, &count));
        }
        let since = Instant::now();
        let mut measure = || -> Result<(), String> {
            while since.elapsed() < ATTACK_TIME {
                let asked = Instant::now();
                stream.write_all(&ECHO).map_err(|e| e.to_string())?;
                stream.read_exact(&mut [0; 8]).map_err(|e| e.to_string())?;
                waits.answer = waits.answer.max(asked.elapsed());
                let asked = Instant::now();
                let local = lab.try_run("ovs-ofctl", "--timeout=10 probe br0");
                waits.local = waits.local.max(asked.elapsed());
                let asked = Instant::now();
                while connect(port, Some((lab, "ctl"))).is_err() {}
                waits.new = waits.new.max(asked.elapsed());
                local.status.success().then_some(()).ok_or(format!("{local:?}"))?;
            }
            Ok(())
        };
        let result = measure();
        over.store(true, Ordering::Relaxed);
        result.unwrap();
    });
    waits.attacks = count.into_inner();
    waits
}

/// What a client says first.
fn client_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let connecting =
        std::thread::spawn(move || SslStream::new(client(None), tcp).unwrap().connect());
    let (mut accepted, _) = listener.accept().unwrap();
    let mut hello = vec![0; 4096];
    let length = accepted.read(&mut hello).unwrap();
    drop(accepted);
    let _ = connecting.join();
    hello.truncate(length);
    hello
}

#[test]
fn peers_that_are_not_known_delay_no_one_else() {
    let lab = Lab::new();
    let port = lab.listen();
    let open = || TcpStream::connect(("127.0.0.1", port));
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", lab.s.pid())).unwrap().count();
    // A handshake that does not begin ends after 8 s.
    let (mut hanging, since) = (open().unwrap(), Instant::now());
    hanging.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(hanging.read(&mut [0; 8]).unwrap_or(0), 0);
    let waited = since.elapsed();
    assert!((7..14).contains(&waited.as_secs()), "{waited:?}");
    let mut idle = connect(port, Some((&lab, "ctl"))).unwrap();
    let alone = descriptors();
    let most = AtomicUsize::new(0);
    let silent = attacked(&lab, port, |over, count| {
        let mut kept = VecDeque::new();
        while !over.load(Ordering::Relaxed) {
            kept.extend(open().ok());
            count.fetch_add(1, Ordering::Relaxed);
            if kept.len() > 150 {
                kept.pop_front();
            }
            most.fetch_max(descriptors(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let more = most.into_inner() - alone;
    assert!((40..80).contains(&more), "{more} connections at once, of {silent:?}");
    let sending = |bytes: &[u8]| {
        attacked(&lab, port, |over, count| {
            while !over.load(Ordering::Relaxed) {
                if let Ok(mut tcp) = open() {
                    let _ = tcp.write_all(bytes);
                    count.fetch_add(1, Ordering::Relaxed);
                    // The server's part of the handshake.
                    tcp.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                    let _ = tcp.read(&mut [0; 4096]);
                }
            }
        })
    };
    let attacks = [silent, sending(&[0x5a; 3000]), sending(&client_hello())];
    for (waits, attack) in attacks.iter().zip(["silence", "garbage", "hellos"]) {
        eprintln!("{attack}: {waits:?}");
        assert!(waits.attacks > 50 && waits.are_short(), "{attack}: {waits:?}");
    }
    // Who is known and says nothing keeps the place.
    idle.write_all(&ECHO).unwrap();
    idle.read_exact(&mut [0; 8]).unwrap();
}

/// What `openssl s_client` says that as `ctl` is given a command again and again.
fn s_client(lab: &Lab, port: u16, options: &str, command: &str) -> String {
    let line = format!(
        "yes {command} | timeout 4 nice -n 19 openssl s_client -connect 127.0.0.1:{port} -cert ctl-cert.pem \
         -key ctl-privkey.pem {options} 2>&1 | head -c 1000000"
    );
    said(&lab.s.command("sh").args(["-c", &line]).output().unwrap())
}

#[test]
fn a_peer_that_wants_other_keys_all_the_time_delays_no_one_else() {
    let lab = Lab::new();
    let port = lab.listen();
    // Renegotiation is refused; TLS 1.3 has peers say when they go on to their next key.
    for (options, command, answer) in
        [("-tls1_2", "R", "no renegotiation"), ("-tls1_3", "K", "KEYUPDATE")]
    {
        let (heard, one) = (Mutex::new(String::new()), Mutex::new(()));
        let waits = attacked(&lab, port, |over, count| {
            // One at a time: what is measured is the switch, not the machine.
            let Ok(_alone) = one.try_lock() else { return };
            while !over.load(Ordering::Relaxed) {
                let said = s_client(&lab, port, options, command);
                heard.lock().unwrap().push_str(&said);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        eprintln!("{command}: {waits:?}");
        let heard = heard.into_inner().unwrap();
        assert!(heard.contains(answer), "{heard}");
        assert!(waits.are_short(), "{command}: {waits:?}");
    }
}

#[test]
fn a_peer_that_says_nothing_but_other_keys_is_closed() {
    let lab = Lab::new();
    let port = lab.listen();
    // Without its hello, or with the probe, silence would end it, too.
    lab.s.vsctl("set controller br0 inactivity_probe=0");
    let mut known = connect(port, Some((&lab, "ctl"))).unwrap();
    let line = format!(
        "(printf '\\004\\0\\0\\010\\0\\0\\0\\001'; sleep 1; yes k) | timeout 60 nice -n 19 \
         openssl s_client -connect 127.0.0.1:{port} -tls1_3 \
         -cert ctl-cert.pem -key ctl-privkey.pem >/dev/null 2>&1"
    );
    let ended = lab.s.command("sh").args(["-c", &line]).status().unwrap();
    assert_ne!(ended.code(), Some(124), "it is still connected");
    lab.s.wait_for_log("the peer sends no data");
    known.write_all(&ECHO).unwrap();
    known.read_exact(&mut [0; 8]).unwrap();
}
