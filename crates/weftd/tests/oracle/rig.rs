//! One switch with four ports, spoken to directly where the tools would be too slow.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Result, Switch, SwitchConfig, veth};

/// How long a frame may take through a busy machine.
const WAIT_TIME_MAX: Duration = Duration::from_secs(5);
const ETH_SENTINEL: [u8; 2] = [0x88, 0xb6];

/// Flow that lets the test know that all before has come out; part of every set of flows.
pub const SENTINEL: &str =
    "table=0,priority=65535,dl_type=0x88b6,actions=output:1,output:2,output:3,output:4,IN_PORT";

pub struct Rig<'a> {
    pub name: &'static str,
    pub switch: Switch<'a>,
    ends: Vec<Raw>,
    ports: BTreeMap<u32, String>,
}

/// Frames that came out, by OpenFlow port.
pub type Out = BTreeMap<u32, Vec<Vec<u8>>>;

impl<'a> Rig<'a> {
    /// Starts the switch with a bridge and its ports.
    pub fn start(name: &'static str, ns: &'a Netns, config: SwitchConfig) -> Result<Rig<'a>> {
        let switch = Switch::start(ns, config)?;
        let mut words = "add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=secure \
            other-config:hwaddr=02:00:00:00:00:77 other-config:datapath-id=0000020000000077 \
            protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15"
            .to_owned();
        let mut ends = Vec::new();
        for i in 1..=4 {
            veth((ns, &format!("p{i}")), (ns, &format!("e{i}")))?;
            ns.ipv6_off(&format!("p{i}"))?;
            ns.ipv6_off(&format!("e{i}"))?;
            ends.push(Raw::open(ns, &format!("e{i}"))?);
            words += &format!(" -- add-port br0 p{i} -- set interface p{i} ofport_request={i}");
        }
        switch.vsctl(&words.split_whitespace().collect::<Vec<_>>())?;
        let mut rig = Rig { name, switch, ends, ports: BTreeMap::new() };
        ns.ip("link set br0 up")?;
        rig.ports = rig.datapath_ports()?;
        Ok(rig)
    }

    /// Names by datapath port number, from lines like `p1 1/2: (system)`.
    fn datapath_ports(&self) -> Result<BTreeMap<u32, String>> {
        let text = self.ask("dpif/show", &[])?;
        let port = |line: &str| {
            let (name, rest) = line.trim().split_once(' ')?;
            let number = rest.split_once('/')?.1.split_once(':')?.0;
            Some((number.parse().ok()?, name.to_owned()))
        };
        let ports: BTreeMap<_, _> = text.lines().filter_map(port).collect();
        if ports.len() == 5 { Ok(ports) } else { Err(format!("five ports expected: {text}")) }
    }

    /// The name of a datapath port number.
    pub fn port(&self, number: u32) -> Option<&str> {
        self.ports.get(&number).map(String::as_str)
    }

    /// What `ovs-appctl` does, without a process for each question.
    pub fn ask(&self, method: &str, args: &[&str]) -> Result<String> {
        let pid = self.switch.daemon_pid().ok_or("the daemon is gone")?;
        let path = self.switch.dir().join(format!("ovs-vswitchd.{pid}.ctl"));
        let tell = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut stream = UnixStream::connect(&path).map_err(tell)?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).map_err(tell)?;
        let request = json!({"id": 0, "method": method, "params": args}).to_string();
        stream.write_all(request.as_bytes()).map_err(tell)?;
        let mut answers = serde_json::Deserializer::from_reader(stream).into_iter::<Value>();
        let answer = answers.next().ok_or("no answer")?.map_err(|e| e.to_string())?;
        match (answer["result"].as_str(), answer["error"].as_str()) {
            (Some(text), _) => Ok(text.to_owned()),
            (_, Some(error)) => Err(error.to_owned()),
            _ => Err(format!("{method}: {answer}")),
        }
    }

    /// Replaces all flows by those given; the error of each that was refused.
    pub fn load(&self, version: &str, flows: &[String]) -> Result<Vec<Option<String>>> {
        self.add_all(version, &["delete".into(), SENTINEL.into()])?;
        let mut errors = vec![None; flows.len()];
        self.load_part(version, flows, &mut errors);
        Ok(errors)
    }

    /// A file with a bad flow is halved until the bad one is alone.
    fn load_part(&self, version: &str, flows: &[String], errors: &mut [Option<String>]) {
        let Err(error) = self.add_all(version, flows) else { return };
        if flows.len() == 1 {
            errors[0] = Some(error_name(&error));
            return;
        }
        let middle = flows.len() / 2;
        let (first, second) = errors.split_at_mut(middle);
        self.load_part(version, &flows[..middle], first);
        self.load_part(version, &flows[middle..], second);
    }

    fn add_all(&self, version: &str, flows: &[String]) -> Result<String> {
        self.switch
            .ofctl_stdin(&["-O", version, "--bundle", "add-flows", "br0", "-"], &flows.join("\n"))
    }

    /// All flows, sorted.
    pub fn dump(&self, version: &str) -> Result<Vec<String>> {
        let text = self.switch.ofctl(&["-O", version, "--no-stats", "dump-flows", "br0"])?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    }

    /// Forgets learned addresses and all that was decided with them.
    pub fn forget(&self) -> Result<()> {
        self.ask("fdb/flush", &["br0"])?;
        self.ask("revalidator/purge", &[]).or_else(|e| {
            match e.contains("not a valid command") {
                true => Ok(String::new()),
                false => Err(e),
            }
        })?;
        Ok(())
    }

    /// Sends a frame into a port; what comes out of all.
    pub fn send(&self, in_port: u32, frame: &[u8], number: u32) -> Result<Out> {
        let raw = &self.ends[in_port as usize - 1];
        let mut sentinel = vec![0; 60];
        sentinel[12..14].copy_from_slice(&ETH_SENTINEL);
        sentinel[14..18].copy_from_slice(&number.to_be_bytes());
        raw.send(frame)?;
        raw.send(&sentinel)?;
        let mut out = Out::new();
        for (i, end) in self.ends.iter().enumerate() {
            let frames = until(end, &sentinel)
                .ok_or_else(|| format!("{}: no sentinel out of port {}", self.name, i + 1))?;
            if !frames.is_empty() {
                out.insert(i as u32 + 1, frames);
            }
        }
        Ok(out)
    }
}

/// What comes before the sentinel.
fn until(end: &Raw, sentinel: &[u8]) -> Option<Vec<Vec<u8>>> {
    let deadline = Instant::now() + WAIT_TIME_MAX;
    let mut frames = Vec::new();
    loop {
        let f = end.receive(deadline)?;
        if f == sentinel {
            return Some(frames);
        }
        frames.push(f);
    }
}

/// `OFPBAC_BAD_OUT_PORT` of a switch's error, or all of what ovs-ofctl itself said.
fn error_name(text: &str) -> String {
    let mut names =
        text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let name = names.find(|w| w.starts_with("OFP") && w.contains('_') && !w.starts_with("OFPT_"));
    match name {
        Some(n) if text.contains("OFPT_ERROR") || text.contains("Error OFP") => n.to_owned(),
        _ => text.rsplit("ovs-ofctl: ").next().unwrap_or(text).trim().to_owned(),
    }
}
