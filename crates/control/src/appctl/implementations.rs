//! What ovs-vswitchd has several implementations of, under its names: parse kernels and lookups by
//! instruction set and the validating mode; where Weft has one, the plain one.

use crate::state::State;
use datapath::{Level, Settings, WorkerId};
use std::fmt::Write;

/// What the datapath can do, as `dpif/show-dp-features` has it.
const FEATURES: &[(&str, &str, &str)] = &[
    ("masked_set_action", "Masked set action", "Yes"),
    ("tnl_push_pop", "Tunnel push pop", "Yes"),
    ("ufid", "Ufid", "Yes"),
    ("trunc", "Truncate action", "Yes"),
    ("clone", "Clone action", "Yes"),
    ("sample_nesting", "Sample nesting", "10"),
    ("ct_eventmask", "Conntrack eventmask", "No"),
    ("ct_clear", "Conntrack clear", "No"),
    ("max_hash_alg", "Max dp_hash algorithm", "0"),
    ("check_pkt_len", "Check pkt length action", "No"),
    ("ct_timeout", "Conntrack timeout policy", "No"),
    ("explicit_drop_action", "Explicit Drop action", "Yes"),
    ("lb_output_action", "Optimized Balance TCP mode", "No"),
    ("ct_zero_snat", "Conntrack all-zero IP SNAT", "No"),
    ("add_mpls", "MPLS Label add", "No"),
    ("max_vlan_headers", "Max VLAN headers", "2"),
    ("max_mpls_depth", "Max MPLS depth", "1"),
    ("recirc", "Recirc", "Yes"),
    ("ct_state", "CT state", "No"),
    ("ct_zone", "CT zone", "No"),
    ("ct_mark", "CT mark", "No"),
    ("ct_label", "CT label", "No"),
    ("ct_state_nat", "CT state NAT", "No"),
    ("ct_orig_tuple", "CT orig tuple", "No"),
    ("ct_orig_tuple6", "CT orig tuple for IPv6", "No"),
    ("nd_ext", "IPv6 ND Extension", "No"),
];

/// `dpif/show-dp-features BRIDGE`.
pub fn features(s: &mut State, args: &[String]) -> Result<String, String> {
    super::bridge(s, &args[0])?;
    Ok(FEATURES.iter().map(|(_, text, value)| format!("{text}: {value}\n")).collect())
}

/// `dpif/set-dp-features BRIDGE [FEATURE [VALUE]]`: shows; they cannot be set.
pub fn set_features(s: &mut State, args: &[String]) -> Result<String, String> {
    super::bridge(s, &args[0])?;
    if args.len() > 1 {
        return Err("datapath features cannot be changed".into());
    }
    let word = |v: &str| match v {
        "Yes" => "true".to_string(),
        "No" => "false".into(),
        n => n.into(),
    };
    let line = |(name, text, value): &(&str, &str, &str)| {
        format!("{name} ({text}) : [run time]:{0}, [boot time]:{0}\n", word(value))
    };
    Ok(FEATURES.iter().map(line).collect())
}

/// Cores of the PMD threads as these listings show them.
fn cores(s: &State) -> String {
    let cores: Vec<String> =
        s.dp.pmd_info()
            .iter()
            .filter_map(|p| match p.worker {
                WorkerId::Pmd(core) => Some(core.to_string()),
                _ => None,
            })
            .collect();
    if cores.is_empty() { "none".into() } else { cores.join(",") }
}

/// `dpif-netdev/dpif-impl-get`.
pub fn dpif(s: &mut State, _: &[String]) -> Result<String, String> {
    Ok(format!("Available DPIF implementations:\n  dpif_scalar (pmds: {})\n", cores(s)))
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
    let (cores, now) = (cores(s), s.dp.settings());
    let mut out = "Available MFEX implementations:\n".to_string();
    let mut line = |name: &str, available: bool, used: bool| {
        let available = if available { "True" } else { "False" };
        let used = if used { &cores } else { "none" };
        let _ = writeln!(out, "  {name} (available: {available} pmds: {used})");
    };
    line(VALIDATOR, true, now.validate);
    for level in Level::ALL {
        line(level.name(), level.available(), !now.validate && level == now.level);
    }
    Ok(out)
}

/// `dpif-netdev/miniflow-parser-set [-pmd CORE] NAME [COUNT]`: the instructions that all threads'
/// kernels use, or `autovalidator`, which adds the comparison with the twins. `study` is the best
/// level: traffic is studied, port by port, in any case.
pub fn set_parser(s: &mut State, args: &[String]) -> Result<String, String> {
    let name = match args {
        [option, ..] if option == "-pmd" => {
            return Err(
                "Error: -pmd is not supported: all threads use one implementation.\n".into()
            );
        }
        [name, ..] => name.as_str(),
        [] => "",
    };
    let mut settings = s.dp.settings().clone();
    settings.validate = name == VALIDATOR;
    if !settings.validate {
        settings.level = match name {
            "study" => Level::preferred(),
            _ => Level::named(name)
                .ok_or(format!("Error: unknown miniflow extract implementation {name}.\n"))?,
        };
    }
    if !settings.level.available() {
        return Err(format!("Error: miniflow extract implementation {name} is not available.\n"));
    }
    s.dp.set_settings(settings);
    Ok(format!("Miniflow extract implementation set to {name}.\n"))
}

/// How ovs-vswitchd calls a level's lookup; it has none for AVX2.
fn lookup_name(level: Level) -> &'static str {
    match level {
        Level::Scalar => "generic",
        Level::Avx2 => "avx2",
        Level::Avx512 => "avx512_gather",
    }
}

/// `dpif-netdev/subtable-lookup-info-get`: subtables of all threads, looked up by the level that has
/// the highest priority.
pub fn lookup(s: &mut State, _: &[String]) -> Result<String, String> {
    let subtables: u64 = s.dp.pmd_info().iter().map(|p| u64::from(p.masks)).sum();
    let now = s.dp.settings();
    let used = now.lookup_level();
    let mut out = "Available dpcls implementations:\n".to_string();
    let mut line = |name: &str, used: bool, priority: u8| {
        let count = if used { subtables } else { 0 };
        let _ = writeln!(out, "  {name} (Use count: {count}, Priority: {priority})");
    };
    line(VALIDATOR, now.validate, if now.validate { u8::MAX } else { 0 });
    for level in Level::ALL.into_iter().filter(|l| l.available()) {
        line(lookup_name(level), level == used, now.lookup_priority[level as usize]);
    }
    Ok(out)
}

/// `dpif-netdev/subtable-lookup-prio-set NAME PRIORITY`. The validating mode is on when `autovalidator`
/// has a priority above all others.
pub fn set_lookup(s: &mut State, args: &[String]) -> Result<String, String> {
    let priority: u8 = args[1].parse().map_err(|_| "error, priority argument out of range\n")?;
    let mut settings = s.dp.settings().clone();
    let level = Level::ALL.into_iter().find(|l| lookup_name(*l) == args[0] && l.available());
    match level {
        Some(level) => settings.lookup_priority[level as usize] = priority,
        None if args[0] == VALIDATOR => {
            settings.validate = settings.lookup_priority.iter().all(|p| priority > *p);
        }
        None => return Err("error, subtable lookup function not found\n".into()),
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
