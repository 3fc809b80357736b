//! What a page looks like: lines of text with their weight, for a terminal of any size and for
//! `--once`.

use super::object::facts;
use super::pages::{Page, first_column, rows};
use super::table::{plain, shorten, si, wrap};
use crate::view::View;

/// A line, and how it is to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Text that is at most as wide as the screen.
    pub text: String,
    /// How the text stands out.
    pub style: Style,
}

/// How a line is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As most.
    Plain,
    /// The head of a table.
    Head,
    /// What one should see first.
    Strong,
    /// Where the cursor is.
    Chosen,
}

/// What is to be shown of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Which page.
    pub page: Page,
    /// The column it is sorted by.
    pub column: usize,
    /// Sorted the other way round.
    pub reversed: bool,
    /// The row that is chosen.
    pub row: usize,
    /// Lines of an object's page that were scrolled away.
    pub scrolled: usize,
    /// The object whose page is open.
    pub object: Option<String>,
}

impl Choice {
    /// A page as it is at first.
    pub fn of(page: Page) -> Choice {
        let column = first_column(page);
        Choice { page, column, reversed: false, row: 0, scrolled: 0, object: None }
    }
}

fn line(text: impl AsRef<str>, style: Style, width: usize) -> Line {
    Line { text: shorten(text.as_ref(), width), style }
}

/// The switch in one line.
pub fn summary(v: &View) -> String {
    let busiest = v.cores.iter().filter(|c| c.polls).map(|c| c.busy).fold(0.0, f64::max);
    format!(
        "{} pps in, {} out, {} drops/s, busiest core {busiest:.0} %, {} megaflows",
        si(v.received),
        si(v.sent),
        si(v.dropped),
        v.megaflows
    )
}

/// The two to four lines that every page begins with.
pub fn head(v: &View, width: usize) -> Vec<Line> {
    // One line where it fits, two where it does not.
    let lines = |text: &str, style: Style| -> Vec<Line> {
        wrap(text, width).iter().take(2).map(|l| line(l, style, width)).collect()
    };
    [lines(&summary(v), Style::Strong), lines(&v.limit, Style::Plain)].concat()
}

/// A page, in at most `height` lines.
pub fn page(v: &View, choice: &Choice, width: usize, height: usize) -> Vec<Line> {
    let mut lines = match (&choice.object, choice.page) {
        (Some(key), page) => object(v, page, key, choice.scrolled, width, height),
        (None, Page::Overview) => overview(v, width, height),
        (None, _) => one_table(v, choice, width, height),
    };
    lines.truncate(height);
    lines
}

/// One kind of objects, scrolled so that the chosen row is seen.
fn one_table(v: &View, choice: &Choice, width: usize, height: usize) -> Vec<Line> {
    let Some(mut all) = rows(choice.page, v) else { return Vec::new() };
    if all.len() == 0 {
        let why = match (&v.flows_error, choice.page) {
            (Some(error), Page::Flows) => error.clone(),
            (_, page) => format!("There are no {}.", page.name()),
        };
        return wrap(&why, width).iter().map(|l| line(l, Style::Plain, width)).collect();
    }
    all.sort(choice.column, choice.reversed);
    let shown = height.saturating_sub(1).max(1);
    let chosen = choice.row.min(all.len() - 1);
    let from = chosen.saturating_sub(shown - 1);
    let lines = all.table(from, shown).lines(width);
    let style = |i: usize| match i {
        0 => Style::Head,
        i if from + i - 1 == chosen => Style::Chosen,
        _ => Style::Plain,
    };
    lines.into_iter().enumerate().map(|(i, text)| Line { text, style: style(i) }).collect()
}

/// Lines that a kind has of the overview, its head among them: least, and at most of what is left.
/// Where there is no room for all, the last ones are left out.
const SHARES: [(Page, usize, usize); 5] = [
    (Page::Cores, 3, 9),
    (Page::Drops, 2, 6),
    (Page::Ports, 4, 40),
    (Page::Guests, 3, 12),
    (Page::Flows, 4, 40),
];

/// How many lines each kind gets of `height`, one between two kinds not counted; 0: none. `there`:
/// how many it would fill, its head among them, or 0.
fn rooms(there: [usize; SHARES.len()], height: usize) -> [usize; SHARES.len()] {
    let (mut rooms, mut left) = ([0; SHARES.len()], height);
    for (i, (_, least, _)) in SHARES.iter().enumerate() {
        let gap = usize::from(rooms[..i].iter().any(|r| *r > 0));
        let room = left.saturating_sub(gap).min(*least).min(there[i]);
        // A head alone says nothing.
        if room >= 2 {
            rooms[i] = room;
            left -= room + gap;
        }
    }
    for (i, (.., most)) in SHARES.iter().enumerate() {
        let wanted = if rooms[i] > 0 { there[i].min(*most) - rooms[i] } else { 0 };
        let more = left.min(wanted);
        rooms[i] += more;
        left -= more;
    }
    rooms
}

/// The first rows of every kind that there is.
fn overview(v: &View, width: usize, height: usize) -> Vec<Line> {
    let mut all = Vec::new();
    let there = SHARES.map(|(page, ..)| match rows(page, v).map_or(0, |r| r.len()) {
        0 => 0,
        n => n + 1,
    });
    for ((page, ..), room) in SHARES.into_iter().zip(rooms(there, height)) {
        let Some(mut table) = rows(page, v).filter(|_| room > 0) else { continue };
        if !all.is_empty() {
            all.push(line("", Style::Plain, width));
        }
        table.sort(first_column(page), false);
        let lines = table.table(0, room - 1).lines(width).into_iter().enumerate();
        let style = |i: usize| if i == 0 { Style::Head } else { Style::Plain };
        all.extend(lines.map(|(i, text)| Line { text, style: style(i) }));
    }
    all
}

