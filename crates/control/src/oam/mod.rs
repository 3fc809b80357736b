//! Operations, administration and maintenance (OAM): BFD and CFM watch the paths behind interfaces,
//! LLDP says who is there; what they have in common, [`path`] and [`wakeups`].

pub mod bfd;
pub mod cfm;
pub mod lldp;
mod path;
pub mod protocols;
mod reader;
mod wakeups;

use crate::config::IfaceConf;
use crate::state::State;

/// Runs a session that it is time for at `now`; false: there is none.
pub fn turn(s: &mut State, now: u64) -> bool {
    bfd::turn(s, now) | cfm::turn(s, now) | lldp::turn(s, now)
}

/// Gives an interface the sessions that the database asks for.
pub fn configure(s: &mut State, conf: &IfaceConf) {
    bfd::configure(s, conf);
    cfm::configure(s, conf);
    lldp::configure(s, conf);
}

/// Ends sessions whose interfaces are gone.
pub fn sweep(s: &mut State) {
    bfd::sweep(s);
    cfm::sweep(s);
    lldp::sweep(s);
}
