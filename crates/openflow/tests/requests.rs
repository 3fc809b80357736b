//! Messages that Debian's `ovs-ofctl` 3.1 sends (`data/requests.tsv`: version, command, message)
//! are decoded; damaged ones are refused without a panic.

use openflow::codec::{Dialect, decode};
use openflow::framing::MessageHeader;
use openflow::*;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// (version, command, message)
fn requests() -> Vec<(Version, String, Vec<u8>)> {
    include_str!("data/requests.tsv")
        .lines()
        .map(|line| {
            let cols: Vec<&str> = line.split('\t').collect();
            let version = match cols[0] {
                "10" => Version::V10,
                "12" => Version::V12,
                "13" => Version::V13,
                "14" => Version::V14,
                _ => Version::V15,
            };
            (version, cols[1].to_string(), bytes(cols[2]))
        })
        .collect()
}

/// The dialect of ovs-ofctl: in 1.0 with the table in flow-mods.
fn dialect(version: Version) -> Dialect {
    Dialect { table_id: version == Version::V10, ..version.into() }
}

fn all(version: Version, command: &str) -> Vec<Request> {
    let list: Vec<Request> = requests()
        .into_iter()
        .filter(|r| r.0 == version && r.1.starts_with(command))
        .map(|r| decode(dialect(r.0), &r.2).unwrap_or_else(|e| panic!("{}: {e:?}", r.1)).1)
        .collect();
    assert!(!list.is_empty(), "{version:?} {command}");
    list
}

#[test]
fn every_request_is_understood_or_refused_by_name() {
    for (version, command, message) in requests() {
        let result = decode(dialect(version), &message);
        let expected: Option<OfError> = None;
        match result {
            Ok((to, _)) => {
                assert_eq!(to.xid, MessageHeader::read(&message).unwrap().xid);
                assert_eq!(expected, None, "{version:?} {command}");
            }
            Err(e) => {
                assert_eq!(Some(e.error), expected, "{version:?} {command} {message:02x?}");
                assert_eq!(e.data, message[..message.len().min(64)]);
            }
        }
    }
}

#[test]
fn a_flow_mod_is_the_same_in_every_version() {
    for version in [Version::V10, Version::V12, Version::V13, Version::V14, Version::V15] {
        let found = all(version, "add-flow table=3,cookie=5");
        let fm = found.iter().find_map(|r| match r {
            Request::FlowMod(fm) => Some(fm),
            _ => None,
        });
        let fm = fm.expect("a flow-mod");
        assert_eq!((fm.command, fm.table, fm.priority), (FlowModCommand::Add, 3, 7));
        assert_eq!((fm.cookie, fm.cookie_mask, fm.idle_timeout), (5, 0, 9));
        assert_eq!((fm.out_port, fm.out_group, fm.buffer_id), (port::ANY, GROUP_ANY, NO_BUFFER));
        assert_eq!(flow::Field::TcpDst.get(&fm.matching.key), 80);
        assert_eq!(flow::Field::InPort.get(&fm.matching.key), 1);
        let actions = vec![Action::SetIpDscp(4), Action::output(2)];
        if version == Version::V10 {
            assert_eq!(fm.instructions, [Instruction::Apply(actions)]);
        } else {
            assert_eq!(fm.instructions.len(), 1);
        }
    }
}

#[test]
fn cookies_of_modify_and_delete() {
    for version in [Version::V10, Version::V13, Version::V15] {
        let found = all(version, "mod-flows cookie=5/7");
        let fm = found.iter().find_map(|r| match r {
            Request::FlowMod(fm) => Some(fm),
            _ => None,
        });
        let fm = fm.expect("a flow-mod");
        assert_eq!((fm.cookie, fm.cookie_old, fm.cookie_mask), (u64::MAX, 5, 7), "{version:?}");
        assert!(!fm.modify_cookie);
    }
}

