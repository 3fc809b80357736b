//! Stateful pipelines as cloud software fills them, from its public documentation: security groups
//! as Neutron's firewall driver for Open vSwitch has them, services and network policies as Antrea
//! has them, and an OVN logical switch with access lists and a load balancer.
//!
//! The generator's `conn` sends both directions of its connections to the one input port, so a
//! packet's address stands for the port that it would come in by. The server is the first of
//! `count` ports; in Antrea's and OVN's pipelines it has a virtual address (the generator's `nat`).

use std::net::Ipv4Addr;

/// The port that clients connect to.
const SERVICE: u16 = 5001;
/// Where clients are: 48.0.0.0/4, as so many members of a remote group.
const GROUP_MEMBERS: u32 = 16;

/// The address of port `port`.
fn address(base: Ipv4Addr, port: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(base) + port)
}

/// The networks of clients.
fn members() -> impl Iterator<Item = String> {
    (0..GROUP_MEMBERS).map(|i| format!("{}/8", Ipv4Addr::from(0x3000_0000 + (i << 24))))
}

/// Security groups: guests may ask for names, and members of the remote group may connect to ports
/// 5000 to 5003. What a server sends before its client (packets come in random order) is dropped,
/// here and in the other pipelines: it would begin a connection of its own.
pub fn neutron(ports: u32) -> Vec<String> {
    let mut lines: Vec<String> = [
        "table=0,priority=0,actions=resubmit(,60)",
        "table=60,priority=3,actions=output:2",
        "table=72,priority=50,ct_state=+inv+trk,actions=drop",
        "table=82,priority=50,ct_state=+inv+trk,actions=drop",
        "table=91,priority=1,actions=resubmit(,94)",
        "table=94,priority=1,actions=output:2",
    ]
    .map(String::from)
    .into();
    (1..=ports).for_each(|port| neutron_port(port, &mut lines));
    lines
}

fn neutron_port(port: u32, lines: &mut Vec<String>) {
    let address = address(Ipv4Addr::new(16, 0, 0, 0), port);
    let zone = "zone=NXM_NX_REG6[0..15]";
    let reg = format!("reg5={port:#x}");
    let load = format!("load:{port:#x}->NXM_NX_REG5[],load:0x1->NXM_NX_REG6[]");
    let bad = format!("ct(commit,{zone},exec(load:0x1->NXM_NX_CT_MARK[]))");
    let mut add = |line: String| lines.push(line);
    add(format!("table=60,priority=100,ip,nw_src={address},actions={load},resubmit(,71)"));
    add(format!("table=60,priority=90,ip,nw_dst={address},actions={load},resubmit(,81)"));
    add(format!("table=71,priority=80,udp,{reg},tp_src=68,tp_dst=67,actions=resubmit(,73)"));
    add(format!("table=71,priority=65,ip,{reg},nw_src={address},actions=ct(table=72,{zone})"));
    add(format!("table=71,priority=10,ct_state=-trk,{reg},actions=drop"));
    add(format!("table=72,priority=74,ct_state=+est-rel-rpl,ip,{reg},actions=resubmit(,73)"));
    add(format!(
        "table=72,priority=74,ct_state=+new-est,udp,{reg},tp_dst=53,actions=resubmit(,73)"
    ));
    add(format!(
        "table=73,priority=90,ct_state=+new-est,ip,{reg},actions=ct(commit,{zone}),resubmit(,91)"
    ));
    add(format!("table=73,priority=80,{reg},actions=resubmit(,94)"));
    add(format!("table=81,priority=90,ct_state=-trk,ip,{reg},actions=ct(table=82,{zone})"));
    add(format!("table=81,priority=80,ct_state=+trk,ip,{reg},actions=resubmit(,82)"));
    for (table, next) in [(72, "resubmit(,94)"), (82, "output:2")] {
        add(format!("table={table},priority=50,ct_mark=0x1,{reg},actions=drop"));
        for state in ["+est-rel+rpl", "-new-est+rel-inv"] {
            let state = format!("ct_state={state},ct_zone=1,ct_mark=0");
            add(format!("table={table},priority=50,{state},{reg},actions={next}"));
        }
        add(format!("table={table},priority=40,ct_state=-est,{reg},actions=drop"));
        add(format!("table={table},priority=40,ct_state=+est,ip,{reg},actions={bad}"));
    }
    remote_group(port, &reg, lines);
}

