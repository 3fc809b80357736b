//! How a text is split: `name`, `name:value`, `name=value`, `name(value)`, `name(value)->target`.

use super::error::{ActionTextError, Parsed, err};

/// One word of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub name: &'a str,
    /// Empty if there is none.
    pub value: &'a str,
    /// What follows `(value)->`.
    pub target: Option<&'a str>,
}

/// The words of a list.
pub(super) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub fn of(text: &'a str) -> Words<'a> {
        Words { rest: text }
    }

    /// The text up to a comma or blank outside brackets.
    fn value(&mut self) -> &'a str {
        let mut depth = 0;
        let ends = |c: char| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            depth <= 0 && is_separator(c)
        };
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn take(&mut self, n: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        taken
    }

    fn word(&mut self) -> Parsed<Word<'a>> {
        let quoted = self.rest.strip_prefix('"').and_then(|r| Some(r.find('"')? + 2));
        let ends = |c: char| matches!(c, ':' | '=' | '(') || is_separator(c);
        let name = self.take(quoted.or_else(|| self.rest.find(ends)).unwrap_or(self.rest.len()));
        let mut word = Word { name, value: "", target: None };
        match self.rest.chars().next() {
            Some('(') => {
                let close = closing(self.rest).ok_or_else(|| open(name))?;
                word.value = &self.take(close + 1)[1..close];
                if let Some(rest) = self.rest.strip_prefix("->") {
                    self.rest = rest;
                    word.target = Some(self.value());
                }
            }
            Some(':' | '=') => {
                self.take(1);
                word.value = self.value();
            }
            _ => {}
        }
        Ok(word)
    }
}

fn open(name: &str) -> ActionTextError {
    ActionTextError(format!("{name}: missing )"))
}

fn is_separator(c: char) -> bool {
    matches!(c, ',' | ' ' | '\t' | '\r' | '\n')
}

/// Where the parenthesis that the text begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.find(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

impl<'a> Iterator for Words<'a> {
    type Item = Parsed<Word<'a>>;

    fn next(&mut self) -> Option<Parsed<Word<'a>>> {
        self.rest = self.rest.trim_start_matches(is_separator);
        if self.rest.is_empty() {
            return None;
        }
        let word = self.word();
        if word.is_err() {
            self.rest = "";
        }
        Some(word)
    }
}

/// The two sides of `SOURCE->TARGET`.
pub(super) fn arrow(text: &str) -> Parsed<(&str, &str)> {
    match text.split_once("->") {
        Some((source, target)) => Ok((source.trim(), target.trim())),
        None => err(format!("{text}: missing `->'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(&str, &str, Option<&str>)> {
        Words::of(text).map(|w| w.map(|w| (w.name, w.value, w.target)).unwrap()).collect()
    }

    #[test]
    fn values_keep_what_is_in_brackets() {
        let text = " a:b[1,2],,c(d(e,f),g)->h[0] i=j(k l)\tm\"n o\":p";
        let all = [
            ("a", "b[1,2]", None),
            ("c", "d(e,f),g", Some("h[0]")),
            ("i", "j(k l)", None),
            ("m\"n", "", None),
            ("o\"", "p", None),
        ];
        assert_eq!(split(text), all);
        assert_eq!(split("\"a b\":c"), [("\"a b\"", "c", None)]);
        assert_eq!(split("a)b]c,d"), [("a)b]c", "", None), ("d", "", None)]);
        assert!(Words::of("a(b").next().unwrap().is_err());
    }
}
