//! `netdev-dpdk/{set,get}-vhost-async-thresh`, and what engines did in `dpif-netdev/pmd-perf-show`.

use super::perf::number;
use crate::state::State;
use crate::vlog;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use vhost_user::{Seat, THRESHOLD_BYTES_DEFAULT, THRESHOLD_BYTES_MAX};

const DISABLED: &str = "vhost async feature not enabled.";

/// `netdev-dpdk/set-vhost-async-thresh N|auto`: frames of more bytes are copied by engines. `auto`,
/// which is ours: by what copies cost, as where none was set.
pub fn set_threshold(s: &mut State, args: &[String]) -> Result<String, String> {
    if !s.engines.enabled() {
        return Err(DISABLED.into());
    }
    if args[0] == "auto" {
        vhost_user::set_threshold(None);
        vlog::info!("netdev_dpdk", "vhost_async_threshold set to: auto");
        return Ok("OK".into());
    }
    let n = number(&args[0]);
    match usize::try_from(n) {
        Ok(bytes) if bytes <= THRESHOLD_BYTES_MAX => {
            vhost_user::set_threshold(Some(bytes));
            vlog::info!("netdev_dpdk", "vhost_async_threshold set to: {bytes}");
            Ok("OK".into())
        }
        _ => Ok(format!(
            "{n} is not a valid threshold.Threshold must be >= 0 and <= {THRESHOLD_BYTES_MAX}"
        )),
    }
}

/// `netdev-dpdk/get-vhost-async-thresh`: what was set, or the default.
pub fn get_threshold(s: &mut State, _: &[String]) -> Result<String, String> {
    if !s.engines.enabled() {
        return Err(DISABLED.into());
    }
    let bytes = vhost_user::threshold().unwrap_or(THRESHOLD_BYTES_DEFAULT);
    Ok(format!("Current vhost async threshold is: {bytes}"))
}

/// Appends what the engine of a core's thread did, if it has one.
pub fn perf(out: &mut String, s: &State, core: usize) {
    let Some(name) = s.engines.name_of(core) else { return };
    let Some(seat) = vhost_user::seats().into_iter().find(|seat| seat.core == core) else { return };
    lines(out, name, &seat);
}

/// What engines did counts from now on, of one core's thread or of all.
pub fn clear(only: Option<usize>) {
    let seats = vhost_user::seats();
    let chosen = seats.iter().filter(|seat| only.is_none_or(|core| core == seat.core));
    chosen.for_each(|seat| seat.clear_shown());
}

fn lines(out: &mut String, name: &str, seat: &Seat) {
    let t = seat.shown();
    let per = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let bytes = t.engine_bytes + t.cpu_bytes;
    let share = per(t.engine_bytes * 100, bytes);
    let mut line = |what: &str, n: u64, note: String| {
        let note = if note.is_empty() { note } else { format!("  ({note})") };
        let _ = writeln!(out, "  {what:<32}{n:12}{note}");
    };
    line(
        "Work deferred:",
        t.copies,
        format!("{name}, {:.1} copies/doorbell", per(t.copies, t.doorbells)),
    );
    line("- Deferred work done:", t.completed, String::new());
    line(
        "- Work completion checks:",
        t.polls,
        format!("{:.2} checks/work item", per(t.polls, t.copies)),
    );
    line("- Ring full when deferring work:", t.full, String::new());
    line("- Deferred work dropped:", 0, String::new());
    line("- Deferred bytes:", t.engine_bytes, format!("{share:.1} % of all bytes copied"));
    line("- Most work in flight:", t.in_flight_max, String::new());
    line(
        "- Failed, copied by software:",
        t.errors + t.redone,
        format!("{} after a hang", t.redone),
    );
    let [to, from] = seat.copy_cycles.each_ref().map(|cycles| cycles.load(Ordering::Relaxed));
    let doorbell = seat.doorbell_cycles.load(Ordering::Relaxed);
    line(
        "- Cycles/work item to guests:",
        to.into(),
        format!("{from} from guests, {doorbell} cycles/doorbell"),
    );
    line(
        "- Bursts not deferred:",
        t.logged + t.closing + t.unmapped,
        format!("{} of guests that migrate, {} of unmapped memory", t.logged, t.unmapped),
    );
}

/// What all engines did, as counters of `coverage/show`.
pub fn coverage(s: &State) -> [(&'static str, u64); 9] {
    let t = s.engines.totals();
    [
        ("vhost_async_poll", t.polls),
        ("vhost_async_poll_empty", t.polls_empty),
        ("vhost_async_tx_enqueue", t.enqueues),
        ("vhost_async_rx_enqueue", t.dequeues),
        ("vhost_async_doorbell", t.doorbells),
        ("vhost_async_copy", t.copies),
        ("vhost_async_ring_full", t.full),
        ("vhost_async_error", t.errors),
        ("vhost_async_redone", t.redone),
    ]
}
