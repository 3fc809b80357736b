//! The `vlog/...` commands of ovs-appctl(8).

use super::{SpecError, info, log, open_file, set, set_all_debug};
use crate::unixctl::Registry;

type Answer = Result<String, String>;

/// Adds the `vlog/...` commands.
pub fn register<S>(registry: &mut Registry<S>) {
    let many = usize::MAX;
    registry.add("vlog/close", "", 0..=0, |_, _| {
        log().sinks.close_file();
        Ok(String::new())
    });
    registry.add("vlog/disable-rate-limit", "[module]...", 0..=many, |_, a| limit(a, false));
    registry.add("vlog/enable-rate-limit", "[module]...", 0..=many, |_, a| limit(a, true));
    registry.add("vlog/list", "", 0..=0, |_, _| Ok(log().levels.list()));
    registry.add("vlog/list-pattern", "", 0..=0, |_, _| Ok(log().patterns.list()));
    registry.add("vlog/reopen", "", 0..=0, |_, _| reopen());
    registry.add("vlog/set", "{spec | PATTERN:destination:pattern}", 0..=many, |_, a| set_all(a));
}

fn limit(names: &[String], limited: bool) -> Answer {
    log().levels.set_limited(names, limited).map_err(|e| e.to_string())?;
    Ok(String::new())
}

fn set_all(specs: &[String]) -> Answer {
    if specs.is_empty() {
        set_all_debug();
    }
    specs.iter().try_for_each(|spec| set(spec)).map_err(|SpecError(text)| text)?;
    Ok(String::new())
}

fn reopen() -> Answer {
    let Some(path) = super::file_path() else {
        return Err("Logging to file not configured".into());
    };
    info!("vlog", "closing log file");
    open_file(path).map_err(|e| e.to_string())?;
    Ok(String::new())
}
