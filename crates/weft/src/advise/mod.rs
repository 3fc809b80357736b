//! `weft advise`: looks at the running switch and the machine, says what would help. Changes
//! nothing.

mod limit;
mod machine;
mod rules;
mod switch;
#[cfg(test)]
mod tests;

pub use limit::limit;

use crate::dirs::Dirs;
use anyhow::{Result, ensure};
use machine::Machine;
use rules::Advice;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use switch::{Look, Settings, Switch};

/// Arguments of `weft advise`.
#[derive(clap::Args)]
pub struct AdviseArgs {
    /// Print JSON for programs.
    #[arg(long)]
    json: bool,
    /// How long to watch the switch's counters.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Another machine's sysfs.
    #[arg(long, default_value = "/sys")]
    sysfs: PathBuf,
}

/// Watches, judges, prints.
pub fn advise(dirs: &Dirs, options: &AdviseArgs) -> Result<()> {
    ensure!((0.1..=3600.0).contains(&options.seconds), "--seconds takes 0.1 to 3600");
    let before = Look::take(dirs)?;
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let (after, seconds) = (Look::take(dirs)?, start.elapsed().as_secs_f64());
    let switch = Switch::read(&before, &after, &Settings::take(dirs)?, seconds);
    let advice = rules::all(&Machine::read(&options.sysfs), &switch);
    match options.json {
        true => println!("{:#}", as_json(&switch, &advice)),
        false => print!("{}", as_text(&switch, &advice)),
    }
    Ok(())
}

fn as_json(switch: &Switch, all: &[Advice]) -> serde_json::Value {
    let pmd = |p: &switch::Pmd| {
        let queue = |q: &switch::Queue| json!({"port": q.port, "queue": q.id, "percent": q.usage});
        json!({
            "core": p.core,
            "busy_percent": p.busy,
            "kpps": p.packets as f64 / switch.seconds / 1000.0,
            "cycles_per_packet": p.cycles_per_packet(),
            "queues": p.queues.iter().map(queue).collect::<Vec<_>>(),
        })
    };
    let advice = |a: &Advice| {
        let figures: serde_json::Map<_, _> =
            a.figures.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        json!({"rule": a.rule, "says": a.says, "command": a.command, "figures": figures})
    };
    json!({
        "seconds": switch.seconds,
        "pmds": switch.pmds.iter().map(pmd).collect::<Vec<_>>(),
        "drops": switch.drops,
        "advice": all.iter().map(advice).collect::<Vec<_>>(),
    })
}

fn as_text(switch: &Switch, all: &[Advice]) -> String {
    let mut out = format!("Watched for {:.1} s:\n", switch.seconds);
    for p in &switch.pmds {
        let kpps = p.packets as f64 / switch.seconds / 1000.0;
        let cost = match p.packets {
            0 => String::new(),
            _ => format!(", {:.0} cycles per packet", p.cycles_per_packet()),
        };
        let _ = writeln!(out, "  core {:3}: {:3.0} % busy, {kpps:.0} kpps{cost}", p.core, p.busy);
        for q in &p.queues {
            let _ = writeln!(out, "            {:3} % queue {} of {}", q.usage, q.id, q.port);
        }
    }
    for (reason, n) in &switch.drops {
        let _ = writeln!(out, "  dropped as {reason}: {n}");
    }
    if all.is_empty() {
        out.push_str("\nNothing to change.\n");
    }
    for (i, a) in all.iter().enumerate() {
        let _ = writeln!(out, "\n{}. {} [{}]", i + 1, a.says, a.rule);
        if let Some(command) = &a.command {
            let _ = writeln!(out, "     {command}");
        }
    }
    out
}
