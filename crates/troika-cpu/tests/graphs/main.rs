//! Subgraphs that no builder made: written by hand or changed at random. A device either refuses
//! them with a sentence, or runs them without a fault.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]
#![allow(missing_docs)]

#[path = "../device/bench.rs"]
mod bench;
mod mutate;
mod ops;
#[path = "../kernels/random.rs"]
mod random;
#[path = "../device/store.rs"]
mod store;

use std::sync::Arc;

use bench::Bench;
use mutate::mutate;
use ops::{Case, cases, wrong_graphs};
use random::Random;
use store::{Store, aligned};
use troika_device::*;
use troika_graph::{DType, Dim, Op, StateKind, Subgraph, Value};

/// The most bytes of a run that is tried.
const BYTES: usize = 64 << 20;
/// Positions of a cache.
const POSITIONS: usize = 64;

/// Compiles a subgraph and runs it on some rows, with memory of the right shapes. `None` if
/// that would take too much memory.
fn run(bench: &mut Bench, g: &Subgraph, store: &Store) -> Option<Result<(), DeviceError>> {
    let weights = match Weights::compiled(&bench.device, g, store) {
        Ok(weights) => weights,
        Err(e) => return Some(Err(e)),
    };
    let bound = || g.inputs.iter().chain(&g.outputs).map(|id| g.value(*id));
    let rows = bound().map(|v| v.shape.0[0]).map(|d| match d {
        Dim::Fixed(n) => n,
        d => d.bound().min(3),
    });
    let rows = rows.min().unwrap_or(1);
    let all = bound().map(|v| bytes(v, rows));
    let all: usize = all.chain(g.states.iter().map(|s| bytes(g.value(*s), POSITIONS))).sum();
    if all > BYTES || weights.executable().scratch_bytes() > BYTES as u64 {
        return None;
    }
    let bind = |v: &Value, rows: usize| View::whole(&filled(v, rows));
    let bindings = Bindings {
        inputs: g.inputs.iter().map(|id| bind(g.value(*id), rows)).collect(),
        states: g.states.iter().map(|id| bind(g.value(*id), POSITIONS)).collect(),
        outputs: g.outputs.iter().map(|id| bind(g.value(*id), rows)).collect(),
    };
    let pages = vec![2, 0, 3];
    let table = |kind| PageTable::new(kind, 16, pages.clone());
    let paged = StateKind::Paged(None);
    let tables = [paged, paged, StateKind::Fixed, paged].map(table).to_vec();
    let seq = SeqRows { seq: 0, rows: 0..rows, pos: 5, known_len: 5 + rows, tables };
    let run = Run {
        weights,
        bindings: Arc::new(bindings),
        rows,
        forward: Arc::new(ForwardBatch { seqs: vec![seq] }),
    };
    let tasks = vec![Submission { tag: 0, work: Work::Run(run) }];
    Some(bench.complete(CommandList { tasks, ..CommandList::default() }).outcome)
}

fn bytes(v: &Value, rows: usize) -> usize {
    v.row_bytes().saturating_mul(rows)
}

/// Small numbers; zeros as ids and positions.
fn filled(v: &Value, rows: usize) -> Buffer {
    let b = Buffer::zeroed(bytes(v, rows)).unwrap();
    if v.dtype == DType::F32 {
        let mut guard = b.write().unwrap();
        let floats = guard.as_mut_slice::<f32>();
        floats.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32 * 0.25 - 0.5);
    }
    b
}

/// Checks that a refusal says what is wrong in one line.
#[track_caller]
fn check_sentence(e: &DeviceError) {
    let text = e.to_string();
    assert!(text.len() > 20 && !text.contains('\n') && !text.contains("panicked"), "{text}");
}

