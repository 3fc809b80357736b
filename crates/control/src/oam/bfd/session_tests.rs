use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn conf(text: &str) -> Conf {
    let pairs = text.split_whitespace().filter_map(|p| p.split_once('='));
    let pairs = pairs.chain([("enable", "true")]);
    let (conf, wrong) =
        Conf::read(&pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect()).unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
    conf
}

/// What a peer says that has discriminator 7 and knows ours, 1.
fn said(state: State, flags: u8) -> Vec<u8> {
    let control = Control {
        diag: Diag::NONE,
        state,
        flags,
        mult: 3,
        my_disc: 7,
        your_disc: 1,
        min_tx_us: 100_000,
        min_rx_us: 200_000,
    };
    control.frame(&conf(""), MAC, 49_152)
}

/// Two sessions and the path between them.
struct Pair {
    sides: [Session; 2],
    /// Packets of which side are lost.
    lost: [bool; 2],
    /// Packets that each side's interface received beside those of BFD.
    data: [u64; 2],
    received: [u64; 2],
    now: u64,
    /// Control packets that each side sent.
    sent: [u64; 2],
}

impl Pair {
    fn new(a: &str, b: &str) -> Pair {
        let sides = [Session::new(conf(a), 1, 5000, 0), Session::new(conf(b), 2, 5000, 0)];
        let none = [0; 2];
        Pair { sides, lost: [false; 2], data: none, received: none, now: 5000, sent: none }
    }

    /// Lets both sides send, receive and look at the time, every 10 ms.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now += 10;
            for i in [0, 1] {
                let now = self.now;
                if self.sides[i].is_due(now) {
                    let control = self.sides[i].transmit(now, (now / 10) as u32 + 7 * i as u32);
                    self.sent[i] += 1;
                    if !self.lost[i] {
                        self.received[1 - i] += 1;
                        let frame = control.frame(self.sides[i].conf(), MAC, 49_152);
                        let received = self.received[1 - i];
                        self.sides[1 - i].receive(&frame, now, received).unwrap();
                    }
                }
                self.received[i] += self.data[i];
                if self.data[i] > 0 {
                    self.sides[i].data(now);
                }
                let received = self.received[i];
                self.sides[i].run(now, received);
                assert!(self.sides[i].wake() > now || self.sides[i].is_due(now));
            }
        }
    }

    /// State, diagnostic and whether it forwards, of both sides.
    fn is(&mut self) -> String {
        let now = self.now;
        let one = |s: &mut Session| {
            let is = s.status(now);
            format!("{} {} {} {}", is.state.name(), is.diag.0, is.forwarding, is.flaps)
        };
        let [a, b] = &mut self.sides;
        format!("{}, {}", one(a), one(b))
    }

    fn set(&mut self, side: usize, text: &str) {
        self.sides[side].configure(conf(text), self.now, self.received[side]);
    }
}

#[test]
fn states_follow_from_states() {
    use State::{AdminDown, Down, Init, Up};
    let (none, remote) = (Diag::NONE, Diag::REMOTE_DOWN);
    let table = [
        (Down, AdminDown, Down, none),
        (Down, Down, Init, none),
        (Down, Init, Up, none),
        (Down, Up, Down, none),
        (Init, AdminDown, Down, remote),
        (Init, Down, Init, none),
        (Init, Init, Up, none),
        (Init, Up, Up, none),
        (Up, AdminDown, Down, remote),
        (Up, Down, Down, remote),
        (Up, Init, Up, none),
        (Up, Up, Up, none),
    ];
    for (own, peer, next, diag) in table {
        let mut s = Session::new(conf(""), 1, 5000, 0);
        s.state = own;
        s.receive(&said(peer, 0), 5000, 0).unwrap();
        assert_eq!((s.state, s.diag), (next, diag), "{own:?} and {peer:?}");
        assert_eq!(s.forwards(5000), next == Up);
    }
}

