//! `weft top`: a running switch, live.

mod object;
mod pages;
mod screen;
mod table;
mod terminal;

use crate::dirs::Dirs;
use crate::view::{self, View};
use anyhow::{Result, ensure};
use pages::Page;
pub use screen::summary;
use screen::{Choice, Line, Style, head, page};
use std::io::{IsTerminal, Write};
pub use terminal::run;

/// Arguments of `weft top`.
#[derive(clap::Args)]
#[command(after_long_help = format!("Keys and words:\n\n{}", terminal::HELP))]
pub struct TopArgs {
    /// Look twice, print what happened in between, and end.
    #[arg(long)]
    once: bool,
    /// Print JSON for programs: an object per look, one per line.
    #[arg(long)]
    json: bool,
    /// Seconds between two looks.
    #[arg(short, long, default_value_t = 1.0)]
    interval: f64,
}

/// Columns of a page that goes to no terminal.
const COLUMNS_DEFAULT: usize = 120;
/// Lines of such a page.
const LINES_DEFAULT: usize = 200;

/// Shows the switch until `q`, or prints it.
pub fn top(dirs: &Dirs, options: &TopArgs) -> Result<()> {
    ensure!((0.1..=3600.0).contains(&options.interval), "--interval takes 0.1 to 3600");
    if options.json || options.once || !std::io::stdout().is_terminal() {
        return print(dirs, options);
    }
    terminal::run(dirs, options.interval, &[], &|| false)
}

/// One view after the other as text; the first that fails ends it.
fn print(dirs: &Dirs, options: &TopArgs) -> Result<()> {
    let mut before = view::look(dirs, true)?;
    loop {
        std::thread::sleep(std::time::Duration::from_secs_f64(options.interval));
        let after = view::look(dirs, true)?;
        let view = View::between(&before, &after);
        let text = match (options.json, options.once) {
            (true, _) => serde_json::to_string(&view)? + "\n",
            (false, true) => whole(&view),
            (false, false) => summary(&view) + "\n",
        };
        let mut out = std::io::stdout().lock();
        // Who read this may have gone: `weft top --json | head`.
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() || options.once {
            return Ok(());
        }
        before = after;
    }
}

/// The overview, for a terminal as wide as this one.
fn whole(view: &View) -> String {
    let columns = ratatui::crossterm::terminal::size().ok().filter(|(w, _)| *w > 0);
    let width = match std::io::stdout().is_terminal() {
        true => columns.map_or(COLUMNS_DEFAULT, |(w, _)| usize::from(w)),
        false => {
            std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).unwrap_or(COLUMNS_DEFAULT)
        }
    };
    let mut lines = head(view, width);
    lines.push(Line { text: String::new(), style: Style::Plain });
    lines.extend(page(view, &Choice::of(Page::Overview), width, LINES_DEFAULT));
    lines.iter().map(|l| l.text.trim_end().to_string() + "\n").collect()
}
