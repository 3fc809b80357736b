//! EAL's command line, from what the operator asked for and what the machine has. Pure.

use crate::EalConfig;

/// What the machine offers, in MiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Free hugepage memory.
    pub huge_free: u64,
    /// All hugepage memory.
    pub huge_total: u64,
    /// Available ordinary memory.
    pub available: u64,
    /// First CPU this process may run on.
    pub first_cpu: usize,
    /// Our process id, to keep names apart.
    pub pid: u32,
}

/// Least free hugepage memory worth using, in MiB.
const HUGE_MIN: u64 = 256;

/// True if one of `args` gives any of `options` (as `-x`, `-xVALUE` or `--long[=VALUE]`).
fn has(args: &[String], options: &[&str]) -> bool {
    args.iter().any(|arg| {
        options.iter().any(|o| {
            if o.starts_with("--") {
                arg == o || arg.strip_prefix(o).is_some_and(|rest| rest.starts_with('='))
            } else {
                arg.starts_with(o) && !arg.starts_with("--")
            }
        })
    })
}

/// MiB for `--no-huge -m`: an eighth of what is available, within sensible bounds.
fn ordinary_memory(machine: &Machine) -> u64 {
    (machine.available / 8).clamp(192, 1024)
}

/// The sum of a `--socket-mem` list in MiB; None when it is not a list of numbers.
fn sum(list: &str) -> Option<u64> {
    list.split(',').map(|n| n.trim().parse::<u64>().ok()).sum()
}

/// An option for which EAL would print something and end the process.
pub(crate) fn fatal(config: &EalConfig) -> Option<&str> {
    let fatal = ["-h", "--help", "--log-level=help"];
    let mut words = config.extra.split_whitespace();
    words.find(|word| fatal.contains(word) || *word == "help")
}

/// Options of `dpdk-extra` that share nothing with another DPDK process.
const ALONE: [&str; 10] = [
    "--no-pci",
    "--no-huge",
    "--legacy-mem",
    "--in-memory",
    "--no-shconf",
    "--no-telemetry",
    "--log-level",
    "-m",
    "-n",
    "-l",
];

/// Ok if EAL can start while another switch runs that will end soon, with the same result as if it
/// started afterwards. The error says why it cannot: devices would be probed, files are shared, or
/// memory is short.
pub(crate) fn beside(config: &EalConfig, machine: &Machine) -> Result<(), String> {
    let extra: Vec<String> = config.extra.split_whitespace().map(String::from).collect();
    let alone = |word: &String| !word.starts_with('-') || has(std::slice::from_ref(word), &ALONE);
    if let Some(word) = extra.iter().find(|word| !alone(word)) {
        return Err(format!("'{word}' in dpdk-extra may share something with it"));
    }
    let (argv, huge) = build(config, machine);
    if huge {
        // With files of hugepages it is not alone, either.
        let in_memory = has(&argv, &["--in-memory"]);
        return in_memory.then_some(()).ok_or_else(|| "they would share hugepage files".into());
    }
    if machine.huge_total >= HUGE_MIN && !config.no_huge && !has(&extra, &["--no-huge"]) {
        return Err("its hugepages are not free yet".into());
    }
    let last = argv.windows(2).rev().find(|pair| pair[0] == "-m");
    let memory = last.and_then(|pair| pair[1].parse::<u64>().ok()).unwrap_or(0);
    if machine.available < 2 * memory {
        let available = machine.available;
        return Err(format!("{available} MiB are available, {memory} MiB are too much of them"));
    }
    Ok(())
}

