//! The command line of ovs-vswitchd(8).

use super::paths::Dirs;
use crate::tls::{Authority, TlsConf};
use crate::vlog::{self, PROGRAM, SyslogMethod};
use std::path::PathBuf;
use thiserror::Error;

/// The port types that `--enable-dummy` replaces by inert ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dummy {
    /// No port type is a dummy; `dummy` exists beside the others.
    Available,
    /// Port types of the datapath type `system`.
    System,
    /// All port types are dummies.
    Override,
}

/// How messages reach syslog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Syslog {
    /// The way.
    pub method: SyslogMethod,
    /// UDP address for messages as well.
    pub target: Option<String>,
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run the daemon.
    Run(Box<Args>),
    /// Print the usage and leave.
    Help,
    /// Print the version and leave.
    Version,
}

/// The daemon's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// The directories in effect.
    pub dirs: Dirs,
    /// Where ovsdb-server listens, such as `unix:FILE` or `ssl:HOST:PORT`.
    pub database: String,
    /// The pidfile to write, if any.
    pub pidfile: Option<PathBuf>,
    /// Start even if the pidfile belongs to a live process.
    pub overwrite_pidfile: bool,
    /// Go into the background once ready.
    pub detach: bool,
    /// Do not change to `/` when detaching.
    pub no_chdir: bool,
    /// Watch over the daemon and restart it when a signal kills it.
    pub monitor: bool,
    /// `user[:group]` to become.
    pub user: Option<String>,
    /// The log file to write, if any.
    pub log_file: Option<PathBuf>,
    /// Log specifications in order; empty text stands for a bare `-v`.
    pub verbose: Vec<String>,
    /// The ways to syslog.
    pub syslog: Syslog,
    /// The control socket as given.
    pub unixctl: Option<String>,
    /// Lock all memory.
    pub mlockall: bool,
    /// Get ready beside the switch that runs, and wait for the command that starts the next one.
    pub standby: bool,
    /// `--enable-dummy`.
    pub dummy: Option<Dummy>,
    /// `--dummy-numa`: the NUMA nodes of cores that are made up for tests; empty: the machine's
    /// cores.
    pub dummy_numa: Vec<usize>,
    /// No ports or datapaths of the kernel.
    pub disable_system: bool,
    /// No routes of the kernel.
    pub disable_system_route: bool,
    /// Files and settings for TLS.
    pub tls: TlsConf,
    /// Options accepted for compatibility that do nothing here.
    pub ignored: Vec<String>,
}

/// A command line that cannot be used; one line for standard error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{PROGRAM}: {0}")]
pub struct UsageError(pub String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Optional,
    Value,
}

const OPTIONS: &[(&str, Takes)] = &[
    ("bootstrap-ca-cert", Takes::Value),
    ("ca-cert", Takes::Value),
    ("certificate", Takes::Value),
    ("detach", Takes::Nothing),
    ("disable-system", Takes::Nothing),
    ("disable-system-route", Takes::Nothing),
    ("dpdk", Takes::Optional),
    ("dummy-numa", Takes::Value),
    ("enable-dummy", Takes::Optional),
    ("help", Takes::Nothing),
    ("log-file", Takes::Optional),
    ("mlockall", Takes::Nothing),
    ("monitor", Takes::Nothing),
    ("no-chdir", Takes::Nothing),
    ("no-self-confinement", Takes::Nothing),
    ("option", Takes::Nothing),
    ("overwrite-pidfile", Takes::Nothing),
    ("peer-ca-cert", Takes::Value),
    ("pidfile", Takes::Optional),
    ("private-key", Takes::Value),
    ("ssl-ciphers", Takes::Value),
    ("ssl-protocols", Takes::Value),
    ("standby", Takes::Nothing),
    ("syslog-method", Takes::Value),
    ("syslog-target", Takes::Value),
    ("unixctl", Takes::Value),
    ("user", Takes::Value),
    ("verbose", Takes::Optional),
    ("version", Takes::Nothing),
];

const SHORT: &[(char, &str, Takes)] = &[
    ('h', "help", Takes::Nothing),
    ('V', "version", Takes::Nothing),
    ('v', "verbose", Takes::Optional),
    ('p', "private-key", Takes::Value),
    ('c', "certificate", Takes::Value),
    ('C', "ca-cert", Takes::Value),
];

impl Args {
    fn new(dirs: Dirs) -> Self {
        Self {
            database: dirs.database(),
            dirs,
            pidfile: None,
            overwrite_pidfile: false,
            detach: false,
            no_chdir: false,
            monitor: false,
            user: None,
            log_file: None,
            verbose: Vec::new(),
            syslog: Syslog::default(),
            unixctl: None,
            mlockall: false,
            standby: false,
            dummy: None,
            dummy_numa: Vec::new(),
            disable_system: false,
            disable_system_route: false,
            tls: TlsConf::default(),
            ignored: Vec::new(),
        }
    }