#[test]
fn what_happens_on_the_path_happens_to_the_session() {
    // (what is done, ms that pass, what both sides are then)
    type Act = fn(&mut Pair);
    let table: [(&str, Act, u64, &str); 9] = [
        ("they meet", |_| {}, 4100, "up 0 true 1, up 0 true 1"),
        ("the path is cut", |p| p.lost = [true; 2], 3100, "down 1 false 2, down 1 false 2"),
        ("it is whole again", |p| p.lost = [false; 2], 3000, "up 1 true 3, up 1 true 3"),
        ("one way is cut", |p| p.lost[0] = true, 6100, "init 3 false 4, down 1 false 4"),
        ("and whole again", |p| p.lost[0] = false, 3000, "up 3 true 5, up 1 true 5"),
        ("cpath_down", |p| p.set(0, "cpath_down=true"), 2100, "up 6 true 5, up 1 false 6"),
        ("no more", |p| p.set(0, ""), 2100, "up 0 true 5, up 1 true 7"),
        ("forced", |p| p.sides[0].force(Some(false)), 2100, "up 0 false 5, up 1 true 7"),
        ("normal", |p| p.sides[0].force(None), 10, "up 0 true 5, up 1 true 7"),
    ];
    let mut p = Pair::new("", "");
    for (what, act, ms, expected) in table {
        act(&mut p);
        p.pass(ms);
        assert_eq!(p.is(), expected, "{what}");
    }
    let [a, b] = &mut p.sides;
    assert_eq!(
        a.take_state_changes().len() + b.take_state_changes().len(),
        15,
        "each state change is reported once"
    );
}

#[test]
fn a_loss_is_found_within_the_detection_time() {
    for (a, b, detection) in [
        ("min_rx=100 min_tx=100", "min_rx=100 min_tx=100", 300),
        ("min_rx=100 min_tx=100", "min_rx=300 min_tx=200 mult=5", 1000),
        ("min_rx=700", "mult=1 min_tx=100", 700),
    ] {
        let mut p = Pair::new(a, b);
        p.pass(10_000);
        assert_eq!(p.is(), "up 0 true 1, up 0 true 1", "{a} {b}");
        p.lost[1] = true;
        let from = p.now;
        while p.sides[0].forwards(p.now) {
            p.pass(10);
        }
        let took = p.now - from;
        // The last packet came up to an interval ago.
        assert!(took <= detection + 10 && took * 2 > detection, "{a} {b}: {took} ms");
    }
}

#[test]
fn other_intervals_are_agreed_by_a_poll() {
    let mut p = Pair::new("", "");
    p.pass(4000);
    p.set(0, "min_tx=200");
    assert_eq!(p.sides[0].intervals.tx, 100, "slower only when the peer knows");
    assert!(p.sides[0].polls());
    p.pass(2100);
    assert_eq!((p.sides[0].intervals.tx, p.sides[1].peer.min_tx, p.sides[0].flags), (200, 200, 0));
    p.set(1, "min_rx=300");
    p.pass(2100);
    assert_eq!((p.sides[1].intervals.rx, p.sides[0].peer.min_rx, p.sides[1].flags), (300, 300, 0));
    // As often as was agreed: 0.75 to 1 of the interval, about 33 to 45 in ten seconds.
    let before = p.sent[0];
    p.pass(10_000);
    assert!((33..=46).contains(&(p.sent[0] - before)), "{}", p.sent[0] - before);
    // Polled and polling at once: no packet has both bits.
    let mut s = Session::new(conf(""), 1, 5000, 0);
    s.receive(&said(State::Init, 0), 5000, 0).unwrap();
    s.configure(conf("min_tx=300"), 5000, 0);
    s.receive(&said(State::Up, flag::POLL), 5000, 0).unwrap();
    assert!(s.is_due(5000) && s.wake() == 0);
    assert_eq!(s.transmit(5000, 0).flags, flag::FINAL);
    s.run(5001, 0);
    assert_eq!(s.transmit(5001, 0).flags, flag::POLL, "begins again");
}

