//! What the log says of packets whose translation failed, in ovs-vswitchd's words. Packets cause
//! these messages, so they are few.

use crate::state::State;
use crate::vlog;
use ofproto::{Options, TraceStyle};

/// How often a failure is logged, and how often with a trace.
const LOG_INTERVAL_MS: u64 = 1_000;
const TRACE_INTERVAL_MS: u64 = 60_000;
/// Lines of a trace that are logged: a translation that is too deep has some 200.
const TRACE_LINES_MAX: usize = 512;
/// Bytes of such a trace: a line may have all of a flow's 64 kB of actions.
const TRACE_BYTES_MAX: usize = 256 << 10;

/// Logs a translation that failed, if there is one and it is time.
pub fn log(s: &mut State) {
    let now = s.now_ms();
    let is_due = |last: Option<u64>, interval| last.is_none_or(|last| now >= last + interval);
    let [failure_ms, trace_ms] = &mut s.recent.failures_ms;
    if !is_due(*failure_ms, LOG_INTERVAL_MS) {
        return;
    }
    let Some(failure) = s.ofproto.take_failure() else { return };
    *failure_ms = Some(now);
    vlog::warn!("ofproto_dpif_xlate", "{}", failure.text);
    let Some((bridge, key, options)) = failure.received else { return };
    if !is_due(*trace_ms, TRACE_INTERVAL_MS) {
        return;
    }
    *trace_ms = Some(now);
    let options = Options::Bytes(options);
    let style = TraceStyle { bytes_max: Some(TRACE_BYTES_MAX), ..TraceStyle::default() };
    if let Ok(trace) = s.ofproto.trace(bridge, &key, &options, &style) {
        vlog::warn!("ofproto_dpif_upcall", "Dropped packet:\n{}", shortened(&trace));
    }
}

/// The text without what stands in the middle of its lines, if there are too many.
fn shortened(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    let (first, rest) = lines.split_at(lines.len().min(TRACE_LINES_MAX / 2));
    let left_out = rest.len().saturating_sub(TRACE_LINES_MAX / 2);
    let mut shown = first.to_vec();
    let note = format!("    ({left_out} lines are left out)");
    if left_out > 0 {
        shown.push(&note);
    }
    shown.extend(&rest[left_out..]);
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_traces_keep_their_beginning_and_their_end() {
        let text = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join("\n");
        assert_eq!(shortened(&text(TRACE_LINES_MAX)), text(TRACE_LINES_MAX));
        let short = shortened(&text(10_000));
        assert_eq!(short.lines().count(), TRACE_LINES_MAX + 1);
        assert!(short.starts_with("0\n1\n") && short.ends_with("\n9998\n9999"));
        assert!(short.contains("(9488 lines are left out)"));
    }
}