#[test]
fn groups_meters_bundles_monitors() {
    let group = all(Version::V15, "add-group");
    let group = group.iter().find_map(|r| match r {
        Request::GroupMod(g) => Some(g),
        _ => None,
    });
    let group = group.expect("a group-mod");
    assert_eq!((group.kind, group.selection_method.as_str()), (GroupType::Select, "hash"));
    assert_eq!(
        group.selection_fields,
        [(flow::Field::Ipv4Src, 0xffff_ffff), (flow::Field::TcpDst, 0xff00)]
    );
    let ids: Vec<(u32, u16)> = group.buckets.iter().map(|b| (b.id, b.weight)).collect();
    assert_eq!(ids, [(0, 3), (5, 7)]);

    let bundle = all(Version::V13, "--bundle add-flows");
    let steps: Vec<BundleStep> = bundle
        .iter()
        .filter_map(|r| match r {
            Request::BundleControl { step, flags: 3, .. } => Some(*step),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [BundleStep::OpenRequest, BundleStep::CommitRequest]);
    let added = bundle.iter().filter(|r| matches!(r, Request::BundleAdd { .. })).count();
    assert_eq!(added, 2);

    for version in [Version::V10, Version::V13, Version::V14, Version::V15] {
        let list = all(version, "monitor 65534 watch:table=3");
        let watched = list.iter().find_map(|r| match r {
            Request::Multipart(MultipartRequest::FlowMonitor(m)) => Some(m),
            _ => None,
        });
        let m = &watched.expect("a flow monitor")[0];
        assert_eq!((m.table, m.out_port, m.flags & 0x1f), (3, port::ANY, 0x1f), "{version:?}");
    }
}

#[test]
fn cut_and_damaged_messages_never_panic() {
    for (version, _, message) in requests() {
        for len in 8..message.len() {
            let mut cut = message[..len].to_vec();
            let _ = decode(dialect(version), &cut);
            cut[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            let _ = decode(dialect(version), &cut);
        }
        for at in 0..message.len() {
            for bit in [0x01, 0x80, 0xff] {
                let mut bad = message.clone();
                bad[at] ^= bit;
                let _ = decode(dialect(version), &bad);
            }
        }
    }
}

#[test]
fn random_messages_never_panic() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let versions =
        [Version::V10, Version::V11, Version::V12, Version::V13, Version::V14, Version::V15];
    let mut refused = 0;
    for round in 0..60_000u32 {
        let version = versions[round as usize % 6];
        let len = 8 + (next() % 120) as usize;
        let mut m: Vec<u8> = (0..len).map(|_| (next() & next()) as u8).collect();
        m[0] = version as u8;
        m[1] %= 36;
        m[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        refused += u32::from(decode(version, &m).is_err());
    }
    assert!(refused > 30_000, "{refused}");
}

#[test]
fn unknown_things_have_their_own_errors() {
    let error = |hex: &str| {
        let m = bytes(hex);
        decode(openflow::codec::Dialect::from(Version::V13), &m).unwrap_err().error
    };
    assert_eq!(error("0463000800000001"), OfError::BadType);
    assert_eq!(error("0605000800000001"), OfError::BadVersion);
    assert_eq!(error("0405000900000001ff"), OfError::BadLen);
    assert_eq!(error("0405000a0000000100"), OfError::BadLen);
    assert_eq!(error("04120010000000010063000000000000"), OfError::BadStat);
    assert_eq!(error("041200180000000dffff00000000000000aabbcc00000001"), OfError::BadExperimenter);
    assert_eq!(error("041200180000000dffff0000000000000000232000000063"), OfError::BadExpType);
    assert_eq!(error("040400100000000100aabbcc00000001"), OfError::BadExperimenter);
    assert_eq!(error("04040010000000010000232000000063"), OfError::BadExpType);
    assert_eq!(error("04040010000000014f4e460000000063"), OfError::BadExpType);
    // A bundled barrier, and a bundled message with another transaction id.
    let add = "04040020000000064f4e4600000008fd0000000000000003";
    assert_eq!(error(&format!("{add}0414000800000006")), OfError::BundleMsgUnsup);
    assert_eq!(error(&format!("{add}0414000800000007")), OfError::BundleMsgBadXid);
}
