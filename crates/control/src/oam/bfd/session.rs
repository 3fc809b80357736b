//! One BFD session (RFC 5880, section 6.8), as ovs-vswitchd 3.1 has it: asynchronous mode, no
//! authentication, no echo. Pure: times are arguments, in milliseconds of one clock; what is
//! received and sent is a [`Control`].

use super::bfd_conf::Conf;
use super::packet::{Control, Diag, Refusal, State, flag};
use crate::budget::Budget;
use std::collections::BTreeMap;
use std::fmt::Write;

/// While the session is not up (RFC 5880, section 6.8.3).
const DOWN_TX_MS: u64 = 1000;
/// Data shows that the path works, and its absence that the session may decay, for at least as
/// long.
const DATA_MS_MIN: u64 = 2000;
/// With `forwarding_if_rx`, one control packet is needed beside data in each this many times
/// `min_rx`.
const DEMAND_COUNT: u64 = 100;
/// Control packets that may come at once.
const BURST_COUNT: u64 = 16;

/// What the other side said last.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    state: State,
    diag: Diag,
    flags: u8,
    disc: u32,
    /// ms
    min_tx: u64,
    /// ms
    min_rx: u64,
}

impl Peer {
    /// Nothing is known of it.
    const UNKNOWN: Peer =
        Peer { state: State::Down, diag: Diag::NONE, flags: 0, disc: 0, min_tx: 0, min_rx: 1 };
}

/// What `bfd/set-forwarding` says instead of the session.
pub type Override = Option<bool>;

/// `Interface.bfd_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// True if the interface may carry traffic.
    pub forwarding: bool,
    state: State,
    diag: Diag,
    /// Changes of `forwarding`, but for those that were forced.
    flaps: u64,
    peer_state: State,
    peer_diag: Diag,
}

impl Status {
    /// Keys and values.
    pub fn columns(&self) -> BTreeMap<String, String> {
        let pairs = [
            ("forwarding", self.forwarding.to_string()),
            ("state", self.state.name().into()),
            ("diagnostic", self.diag.name().into()),
            ("flap_count", self.flaps.to_string()),
            ("remote_state", self.peer_state.name().into()),
            ("remote_diagnostic", self.peer_diag.name().into()),
        ];
        pairs.map(|(key, value)| (key.to_string(), value)).into()
    }
}

/// A session.
#[derive(Debug)]
pub struct Session {
    conf: Conf,
    disc: u32,
    state: State,
    diag: Diag,
    flags: u8,
    peer: Peer,
    /// The peer's detection multiplier; it outlives what else is known of the peer.
    peer_mult: u8,
    /// In use; they differ from the configuration's until a poll sequence has ended.
    intervals: Intervals,
    /// The intervals that a poll sequence is about.
    poll: Intervals,
    last_tx: u64,
    /// 0: at once.
    next_tx: u64,
    /// When the session is over unless a packet comes.
    detect: u64,
    /// Data shows until then that the path works.
    data_until: u64,
    /// Data counts until then, as a control packet has come.
    demand_until: u64,
    decay: Decay,
    forwarding: bool,
    flaps: u64,
    forced: Override,
    /// Control packets that are still taken.
    budget: Budget,
    /// State changes, for the log.
    state_changes: Vec<String>,
}

/// Least intervals between control packets, ms: between those that are sent, and those that are
/// taken.
#[derive(Clone, Copy, Debug, Default)]
struct Intervals {
    tx: u64,
    rx: u64,
}

/// State of `decay_min_rx`: the peer is asked to send less often while there is no data.
#[derive(Debug, Default)]
struct Decay {
    active: bool,
    /// Packets that the interface had received when it was looked at last.
    packets: u64,
    /// Control packets since then.
    control: u64,
    /// The next look.
    at: u64,
}

impl Session {
    /// A session that is down. `disc`: not 0, no other session has it. `received`: packets that the
    /// interface had.
    pub fn new(conf: Conf, disc: u32, now: u64, received: u64) -> Session {
        let diag = if conf.cpath_down { Diag::CPATH_DOWN } else { Diag::NONE };
        let at = now + conf.decay_min_rx.max(DATA_MS_MIN);
        Session {
            disc,
            state: State::Down,
            diag,
            flags: 0,
            peer: Peer::UNKNOWN,
            peer_mult: 0,
            intervals: Intervals { tx: conf.min_tx, rx: conf.min_rx },
            poll: Intervals::default(),
            last_tx: 0,
            next_tx: 0,
            detect: 0,
            data_until: 0,
            demand_until: 0,
            decay: Decay { packets: received, at, ..Decay::default() },
            forwarding: false,
            flaps: 0,
            forced: None,
            budget: Budget::full(BURST_COUNT, now),
            state_changes: Vec::new(),
            conf,
        }
    }

