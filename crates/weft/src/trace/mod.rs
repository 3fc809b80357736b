//! `weft trace`: samples of packets with what the switch decided about each, as text or as a
//! capture whose comments Wireshark shows.

mod output;
mod pcapng;

use crate::dirs::Dirs;
use crate::stop;
use crate::view::Connection;
use anyhow::{Context, Result};
use output::Output;
use serde::{Deserialize, Deserializer};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the switch is asked for packets while there are none.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `weft trace`.
#[derive(clap::Args)]
pub struct TraceArgs {
    /// A port, or a flow as ovs-ofctl or dpctl/dump-flows writes it: `tcp,in_port=vhu0,tp_dst=80`.
    what: String,
    /// Write a capture (pcapng) here instead of text; `-`: to standard output, for `wireshark -k -i
    /// -`.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after so many packets.
    #[arg(short, long, value_name = "PACKETS")]
    count: Option<u64>,
    /// Packets per second; more are counted, not shown.
    #[arg(short, long, value_name = "PACKETS", default_value_t = 1000)]
    rate: u32,
    /// Bytes of each packet that are captured.
    #[arg(short, long, value_name = "BYTES", default_value_t = 256)]
    snaplen: u32,
    /// End after so many seconds.
    #[arg(long)]
    seconds: Option<f64>,
}

/// What `weft/trace-next` answers.
#[derive(Deserialize)]
struct Answer {
    packets: Vec<Packet>,
    more: bool,
    beyond: u64,
}

/// A packet.
#[derive(Deserialize)]
struct Packet {
    /// Since 1970.
    time_ns: u64,
    port: String,
    /// Bytes that it has, and the first of them.
    length: u32,
    #[serde(deserialize_with = "hexadecimal")]
    bytes: Vec<u8>,
    /// What was decided about it, in lines.
    comment: String,
}

fn hexadecimal<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap_or("x"));
    digits
        .map(|two| u8::from_str_radix(two, 16))
        .collect::<Result<_, _>>()
        .map_err(serde::de::Error::custom)
}

/// Shows packets until it is ended or has what was asked for. The switch ends the trace when the
/// connection goes, however that comes about.
pub fn trace(dirs: &Dirs, options: &TraceArgs) -> Result<()> {
    stop::on_signals();
    let mut switch = Connection::open(dirs)?;
    let mut args = vec![format!("rate={}", options.rate), format!("snaplen={}", options.snaplen)];
    args.extend(options.count.map(|n| format!("count={n}")));
    args.push(options.what.clone());
    switch.ask("weft/trace", &args.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut out = Output::open(options.write.as_deref(), options.snaplen)?;
    eprintln!("weft: tracing {}; Ctrl-C ends it", options.what);
    let traced = follow(&mut switch, &mut out, options.seconds);
    let beyond = match traced {
        Err(e) if e.downcast_ref::<std::io::Error>().is_some_and(is_reader_gone) => return Ok(()),
        traced => traced.with_context(|| format!("after {}", out.about()))?,
    };
    match beyond {
        0 => eprintln!("weft: {}", out.about()),
        n => eprintln!("weft: {}; {n} more matched, beyond --rate or --count", out.about()),
    }
    Ok(())
}

/// Who reads what is written had enough: `weft trace v1 | head`.
fn is_reader_gone(e: &std::io::Error) -> bool {
    e.kind() == ErrorKind::BrokenPipe
}

/// Writes what comes; how many packets matched beyond that.
fn follow(switch: &mut Connection, out: &mut Output, seconds: Option<f64>) -> Result<u64> {
    let began = Instant::now();
    loop {
        let late = seconds.is_some_and(|s| began.elapsed().as_secs_f64() >= s);
        let ends = late || stop::is_asked();
        let last = if ends { &["last"][..] } else { &[] };
        let text = switch.ask("weft/trace-next", last)?;
        let answer: Answer = serde_json::from_str(&text).context("the switch's answer")?;
        answer.packets.iter().try_for_each(|p| out.packet(p))?;
        if !answer.more {
            out.finish()?;
            return Ok(answer.beyond);
        }
        if answer.packets.is_empty() {
            std::thread::sleep(ASK_INTERVAL);
        }
    }
}