/// Builds argv. The second value says whether hugepages are used: they are when there are enough
/// free ones for what was asked.
pub(crate) fn build(config: &EalConfig, machine: &Machine) -> (Vec<String>, bool) {
    let extra: Vec<String> = config.extra.split_whitespace().map(String::from).collect();
    let asked = config.alloc_mem.as_deref().or(config.socket_mem.as_deref()).and_then(sum);
    let huge = !config.no_huge
        && !has(&extra, &["--no-huge"])
        && machine.huge_free >= asked.unwrap_or(0).max(HUGE_MIN);
    let mut argv = vec!["weft".to_string()];
    let mut add = |names: &[&str], values: &[&str]| {
        if !has(&extra, names) {
            argv.extend(values.iter().map(|v| v.to_string()));
        }
    };
    add(&["--no-telemetry", "--telemetry"], &["--no-telemetry"]);
    add(&["--file-prefix"], &["--file-prefix", &format!("weft-{}", machine.pid)]);
    add(&["--log-level"], &["--log-level", "notice"]);
    if config.pci {
        // Probe nothing at start: a port names its device.
        add(&["-a", "-b", "--allow", "--block", "--no-pci"], &["-a", "0000:00:00.0"]);
    } else {
        add(&["--no-pci"], &["--no-pci"]);
    }
    match &config.lcore_mask {
        Some(mask) => add(&["-l", "-c", "--lcores"], &["-c", mask]),
        None => add(&["-l", "-c", "--lcores"], &["--lcores", &format!("0@{}", machine.first_cpu)]),
    }
    if huge {
        add(&["--in-memory", "--legacy-mem"], &["--in-memory"]);
        if let Some(mem) = &config.alloc_mem {
            add(&["-m", "--socket-mem"], &["-m", mem]);
        } else if let Some(mem) = &config.socket_mem {
            add(&["-m", "--socket-mem"], &["--socket-mem", mem]);
        }
        if let Some(limit) = &config.socket_limit {
            add(&["--socket-limit"], &["--socket-limit", limit]);
        }
        if let Some(dir) = &config.hugepage_dir {
            add(&["--huge-dir"], &["--huge-dir", dir]);
        }
    } else {
        let mem = asked.filter(|m| *m > 0).unwrap_or_else(|| ordinary_memory(machine)).to_string();
        add(&["--no-huge"], &["--no-huge"]);
        add(&["-m"], &["-m", &mem]);
        add(&["--no-shconf"], &["--no-shconf"]);
    }
    argv.extend(extra);
    (argv, huge)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Machine =
        Machine { huge_free: 0, huge_total: 0, available: 4000, first_cpu: 1, pid: 7 };

    #[test]
    fn without_hugepages() {
        let (argv, huge) = build(&EalConfig::default(), &SMALL);
        assert!(!huge);
        let line = argv.join(" ");
        assert!(line.contains("--no-huge -m 500 --no-shconf"), "{line}");
        assert!(line.contains("--lcores 0@1") && line.contains("--no-telemetry"), "{line}");
        assert!(line.contains("--no-pci") && !line.contains("--in-memory"), "{line}");
    }

    #[test]
    fn with_hugepages() {
        let machine = Machine { huge_free: 1024, huge_total: 1024, ..SMALL };
        let config =
            EalConfig { socket_mem: Some("512,0".into()), pci: true, ..Default::default() };
        let (argv, huge) = build(&config, &machine);
        let line = argv.join(" ");
        assert!(huge && line.contains("--in-memory --socket-mem 512,0"), "{line}");
        assert!(line.contains("-a 0000:00:00.0") && !line.contains("--no-pci"), "{line}");
        let (argv, huge) = build(&EalConfig { no_huge: true, ..config }, &machine);
        assert!(!huge && argv.contains(&"--no-huge".to_string()), "{argv:?}");
    }

    #[test]
    fn beside_another_process_where_nothing_is_shared() {
        let say = |extra: &str, machine: Machine| {
            beside(&EalConfig { extra: extra.into(), ..Default::default() }, &machine)
        };
        assert_eq!(say("--no-pci --no-huge --legacy-mem --no-shconf -m 512", SMALL), Ok(()));
        assert!(say("--no-huge -m 2001", SMALL).is_err());
        for shared in
            ["-a 0000:01:00.0", "--vdev=net_null0", "--file-prefix x", "-b", "-d", "-m5 -x"]
        {
            assert!(say(shared, SMALL).is_err(), "{shared}");
        }
        let huge = Machine { huge_total: 2048, ..SMALL };
        assert!(say("", huge).is_err());
        assert_eq!(say("--no-huge", huge), Ok(()));
        assert_eq!(say("", Machine { huge_free: 1024, ..huge }), Ok(()));
        assert!(say("--legacy-mem", Machine { huge_free: 1024, ..huge }).is_err());
    }

    #[test]
    fn options_that_end_the_process() {
        let fatal = |extra: &str| {
            super::fatal(&EalConfig { extra: extra.into(), ..Default::default() }).is_some()
        };
        assert!(fatal("-m 5 --help") && fatal("--log-level help") && !fatal("--huge-dir /help"));
    }

    #[test]
    fn what_the_operator_says_wins() {
        let extra = "--no-huge -m 99 --file-prefix=x -l 3 -a 0000:01:00.0 --log-level=debug";
        let machine = Machine { huge_free: 1024, huge_total: 1024, ..SMALL };
        let config = EalConfig { extra: extra.into(), pci: true, ..Default::default() };
        let (argv, huge) = build(&config, &machine);
        assert!(!huge);
        assert_eq!(argv.join(" "), format!("weft --no-telemetry --no-shconf {extra}"));
    }
}