/// A port's rule that names a remote group: a conjunction of its members and of the rule.
fn remote_group(port: u32, reg: &str, lines: &mut Vec<String>) {
    for (i, state) in ["+est-rel-rpl", "+new-est"].into_iter().enumerate() {
        let id = 8 * port + i as u32;
        let state = format!("ct_state={state}");
        lines.extend(members().map(|net| {
            format!(
                "table=82,priority=70,{state},ip,{reg},nw_src={net},actions=conjunction({id},1/2)"
            )
        }));
        lines.push(format!(
            "table=82,priority=70,{state},tcp,{reg},tp_dst=0x1388/0xfffc,actions=conjunction({id},2/2)"
        ));
        let commit = if i == 1 { "ct(commit,zone=NXM_NX_REG6[0..15])," } else { "" };
        let matched = format!("conj_id={id},{state},ip,{reg}");
        lines.push(format!("table=82,priority=70,{matched},actions={commit}output:2"));
    }
}

/// Services (`ports` of them, with one endpoint each) and a network policy of three clauses.
pub fn antrea(ports: u32) -> Vec<String> {
    const ZONE: &str = "zone=65520";
    let mut lines: Vec<String> = [
        "table=0,priority=200,in_port=1,actions=load:0x1->NXM_NX_REG0[0..3],goto_table:10",
        "table=10,priority=200,ip,actions=goto_table:20",
        "table=21,priority=200,ct_state=+inv+trk,ip,actions=drop",
        // Connections of services, which go on without the load balancer.
        "table=21,priority=190,ct_state=-new+trk,ct_mark=0x10/0x10,ip,\
         actions=load:0x1->NXM_NX_REG0[9],goto_table:40",
        "table=21,priority=0,actions=goto_table:30",
        "table=30,priority=0,actions=goto_table:31",
        "table=31,priority=0,actions=load:0x1->NXM_NX_REG4[16..18],goto_table:32",
        "table=32,priority=0,actions=goto_table:33",
        "table=33,priority=0,actions=goto_table:40",
        "table=40,priority=64990,ct_state=-new+est,ip,actions=goto_table:42",
        "table=40,priority=0,actions=goto_table:41",
        "table=41,priority=0,actions=goto_table:42",
        "table=42,priority=0,actions=load:0x2->NXM_NX_REG1[],goto_table:43",
        "table=43,priority=200,ip,actions=goto_table:50",
        "table=50,priority=64990,ct_state=-new+est,ip,actions=goto_table:60",
        "table=50,priority=0,actions=goto_table:51",
        "table=51,priority=0,actions=goto_table:60",
        "table=60,priority=0,actions=goto_table:70",
        "table=70,priority=200,actions=output:NXM_NX_REG1[]",
    ]
    .map(String::from)
    .into();
    lines.push(format!("table=20,priority=200,ip,actions=ct(table=21,{ZONE},nat)"));
    let new =
        format!("ct(commit,table=70,{ZONE},exec(move:NXM_NX_REG0[0..3]->NXM_NX_CT_MARK[0..3]))");
    lines.push(format!("table=60,priority=200,ct_state=+new+trk-snat,ip,actions={new}"));
    let endpoint = |service| address(Ipv4Addr::new(17, 0, 0, 0), service);
    for service in 1..=ports {
        let virtual_address = address(Ipv4Addr::new(16, 0, 0, 0), service);
        let to = endpoint(service);
        let end = u32::from(to);
        lines.push(format!(
            "table=32,priority=200,tcp,reg4=0x10000/0x70000,nw_dst={virtual_address},tp_dst={SERVICE},\
             actions=load:{end:#x}->NXM_NX_REG3[],load:{SERVICE}->NXM_NX_REG4[0..15],\
             load:0x2->NXM_NX_REG4[16..18],goto_table:33"
        ));
        lines.push(format!(
            "table=33,priority=200,tcp,reg3={end:#x},reg4={:#x}/0x7ffff,\
             actions=ct(commit,table=40,{ZONE},nat(dst={to}:{SERVICE}),exec(load:0x1->NXM_NX_CT_MARK[4]))",
            0x20000 + u32::from(SERVICE)
        ));
    }
    policy(&(1..=ports).map(endpoint).collect::<Vec<_>>(), &mut lines);
    lines
}

