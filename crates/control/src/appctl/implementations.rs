//! What ovs-vswitchd has several implementations of, under its names: parse kernels and lookups by
//! instruction set and the validating mode; where Weft has one, the plain one.

use super::perf::number;
use crate::state::State;
use datapath::{Level, PmdInfo, Settings, VALIDATING, WorkerId};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A feature's name, what `dpif/show-dp-features` calls it, and its value there.
type Feature = (&'static str, &'static str, &'static str);

/// What the datapath can do, as `dpif/show-dp-features` has it; `max_vlan_headers` is what
/// `vlan-limit` allows ([`features_now`]).
const FEATURES: &[Feature] = &[
    ("masked_set_action", "Masked set action", "Yes"),
    ("tnl_push_pop", "Tunnel push pop", "Yes"),
    ("ufid", "Ufid", "Yes"),
    ("trunc", "Truncate action", "Yes"),
    ("clone", "Clone action", "Yes"),
    ("sample_nesting", "Sample nesting", "10"),
    ("ct_eventmask", "Conntrack eventmask", "Yes"),
    ("ct_clear", "Conntrack clear", "Yes"),
    ("max_hash_alg", "Max dp_hash algorithm", "1"),
    ("check_pkt_len", "Check pkt length action", "Yes"),
    ("ct_timeout", "Conntrack timeout policy", "Yes"),
    ("explicit_drop_action", "Explicit Drop action", "Yes"),
    ("lb_output_action", "Optimized Balance TCP mode", "Yes"),
    ("ct_zero_snat", "Conntrack all-zero IP SNAT", "Yes"),
    ("add_mpls", "MPLS Label add", "Yes"),
    ("max_vlan_headers", "Max VLAN headers", "2"),
    ("max_mpls_depth", "Max MPLS depth", "3"),
    ("recirc", "Recirc", "Yes"),
    ("ct_state", "CT state", "Yes"),
    ("ct_zone", "CT zone", "Yes"),
    ("ct_mark", "CT mark", "Yes"),
    ("ct_label", "CT label", "Yes"),
    ("ct_state_nat", "CT state NAT", "Yes"),
    ("ct_orig_tuple", "CT orig tuple", "Yes"),
    ("ct_orig_tuple6", "CT orig tuple for IPv6", "Yes"),
    ("nd_ext", "IPv6 ND Extension", "Yes"),
];

/// [`FEATURES`] under the present settings.
fn features_now(s: &State) -> impl Iterator<Item = Feature> {
    let tags = if s.dp.settings().vlan_limit == 1 { "1" } else { "2" };
    FEATURES.iter().map(move |f| if f.0 == "max_vlan_headers" { (f.0, f.1, tags) } else { *f })
}

/// `dpif/show-dp-features BRIDGE`.
pub fn features(s: &mut State, args: &[String]) -> Result<String, String> {
    super::bridge(s, &args[0])?;
    Ok(features_now(s).map(|(_, text, value)| format!("{text}: {value}\n")).collect())
}

/// Features that can be switched off. Without `add_mpls` ovs-vswitchd does by its slow path what it
/// is about, and here packets are handled as before; without `tnl_push_pop` tunnels' packets are
/// left to a kernel's datapath, which there is not: they end.
const SWITCHED: [&str; 2] = ["add_mpls", "tnl_push_pop"];

/// True if this feature was switched off.
fn is_off(s: &State, name: &str) -> bool {
    match name {
        "add_mpls" => s.applied.add_mpls_off,
        "tnl_push_pop" => s.ofproto.leaves_tunnels(),
        _ => false,
    }
}

fn switch(s: &mut State, name: &str, off: bool) {
    match name {
        "tnl_push_pop" => {
            s.ofproto.leave_tunnels(off);
            s.flush_changes();
        }
        _ => s.applied.add_mpls_off = off,
    }
}

/// `dpif/set-dp-features BRIDGE [FEATURE [VALUE]]`: shows; of all features only [`SWITCHED`] can
/// be set.
pub fn set_features(s: &mut State, args: &[String]) -> Result<String, String> {
    super::bridge(s, &args[0])?;
    let now = |s: &State, f: &Feature| match is_off(s, f.0) {
        true => "false",
        false => word(f.2),
    };
    let line = |s: &State, f: &Feature| {
        format!("{} ({}) : [run time]:{}, [boot time]:{}\n", f.0, f.1, now(s, f), word(f.2))
    };
    let all: Vec<Feature> = features_now(s).collect();
    let Some(name) = args.get(1) else { return Ok(all.iter().map(|f| line(s, f)).collect()) };
    // To OVS these are answers, not errors.
    let Some(feature) = all.iter().find(|f| f.0 == name) else {
        return Ok("Unexpected support field\n".into());
    };
    match args.get(2).map(String::as_str) {
        None => return Ok(line(s, feature)),
        Some(value @ ("true" | "false")) if SWITCHED.contains(&feature.0) => {
            switch(s, feature.0, value == "false");
        }
        Some(value) if value == now(s, feature) => {}
        Some(_) if matches!(feature.2, "Yes" | "No") && !is_boolean(args.get(2)) => {
            return Ok("Boolean value expected\n".into());
        }
        Some(_) => return Err("this datapath feature cannot be changed".into()),
    }
    Ok(String::new())
}

fn is_boolean(text: Option<&String>) -> bool {
    text.is_some_and(|t| matches!(t.to_ascii_lowercase().as_str(), "true" | "false"))
}

fn word(value: &str) -> &str {
    match value {
        "Yes" => "true",
        "No" => "false",
        number => number,
    }
}

/// What the datapath can do, as column `Datapath.capabilities` has it: [`FEATURES`], with
/// `ct_flush` (connections are flushed by their tuples), and `sample_nesting` as true instead of a
/// depth.
pub fn capabilities(s: &State) -> BTreeMap<String, String> {
    let shown = features_now(s).map(|(name, _, value)| (name, word(value)));
    let only_here = [("ct_flush", "true"), ("sample_nesting", "true")];
    shown.chain(only_here).map(|(name, value)| (name.into(), value.into())).collect()
}

/// Cores of the PMD threads.
fn pmd_cores(s: &State) -> Vec<usize> {
    let core = |p: &PmdInfo| match p.worker {
        WorkerId::Pmd(core) => Some(core),
        WorkerId::Kernel => None,
    };
    s.dp.pmd_info().iter().filter_map(core).collect()
}

/// `dpif-netdev/dpif-impl-get`.
pub fn dpif(s: &mut State, _: &[String]) -> Result<String, String> {
    let cores: Vec<_> = pmd_cores(s).iter().map(usize::to_string).collect();
    let cores = if cores.is_empty() { "none".into() } else { cores.join(",") };
    Ok(format!("Available DPIF implementations:\n  dpif_scalar (pmds: {cores})\n"))
}

/// `dpif-netdev/dpif-impl-set NAME`.
pub fn set_dpif(_: &mut State, args: &[String]) -> Result<String, String> {
    match args[0].as_str() {
        "dpif_scalar" => Ok("DPIF implementation set to dpif_scalar.\n".into()),
        name => {
            Err(format!("DPIF implementation not available: Unknown DPIF implementation {name}.\n"))
        }
    }
}

/// What compares kernels and programs with their twins, in ovs-vswitchd's word.
const VALIDATOR: &str = "autovalidator";

/// `dpif-netdev/miniflow-parser-get`.
pub fn parser(s: &mut State, _: &[String]) -> Result<String, String> {
    let settings = s.dp.settings();
    let used_by = |is: &dyn Fn((Level, bool)) -> bool| {
        let cores = pmd_cores(s).into_iter().filter(|core| is(settings.parser(*core)));
        let cores: Vec<_> = cores.map(|core| core.to_string()).collect();
        if cores.is_empty() { "none".to_string() } else { cores.join(",") }
    };
    let mut out = "Available MFEX implementations:\n".to_string();
    let mut line = |name: &str, available: bool, used_by: String| {
        let available = if available { "True" } else { "False" };
        let _ = writeln!(out, "  {name} (available: {available} pmds: {used_by})");
    };
    line(VALIDATOR, true, used_by(&|(_, validate)| validate));
    for level in Level::ALL {
        line(level.name(), datapath::is_available(level), used_by(&|p| p == (level, false)));
    }
    Ok(out)
}

/// The arguments of `miniflow-parser-set`: for one core or all, which implementation, how many
/// packets are studied.
#[derive(Debug, Default, PartialEq, Eq)]
struct ParserArgs<'a> {
    core: Option<usize>,
    name: &'a str,
    study: Option<u32>,
}

