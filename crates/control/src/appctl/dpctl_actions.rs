//! `dpctl/parse-actions` and `dpctl/normalize-actions`: flows and actions of the datapath as text,
//! for people who compare them. Nothing is carried out.

use super::odp_actions::{self, OdpAction, Tag, tag_text};
use crate::state::State;
use flow::{Field, Key, Mask, at, flag, odp_key_text, odp_text, parse_odp};
use std::collections::BTreeMap;

const REFUSED: &str = "ovs-vswitchd: odp_actions_from_string (Invalid argument)\n";

/// `dpctl/parse-actions ACTIONS...`: each as it is printed.
pub fn parse(_: &mut State, args: &[String]) -> Result<String, String> {
    parsed(args)
}

/// All lists together are no longer than one may be: a turn of the control thread reads them.
fn parsed(args: &[String]) -> Result<String, String> {
    let (mut out, mut left) = (String::new(), flow::TEXT_MAX);
    for typed in typed(args).1 {
        let Some(rest) = left.checked_sub(typed.len()) else { return Err(out + REFUSED) };
        left = rest;
        match odp_actions::parse(typed, &|_| None) {
            Some(actions) => out += &format!("{}\n", odp_actions::text(&actions)),
            None => return Err(out + REFUSED),
        }
    }
    Ok(out)
}

/// Options of `dpctl`, which are taken from anywhere, and what remains; true if one asks for more
/// to be said.
fn typed(args: &[String]) -> (bool, Vec<&str>) {
    let is_option =
        |a: &&str| a.starts_with('-') && a.len() > 1 && !a[1..].starts_with(char::is_numeric);
    let all = args.iter().map(String::as_str);
    let more = all.clone().any(|a| matches!(a, "-m" | "--more"));
    (more, all.filter(|a| !is_option(a)).collect())
}

/// `dpctl/normalize-actions FLOW ACTIONS [NAME=NUMBER...]`: what is done to the packet with each
/// stack of tags that it has in the course of the actions, outputs in the order of their numbers.
pub fn normalize(_: &mut State, args: &[String]) -> Result<String, String> {
    normalized(args)
}