/// One policy: clients may connect to the service of these endpoints, and no other address.
fn policy(endpoints: &[Ipv4Addr], lines: &mut Vec<String>) {
    let mut clause = |n: u32, matched: String| {
        let action = format!("conjunction(1,{n}/3)");
        lines.push(format!("table=50,priority=14500,{matched},actions={action}"));
    };
    members().for_each(|net| clause(1, format!("ip,nw_src={net}")));
    endpoints.iter().for_each(|endpoint| clause(2, format!("ip,nw_dst={endpoint}")));
    clause(3, format!("tcp,tp_dst={SERVICE}"));
    let action = "load:0x1->NXM_NX_REG6[],goto_table:60";
    lines.push(format!("table=50,priority=14500,conj_id=1,ip,actions={action}"));
    for endpoint in endpoints {
        lines.push(format!("table=41,priority=200,ip,nw_src={endpoint},actions=drop"));
        lines.push(format!("table=51,priority=200,ip,nw_dst={endpoint},actions=drop"));
    }
}

/// A logical switch with `ports` load balancers of one back end, and access lists with
/// allow-related: two passes through `ct`, in the clients' zone, which translates, and in the
/// server's.
pub fn ovn(ports: u32) -> Vec<String> {
    let mut lines: Vec<String> = [
        "table=0,priority=100,in_port=1,actions=load:0x1->OXM_OF_METADATA[],\
         load:0x1->NXM_NX_REG13[],load:0x1->NXM_NX_REG14[],resubmit(,8)",
        "table=0,priority=110,ip,in_port=1,nw_src=17.0.0.0/8,actions=load:0x1->OXM_OF_METADATA[],\
         load:0x2->NXM_NX_REG13[],load:0x2->NXM_NX_REG14[],resubmit(,8)",
        "table=8,priority=100,metadata=0x1,vlan_tci=0x1000/0x1000,actions=drop",
        "table=8,priority=50,metadata=0x1,actions=resubmit(,9)",
        "table=9,priority=100,ip,metadata=0x1,actions=load:0x1->NXM_NX_XXREG0[96],resubmit(,10)",
        "table=9,priority=0,metadata=0x1,actions=resubmit(,10)",
        "table=11,priority=110,ip,reg0=0x4/0x4,metadata=0x1,\
         actions=ct(table=12,zone=NXM_NX_REG13[0..15],nat)",
        "table=11,priority=100,ip,reg0=0x1/0x1,metadata=0x1,\
         actions=ct(table=12,zone=NXM_NX_REG13[0..15])",
        "table=11,priority=0,metadata=0x1,actions=resubmit(,12)",
        "table=15,priority=0,metadata=0x1,actions=resubmit(,16)",
        "table=16,priority=100,ip,reg0=0x2/0x2,metadata=0x1,\
         actions=ct(commit,zone=NXM_NX_REG13[0..15],exec(load:0->NXM_NX_CT_MARK[0])),resubmit(,17)",
        "table=16,priority=0,metadata=0x1,actions=resubmit(,17)",
        "table=32,priority=0,actions=resubmit(,40)",
        "table=40,priority=100,ip,metadata=0x1,actions=load:0x1->NXM_NX_XXREG0[96],resubmit(,41)",
        "table=41,priority=110,ip,reg14=0x2,metadata=0x1,\
         actions=ct(table=42,zone=NXM_NX_REG13[0..15],nat)",
        "table=41,priority=100,ip,reg0=0x1/0x1,metadata=0x1,\
         actions=ct(table=42,zone=NXM_NX_REG13[0..15])",
        "table=44,priority=100,ip,reg0=0x2/0x2,metadata=0x1,\
         actions=ct(commit,zone=NXM_NX_REG13[0..15],exec(load:0->NXM_NX_CT_MARK[0])),resubmit(,64)",
        "table=44,priority=0,metadata=0x1,actions=resubmit(,64)",
        "table=64,priority=0,actions=output:2",
    ]
    .map(String::from)
    .into();
    hints_and_access(12, 14, "reg14=0x1", 15, &mut lines);
    hints_and_access(42, 43, "reg15=0x2", 44, &mut lines);
    for balancer in 1..=ports {
        let virtual_address = address(Ipv4Addr::new(16, 0, 0, 0), balancer);
        let to = address(Ipv4Addr::new(17, 0, 0, 0), balancer);
        lines.push(format!(
            "table=10,priority=100,ip,metadata=0x1,nw_dst={virtual_address},\
             actions=load:0x1->NXM_NX_XXREG0[98],resubmit(,11)"
        ));
        lines.push(format!(
            "table=15,priority=120,ct_state=+new+trk,tcp,metadata=0x1,nw_dst={virtual_address},\
             tp_dst={SERVICE},actions=load:0->NXM_NX_XXREG0[97],\
             ct(commit,table=17,zone=NXM_NX_REG13[0..15],nat(dst={to}:{SERVICE}),\
             exec(load:0x1->NXM_NX_CT_MARK[1]))"
        ));
    }
    lines.push("table=10,priority=0,metadata=0x1,actions=resubmit(,11)".into());
    for (from, to) in [(1, 2), (2, 1)] {
        lines.push(format!(
            "table=17,priority=50,reg14={from:#x},metadata=0x1,actions=load:{to:#x}->NXM_NX_REG15[],\
             load:{to:#x}->NXM_NX_REG13[],resubmit(,32)"
        ));
    }
    lines
}