#[test]
fn idle_interfaces_decay_and_traffic_brings_them_back() {
    let slow = "min_rx=300 min_tx=300 decay_min_rx=3000";
    let mut p = Pair::new(slow, "min_rx=500 min_tx=500");
    let table = [(0, 9000, 3000), (5, 8000, 300), (0, 9000, 3000)];
    for (data, ms, min_rx) in table {
        p.data[0] = data;
        p.pass(ms);
        assert_eq!(p.sides[0].intervals.rx, min_rx, "{data} packets per 10 ms for {ms} ms");
        assert_eq!(p.sides[0].state, State::Up);
    }
    p.lost = [true; 2];
    p.pass(10_000);
    assert_eq!((p.sides[0].intervals.rx, p.sides[0].decay.active), (300, false), "down: no decay");
}

#[test]
fn data_keeps_an_interface_forwarding_as_long_as_the_peer_is_there() {
    let mut p = Pair::new("forwarding_if_rx=true min_rx=100 min_tx=100", "min_tx=100");
    p.data[0] = 1;
    p.lost[1] = true;
    p.pass(4000);
    assert_eq!(p.is(), "down 0 false 0, init 0 false 0", "no control packet ever came");
    p.lost[1] = false;
    p.pass(4000);
    p.lost[1] = true;
    p.pass(5000);
    assert!(p.sides[0].state == State::Down && p.sides[0].forwards(p.now));
    p.pass(6000);
    assert!(!p.sides[0].forwards(p.now), "100 min_rx without a control packet");
}

#[test]
fn who_sends_more_than_he_may_is_not_heard() {
    let mut s = Session::new(conf("min_rx=1000"), 1, 5000, 0);
    let mut heard = |now: u64, n: u64| {
        (0..n).filter(|_| s.receive(&said(State::Up, 0), now, 0) != Err(Refusal::Rate)).count()
    };
    assert_eq!(heard(5000, 10_000), 16, "at once");
    assert_eq!(heard(5499, 10), 0);
    assert_eq!(heard(5500, 10), 1, "one each half of min_rx");
    assert_eq!(heard(8000, 10), 5);
    assert_eq!(heard(1_000_000, 100), 16, "no more are saved up");
    assert_eq!((s.wake(), s.hears(1_000_499), s.hears(1_000_500)), (0, false, true));
}

#[test]
fn packets_of_others_change_nothing() {
    let mut s = Session::new(conf(""), 1, 5000, 0);
    let mut other = said(State::Init, 0);
    let at = other.len() - 16;
    other[at..at + 4].copy_from_slice(&9u32.to_be_bytes());
    assert_eq!(s.receive(&other, 5000, 0), Err(Refusal::YourDisc));
    other[at..at + 4].fill(0);
    assert_eq!(s.receive(&other, 5000, 0), Err(Refusal::NullYourDisc));
    assert_eq!((s.state, s.peer.disc), (State::Down, 0));
}

#[test]
fn it_shows_what_ovs_vswitchd_shows() {
    let mut s = Session::new(conf("min_rx=300"), 0x1f, 5000, 0);
    s.transmit(5000, 0);
    s.receive(&said(State::Down, 0), 5000, 0).unwrap_err();
    assert_eq!(
        s.show(5400),
        "  Forwarding: false\n  Detect Multiplier: 3\n  Concatenated Path Down: false\n  \
         TX Interval: Approx 1000ms\n  RX Interval: Approx 300ms\n  Detect Time: now -5400ms\n  \
         Next TX Time: now +600ms\n  Last TX Time: now -400ms\n\n  Local Flags: none\n  \
         Local Session State: down\n  Local Diagnostic: No Diagnostic\n  \
         Local Discriminator: 0x1f\n  Local Minimum TX Interval: 1000ms\n  \
         Local Minimum RX Interval: 300ms\n\n  Remote Flags: none\n  \
         Remote Session State: down\n  Remote Diagnostic: No Diagnostic\n  \
         Remote Discriminator: 0x0\n  Remote Minimum TX Interval: 0ms\n  \
         Remote Minimum RX Interval: 1ms\n  Remote Detect Multiplier: 0\n"
    );
}