fn normalized(args: &[String]) -> Result<String, String> {
    let (more, typed) = typed(args);
    let [flow, actions, ref names @ ..] = typed[..] else {
        return Err(r#""dpctl/normalize-actions" command requires at least 2 arguments"#.into());
    };
    let mut ports = BTreeMap::new();
    for pair in names {
        let (name, number) =
            port(pair).ok_or_else(|| format!("ovs-vswitchd: {pair}: expected NAME=NUMBER\n"))?;
        ports.insert(name, number);
    }
    let (key, mask) = parse_odp(flow, &|name| ports.get(name).map(|n| *n as u16)).map_err(|_| {
        format!("ovs-vswitchd: odp_flow_key_from_string (syntax error at {flow}) (Invalid argument)\n")
    })?;
    let mut out = format!("input flow: {}\n", flow_text(flow, &key, &mask));
    let Some(actions) = odp_actions::parse(actions, &|name| ports.get(name).copied()) else {
        return Err(out + REFUSED);
    };
    if more {
        out += &format!("input actions: {}\n", odp_actions::text(&actions));
    }
    for (tags, actions) in by_tags(tags_of(&key), actions) {
        out += &tags_text(&tags);
        out += &mpls_text(&key);
        out += &odp_actions::text(&actions);
    }
    Ok(out)
}

/// A port's name, of which fifteen bytes count, and number.
fn port(pair: &str) -> Option<(&str, u32)> {
    let (name, number) = pair.split_once('=')?;
    let fits = (1..=15).contains(&name.len());
    number.parse::<i32>().ok().filter(|_| fits).map(|n| (name, n as u32))
}

/// The attributes that were typed, in their order, each as it is printed.
fn flow_text(typed: &str, key: &Key, mask: &Mask) -> String {
    let (whole, given) = (odp_key_text(key, &|_| None), odp_text(key, mask, false, &|_| None));
    let one = |item: &str| {
        let name = item.split('(').next().unwrap_or_default();
        // Of a tunnel only what was typed is printed.
        let printed = if name == "tunnel" { &given } else { &whole };
        odp_actions::attribute(printed, name).unwrap_or(item).to_string()
    };
    let items = odp_actions::items(typed).unwrap_or_default();
    items.into_iter().map(one).collect::<Vec<_>>().join(",")
}

/// The tags of a packet, the outer one first.
type Tags = [Tag; 2];

fn tags_of(key: &Key) -> Tags {
    let flags = key.u8(at::FLAGS);
    [(at::VLAN, flag::VLAN_88A8), (at::VLAN1, flag::VLAN1_88A8)].map(|(at, is_88a8)| {
        let tci = key.u16(at);
        let tpid = match (tci, flags & is_88a8) {
            (0, _) => 0,
            (_, 0) => 0x8100,
            _ => 0x88a8,
        };
        Tag { tpid, tci }
    })
}

/// The actions but for those that push and pop tags, by the tags that the packet then has.
fn by_tags(mut tags: Tags, actions: Vec<OdpAction>) -> BTreeMap<Tags, Vec<OdpAction>> {
    let mut groups: BTreeMap<Tags, Vec<OdpAction>> = BTreeMap::new();
    for action in actions {
        match action {
            OdpAction::PushVlan(tag) => tags = [tag, tags[0]],
            OdpAction::PopVlan => tags = [tags[1], Tag::default()],
            other => groups.entry(tags).or_default().push(other),
        }
    }
    for group in groups.values_mut() {
        let is_output = |a: &OdpAction| matches!(a, OdpAction::Output(_));
        for outputs in group.chunk_by_mut(|a, b| is_output(a) && is_output(b)) {
            outputs.sort_by_key(|a| if let OdpAction::Output(port) = a { *port } else { 0 });
        }
    }
    groups
}

fn tags_text(tags: &Tags) -> String {
    let present = tags.iter().take_while(|t| t.tci != 0);
    let text: String = present.map(|t| format!("vlan({}): ", tag_text(*t))).collect();
    if text.is_empty() { "no vlan: ".into() } else { text }
}

fn mpls_text(key: &Key) -> String {
    if !matches!(key.u16(at::ETH_TYPE), wire::ETH_MPLS | wire::ETH_MPLS_MCAST) {
        return "no mpls: ".into();
    }
    let [label, tc, ttl] =
        [Field::MplsLabel, Field::MplsTc, Field::MplsTtl].map(|field| field.get(key));
    format!("mpls(label={label},tc={tc},ttl={ttl}): ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: &str = "in_port(1),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),eth_type(0x0800),\
        ipv4(src=1.1.1.1,dst=2.2.2.2,proto=17,tos=0,ttl=64,frag=no),udp(src=1,dst=2)";
    const TAGGED: &str = "in_port(1),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),\
        eth_type(0x8100),vlan(vid=9,pcp=1),encap(eth_type(0x1234))";
    const MPLS: &str = "in_port(1),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),\
        eth_type(0x8847),mpls(label=5,tc=1,ttl=64,bos=1)";

    fn run(args: &[&str]) -> Result<String, String> {
        normalized(&args.iter().map(|a| a.to_string()).collect::<Vec<_>>())
    }

    /// What ovs-vswitchd 3.1 answers.
    #[test]
    fn actions_are_sorted_by_the_tags_that_packets_have() {
        for (flow, actions, expected) in [
            (UDP, "3,1,2", "no vlan: no mpls: 1,2,3"),
            (
                UDP,
                "push_vlan(vid=4,pcp=0),3,2,pop_vlan,7,1",
                "no vlan: no mpls: 1,7vlan(vid=4,pcp=0): no mpls: 2,3",
            ),
            (
                TAGGED,
                "9,push_vlan(tpid=0x88a8,vid=4,pcp=0),3,pop_vlan,7,pop_vlan,5,trunc(9),3,1",
                "no vlan: no mpls: 5,trunc(9),1,3vlan(vid=9,pcp=1): no mpls: 7,9\
                 vlan(tpid=0x88a8,vid=4,pcp=0): vlan(vid=9,pcp=1): no mpls: 3",
            ),
            (MPLS, "9", "no vlan: mpls(label=5,tc=1,ttl=64): 9"),
        ] {
            let text = run(&[flow, actions]).unwrap();
            assert_eq!(text, format!("input flow: {flow}\n{expected}"), "{actions}");
        }
    }

    #[test]
    fn ports_may_have_names_and_more_is_said_if_asked_for() {
        let text = run(&["-m", "in_port(a),eth(),eth_type(0x1234)", "3,a", "a=1"]).unwrap();
        let flow = "in_port(1),eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),eth_type(0x1234)";
        let expected = format!("input flow: {flow}\ninput actions: 3,1\nno vlan: no mpls: 1,3");
        assert_eq!(text, expected);
        let tunnel = "tunnel(src=1.1.1.1,dst=2.2.2.2,tos=0,ttl=64,flags(key))";
        let text = run(&[tunnel, "1"]).unwrap();
        assert!(text.starts_with(&format!("input flow: {tunnel}\n")), "{text}");
    }

    #[test]
    fn lists_are_no_longer_together_than_one_may_be() {
        let list = ("set(tcp(src=1)),".repeat(4000) + "1").to_string();
        let one = parsed(std::slice::from_ref(&list)).unwrap();
        assert_eq!(parsed(&[list.clone(), list]), Err(one + REFUSED));
        assert_eq!(parsed(&vec!["1".into(); 1000]), Ok("1\n".repeat(1000)));
    }

    #[test]
    fn errors_follow_what_was_read() {
        assert_eq!(run(&["in_port(1)", "ff"]), Err(format!("input flow: in_port(1)\n{REFUSED}")));
        let error = run(&["xx", "1"]).unwrap_err();
        assert!(error.contains("(syntax error at xx) (Invalid argument)"), "{error}");
        let error = run(&["in_port(1)", "1", "a"]).unwrap_err();
        assert_eq!(error, "ovs-vswitchd: a: expected NAME=NUMBER\n");
    }
}