impl<'a> ParserArgs<'a> {
    /// Reads the arguments; errors are ovs-vswitchd's.
    fn read(mut args: &'a [String]) -> Result<Self, String> {
        /// What is studied if nothing is said.
        const STUDY: u32 = 128;
        let mut read = ParserArgs::default();
        loop {
            args = match args {
                [] if read.name.is_empty() => {
                    return Err(
                        "Error: no miniflow extract name provided. Output of miniflow-parser-get \
                                shows implementation list.\n"
                            .into(),
                    );
                }
                [] => return Ok(read),
                [option] if option == "-pmd" && read.name.is_empty() => {
                    return Err("Error: -pmd option requires a thread id argument.\n".into());
                }
                [option, core, rest @ ..] if option == "-pmd" && read.name.is_empty() => {
                    let wrong = || {
                        format!(
                            "Error: miniflow extract parser not changed, PMD thread passed is not valid: \
                             '{core}'. Pass a valid pmd thread ID.\n"
                        )
                    };
                    read.core = Some(core.parse::<u32>().map_err(|_| wrong())? as usize);
                    rest
                }
                [name, rest @ ..] if read.name.is_empty() => {
                    read.name = name;
                    read.study = (name == "study").then_some(STUDY);
                    rest
                }
                [count, rest @ ..] if read.study.is_some() => {
                    let n = count.parse().ok().filter(|n| *n > 0);
                    let wrong = || format!("Error: invalid study_pkt_cnt value: {count}.\n");
                    read.study = Some(n.ok_or_else(wrong)?);
                    rest
                }
                [other, ..] => return Err(format!("Error: unknown argument {other}.\n")),
            };
        }
    }
}

