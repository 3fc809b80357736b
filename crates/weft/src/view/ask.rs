//! A client of the daemon's control socket: JSON-RPC over a Unix socket, as `ovs-appctl` speaks it
//! (ovs-appctl(8), unixctl).

use crate::dirs::Dirs;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long the switch may take for an answer.
const ANSWER_SECONDS_MAX: u64 = 10;

/// A connection to the control socket of the switch that runs here.
pub struct Connection {
    stream: UnixStream,
    pid: u64,
}

impl Connection {
    /// Connects to the switch whose pidfile is in the run directory.
    pub fn open(dirs: &Dirs) -> Result<Connection> {
        let (run, file) = (dirs.run.display(), dirs.run.join("ovs-vswitchd.pid"));
        let Ok(pid) = std::fs::read_to_string(&file) else {
            bail!(
                "no switch runs here: there is no {} (`weft up` starts one; another one's \
                 directory goes into OVS_RUNDIR)",
                file.display()
            );
        };
        let socket = dirs.run.join(format!("ovs-vswitchd.{}.ctl", pid.trim()));
        let stream = UnixStream::connect(&socket).with_context(|| {
            format!("the switch of {run} (process {}) does not answer", pid.trim())
        })?;
        let most = Some(Duration::from_secs(ANSWER_SECONDS_MAX));
        stream.set_read_timeout(most)?;
        stream.set_write_timeout(most)?;
        Ok(Connection { stream, pid: pid.trim().parse().unwrap_or(0) })
    }

    /// The switch's process, as its pidfile says; 0 if it says nothing of the kind.
    pub fn pid(&self) -> u64 {
        self.pid
    }

    /// What the switch answers; if it says that something is wrong, that in its words.
    pub fn ask(&mut self, command: &str, args: &[&str]) -> Result<String> {
        let request = json!({"id": 0, "method": command, "params": args});
        let silent = "the switch accepted the connection and does not answer";
        self.stream.write_all(request.to_string().as_bytes()).context(silent)?;
        let mut answers = serde_json::Deserializer::from_reader(&self.stream).into_iter::<Value>();
        let answer = answers.next().context(silent)?.context(silent)?;
        match (&answer["result"], &answer["error"]) {
            (Value::String(text), _) => Ok(text.clone()),
            (_, Value::String(text)) if text.contains("is not a valid command") => bail!(
                "the switch that runs here does not know {command}: it is ovs-vswitchd, or an older weftd"
            ),
            (_, Value::String(text)) => bail!("{}", text.trim_end()),
            _ => bail!("the switch's answer to {command} is not JSON-RPC"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    /// What is said of a switch whose socket gives this answer.
    fn said(answer: Option<&'static str>) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ovs-vswitchd.pid"), "77\n").unwrap();
        if let Some(answer) = answer {
            let listener = UnixListener::bind(dir.path().join("ovs-vswitchd.77.ctl")).unwrap();
            std::thread::spawn(move || {
                let (mut peer, _) = listener.accept().unwrap();
                let mut request = [0; 200];
                let _ = peer.read(&mut request).unwrap();
                peer.write_all(answer.as_bytes()).unwrap();
            });
        }
        let connection = Connection::open(&Dirs::private(dir.path()));
        match connection.and_then(|mut c| c.ask("weft/state", &["switch"])) {
            Ok(text) => text,
            Err(e) => format!("{e:#}"),
        }
    }

    #[test]
    fn every_way_to_fail_has_its_sentence() {
        assert_eq!(said(Some(r#"{"id":0,"result":"{}","error":null}"#)), "{}");
        let refused = r#"{"id":0,"result":null,"error":"x: there is no y\n"}"#;
        assert_eq!(said(Some(refused)), "x: there is no y");
        let old = r#"{"id":0,"result":null,"error":"\"weft/state\" is not a valid command"}"#;
        assert!(said(Some(old)).contains("it is ovs-vswitchd, or an older weftd"));
        assert!(said(None).contains("(process 77) does not answer"));
        assert!(said(Some("")).contains("does not answer"));
        assert!(said(Some("nonsense")).contains("does not answer"));
        let nowhere = Connection::open(&Dirs::private("/nonesuch".as_ref()));
        let text = nowhere.err().unwrap().to_string();
        assert!(text.starts_with("no switch runs here: there is no /nonesuch/"), "{text}");
    }
}
