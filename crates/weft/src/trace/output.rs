//! Where packets go: text, a file, or a pipe. A file has whole packets only, also where the disk
//! became full.

use super::Packet;
use super::pcapng::Capture;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Text or a capture, and how much of it there is.
pub struct Output {
    to: To,
    /// The capture; None: text is printed.
    capture: Option<Capture>,
    packets: u64,
    /// When the first packet came.
    first_ns: u64,
}

enum To {
    Stdout,
    /// Packets go to a file, with all of their bytes.
    File(PathBuf, File, u64),
}

impl Output {
    /// Begins.
    pub fn open(path: Option<&Path>, snaplen: u32) -> Result<Output> {
        let to = match path {
            Some(path) if path != "-" => {
                let file = File::create(path);
                To::File(
                    path.into(),
                    file.with_context(|| format!("cannot write {}", path.display()))?,
                    0,
                )
            }
            _ => To::Stdout,
        };
        let capture = path.map(|_| Capture::new(snaplen));
        let mut output = Output { to, capture, packets: 0, first_ns: 0 };
        if output.capture.is_some() {
            output.put(&Capture::head())?;
        }
        Ok(output)
    }

    /// Writes a packet.
    pub fn packet(&mut self, p: &Packet) -> Result<()> {
        if self.packets == 0 {
            self.first_ns = p.time_ns;
        }
        let text = match &mut self.capture {
            Some(capture) => capture.packet(p),
            None => {
                let at = p.time_ns.saturating_sub(self.first_ns) as f64 / 1e9;
                let lines = p.comment.lines().map(|line| format!("  {line}\n"));
                format!("+{at:.6} s, {} bytes\n{}", p.length, lines.collect::<String>()).into()
            }
        };
        self.put(&text)?;
        self.packets += 1;
        Ok(())
    }

    /// All of it, or nothing.
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.to {
            To::Stdout => {
                let mut out = io::stdout().lock();
                Ok(out.write_all(bytes).and_then(|()| out.flush())?)
            }
            To::File(path, file, whole) => {
                let written = file.write_all(bytes);
                if written.is_err() {
                    // Fails where there is nothing to cut: a pipe.
                    let _ = file.set_len(*whole);
                } else {
                    *whole += bytes.len() as u64;
                }
                written.with_context(|| path.display().to_string())
            }
        }
    }

    /// Waits until a file is on its disk.
    pub fn finish(&mut self) -> Result<()> {
        match &self.to {
            To::File(path, file, _) if file.metadata().is_ok_and(|m| m.is_file()) => {
                file.sync_data().with_context(|| path.display().to_string())
            }
            _ => Ok(()),
        }
    }

    /// In a few words.
    pub fn about(&self) -> String {
        let n = format!("{} packet{}", self.packets, if self.packets == 1 { "" } else { "s" });
        match &self.to {
            To::File(path, ..) => format!("{n}, which {} has whole", path.display()),
            To::Stdout => n,
        }
    }
}