/// `dpif-netdev/miniflow-parser-set [-pmd CORE] NAME [COUNT]`: the instructions that kernels use,
/// or `autovalidator`, which adds the comparison with the twins. `study` is the best level: traffic
/// is studied, port by port, in any case.
pub fn set_parser(s: &mut State, args: &[String]) -> Result<String, String> {
    let ParserArgs { core, name, study } = ParserArgs::read(args)?;
    let mut settings = s.dp.settings().clone();
    let (level, validate) = match name {
        VALIDATOR => (settings.level, true),
        "study" => (datapath::preferred_level(), false),
        _ => {
            let known = Level::named(name);
            let level =
                known.ok_or(format!("Error: unknown miniflow extract implementation {name}."))?;
            (level, false)
        }
    };
    if !datapath::is_available(level) {
        return Err(format!(
            "Error: miniflow extract not available due to CPU ISA requirements: {name}"
        ));
    }
    match core {
        None => {
            settings.parser_of.clear();
            (settings.level, settings.validate) = (level, validate);
        }
        Some(core) if pmd_cores(s).contains(&core) => {
            settings.parser_of.insert(core, (level, validate));
        }
        Some(core) => {
            return Err(format!(
                "Error: miniflow extract parser not changed, PMD thread {core} not in use, pass a valid \
                 pmd thread ID.\n"
            ));
        }
    }
    s.dp.set_settings(settings);
    let core = core.map_or(String::new(), |core| format!(", on pmd thread {core}"));
    let study = study.map_or(String::new(), |n| format!(", studying {n} packets"));
    Ok(format!("Miniflow extract implementation set to {name}{core}{study}.\n"))
}

/// How ovs-vswitchd calls a level's lookup; it has none for AVX2.
fn lookup_name(level: Level) -> &'static str {
    match level {
        Level::Scalar => "generic",
        Level::Avx2 => "avx2",
        Level::Avx512 => "avx512_gather",
    }
}

