//! The state machine of either protocol.

use super::tree_conf::{Asked, PortAsked};
use stp::bpdu::read;
use stp::{Output, PortState, Rstp, RstpConf, Stp, StpConf, StpPortConf};

/// What speaks for a bridge.
pub enum Machine {
    /// STP.
    Stp(Stp),
    /// RSTP.
    Rstp(Box<Rstp>),
}

/// `on!(machine, m => expression)`: the same for both.
macro_rules! on {
    ($machine:expr, $m:ident => $then:expr) => {
        match $machine {
            Machine::Stp($m) => $then,
            Machine::Rstp($m) => $then,
        }
    };
}

impl Machine {
    pub fn new(asked: &Asked, now: u64) -> Machine {
        match asked.rapid {
            false => Machine::Stp(Stp::new(conf(asked), now)),
            true => Machine::Rstp(Box::new(Rstp::new(rapid_conf(asked), now))),
        }
    }

    /// True if it speaks the protocol that is asked for.
    pub fn is(&self, asked: &Asked) -> bool {
        self.is_rapid() == asked.rapid
    }

    /// True for RSTP.
    pub fn is_rapid(&self) -> bool {
        matches!(self, Machine::Rstp(_))
    }

    /// The protocol's name.
    pub fn name(&self) -> &'static str {
        if self.is_rapid() { "RSTP" } else { "STP" }
    }

    /// A state's name, as Open vSwitch writes it.
    pub fn state_name(&self, state: PortState) -> &'static str {
        if self.is_rapid() { state.rapid_name() } else { state.name() }
    }

    pub fn configure(&mut self, asked: &Asked, now: u64) {
        match self {
            Machine::Stp(stp) => stp.configure(conf(asked), now),
            Machine::Rstp(rstp) => rstp.configure(rapid_conf(asked), now),
        }
    }

    /// Settings of a port. `checks`: it is to speak RSTP again.
    pub fn set_port(&mut self, port: &PortAsked, checks: bool, now: u64) {
        match self {
            Machine::Stp(stp) => {
                let path_cost = port.path_cost.min(u16::MAX.into()) as u16;
                stp.set_port(port.number, StpPortConf { priority: port.priority, path_cost }, now);
            }
            Machine::Rstp(rstp) => {
                rstp.set_port(port.number, port.rapid);
                if checks {
                    rstp.check(port.number, now);
                }
            }
        }
    }

    pub fn remove_port(&mut self, number: u16, now: u64) {
        match self {
            Machine::Stp(stp) => stp.remove_port(number, now),
            Machine::Rstp(rstp) => rstp.remove_port(number),
        }
    }

    pub fn set_link(&mut self, number: u16, up: bool, now: u64) {
        on!(self, m => m.set_link(number, up, now));
    }

    /// Ports visited so far.
    pub fn steps(&self) -> u64 {
        on!(self, m => m.steps())
    }

    /// A frame with a BPDU came in; [`Machine::run`] does the rest. Error: what the log says of it.
    pub fn receive(&mut self, number: u16, frame: &[u8], now: u64) -> Result<(), String> {
        on!(self, m => m.receive(number, read(frame), now))
    }

    pub fn run(&mut self, now: u64) {
        on!(self, m => m.run(now));
    }

    pub fn change_topology(&mut self, now: u64) {
        match self {
            Machine::Stp(stp) => stp.change_topology(now),
            Machine::Rstp(rstp) => rstp.change_topology(),
        }
    }

    pub fn take_output(&mut self) -> Output {
        on!(self, m => m.take_output())
    }

    /// What a port does with frames.
    pub fn state(&self, number: u16) -> PortState {
        on!(self, m => m.port(number).map(|p| p.state()).unwrap_or_default())
    }
}

fn conf(asked: &Asked) -> StpConf {
    StpConf {
        id: asked.id,
        hello_ms: asked.hello_ms,
        max_age_ms: asked.max_age_ms,
        forward_delay_ms: asked.forward_delay_ms,
    }
}

fn rapid_conf(asked: &Asked) -> RstpConf {
    RstpConf {
        id: asked.id,
        max_age_ms: asked.max_age_ms,
        forward_delay_ms: asked.forward_delay_ms,
        hold_count: asked.hold_count,
        stp_only: asked.stp_only,
    }
}
