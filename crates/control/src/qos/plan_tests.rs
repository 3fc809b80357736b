use super::*;

const VETH: Device = Device { mtu: 1500, mbps: 10_000 };

fn numbers(all: &[(&str, u64)]) -> Numbers {
    all.iter().map(|(key, n)| (key.to_string(), *n)).collect()
}

fn shape(kind: &'static str, config: &[(&str, u64)], queue: &[(&str, u64)]) -> Shape {
    let queues = [(0, numbers(&[])), (5, numbers(queue))].into();
    match Plan::new(&LinuxQos { kind, config: numbers(config), queues }, VETH) {
        Plan::Shape(shape) => shape,
        plan => panic!("{plan:?}"),
    }
}

/// Lines of `qos/show` as ovs-vswitchd 3.1.0 printed them for such rows.
fn lines(settings: Settings) -> String {
    settings.iter().map(|(key, n)| format!("{key}: {n}\n")).collect()
}

#[test]
fn htb_has_the_limits_and_defaults_of_ovs() {
    let queue = |config: &[(&str, u64)]| {
        lines(queue_settings(&shape("linux-htb", &[("max-rate", 3_000_000)], config).queues[&5]))
    };
    assert_eq!(queue(&[]), "burst: 12512\nmin-rate: 12000\nmax-rate: 3000000\n");
    let all = [("min-rate", 2_000_000), ("max-rate", 2_500_000), ("burst", 3_000_000)];
    assert_eq!(queue(&all), "burst: 3000000\nmin-rate: 2000000\nmax-rate: 2500000\n");
    let beyond = [("min-rate", 9_000_000), ("max-rate", 1), ("priority", 3)];
    assert_eq!(queue(&beyond), "burst: 12512\npriority: 3\nmin-rate: 3000000\n");
    let port = |config: &[(&str, u64)]| lines(shape("linux-htb", config, &[]).settings());
    assert_eq!(port(&[("max-rate", 3_000_000)]), "max-rate: 3000000\n");
    assert_eq!(port(&[]), "max-rate: 10000000000\n", "the link's");
    assert_eq!(port(&[("max-rate", 7)]), "max-rate: 10000000000\n", "less than a byte is none");
}

#[test]
fn a_link_that_says_nothing_has_ten_gigabits_and_a_fast_one_its_own() {
    let rate = |mbps| rate(&numbers(&[]), Device { mtu: 1500, mbps }) * 8;
    assert_eq!([0, 25_000, 400_000].map(rate), [10, 25, 400].map(|gbit| gbit * 1_000_000_000));
}

#[test]
fn hfsc_has_the_limits_and_defaults_of_ovs() {
    let shape = shape("linux-hfsc", &[("max-rate", 800_000)], &[("max-rate", 80_000)]);
    assert_eq!(lines(shape.settings()), "max-rate: 800000\n");
    assert_eq!(lines(queue_settings(&shape.queues[&5])), "min-rate: 8\nmax-rate: 80000\n");
    assert_eq!(lines(queue_settings(&shape.queues[&0])), "min-rate: 8\nmax-rate: 800000\n");
}

#[test]
fn disciplines_without_classes_have_the_defaults_of_ovs() {
    for (kind, config, text) in [
        ("linux-sfq", "", "quantum: 1500\nperturb: 10\n"),
        ("linux-codel", "", "limit: 10240\ninterval: 100000\ntarget: 5000\n"),
        (
            "linux-fq_codel",
            "",
            "limit: 10240\nquantum: 1514\nflows: 1024\ninterval: 1000000\ntarget: 5000\n",
        ),
        ("linux-netem", "", "limit: 1000\nloss: 0\nlatency: 0\n"),
        ("linux-netem", "latency", "limit: 1000\nloss: 0\nlatency: 7\n"),
        ("linux-codel", "target", "limit: 10240\ninterval: 100000\ntarget: 7\n"),
    ] {
        let config: Vec<_> = [(config, 7)].into_iter().filter(|(key, _)| !key.is_empty()).collect();
        let shape = shape(kind, &config, &[]);
        assert_eq!(lines(shape.settings()), text, "{kind}");
        assert!(shape.root.is_none() && shape.queues.is_empty());
    }
    let conf = LinuxQos { kind: "linux-noop", config: numbers(&[]), queues: BTreeMap::new() };
    assert_eq!(Plan::new(&conf, VETH), Plan::Untouched);
}
