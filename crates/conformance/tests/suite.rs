//! Runs the suite on every device: the CPU, and the repository's virtual devices with their lists
//! of refusals.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::sync::Arc;

use conformance::suite::{Exclusion, SuiteReport, run_suite};
use setup::{all_cases, on, root, spec_without_numerics};
use troika::device::Device;
use troika::graph::Op;
use troika::open_devices;
use troika_check::{DeviceCase, op_cases};

fn device(spec: &str) -> Arc<dyn Device> {
    open_devices(&on(&[spec])).unwrap().remove(0)
}

fn odd(name: &str) -> Arc<dyn Device> {
    device(&format!("virtual:{}", root("socs/odd").join(name).with_extension("toml").display()))
}

fn check(device: &dyn Device, cases: &[DeviceCase], exclusions: &[Exclusion]) -> SuiteReport {
    let report = run_suite(device, cases, exclusions).unwrap();
    println!(
        "{}: {} runs, {} refused, worst {:e}",
        device.name(),
        report.runs,
        report.refused.len(),
        report.worst
    );
    assert!(report.failures.is_empty(), "{}:\n{}", device.name(), report.failures.join("\n"));
    report
}

#[test]
fn the_cases_have_every_op() {
    let cases = op_cases().unwrap();
    let ops: Vec<&str> = cases.iter().flat_map(|c| &c.graph.nodes).map(|n| n.op.name()).collect();
    for op in Op::NAMES {
        assert!(ops.contains(op), "no case has {op}");
    }
}

#[test]
fn the_cpu_holds() {
    let report = check(&*device("cpu"), &all_cases(), &[]);
    assert!(report.runs > 150, "{}", report.runs);
    check(&*device("plain=cpu@scalar"), &op_cases().unwrap(), &[]);
}

#[test]
fn virtual_devices_that_take_all_ops_hold() {
    let cases = all_cases();
    for name in ["static-shapes", "own-memory", "queue-depth-1", "dense-rows"] {
        let report = check(&*odd(name), &cases, &[]);
        // In real time and in virtual time.
        assert!(report.runs > 300 && report.refused.is_empty(), "{name}: {}", report.runs);
    }
}

#[test]
fn virtual_devices_that_refuse_ops_hold_to_it() {
    let cases = all_cases();
    let attention = [Exclusion { what: "attention", why: "the file refuses it" }];
    let report = check(&*odd("no-attention"), &cases, &attention);
    assert!(report.runs > 200 && report.refused.len() > 10);
    assert!(report.refused.iter().all(|(_, why)| why.contains("does not run attention")));
    let others = Op::NAMES.iter().copied().filter(|op| *op != "linear");
    let why = "the file takes products only";
    let others: Vec<Exclusion> = others.map(|what| Exclusion { what, why }).collect();
    let report = check(&*odd("only-linear"), &cases, &others);
    assert!(report.runs > 50 && report.refused.len() > 100, "{}", report.runs);
}

#[test]
fn a_device_of_small_bindings_refuses_large_values() {
    let large = Exclusion { what: "linear of many columns", why: "96 KiB of results" };
    let wide = Exclusion { what: "outliers of many columns", why: "120 KiB of inputs" };
    let report = check(&*odd("small-bindings"), &op_cases().unwrap(), &[large, wide]);
    assert!(report.runs > 200);
    let [(_, why), ..] = &report.refused[..] else { panic!("{report:?}") };
    assert!(why.contains("98304 bytes") && why.contains("65536"), "{why}");
}

/// The suite must be able to fail.
#[test]
fn wrong_exclusions_and_wrong_devices_are_found() {
    let cases = op_cases().unwrap();
    let failures = |device: &dyn Device, exclusions: &[Exclusion]| {
        run_suite(device, &cases, exclusions).unwrap().failures
    };
    let excluded = [Exclusion { what: "attention", why: "it is not" }];
    assert!(failures(&*device("cpu"), &excluded).iter().any(|f| f.starts_with("attention:")));
    let unknown = [Exclusion { what: "convolution", why: "there is none" }];
    let found = failures(&*device("cpu"), &unknown);
    assert!(found.len() == 1 && found[0].contains("no case has it"), "{found:?}");
    assert!(failures(&*odd("no-attention"), &[]).iter().any(|f| f.starts_with("attention:")));
    // A device that computes nothing: its outputs stay unchanged.
    let dir = tempfile::tempdir().unwrap();
    let off = device(&spec_without_numerics(dir.path()));
    assert!(failures(&*off, &[]).len() > 40);
}
