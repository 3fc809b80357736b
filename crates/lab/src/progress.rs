//! A progress bar on a terminal; elsewhere only what went wrong.

use std::io::{IsTerminal, Write};
use std::time::Instant;

const WIDTH: usize = 24;

/// One line on standard error.
pub struct Progress {
    all: usize,
    expected: f64,
    done: usize,
    began: Instant,
    terminal: bool,
}

impl Progress {
    /// Nothing done of so many, which are expected to take so many seconds.
    pub fn new(all: usize, expected: f64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Progress { all, expected, done: 0, began: Instant::now(), terminal }
    }

    /// Says how long it will take; no run begins after `limit` seconds.
    pub fn announce(&self, limit: f64) {
        let minutes = |seconds: f64| (seconds / 60.0).ceil();
        let cut = match self.expected > limit {
            true => format!("; no run begins after {}", minutes(limit)),
            false => String::new(),
        };
        eprintln!("{} runs, about {} minutes{cut}", self.all, minutes(self.expected));
    }

    /// The next one begins.
    pub fn show(&mut self, what: &str) {
        if self.terminal {
            let full = WIDTH * self.done / self.all.max(1);
            let left = self
                .left()
                .map_or_else(String::new, |s| format!(", {}:{:02} left", s / 60, s % 60));
            let bar = format!("{}{}", "#".repeat(full), "-".repeat(WIDTH - full));
            eprint!("\r\x1b[K[{bar}] {}/{}{left}  {what}", self.done + 1, self.all);
            let _ = std::io::stderr().flush();
        }
        self.done += 1;
    }

    /// The next one is not worth its time.
    pub fn skip(&mut self) {
        self.done += 1;
    }

    /// Seconds, from the pace so far.
    fn left(&self) -> Option<u64> {
        let each = self.began.elapsed().as_secs_f64() / self.done.max(1) as f64;
        (self.done > 0).then(|| (each * (self.all - self.done) as f64) as u64)
    }

    /// Since it began.
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Says that time is up, and what that means; gives the sentence.
    pub fn say_cut(&self, minutes: f64) -> String {
        let cut = format!("{minutes} minutes were up after {} of {} runs", self.done, self.all);
        self.say(&cut);
        cut
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        eprintln!("{}{text}", if self.terminal { "\r\x1b[K" } else { "" });
    }

    /// The line goes away.
    pub fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
