//! The live view: keys in, pages out.

use super::pages::{Page, rows};
use super::screen::{Choice, Line as Text, Style as Weight, head, page};
use super::table::{hanging, plain, shorten};
use crate::dirs::Dirs;
use crate::view::{self, Tree, View};
use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text as Drawn};
use ratatui::{DefaultTerminal, Frame};
use std::time::{Duration, Instant};

/// How long a key or the end may wait while nothing happens.
const WAIT: Duration = Duration::from_millis(100);

/// What is on the screen.
struct Live<'a> {
    dirs: &'a Dirs,
    interval: Duration,
    before: Tree,
    looked: Instant,
    view: View,
    /// Why the last look failed.
    error: Option<String>,
    choice: Choice,
    paused: bool,
    help: bool,
    notes: &'a [String],
}

/// What a key asks for.
#[derive(PartialEq)]
enum Next {
    Stay,
    Quit,
}

/// Shows the switch until `q` or until `ended` says so; `notes` go below the help.
pub fn run(dirs: &Dirs, interval: f64, notes: &[String], ended: &dyn Fn() -> bool) -> Result<()> {
    // The first look fails with a sentence of its own, before the screen is taken.
    let before = view::look(dirs, true)?;
    let mut live = Live {
        dirs,
        interval: Duration::from_secs_f64(interval),
        view: View::between(&before, &before),
        before,
        looked: Instant::now(),
        error: None,
        choice: Choice::of(Page::Overview),
        paused: false,
        help: false,
        notes,
    };
    let mut terminal = ratatui::try_init()?;
    let result = live.until(&mut terminal, ended);
    // The terminal may be gone.
    let _ = ratatui::try_restore();
    result
}

impl Live<'_> {
    fn until(&mut self, terminal: &mut DefaultTerminal, ended: &dyn Fn() -> bool) -> Result<()> {
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            let next = self.interval.saturating_sub(self.looked.elapsed());
            if event::poll(next.min(WAIT))? {
                let is_key = |k: &event::KeyEvent| k.kind == KeyEventKind::Press;
                if let Event::Key(key) = event::read()?
                    && is_key(&key)
                    && self.key(key.code, key.modifiers) == Next::Quit
                {
                    return Ok(());
                }
            }
            if ended() {
                return Ok(());
            }
            if self.looked.elapsed() >= self.interval {
                self.look();
            }
        }
    }

    fn look(&mut self) {
        self.looked = Instant::now();
        match view::look(self.dirs, true) {
            Ok(after) => {
                if !self.paused {
                    self.view = View::between(&self.before, &after);
                }
                self.before = after;
                self.error = None;
            }
            Err(e) => self.error = Some(format!("{e:#}")),
        }
    }

    fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Next {
        let c = &mut self.choice;
        let all = rows(c.page, &self.view).map_or(0, |r| r.len());
        let columns = rows(c.page, &self.view).map_or(1, |r| r.columns().len());
        match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?') | KeyCode::Char('h') => self.help = !self.help,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char(d @ '1'..='6') => *c = Choice::of(Page::ALL[d as usize - '1' as usize]),
            KeyCode::Tab | KeyCode::Right => turn(c, 1),
            KeyCode::BackTab | KeyCode::Left => turn(c, Page::ALL.len() - 1),
            KeyCode::Char('s') => c.column = (c.column + 1) % columns,
            KeyCode::Char('r') => c.reversed = !c.reversed,
            KeyCode::Esc | KeyCode::Backspace => (c.object, c.scrolled) = (None, 0),
            KeyCode::Enter => open(c, &self.view),
            KeyCode::Up | KeyCode::Char('k') => go(c, all, -1),
            KeyCode::Down | KeyCode::Char('j') => go(c, all, 1),
            KeyCode::PageUp => go(c, all, -10),
            KeyCode::PageDown => go(c, all, 10),
            _ => {}
        }
        Next::Stay
    }

    fn draw(&self, frame: &mut Frame) {
        let area = frame.area();
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        let mut lines = match &self.error {
            Some(e) => vec![Text { text: shorten(&plain(e), width), style: Weight::Strong }],
            None => head(&self.view, width),
        };
        lines.push(Text { text: String::new(), style: Weight::Plain });
        let room = height.saturating_sub(lines.len() + 1);
        if self.help {
            let notes = self.notes.iter().map(|l| shorten(l, width));
            let help = HELP.lines().flat_map(|l| hanging(l, HELP_INDENT, width));
            let plain = |text: String| Text { text, style: Weight::Plain };
            lines.extend(help.chain(notes).take(room).map(plain));
        } else {
            lines.extend(page(&self.view, &self.choice, width, room));
        }
        lines.resize(height.saturating_sub(1), Text { text: String::new(), style: Weight::Plain });
        lines.push(Text { text: shorten(&self.tabs(width), width), style: Weight::Head });
        let drawn: Vec<Line> =
            lines.iter().map(|l| Line::styled(l.text.as_str(), style(l.style))).collect();
        frame.render_widget(Drawn::from(drawn), area);
    }

    /// The last line: pages, the column that sorts, what keys do.
    fn tabs(&self, width: usize) -> String {
        let c = &self.choice;
        let name = |(i, p): (usize, Page)| match width {
            _ if p == c.page => format!("[{} {}]", i + 1, p.name()),
            0..60 => format!(" {}", i + 1),
            60..80 => format!(" {} {} ", i + 1, &p.name()[..1]),
            _ => format!(" {} {} ", i + 1, p.name()),
        };
        let mut all: String = Page::ALL.into_iter().enumerate().map(name).collect();
        let paused = if self.paused { " paused" } else { "" };
        let keys = " ?:help q:quit";
        if let (Some(rows), None) = (rows(c.page, &self.view), &c.object) {
            let names = rows.columns();
            let sorted = format!(" s:{}", names[c.column.min(names.len() - 1)]);
            if all.len() + sorted.len() + paused.len() + keys.len() <= width {
                all += &sorted;
            }
        }
        all + paused + keys
    }
}

