//! Tables of text that fit a width: what matters least is left out first.

/// A column; `rank` 0 is always shown, of others those with the highest rank go first.
pub struct Column {
    /// The column's head.
    pub name: &'static str,
    /// Numbers stand to the right.
    pub right: bool,
    /// How little it matters.
    pub rank: u8,
}

/// A text column.
pub const fn text(name: &'static str, rank: u8) -> Column {
    Column { name, right: false, rank }
}

/// A column of numbers.
pub const fn number(name: &'static str, rank: u8) -> Column {
    Column { name, right: true, rank }
}

/// Rows under a head.
pub struct TextTable {
    /// Columns from left to right.
    pub columns: Vec<Column>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<String>>,
}

/// Columns between two cells.
const GAP: usize = 2;
/// Characters that a text column keeps as long as columns of a higher rank can be left out.
const TEXT_MIN: usize = 16;
/// Characters that the last text column keeps, which tends to be prose.
const LAST_TEXT_MIN: usize = 12;
/// Characters that a text column keeps in any case.
const CUT_MIN: usize = 4;

impl TextTable {
    /// The head and the rows, each at most `width` characters.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let (shown, widths) = self.fit(width);
        let head: Vec<String> = self.columns.iter().map(|c| c.name.to_string()).collect();
        let all = std::iter::once(&head).chain(&self.rows);
        all.map(|cells| self.line(cells, &shown, &widths, width)).collect()
    }

    /// Which columns are shown, and how wide they are.
    fn fit(&self, width: usize) -> (Vec<usize>, Vec<usize>) {
        let natural = |i: usize| {
            let cells = self.rows.iter().map(|r| r[i].chars().count());
            cells.chain([self.columns[i].name.len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(natural).collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let last = self.columns.iter().rposition(|c| !c.right);
        let least = |i: &usize| match self.columns[*i].right {
            true => widths[*i],
            false => widths[*i].min(if Some(*i) == last { LAST_TEXT_MIN } else { TEXT_MIN }),
        };
        let needs = |shown: &[usize]| shown.iter().map(|i| least(i) + GAP).sum::<usize>() - GAP;
        while needs(&shown) > width {
            let Some(least) = (0..shown.len())
                .filter(|i| self.columns[shown[*i]].rank > 0)
                .max_by_key(|i| (self.columns[shown[*i]].rank, *i))
            else {
                break;
            };
            shown.remove(least);
        }
        let widths = cut(&self.columns, &shown, widths, width);
        (shown, widths)
    }

    fn line(&self, cells: &[String], shown: &[usize], widths: &[usize], width: usize) -> String {
        let mut out = String::new();
        for (at, &i) in shown.iter().enumerate() {
            let cell = shorten(&plain(&cells[i]), widths[i]);
            let last = at + 1 == shown.len();
            match (self.columns[i].right, last) {
                (true, _) => out += &format!("{cell:>w$}", w = widths[i]),
                (false, true) => out += &cell,
                (false, false) => out += &format!("{cell:<w$}", w = widths[i]),
            }
            if !last {
                out += &" ".repeat(GAP);
            }
        }
        shorten(&out, width)
    }
}

/// Widths with the widest text columns cut until all fits.
fn cut(columns: &[Column], shown: &[usize], mut widths: Vec<usize>, width: usize) -> Vec<usize> {
    loop {
        let all: usize = shown.iter().map(|i| widths[*i] + GAP).sum::<usize>().saturating_sub(GAP);
        let texts = shown.iter().copied().filter(|i| !columns[*i].right && widths[*i] > CUT_MIN);
        match texts.max_by_key(|i| widths[*i]) {
            Some(widest) if all > width => widths[widest] -= 1,
            _ => return widths,
        }
    }
}

/// Without what would move a terminal's cursor: names come from databases and packets.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Cuts a text to at most `width` characters, the last one an ellipsis if some are missing.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { String::new() } else { kept + "…" }
}

/// A text in lines of at most `width` characters, broken at spaces and commas where there are any.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let (mut lines, mut line) = (Vec::new(), String::new());
    let clean = plain(text);
    for word in clean.split_inclusive([' ', ',']) {
        let mut word: Vec<char> = word.chars().collect();
        if line.chars().count() + word.len() > width && !line.is_empty() {
            lines.push(std::mem::take(&mut line).trim_end().to_string());
        }
        while word.len() > width {
            lines.push(word.drain(..width).collect());
        }
        line.extend(word);
    }
    if !line.trim_end().is_empty() || lines.is_empty() {
        lines.push(line.trim_end().to_string());
    }
    lines
}