    /// `bfd.LocalDiscr`.
    pub fn disc(&self) -> u32 {
        self.disc
    }

    /// Its settings.
    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// Takes other settings; what the peer has to agree to is agreed by a poll sequence (RFC 5880,
    /// section 6.8.3).
    pub fn configure(&mut self, conf: Conf, now: u64, received: u64) {
        let old = std::mem::replace(&mut self.conf, conf);
        let (tx, rx) = (self.conf.min_tx != old.min_tx, self.conf.min_rx != old.min_rx);
        // A session that is not up, or only asks more of itself, need not wait for the peer.
        let (down, free) = (self.state != State::Up, !self.polls());
        if tx && (down || free && self.conf.min_tx < self.intervals.tx) {
            self.intervals.tx = self.conf.min_tx;
        }
        if rx && (down || free && self.conf.min_rx > self.intervals.rx) {
            self.intervals.rx = self.conf.min_rx;
        }
        let decay = rx || self.conf.decay_min_rx != old.decay_min_rx;
        if decay {
            self.decay.active = false;
            self.look_at_data(now, received);
        }
        let cpath = self.conf.cpath_down != old.cpath_down;
        if cpath {
            self.become_state(self.state, Diag::NONE, now, received);
        }
        let by_data = (old.forwarding_if_rx, self.conf.forwarding_if_rx);
        if self.state == State::Up && by_data.1 && (!by_data.0 || self.conf.mult != old.mult) {
            self.extend_by_data(now);
        } else if by_data.0 != by_data.1 {
            self.data_until = 0;
        }
        if tx || decay || cpath {
            self.begin_poll();
        }
    }

    /// A control packet has come (RFC 5880, section 6.8.6). `received` as in [`Session::new`].
    pub fn receive(&mut self, frame: &[u8], now: u64, received: u64) -> Result<(), Refusal> {
        if !self.hears(now) {
            return Err(Refusal::Rate);
        }
        self.budget.spend();
        self.decay.control += 1;
        self.judge(now);
        let c = Control::read(frame)?;
        match c.your_disc {
            0 if c.state > State::Down => return Err(Refusal::NullYourDisc),
            0 => {}
            disc if disc != self.disc => return Err(Refusal::YourDisc),
            _ => {}
        }
        (self.peer.disc, self.peer.state) = (c.my_disc, c.state);
        (self.peer.flags, self.peer.diag) = (c.flags, c.diag);
        if c.flags & flag::FINAL != 0 && self.polls() {
            self.intervals = self.poll;
            self.flags &= !flag::POLL;
        }
        if c.flags & flag::POLL != 0 {
            self.flags = self.flags & !flag::POLL | flag::FINAL;
        }
        self.peer_mult = c.mult;
        let ms = |us: u32| u64::from(us / 1000).max(1);
        self.peer.min_tx = ms(c.min_tx_us);
        let old = std::mem::replace(&mut self.peer.min_rx, ms(c.min_rx_us));
        if old != self.peer.min_rx && self.next_tx != 0 {
            // The next packet is due by the new interval.
            self.next_tx = self.last_tx + self.tx_interval();
        }
        self.detect = now + self.rx_interval() * u64::from(self.peer_mult);
        self.follow(c.state, now, received);
        if self.conf.forwarding_if_rx {
            self.demand_until = now + DEMAND_COUNT * self.conf.min_rx;
        }
        self.judge(now);
        Ok(())
    }

    /// The state that follows from the peer's.
    fn follow(&mut self, peer: State, now: u64, received: u64) {
        let next = match (self.state, peer) {
            (State::Down, State::AdminDown) => return,
            (_, State::AdminDown) => (State::Down, Diag::REMOTE_DOWN),
            (State::Down, State::Down) => (State::Init, self.diag),
            (State::Down, State::Init) => (State::Up, self.diag),
            (State::Init, State::Init | State::Up) => (State::Up, self.diag),
            (State::Up, State::Down) => (State::Down, Diag::REMOTE_DOWN),
            _ => return,
        };
        self.become_state(next.0, next.1, now, received);
    }

    /// True if the interface's share, twice as many control packets as the peer may send, has room
    /// for one that comes now.
    pub fn hears(&mut self, now: u64) -> bool {
        self.budget.has(now, self.price())
    }