/// What `?` shows, and the manual of `weft top`.
pub const HELP: &str = "\
1-6, Tab   a page: overview, cores, ports, guests, flows, drops
Up, Down   choose a row; PageUp, PageDown ten at once
Enter      everything about it; Esc goes back
s          sort by the next column
r          sort the other way round
Space      hold the figures still; again: go on
?          this help; again: back
q          end

Rates are per second (k: thousand, M: million), pps is packets per second.
cyc/pkt    clock cycles of work per packet received; rx to act,tx: by stage; misses: part of lookup
cached     lookups that the signature cache answered; missed: that the OpenFlow tables answered
waiting    time in which other threads had a PMD thread's core
off        a port that is not set up (ip link set PORT up); down: one without a link
full/s     packets for a guest that its rings had no place for; wrong: what it did that it may not
";
/// Characters before what a line of it says.
const HELP_INDENT: usize = 11;

fn turn(c: &mut Choice, by: usize) {
    let now = Page::ALL.iter().position(|p| *p == c.page).unwrap_or(0);
    *c = Choice::of(Page::ALL[(now + by) % Page::ALL.len()]);
}

fn go(c: &mut Choice, all: usize, by: isize) {
    if c.object.is_some() {
        c.scrolled = c.scrolled.saturating_add_signed(by);
    } else {
        c.row = c.row.saturating_add_signed(by).min(all.saturating_sub(1));
    }
}

fn open(c: &mut Choice, view: &View) {
    if let (Some(mut all), None) = (rows(c.page, view), &c.object) {
        all.sort(c.column, c.reversed);
        c.object = all.key(c.row.min(all.len().saturating_sub(1))).map(String::from);
        c.scrolled = 0;
    }
}

fn style(weight: Weight) -> Style {
    match weight {
        Weight::Plain => Style::new(),
        Weight::Head => Style::new().add_modifier(Modifier::REVERSED),
        Weight::Strong => Style::new().add_modifier(Modifier::BOLD),
        Weight::Chosen => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
    }
}