    /// Reads the arguments after the program's name.
    pub fn parse(
        words: impl IntoIterator<Item = String>,
        dirs: Dirs,
    ) -> Result<Action, UsageError> {
        let mut args = Self::new(dirs);
        let mut database = None;
        let mut words = words.into_iter();
        let mut only_positional = false;
        while let Some(word) = words.next() {
            let option = match word.strip_prefix("--") {
                _ if only_positional => None,
                Some("") => {
                    only_positional = true;
                    continue;
                }
                Some(long) => Some(long_option(long, &mut words)?),
                None => short_option(&word, &mut words)?,
            };
            match option {
                Some(("help", _)) => return Ok(Action::Help),
                Some(("version", _)) => return Ok(Action::Version),
                Some((name, value)) => args.apply(name, value)?,
                None => {
                    if database.replace(word).is_some() {
                        let text = "at most one non-option argument accepted; use --help for usage";
                        return Err(UsageError(text.into()));
                    }
                }
            }
        }
        args.database = database.unwrap_or(args.database);
        Ok(Action::Run(Box::new(args)))
    }

    fn apply(&mut self, name: &str, value: Option<String>) -> Result<(), UsageError> {
        let path = value.clone().map(PathBuf::from);
        match name {
            "pidfile" => self.pidfile = Some(self.dirs.pidfile(path.as_deref())),
            "overwrite-pidfile" => self.overwrite_pidfile = true,
            "detach" => self.detach = true,
            "no-chdir" => self.no_chdir = true,
            "monitor" => self.monitor = true,
            "user" => self.user = value,
            "log-file" => self.log_file = Some(self.dirs.log_file(path.as_deref())),
            "verbose" => self.verbose.push(value.unwrap_or_default()),
            "syslog-method" => {
                self.syslog.method = SyslogMethod::parse(&value.unwrap_or_default())
                    .map_err(|e| UsageError(e.to_string()))?;
            }
            "syslog-target" => self.syslog.target = value,
            "unixctl" => self.unixctl = value,
            "mlockall" => self.mlockall = true,
            "standby" => self.standby = true,
            "enable-dummy" => self.dummy = Some(dummy(value.as_deref())?),
            "disable-system" => self.disable_system = true,
            "disable-system-route" => self.disable_system_route = true,
            "dummy-numa" => {
                let nodes = value.unwrap_or_default();
                let nodes: Result<_, _> = nodes.split(',').map(str::parse).collect();
                let wrong = |_| UsageError("--dummy-numa: NUMA nodes, such as 0,0,1,1".into());
                self.dummy_numa = nodes.map_err(wrong)?;
            }
            "private-key" => self.tls.identity.private_key = path,
            "certificate" => self.tls.identity.certificate = path,
            "ca-cert" | "bootstrap-ca-cert" => {
                let (file, bootstrap) = (value.unwrap_or_default(), name == "bootstrap-ca-cert");
                self.tls.identity.authority = Authority::named(&file, bootstrap);
            }
            "peer-ca-cert" => self.tls.peer_ca_cert = path,
            "ssl-protocols" => self.tls.protocols = value,
            "ssl-ciphers" => self.tls.ciphers = value,
            "dpdk" => {
                let text =
                    "--dpdk option is not supported; use other_config:dpdk-init in the database";
                self.ignored.push(text.into());
            }
            other => self.ignored.push(format!("option --{other} has no meaning here")),
        }
        Ok(())
    }

    /// Sets the levels and opens the destinations asked for. A missing syslog is no error.
    pub fn open_logs(&self) -> Result<(), UsageError> {
        for spec in &self.verbose {
            if spec.is_empty() {
                vlog::set_all_debug();
            } else {
                vlog::set(spec).map_err(|e| UsageError(format!("processing \"{spec}\": {e}")))?;
            }
        }
        let _ = vlog::open_syslog(&self.syslog.method);
        if let Some(address) = &self.syslog.target {
            vlog::add_syslog_target(address)
                .map_err(|e| UsageError(format!("syslog target {address}: {e}")))?;
        }
        if let Some(path) = &self.log_file {
            vlog::open_file(path.clone()).map_err(|e| {
                UsageError(format!("failed to open {} for logging: {e}", path.display()))
            })?;
        }
        for text in &self.ignored {
            vlog::info!("vswitchd", "{text}");
        }
        Ok(())
    }
}