/// A text in lines of at most `width` characters, those after the first one moved to the right
/// where that leaves most of the width.
pub fn hanging(text: &str, indent: usize, width: usize) -> Vec<String> {
    let first = wrap(text, width);
    let indent = if indent * 3 <= width { indent } else { 0 };
    let Some(rest) = text.strip_prefix(first[0].as_str()).map(str::trim_start) else {
        return first;
    };
    let rest = if rest.is_empty() { Vec::new() } else { wrap(rest, width - indent) };
    let moved = rest.iter().map(|l| " ".repeat(indent) + l);
    std::iter::once(first[0].clone()).chain(moved).collect()
}

/// A number of thousands, millions and so on, in at most five characters.
pub fn si(n: f64) -> String {
    // Zero has no sign here.
    let n = n + 0.0;
    for (unit, size) in [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if n >= 0.9995 * size {
            let n = n / size;
            let digits = if n < 9.995 { 2 } else { usize::from(n < 99.95) };
            return format!("{n:.digits$}{unit}");
        }
    }
    if n > 0.0 && n < 9.95 { format!("{n:.1}") } else { format!("{n:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_any_width() {
        let columns = vec![text("port", 0), number("rx", 0), number("bits", 2), text("type", 1)];
        let row = |name: &str| {
            vec![name.to_string(), "12.3k".into(), "1.00G".into(), "dpdkvhostuserclient".into()]
        };
        let t = TextTable { columns, rows: vec![row("vhu0"), row("a-very-long-name-of-a-port")] };
        for width in 1..100 {
            let lines = t.lines(width);
            assert!(lines.iter().all(|l| l.chars().count() <= width), "{width}: {lines:?}");
        }
        let wide = t.lines(80);
        assert_eq!(wide[0], "port                           rx   bits  type");
        assert_eq!(wide[1], "vhu0                        12.3k  1.00G  dpdkvhostuserclient");
        let narrow = t.lines(20);
        assert_eq!(narrow[0], "port              rx");
        assert_eq!(narrow[2], "a-very-long-…  12.3k");
    }

    #[test]
    fn names_do_not_move_the_cursor() {
        let t =
            TextTable { columns: vec![text("port", 0)], rows: vec![vec!["a\x1b[2Jb\n".into()]] };
        assert_eq!(t.lines(40)[1], "a?[2Jb?");
    }

    #[test]
    fn numbers_stay_short() {
        for (n, want) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.25, "0.2"),
            (42.4, "42"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (999_700.0, "1.00M"),
            (14_880_952.0, "14.9M"),
            (1e10, "10.0G"),
        ] {
            assert_eq!(si(n), want, "{n}");
        }
    }

    #[test]
    fn texts_are_wrapped() {
        let lines = wrap("in_port(1),eth_type(0x0800),ipv4(frag=no)", 20);
        assert_eq!(lines, ["in_port(1),", "eth_type(0x0800),", "ipv4(frag=no)"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("", 10), [""]);
        let key = "s    sort by the next column";
        assert_eq!(hanging(key, 5, 17), ["s    sort by the", "     next column"]);
        assert_eq!(hanging(key, 5, 10), ["s    sort", "by the", "next", "column"]);
        assert_eq!(hanging("", 5, 10), [""]);
    }
}
