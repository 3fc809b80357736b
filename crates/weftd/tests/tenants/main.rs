//! Two tenants on one switch: one attacks, the other must hardly notice. Each module is one attack;
//! the victim's loss, latency, throughput and the answers of the control side are measured beside a
//! control run in which the attacker sends as many harmless frames, because attackers and victims
//! share the machine's cores. Factors are generous, for busy machines; with `WEFT_STRICT=1` they
//! are those of docs/SECURITY.md (use a release build and a quiet machine).

#[path = "../lab/mod.rs"]
mod lab;
mod measure;

mod changes;
mod controllers;
mod fan_out;
mod front_ends;
mod groups;
mod hostile;
mod indirect;
mod links;
mod mac_flood;
mod neighbours;
mod own_address;
mod packet_outs;
mod segments;
mod syn_flood;
mod tap;
