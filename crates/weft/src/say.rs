//! What commands write to standard output.

use std::io::{self, Write};

/// Writes a line. An error says that what read it is gone (a closed terminal or pipe), where
/// `println!` would end the process before it has tidied up.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()
}