#[test]
fn graphs_of_every_op_run() {
    let mut bench = Bench::new("cpu", 2);
    let names: Vec<&str> = cases()
        .iter()
        .map(|case| {
            run(&mut bench, &case.graph, &case.store).unwrap().unwrap();
            case.graph.nodes.last().unwrap().op.name()
        })
        .collect();
    for op in Op::NAMES {
        assert!(names.contains(op), "no graph ends with {op}");
    }
}

#[test]
fn graphs_that_are_wrong_in_one_way_are_refused() {
    let bench = Bench::new("cpu", 2);
    let cases = cases();
    for wrong in wrong_graphs() {
        let case = cases.iter().find(|c| c.name == wrong.case).expect(wrong.case);
        let mut graph = case.graph.clone();
        (wrong.edit)(&mut graph);
        assert_ne!(graph, case.graph, "{}: {}", wrong.case, wrong.says);
        let refused = Weights::compiled(&bench.device, &graph, &case.store);
        let Err(e @ DeviceError::Graph(_)) = refused else {
            panic!("{}, {}: {refused:?}", wrong.case, wrong.says)
        };
        check_sentence(&e);
        assert!(e.to_string().contains(wrong.says), "{}: {e}", wrong.case);
    }
    for op in Op::NAMES {
        assert!(wrong_graphs().iter().any(|w| w.case.starts_with(op)), "{op} is never wrong");
    }
}

/// A weight other than declared, in each way and for each weight.
#[test]
fn weights_that_are_not_as_declared_are_refused() {
    let bench = Bench::new("cpu", 2);
    let mut refused = 0;
    for case in cases() {
        for name in case.store.names() {
            for way in 0..7 {
                let mut store = case.store.clone();
                store.edit(&name, |data| spoil(data, way));
                let e = Weights::compiled(&bench.device, &case.graph, &store).expect_err(&name);
                assert!(matches!(e, DeviceError::Weight { .. }), "{}, {name}: {e}", case.name);
                check_sentence(&e);
                refused += 1;
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

/// Makes a weight wrong in one way; its bytes match its shape except in the last two.
fn spoil(data: &mut WeightData, way: usize) {
    let old = data.bytes.to_vec();
    let other = |t: DType| if t == DType::F32 { DType::BF16 } else { DType::F32 };
    match way {
        0 => data.rows += 1,
        1 => data.rows -= 1,
        2 => data.cols += data.dtype.block_len(),
        3 => data.cols -= data.dtype.block_len(),
        4 => data.dtype = other(data.dtype),
        5 => data.bytes = aligned(&old[..old.len() - 1]),
        _ => data.bytes = aligned(&[&old[..], &[0]].concat()),
    }
    if way < 5 {
        let bytes = data.dtype.row_bytes(data.cols).unwrap() * data.rows;
        data.bytes = aligned(&old.iter().copied().cycle().take(bytes).collect::<Vec<_>>());
    }
}

#[test]
fn graphs_changed_at_random_run_or_are_refused() {
    let mut bench = Bench::new("cpu", 2);
    let cases: Vec<Case> = cases();
    let mut r = Random(0x7201);
    let (mut ran, mut refused) = (0, 0);
    for turn in 0..12_000 {
        let case = &cases[turn % cases.len()];
        let Some(graph) = mutate(&case.graph, &mut r) else { continue };
        match run(&mut bench, &graph, &case.store) {
            Some(Ok(())) => ran += 1,
            Some(Err(e)) => {
                // A panic of a kernel would be a failure of the device itself.
                let expected = matches!(
                    e,
                    DeviceError::Graph(_)
                        | DeviceError::Weight { .. }
                        | DeviceError::Submission { .. }
                        | DeviceError::Unsupported { .. }
                        | DeviceError::Memory { .. }
                );
                assert!(expected, "{}: {e}\n{graph:?}", case.name);
                check_sentence(&e);
                refused += 1;
            }
            None => {}
        }
    }
    println!("{ran} changed graphs ran, {refused} were refused");
    assert!(ran > 400 && refused > 3000, "{ran} ran, {refused} were refused");
}