/// The page of one object.
fn object(
    v: &View,
    page: Page,
    key: &str,
    scrolled: usize,
    width: usize,
    height: usize,
) -> Vec<Line> {
    let Some(facts) = facts(page, key, v) else {
        return vec![line(format!("{} is gone.", plain(key)), Style::Strong, width)];
    };
    let names = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let indent = names.min(width / 2).min(24) + 2;
    let mut all = Vec::new();
    for (name, value) in &facts {
        let name = shorten(&plain(name), indent - 2);
        let values = wrap(value, width.saturating_sub(indent).max(1));
        for (i, value) in values.iter().enumerate() {
            let name = if i == 0 { &*name } else { "" };
            all.push(line(format!("{name:<indent$}{value}"), Style::Plain, width));
        }
    }
    let from = scrolled.min(all.len().saturating_sub(height));
    all.drain(..from);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Tree;
    use serde_json::json;

    fn view() -> View {
        let tree = |n: u64| -> Tree {
            let ports = (0..40).map(|i| {
                let port = json!({
                    "bridge": "br0", "type": "dpdkvhostuserclient", "link": {"up": i % 2 == 0},
                    "traffic": {"rx_packets": n * i, "rx_bytes": 64 * n * i},
                    "drops": {"tx_full": n},
                });
                (format!("vhu{i}"), port)
            });
            let guests = (0..40).map(|i| (format!("vhu{i}"), json!({"connected": i % 2 == 0})));
            let flows = (0..50u64).map(|i| {
                json!({"ufid": format!("{i}"), "core": 1, "match": "in_port(vhu0)".repeat(9),
                       "actions": "vhu1", "packets": n * i})
            });
            let text = json!({
                "switch": {"pid": 1, "cycles": n * 1000, "cycles_per_second": 1_000_000,
                           "packets": {"received": n}},
                "cores": {"1": {"polls": true, "cycles": {"busy": n * 300, "idle": n * 700},
                                "packets": {"received": n}}},
                "ports": ports.collect::<serde_json::Map<_, _>>(),
                "guests": guests.collect::<serde_json::Map<_, _>>(),
                "drops": {"tx_full": {"packets": n, "help": "The output port's queue was full."}},
                "megaflows": {"all": 50, "hottest": flows.collect::<Vec<_>>()},
            });
            serde_json::from_value(text).unwrap()
        };
        View::between(&tree(1000), &tree(2000))
    }

    #[test]
    fn every_page_fits_every_terminal() {
        let v = view();
        for width in [1, 10, 39, 40, 80, 200] {
            for height in [1, 3, 10, 24, 60] {
                for kind in Page::ALL {
                    let mut choice = Choice::of(kind);
                    choice.row = 30;
                    let lines = page(&v, &choice, width, height);
                    assert!(lines.len() <= height, "{kind:?} {width}x{height}: {}", lines.len());
                    assert!(lines.iter().all(|l| l.text.chars().count() <= width), "{lines:?}");
                }
            }
        }
    }

    #[test]
    fn rates_and_order_are_those_of_the_interval() {
        let v = view();
        assert_eq!((v.seconds, v.received, v.cores[0].busy), (1.0, 1000.0, 30.0));
        let lines = page(&v, &Choice::of(Page::Ports), 80, 5);
        assert!(lines[1].text.starts_with("vhu39"), "the busiest first: {lines:?}");
        assert_eq!(lines[1].style, Style::Chosen);
        let mut by_name = Choice::of(Page::Ports);
        by_name.column = 0;
        assert!(page(&v, &by_name, 80, 5)[1].text.starts_with("vhu0 "));
        by_name.reversed = true;
        assert!(page(&v, &by_name, 80, 5)[1].text.starts_with("vhu9 "));
    }

    #[test]
    fn at_40_columns_the_overview_has_every_kind() {
        let lines = page(&view(), &Choice::of(Page::Overview), 40, 24);
        let heads: Vec<_> = lines.iter().filter(|l| l.style == Style::Head).collect();
        let begins = |w: &str| heads.iter().any(|l| l.text.trim_start().starts_with(w));
        assert!(
            ["core", "port", "guest", "pps", "dropped as"].iter().all(|w| begins(w)),
            "{heads:?}"
        );
    }

    #[test]
    fn where_there_is_little_room_cores_come_first_and_kinds_stay_apart() {
        for (height, kinds) in [(18, 5), (14, 4), (6, 2), (2, 1)] {
            let lines = page(&view(), &Choice::of(Page::Overview), 40, height);
            assert!(lines.len() <= height, "{lines:?}");
            assert!(lines[0].text.starts_with("core"), "{height}: {lines:?}");
            let heads = (0..lines.len()).filter(|i| lines[*i].style == Style::Head);
            let heads: Vec<_> = heads.collect();
            assert_eq!(heads.len(), kinds, "{height}: {lines:?}");
            assert!(heads[1..].iter().all(|i| lines[i - 1].text.is_empty()), "{lines:?}");
        }
    }

    #[test]
    fn an_object_has_a_page_and_one_that_left_is_said_to_be_gone() {
        let v = view();
        let mut choice = Choice::of(Page::Ports);
        choice.object = Some("vhu4".into());
        let lines = page(&v, &choice, 60, 40);
        assert!(lines[0].text.contains("vhu4 of br0, type dpdkvhostuserclient"), "{lines:?}");
        assert!(lines.iter().any(|l| l.text.contains("queue was full")), "{lines:?}");
        choice.object = Some("x".into());
        assert_eq!(page(&v, &choice, 60, 40)[0].text, "x is gone.");
    }
}