    /// Milliseconds for each control packet.
    fn price(&self) -> u64 {
        (self.intervals.rx.min(self.conf.min_rx) / 2).max(1)
    }

    /// Lets time pass. `received` as in [`Session::new`].
    pub fn run(&mut self, now: u64, received: u64) {
        let decayed = self.decay.active;
        if self.state > State::Down && now >= self.detect {
            self.become_state(State::Down, Diag::EXPIRED, now, 0);
        }
        self.judge(now);
        if self.state == State::Up && self.conf.decay_min_rx > 0 && now >= self.decay.at {
            let data = received.saturating_sub(self.decay.packets);
            // Counters of an interface may be late.
            self.decay.active = data <= 2 * self.decay.control.max(1);
            self.look_at_data(now, received);
        }
        let settled =
            self.intervals.rx == self.conf.min_rx || self.intervals.rx == self.conf.decay_min_rx;
        if self.intervals.tx != self.conf.min_tx || !settled || self.decay.active != decayed {
            self.begin_poll();
        }
    }

    /// Takes note that the interface received data, which counts with `forwarding_if_rx`.
    pub fn data(&mut self, now: u64) {
        if self.conf.forwarding_if_rx {
            self.judge(now);
            self.extend_by_data(now);
            self.judge(now);
        }
    }

    /// True if a packet has to be sent.
    pub fn is_due(&self, now: u64) -> bool {
        self.flags & flag::FINAL != 0 || now >= self.next_tx
    }

    /// When [`Session::run`] is to be called next, a packet is due, or one is heard again.
    pub fn wake(&self) -> u64 {
        let at = match self.state {
            _ if self.flags & flag::FINAL != 0 => 0,
            State::AdminDown | State::Down => self.next_tx,
            State::Init | State::Up => self.next_tx.min(self.detect),
        };
        self.budget.next(self.price()).map_or(at, |heard| at.min(heard))
    }

    /// The packet to be sent now; `random` shortens the interval to the next one (RFC 5880, section
    /// 6.8.7).
    pub fn transmit(&mut self, now: u64, random: u32) -> Control {
        let Intervals { tx, rx } = match self.polls() {
            true => self.poll,
            false => Intervals { tx: self.min_tx_now(), rx: self.intervals.rx },
        };
        let us = |ms: u64| (ms * 1000) as u32;
        let control = Control {
            diag: self.diag,
            state: self.state,
            flags: self.flags,
            mult: self.conf.mult,
            my_disc: self.disc,
            your_disc: self.peer.disc,
            min_tx_us: us(tx),
            min_rx_us: us(rx),
        };
        self.flags &= !flag::FINAL;
        self.last_tx = now;
        let percent = u64::from(if self.conf.mult == 1 { 10 + random % 16 } else { random % 26 });
        let interval = self.tx_interval();
        self.next_tx = now + interval - interval * percent / 100;
        control
    }

    /// True if data that the interface receives count beside control packets.
    pub fn counts_data(&self) -> bool {
        self.conf.forwarding_if_rx || self.conf.decay_min_rx > 0
    }

    /// True if the interface forwards.
    fn forwards(&mut self, now: u64) -> bool {
        self.judge(now);
        self.forced.unwrap_or(self.forwarding)
    }

    /// Overrides whether the interface forwards.
    pub fn force(&mut self, forced: Override) {
        self.forced = forced;
    }

