use super::*;

fn dirs() -> Dirs {
    Dirs { run: "/r".into(), log: "/l".into(), db: "/d".into(), sysconf: "/s".into() }
}

fn parse(line: &str) -> Result<Args, UsageError> {
    match Args::parse(line.split_whitespace().map(str::to_owned), dirs())? {
        Action::Run(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_usual_command_lines_are_understood() {
    let args = parse(
        "--enable-dummy=override --disable-system --disable-system-route --detach \
        --no-chdir --pidfile --log-file -vvconn -vofproto_dpif -vconsole:off -v unix:/x/db.sock",
    )
    .unwrap();
    assert_eq!(args.dummy, Some(Dummy::Override));
    assert!(args.disable_system && args.disable_system_route && args.detach && args.no_chdir);
    assert_eq!(args.pidfile, Some("/r/ovs-vswitchd.pid".into()));
    assert_eq!(args.log_file, Some("/l/ovs-vswitchd.log".into()));
    assert_eq!(args.verbose, ["vconn", "ofproto_dpif", "console:off", ""]);
    assert_eq!(args.database, "unix:/x/db.sock");
}

#[test]
fn values_come_attached_or_after() {
    let args = parse(
        "--unixctl sock -p key -ccert --ca-cert=ca --bootstrap-ca-cert boot --mon \
        --pidfile=p --user u:g --dpdk -- tcp:127.0.0.1:6640",
    )
    .unwrap();
    assert_eq!(args.unixctl.as_deref(), Some("sock"));
    assert_eq!(args.tls.identity.private_key, Some("key".into()));
    assert_eq!(args.tls.identity.certificate, Some("cert".into()));
    assert_eq!(args.tls.identity.authority, Authority::Bootstrap("boot".into()), "the last one");
    assert!(args.monitor);
    assert_eq!(args.pidfile, Some("/r/p".into()));
    assert_eq!(args.ignored.len(), 1);
    assert_eq!(args.database, "tcp:127.0.0.1:6640");
    assert_eq!(parse("").unwrap().database, "unix:/r/db.sock");
}

#[test]
fn bad_lines_say_what_is_wrong() {
    for (line, text) in [
        ("--bogus", "unrecognized option '--bogus'"),
        ("--d", "ambiguous"),
        ("--detach=1", "doesn't allow an argument"),
        ("--unixctl", "requires an argument"),
        ("-x", "invalid option -- 'x'"),
        ("a b", "at most one non-option argument"),
        ("--enable-dummy=x", "--enable-dummy"),
        ("--syslog-method=smoke", "smoke"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.starts_with("ovs-vswitchd: ") && error.contains(text), "{line}: {error}");
    }
}

#[test]
fn help_and_version_win() {
    let action = |word: &str| Args::parse([word.to_owned()], dirs()).unwrap();
    assert_eq!(action("-h"), Action::Help);
    assert_eq!(action("--version"), Action::Version);
    assert!(help(&dirs()).contains("unix:/r/db.sock"));
}
