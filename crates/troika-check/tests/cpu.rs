//! The CPU's best kernels compute what its scalar ones do, and a device that refuses says so.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use troika_check::{Check, Doing, Hook, Hooked, Kernel, Watch, Watched};
use troika_cpu::{CpuDevice, CpuOptions, Isa};
use troika_device::{Device, Work};
use troika_graph::{DType, Subgraph};

fn cpu(isa: Option<Isa>) -> Arc<dyn Device> {
    let options = CpuOptions { name: "cpu".into(), threads: 1, isa, ..CpuOptions::default() };
    Arc::new(CpuDevice::new(options).unwrap())
}

#[test]
fn the_best_kernels_compute_what_the_scalar_ones_do() {
    let plain = Isa::available().into_iter().find(|isa| isa.name() == "scalar");
    let check = Check { device: &*cpu(None), reference: cpu(plain) };
    let mut seen = 0;
    let checked = check
        .all(&mut |done, _| {
            seen = done;
            true
        })
        .unwrap();
    let wrong: Vec<_> = checked.iter().filter(|k| k.fault.is_some()).collect();
    assert!(wrong.is_empty() && seen == checked.len() && seen > 60, "{seen}: {wrong:?}");
}

/// Takes nothing.
struct Refuses;

impl Watch for Refuses {
    fn examine(&self, _: &dyn Device, graph: &Subgraph) -> Vec<Option<String>> {
        vec![Some("it takes nothing".into()); graph.nodes.len()]
    }
}

#[test]
fn a_refused_kernel_is_a_fault_with_the_reason() {
    let device = Watched::new(cpu(None), Refuses);
    let check = Check { device: &device, reference: cpu(None) };
    let checked = check.kernel(Kernel::Embed(DType::Q8_0)).unwrap();
    assert_eq!(checked.fault.as_deref(), Some("it takes nothing"));
}

/// A device whose kernels read zeros in place of the last row of their first input.
#[test]
fn kernels_that_lose_a_row_are_faults() {
    let hook = Hook::default();
    hook.set(|doing| {
        let Doing::Submit(list) = doing else { return Ok(()) };
        for task in &list.tasks {
            let Work::Run(run) = &task.work else { continue };
            let (view, rows) = (&run.bindings.inputs[0], run.rows);
            let row = view.rect().row_bytes();
            view.buffer().write()?[(rows - 1) * row..rows * row].fill(0);
        }
        Ok(())
    });
    let device = Hooked::new(cpu(None), hook);
    let checked = Check { device: &device, reference: cpu(None) }.all(&mut |_, _| true).unwrap();
    let lost = |fault: &str| fault.contains("computes something else");
    let missed: Vec<_> = checked.iter().filter(|k| !k.fault.as_deref().is_some_and(lost)).collect();
    assert!(missed.is_empty() && checked.len() > 60, "{missed:?}");
}
