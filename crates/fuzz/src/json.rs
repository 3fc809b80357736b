//! JSON-RPC from a database server that lies, and from whoever connects to the control socket: as
//! any bytes, in any pieces. The first bytes say how far the dialogue has come before.

use ovsdb::framing::Framer;
use ovsdb::{Session, SessionConfig};
use serde_json::{Value, json};
use std::time::Duration;

/// Bytes of a request to the control socket at most; here less, so that the limit is met.
const REQUEST_BYTES_MOST: usize = 1 << 12;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A session that has received this much: nothing, the schema, or the rows too.
fn session(stage: u8) -> Session {
    let config = SessionConfig::new("db").table("T", &["name", "tags", "map"]);
    let mut session = Session::new(config);
    session.connected(at(0));
    let schema = json!({"tables": {"T": {"columns": {"name": {"type": "string"},
        "tags": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
        "map": {"type": {"key": "string", "value": "uuid", "min": 0, "max": "unlimited"}}}}}});
    let row = json!({"T": {"db74bd6b-057e-458b-bbab-85f91b9686dc": {"initial": {"name": "a"}}}});
    let answers = [("get_schema", schema), ("monitor_cond_since", json!([false, "t1", row]))];
    for (method, answer) in answers.iter().take(usize::from(stage % 3)) {
        let mut sent = Framer::default();
        sent.push(&session.take_output());
        while let Ok(Some(m)) = sent.next_message() {
            if m["method"] == *method {
                let reply = json!({"id": m["id"], "result": answer, "error": null});
                session.receive(reply.to_string().as_bytes(), at(1)).expect("a good answer");
            }
        }
    }
    session
}

pub fn run(data: &[u8]) {
    let [stage, piece, text @ ..] = data else { return };
    let piece = usize::from(*piece).max(1);
    let mut session = session(*stage);
    for (i, part) in text.chunks(piece).enumerate() {
        if session.receive(part, at(2)).and_then(|()| session.tick(at(2 + i as u64))).is_err() {
            session.disconnected(at(3));
            session.connected(at(20));
        }
        while session.poll_event().is_some() {}
        session.take_output();
    }
    let mut framer = Framer::with_limit(REQUEST_BYTES_MOST);
    for part in text.chunks(piece) {
        framer.push(part);
        loop {
            match framer.next_message() {
                Ok(Some(message)) => again(&message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// What was read is what is read when it is written.
fn again(message: &Value) {
    let mut framer = Framer::default();
    let text = message.to_string();
    framer.push(text.as_bytes());
    let twice = framer.next_message().expect("our own JSON").expect("the whole of it");
    assert_eq!(twice.to_string(), text);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let uuid = "db74bd6b-057e-458b-bbab-85f91b9686dc";
    let update = json!({"T": {uuid: {"modify": {"tags": ["set", [1, 2]],
        "map": ["map", [["k", ["uuid", uuid]]]]}}}});
    let texts = [
        (0, json!({"id": 1, "method": "version", "params": []})),
        (0, json!({"id": "x", "method": "echo", "params": ["a\u{e9}\n", 1.5e3, -7, null, true]})),
        (1, json!({"id": 2, "result": {"tables": {}}, "error": null})),
        (2, json!({"id": null, "method": "update3", "params": [["monid", "db"], "t2", update]})),
        (2, json!({"id": null, "method": "update2", "params": [["monid", "db"], update]})),
        (
            2,
            json!({"id": null, "method": "update", "params": ["x", {"T": {uuid:
            {"old": {"name": "a"}, "new": {"name": ["set", []]}}}}]}),
        ),
        (2, json!({"id": 3, "result": [{"uuid": ["uuid", uuid]}, {"count": 1}], "error": null})),
        (0, json!([[[[[[[[[[]]]]]]]]]])),
    ];
    texts.iter().map(|(stage, text)| [&[*stage, 9], text.to_string().as_bytes()].concat()).collect()
}
