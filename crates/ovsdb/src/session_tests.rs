use super::*;
use crate::value::{Datum, Uuid};

const U: &str = "db74bd6b-057e-458b-bbab-85f91b9686dc";

fn at(seconds: u64) -> Moment {
    Duration::from_secs(seconds)
}

fn session() -> Session {
    let mut config =
        SessionConfig::new("db").table("T", &["name", "tags", "absent"]).table("No", &["x"]);
    config.lock = Some("l".into());
    Session::new(config)
}

fn sent(session: &mut Session) -> Vec<Value> {
    let mut framer = Framer::default();
    framer.push(&session.take_output());
    std::iter::from_fn(|| framer.next_message().unwrap()).collect()
}

fn say(session: &mut Session, message: Value) -> Result<(), ProtocolError> {
    session.receive(message.to_string().as_bytes(), at(1))
}

fn answer(session: &mut Session, request: &Value, result: Value) {
    say(session, json!({"id": request["id"], "result": result, "error": null})).unwrap();
}

fn refuse(session: &mut Session, request: &Value) {
    say(session, json!({"id": request["id"], "result": null, "error": "unknown method"})).unwrap();
}

fn find<'a>(messages: &'a [Value], method: &str) -> &'a Value {
    messages.iter().find(|m| m["method"] == method).unwrap_or_else(|| panic!("{method}"))
}

fn schema() -> Value {
    json!({"tables": {"T": {"columns": {"name": {"type": "string"}, "new": {"type": "string"},
        "tags": {"type": {"key": "integer", "min": 0, "max": "unlimited"}}}}}})
}

/// Connects and answers up to the monitor request, which it returns.
fn opened(session: &mut Session) -> Value {
    session.connected(at(0));
    let hello = sent(session);
    answer(session, find(&hello, "lock"), json!({"locked": true}));
    answer(session, find(&hello, "get_schema"), schema());
    let messages = sent(session);
    find(&messages, "monitor_cond_since").clone()
}

fn synced() -> Session {
    let mut session = session();
    let monitor = opened(&mut session);
    answer(&mut session, &monitor, json!([false, "t1", {"T": {U: {"initial": {"name": "a"}}}}]));
    session
}

fn events(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}

#[test]
fn asks_for_existing_columns_only() {
    let monitor = opened(&mut session());
    assert_eq!(monitor["params"][2], json!({"T": [{"columns": ["name", "tags"]}]}));
}

#[test]
fn follows_updates_and_resumes_from_the_last_transaction() {
    let mut s = synced();
    assert_eq!(events(&mut s), [Event::Locked, Event::Synced]);
    let change = json!({"T": {U: {"modify": {"tags": ["set", [1, 2]]}}}});
    say(
        &mut s,
        json!({"id": null, "method": "update3", "params": [["monid", "db"], "t2", change]}),
    )
    .unwrap();
    let uuid: Uuid = U.parse().unwrap();
    assert_eq!(s.replica().row("T", uuid).unwrap().ints("tags"), [1, 2]);
    s.disconnected(at(5));
    assert_eq!(s.connect_due(), Some(at(6)));
    let monitor = opened(&mut s);
    assert_eq!(monitor["params"][3], "t2");
    answer(&mut s, &monitor, json!([true, "t3", {"T": {U: {"modify": {"name": "b"}}}}]));
    let row = s.replica().row("T", uuid).unwrap();
    assert_eq!((row.str("name"), row.ints("tags")), ("b", vec![1, 2]));
}

#[test]
fn falls_back_to_older_monitors() {
    let mut s = session();
    let since = opened(&mut s);
    refuse(&mut s, &since);
    let cond = sent(&mut s).remove(0);
    assert_eq!(cond["method"], "monitor_cond");
    refuse(&mut s, &cond);
    let plain = sent(&mut s).remove(0);
    assert_eq!(plain["method"], "monitor");
    assert_eq!(plain["params"][2], json!({"T": {"columns": ["name", "tags"]}}));
    answer(&mut s, &plain, json!({"T": {U: {"new": {"name": "p"}}}}));
    assert!(s.is_synced());
    say(&mut s, json!({"id": null, "method": "update", "params": [["monid", "db"], {"T": {U: {"old": {}}}}]})).unwrap();
    assert_eq!(s.replica().rows("T").count(), 0);
}

#[test]
fn transacts_only_when_synced_and_locked() {
    let txn = || {
        let mut t = Transaction::new();
        t.update("T", Uuid(1), [("name".into(), Datum::scalar("x"))]);
        t
    };
    assert_eq!(session().transact(txn()), None);
    let mut s = synced();
    s.take_output();
    let id = s.transact(txn()).unwrap();
    let request = sent(&mut s).remove(0);
    assert_eq!(request["params"][2], json!({"op": "assert", "lock": "l"}));
    answer(&mut s, &request, json!([{"count": 1}, {}]));
    assert!(matches!(events(&mut s).last(), Some(Event::Transaction(i, Ok(_))) if *i == id));
    s.transact(txn()).unwrap();
    s.disconnected(at(9));
    let end = events(&mut s);
    assert!(matches!(end[0], Event::Transaction(_, Err(TransactionError::ConnectionLost))));
    assert_eq!(end[1], Event::LockLost);
    let mut s = synced();
    say(&mut s, json!({"id": null, "method": "stolen", "params": ["l"]})).unwrap();
    assert_eq!(s.transact(txn()), None);
}