/// `dpif-netdev/subtable-lookup-info-get`: subtables of all threads, looked up by the level that
/// has the highest priority.
pub fn lookup(s: &mut State, _: &[String]) -> Result<String, String> {
    let subtables: u64 = s.dp.pmd_info().iter().map(|p| u64::from(p.masks)).sum();
    let now = s.dp.settings();
    let used = now.lookup_level();
    let mut out = "Available dpcls implementations:\n".to_string();
    let mut line = |name: &str, used: bool, priority: u8| {
        let count = if used { subtables } else { 0 };
        let _ = writeln!(out, "  {name} (Use count: {count}, Priority: {priority})");
    };
    line(VALIDATOR, now.validate, now.lookup_priority[VALIDATING]);
    for level in Level::ALL.into_iter().filter(|l| datapath::is_available(*l)) {
        line(lookup_name(level), level == used, now.lookup_priority[level as usize]);
    }
    Ok(out)
}

/// `dpif-netdev/subtable-lookup-prio-set NAME PRIORITY`. The validating mode begins when
/// `autovalidator` gets a priority above all others, and ends when another one is as high.
pub fn set_lookup(s: &mut State, args: &[String]) -> Result<String, String> {
    let priority = u8::try_from(number(&args[1]))
        .map_err(|_| "error converting priority, use integer in range 0-255\n")?;
    let mut settings = s.dp.settings().clone();
    let validated = settings.lookups_validate();
    let level =
        Level::ALL.into_iter().find(|l| lookup_name(*l) == args[0] && datapath::is_available(*l));
    match level {
        Some(level) => settings.lookup_priority[level as usize] = priority,
        None if args[0] == VALIDATOR => settings.lookup_priority[VALIDATING] = priority,
        None => return Err("error, subtable lookup function not found\n".into()),
    }
    if settings.lookups_validate() != validated {
        settings.validate = !validated;
    }
    let before = (s.dp.settings().lookup_level(), s.dp.settings().validate);
    let changed = (settings.lookup_level(), settings.validate) != before;
    let (mut ports, mut subtables) = (0, 0u64);
    if changed {
        ports = s.dp.lookups().iter().map(|(_, ports)| ports.len()).sum();
        subtables = s.dp.pmd_info().iter().map(|p| u64::from(p.masks)).sum();
    }
    s.dp.set_settings(settings);
    Ok(format!("Lookup priority change affected {ports} dpcls ports and {subtables} subtables.\n"))
}

/// `odp-execute/action-impl-show`.
pub fn actions(s: &mut State, _: &[String]) -> Result<String, String> {
    let validate = s.dp.settings().validate;
    let word = |yes| if yes { "Yes" } else { "No" };
    Ok(format!(
        "Available Actions implementations:\n  \
         scalar (available: Yes, active: {})\n  \
         {VALIDATOR} (available: Yes, active: {})\n",
        word(!validate),
        word(validate)
    ))
}

/// `odp-execute/action-impl-set NAME`. There is one validating mode, for parsing and acting.
pub fn set_actions(s: &mut State, args: &[String]) -> Result<String, String> {
    let name = args[0].as_str();
    if !matches!(name, "scalar" | VALIDATOR) {
        return Err(format!("Error: unknown action implementation, {name}, specified!\n"));
    }
    let validate = name == VALIDATOR;
    s.dp.set_settings(Settings { validate, ..s.dp.settings().clone() });
    Ok(format!("Action implementation set to {name}.\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn parser_arguments_have_an_order() {
        let args = words("-pmd 3 study 500");
        let want = ParserArgs { core: Some(3), name: "study", study: Some(500) };
        assert_eq!(ParserArgs::read(&args), Ok(want));
        let args = words("study");
        assert_eq!(ParserArgs::read(&args).unwrap().study, Some(128));
        for (text, error) in [
            ("", "no miniflow extract name provided"),
            ("-pmd", "requires a thread id"),
            ("-pmd x avx2", "is not valid: 'x'"),
            ("-pmd 1", "no miniflow extract name provided"),
            ("avx2 -pmd 1", "unknown argument -pmd"),
            ("avx2 5", "unknown argument 5"),
            ("study 0", "invalid study_pkt_cnt value: 0"),
        ] {
            let said = ParserArgs::read(&words(text)).unwrap_err();
            assert!(said.contains(error), "{text}: {said}");
        }
    }
}