    /// State changes since the last call.
    pub fn take_state_changes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.state_changes)
    }

    /// Works out whether the interface forwards; what is forced is no flap.
    fn judge(&mut self, now: u64) {
        if self.forced.is_some() {
            return;
        }
        let by_data =
            self.conf.forwarding_if_rx && self.data_until > now && self.demand_until > now;
        let bad = [Diag::PATH_DOWN, Diag::CPATH_DOWN, Diag::REVERSE_CPATH_DOWN];
        let forwarding = (self.state == State::Up || by_data) && !bad.contains(&self.peer.diag);
        self.flaps += u64::from(forwarding != self.forwarding);
        self.forwarding = forwarding;
    }

    fn become_state(&mut self, state: State, diag: Diag, now: u64, received: u64) {
        let diag = if self.conf.cpath_down { Diag::CPATH_DOWN } else { diag };
        if (self.state, self.diag) == (state, diag) {
            return;
        }
        self.state_changes.push(format!(
            "BFD state change: {}->{} \"{}\"->\"{}\".\n{}",
            self.state.name(),
            state.name(),
            self.diag.name(),
            diag.name(),
            self.show(now)
        ));
        (self.state, self.diag) = (state, diag);
        if state <= State::Down {
            self.peer = Peer::UNKNOWN;
            if std::mem::take(&mut self.decay.active) {
                self.intervals.rx = self.conf.min_rx;
            }
        }
        if state == State::Up && self.conf.decay_min_rx > 0 {
            self.look_at_data(now, received);
        }
    }

    fn polls(&self) -> bool {
        self.flags & flag::POLL != 0
    }

    /// Asks the peer to agree to what is configured (RFC 5880, section 6.5).
    fn begin_poll(&mut self) {
        if self.state > State::Down && self.flags & (flag::POLL | flag::FINAL) == 0 {
            let rx = if self.decay.active { self.conf.decay_min_rx } else { self.conf.min_rx };
            self.poll = Intervals { tx: self.conf.min_tx, rx };
            self.flags |= flag::POLL;
            self.next_tx = 0;
        }
    }

    fn look_at_data(&mut self, now: u64, received: u64) {
        let at = now + self.conf.decay_min_rx.max(DATA_MS_MIN);
        self.decay = Decay { packets: received, control: 0, at, ..self.decay };
    }

    fn extend_by_data(&mut self, now: u64) {
        let shown = self.rx_interval() * u64::from(self.conf.mult);
        self.data_until = now + shown.max(DATA_MS_MIN);
    }

    fn min_tx_now(&self) -> u64 {
        if self.state == State::Up { self.intervals.tx } else { self.intervals.tx.max(DOWN_TX_MS) }
    }

    fn tx_interval(&self) -> u64 {
        self.min_tx_now().max(self.peer.min_rx)
    }

    fn rx_interval(&self) -> u64 {
        self.intervals.rx.max(self.peer.min_tx)
    }

    /// The session's state for the database.
    pub fn status(&mut self, now: u64) -> Status {
        Status {
            forwarding: self.forwards(now),
            state: self.state,
            diag: self.diag,
            flaps: self.flaps,
            peer_state: self.peer.state,
            peer_diag: self.peer.diag,
        }
    }

    /// What `bfd/show` prints.
    pub fn show(&self, now: u64) -> String {
        let mut text = String::new();
        let mut put = |name: &str, value: String| {
            let _ = writeln!(text, "  {name}: {value}");
        };
        let from_now = |at: u64| format!("now {:+}ms", at as i64 - now as i64);
        put("Forwarding", self.forced.unwrap_or(self.forwarding).to_string());
        put("Detect Multiplier", self.conf.mult.to_string());
        put("Concatenated Path Down", self.conf.cpath_down.to_string());
        put("TX Interval", format!("Approx {}ms", self.tx_interval()));
        put("RX Interval", format!("Approx {}ms", self.rx_interval()));
        put("Detect Time", from_now(self.detect));
        put("Next TX Time", from_now(self.next_tx));
        put("Last TX Time", from_now(self.last_tx) + "\n");
        put("Local Flags", flags_text(self.flags));
        put("Local Session State", self.state.name().into());
        put("Local Diagnostic", self.diag.name().into());
        put("Local Discriminator", format!("{:#x}", self.disc));
        put("Local Minimum TX Interval", format!("{}ms", self.min_tx_now()));
        put("Local Minimum RX Interval", format!("{}ms\n", self.intervals.rx));
        put("Remote Flags", flags_text(self.peer.flags));
        put("Remote Session State", self.peer.state.name().into());
        put("Remote Diagnostic", self.peer.diag.name().into());
        put("Remote Discriminator", format!("{:#x}", self.peer.disc));
        put("Remote Minimum TX Interval", format!("{}ms", self.peer.min_tx));
        put("Remote Minimum RX Interval", format!("{}ms", self.peer.min_rx));
        put("Remote Detect Multiplier", self.peer_mult.to_string());
        text
    }
}

fn flags_text(flags: u8) -> String {
    let names = [
        (flag::MULTIPOINT, "multipoint"),
        (flag::DEMAND, "demand"),
        (flag::AUTHENTICATED, "auth"),
        (flag::CONTROL_PLANE_INDEPENDENT, "ctl"),
        (flag::FINAL, "final"),
        (flag::POLL, "poll"),
    ];
    let set: Vec<&str> =
        names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, n)| *n).collect();
    if set.is_empty() { "none".into() } else { set.join(" ") }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