fn dummy(value: Option<&str>) -> Result<Dummy, UsageError> {
    match value {
        None => Ok(Dummy::Available),
        Some("system") => Ok(Dummy::System),
        Some("override") => Ok(Dummy::Override),
        Some(other) => Err(UsageError(format!("--enable-dummy: unknown level \"{other}\""))),
    }
}

type Parsed = (&'static str, Option<String>);

/// A long option, by its name or an unambiguous beginning of it, as getopt_long(3) takes it.
fn long_option(text: &str, words: &mut impl Iterator<Item = String>) -> Result<Parsed, UsageError> {
    let (given, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let matches: Vec<_> = OPTIONS.iter().filter(|(name, _)| name.starts_with(given)).collect();
    let exact = matches.iter().find(|(name, _)| *name == given);
    let &(name, takes) = match (exact, matches.as_slice()) {
        (Some(option), _) => option,
        (None, [option]) => option,
        (None, []) => return Err(UsageError(format!("unrecognized option '--{text}'"))),
        (None, _) => return Err(UsageError(format!("option '--{given}' is ambiguous"))),
    };
    match (takes, value) {
        (Takes::Nothing, Some(_)) => {
            Err(UsageError(format!("option '--{name}' doesn't allow an argument")))
        }
        (Takes::Value, None) => Ok((name, Some(next_value(words, &format!("--{name}"))?))),
        (_, value) => Ok((name, value)),
    }
}

/// A short option with its value attached or, where one is needed, following; `None` for a word
/// that is no option.
fn short_option(
    word: &str,
    words: &mut impl Iterator<Item = String>,
) -> Result<Option<Parsed>, UsageError> {
    let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) else { return Ok(None) };
    let mut letters = letters.chars();
    let letter = letters.next().unwrap_or_default();
    let rest = letters.as_str();
    let Some(&(_, name, takes)) = SHORT.iter().find(|(l, _, _)| *l == letter) else {
        return Err(UsageError(format!("invalid option -- '{letter}'")));
    };
    let attached = (!rest.is_empty()).then(|| rest.to_owned());
    match (takes, attached) {
        (Takes::Value, None) => Ok(Some((name, Some(next_value(words, &format!("-{letter}"))?)))),
        (_, attached) => Ok(Some((name, attached))),
    }
}

fn next_value(
    words: &mut impl Iterator<Item = String>,
    option: &str,
) -> Result<String, UsageError> {
    words.next().ok_or_else(|| UsageError(format!("option '{option}' requires an argument")))
}

/// The text of `--help`.
pub fn help(dirs: &Dirs) -> String {
    format!(
        "{PROGRAM}: virtual switch daemon (Weft)
usage: {PROGRAM} [OPTIONS] [DATABASE]
where DATABASE is a socket on which ovsdb-server is listening
      (unix:FILE, tcp:HOST:PORT or ssl:HOST:PORT; default: \"{}\").

Daemon options:
  --detach                  run in the background once ready
  --monitor                 watch over the daemon and restart it after a crash
  --no-chdir                do not change to '/'
  --pidfile[=FILE]          write a pidfile (default: {})
  --overwrite-pidfile       with --pidfile, start even if already running
  --mlockall                lock all memory
  --user=USER[:GROUP]       become this user, keeping what networks need
  --standby                 get ready beside the switch that runs; the next start
                            with the same arguments is this process

Logging options:
  -v, --verbose[=SPEC]      set log levels, all to dbg without SPEC
  --log-file[=FILE]         write a log file (default: {})
  --syslog-method=(libc|null|unix:FILE|udp:IP:PORT)
                            how messages reach syslog
  --syslog-target=IP:PORT   send messages to this UDP address as well

Other options:
  --unixctl=SOCKET          control socket in place of the default
  --enable-dummy[=override|system], --disable-system, --disable-system-route
                            inert ports and no kernel, for tests
  -p, --private-key=FILE    this switch's private key for SSL
  -c, --certificate=FILE    the certificate for it
  -C, --ca-cert=FILE        the authority of peers' certificates (none: let anyone in)
  --bootstrap-ca-cert=FILE  the same, taken from the first server if there is no file
  --peer-ca-cert=FILE       certificates to send besides the own one
  --ssl-protocols=LIST      versions of TLS to speak, such as TLSv1.2,TLSv1.3
  --ssl-ciphers=LIST        ciphers up to TLS 1.2, as in openssl-ciphers(1)
  -h, --help                show this text
  -V, --version             show the version
",
        dirs.database(),
        dirs.pidfile(None).display(),
        dirs.log_file(None).display()
    )
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
