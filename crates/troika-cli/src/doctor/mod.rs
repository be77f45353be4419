//! What of this machine can be used, and what is missing. Each check looks at one thing.

mod cpu;
mod disk;
mod energy;
mod finding;
mod machine;
mod memory;
mod model;
mod network;
mod nodes;
mod npu;

pub use finding::{Finding, FindingState};
pub use machine::HostMachine;

/// Looks at one thing of a machine.
type Examination = fn(&HostMachine) -> Vec<Finding>;

/// All checks, in the order in which their findings are shown.
const CHECKS: &[Examination] = &[
    model::answers,
    cpu::cores,
    cpu::instructions,
    memory::free,
    memory::huge_pages,
    memory::bandwidth,
    disk::models,
    disk::packed_weights,
    disk::io_uring,
    npu::runtime,
    npu::providers,
    nodes::accelerators,
    nodes::without_driver,
    nodes::graphics,
    energy::counters,
    network::token,
    network::hub,
    network::port,
];

/// Looks at everything.
pub fn examine(machine: &HostMachine) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check(machine)).collect()
}