#[test]
fn answers_echo_and_probes_silence() {
    let mut s = synced();
    s.take_output();
    say(&mut s, json!({"id": "e", "method": "echo", "params": [1]})).unwrap();
    assert_eq!(sent(&mut s), [json!({"id": "e", "result": [1], "error": null})]);
    assert_eq!(s.deadline(), Some(at(6)));
    s.tick(at(5)).unwrap();
    assert!(sent(&mut s).is_empty());
    s.tick(at(6)).unwrap();
    assert_eq!(sent(&mut s)[0]["method"], "echo");
    assert_eq!(s.deadline(), Some(at(11)));
    assert!(matches!(s.tick(at(11)), Err(ProtocolError::Silent(_))));
}

#[test]
fn backoff_grows_to_its_limit_and_starts_anew_after_success() {
    let mut s = session();
    let mut waits = Vec::new();
    for _ in 0..5 {
        s.disconnected(at(100));
        waits.push(s.connect_due().unwrap() - at(100));
    }
    assert_eq!(waits, [at(1), at(2), at(4), at(8), at(8)]);
    let monitor = opened(&mut s);
    answer(&mut s, &monitor, json!([false, "t1", {}]));
    s.disconnected(at(200));
    assert_eq!(s.connect_due(), Some(at(201)));
}

#[test]
fn nonsense_is_an_error_or_ignored() {
    for bad in [
        json!([]),
        json!({"method": 5}),
        json!({"id": null, "method": "update3", "params": 7}),
        json!({"id": null, "method": "update2", "params": [1, {"T": {"x": 1}}]}),
        json!({"id": null, "method": "monitor_canceled", "params": []}),
    ] {
        assert!(say(&mut synced(), bad.clone()).is_err(), "{bad}");
    }
    for odd in [
        json!({}),
        json!({"id": 9999, "result": 1}),
        json!({"id": null, "method": "news"}),
        json!({"id": 1e300, "result": {}, "error": []}),
    ] {
        say(&mut synced(), odd).unwrap();
    }
}

#[test]
fn new_values_of_quiet_columns_are_no_change() {
    let mut s = synced();
    s.config.quiet.insert("T".into(), vec!["name".into()]);
    events(&mut s);
    let mut heard = |change: Value| {
        let params = json!([0, "t2", {"T": {U: change}}]);
        say(&mut s, json!({"id": null, "method": "update3", "params": params})).unwrap();
        (events(&mut s).len(), s.replica().rows("T").next().map(|(_, r)| r.str("name").to_owned()))
    };
    assert_eq!(heard(json!({"modify": {"name": "b"}})), (0, Some("b".into())));
    let both = json!({"modify": {"name": "c", "tags": ["set", [1]]}});
    assert_eq!(heard(both), (1, Some("c".into())));
    assert_eq!(heard(json!({"delete": null})), (1, None));
    assert_eq!(heard(json!({"insert": {"name": "d"}})), (1, Some("d".into())));
}

/// Damaged messages in every state end in an error or are ignored; nothing panics and the session
/// works again on the next connection.
#[test]
fn damage_is_survived() {
    let messages = [
        json!({"id": 1, "result": schema(), "error": null}),
        json!({"id": 2, "result": {"locked": true}, "error": null}),
        json!({"id": 4, "result": [false, "t1", {"T": {U: {"initial": {"name": "a"}}}}], "error": null}),
        json!({"id": null, "method": "update3", "params": [0, "t2", {"T": {U: {"modify": {"tags": ["set", [1, 2]]}}}}]}),
        json!({"id": null, "method": "update2", "params": [0, {"T": {U: {"delete": null}}}]}),
        json!({"id": null, "method": "update", "params": [0, {"T": {U: {"new": {"name": "x"}}}}]}),
        json!({"id": "e", "method": "echo", "params": []}),
    ];
    let clean: Vec<u8> = messages.iter().flat_map(|m| m.to_string().into_bytes()).collect();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize % below
    };
    let mut errors = 0;
    for _ in 0..3000 {
        let mut bytes = clean.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"{}[]\",:0-"[random(9)]),
            }
        }
        let mut s = session();
        s.connected(at(0));
        errors += usize::from(s.receive(&bytes, at(1)).is_err());
        s.disconnected(at(2));
        s.next_id = 1;
        let monitor = opened(&mut s);
        answer(&mut s, &monitor, json!([false, "t9", {}]));
        assert!(s.is_synced());
    }
    assert!(errors > 100);
}