/// Table `hints` says what a connection's state lets the access list do (and the one behind it);
/// table `access` allows what is established, and what begins at a client; what it allows goes on
/// in `next`.
fn hints_and_access(hints: u32, access: u32, port: &str, next: u32, lines: &mut Vec<String>) {
    let mut add = |table: u32, priority: u32, matched: &str, actions: &str| {
        lines.push(format!(
            "table={table},priority={priority},metadata=0x1{matched},actions={actions}"
        ));
    };
    let set = |bits: &[u32]| {
        let loads = bits.iter().map(|b| format!("load:0x1->NXM_NX_XXREG0[{}],", 96 + b));
        loads.collect::<String>() + &format!("resubmit(,{access})")
    };
    add(hints, 7, ",ct_state=+new-est+trk", &set(&[7, 9]));
    add(hints, 6, ",ct_state=-new+est-rpl+trk,ct_mark=0x1/0x1", &set(&[7, 9]));
    add(hints, 5, ",ct_state=-trk", &set(&[8, 9]));
    add(hints, 4, ",ct_state=-new+est-rpl+trk,ct_mark=0/0x1", &set(&[8, 10]));
    add(hints, 3, ",ct_state=-est+trk", &set(&[9]));
    add(hints, 2, ",ct_state=+est+trk,ct_mark=0x1/0x1", &set(&[9]));
    add(hints, 1, ",ct_state=+est+trk,ct_mark=0/0x1", &set(&[10]));
    add(hints, 0, "", &format!("resubmit(,{access})"));
    let go_on = format!("resubmit(,{next})");
    let commit = format!("load:0x1->NXM_NX_XXREG0[97],{go_on}");
    add(access, 65532, ",ct_state=+inv+trk", "drop");
    add(access, 65532, ",ct_state=+est+rpl+trk,ct_mark=0x1/0x1", "drop");
    add(access, 65532, ",ct_state=-new+est-rel+rpl-inv+trk,ct_mark=0/0x1", &go_on);
    for net in members() {
        let from = format!(",tcp,{port},nw_src={net},tp_dst={SERVICE}");
        add(access, 2002, &format!(",reg0=0x80/0x80{from}"), &commit);
        add(access, 2002, &format!(",reg0=0x100/0x100{from}"), &go_on);
    }
    add(access, 2001, ",ip,reg0=0x200/0x200", "drop");
    add(access, 1, ",ct_state=-est+trk,ip", &commit);
    add(access, 0, "", &go_on);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's server as clients know it, and as its answers come if it is translated.
    const SERVER: &str = "16.0.0.1";
    const BACK_END: &str = "17.0.0.1";

    #[test]
    fn rules_know_the_generators_server() {
        for lines in [neutron(3), antrea(3), ovn(3)] {
            assert!(lines.iter().any(|l| l.contains(&format!("nw_dst={SERVER},"))));
        }
        assert!(antrea(1).iter().any(|l| l.contains(&format!("nat(dst={BACK_END}:{SERVICE})"))));
    }
    #[test]
    fn no_flow_takes_the_place_of_another() {
        for mut lines in [neutron(3), antrea(3), ovn(3)] {
            let flows = lines.len();
            lines.sort_by_key(|l| l.split(",actions=").next().map(String::from));
            lines.dedup_by_key(|l| l.split(",actions=").next().map(String::from));
            assert_eq!(lines.len(), flows);
        }
    }
}
