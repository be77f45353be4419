//! Code and weights are separate: graphs of one shape share an executable, each with its weights.

use std::sync::Arc;

use troika_device::*;
use troika_graph::*;

use super::store::{Store, linear};
use super::{Bench, floats, read, task};

/// `y = norm(x) * w^T + x` and `z = y * v^T` on the given weights: one packed with a vector in
/// front of it, and one as stored.
fn layer(name: &str, store: &Store) -> Subgraph {
    let mut b = SubgraphBuilder::new(name, 4);
    let declare = |what: &str| {
        let data = store.weight(&format!("{name} {what}")).unwrap();
        WeightDecl::whole(
            format!("{name} {what}").as_str().into(),
            data.rows,
            data.cols,
            data.dtype,
        )
    };
    let (norm, w, v) = (declare("norm"), declare("w"), declare("v"));
    let (norm, w, v) = (b.weight(norm), b.weight(w), b.weight(v));
    let x = b.input(&format!("{name} x"), 32, DType::F32);
    let op = Op::RmsNorm { weight: Some(norm), eps: 1e-5, offset: 0.0, group: 32 };
    let n = b.op("n", op, &[x], 32);
    let y = b.op("y", linear(w, ActivationFormat::INT8), &[n], 32);
    let y = b.op("sum", Op::Add, &[y, x], 32);
    let z = b.op("z", linear(v, ActivationFormat::F32), &[y], 16);
    b.output(z);
    b.finish().unwrap()
}

fn weights(names: &[&str]) -> Store {
    let mut store = Store::default();
    for (n, name) in names.iter().enumerate() {
        let number = move |i: usize| ((i * 7 + n * 5) % 11) as f32 * 0.1 - 0.4;
        store.add(&format!("{name} norm"), 1, 32, number);
        let row = DType::Q8_0.row_bytes(32).unwrap();
        let bytes: Vec<u8> = (0..32 * row).map(|b| ((b * 29 + n) % 60) as u8).collect();
        store.add_as(&format!("{name} w"), DType::Q8_0, (32, 32), &bytes);
        store.add(&format!("{name} v"), 16, 32, number);
    }
    store
}

/// Two graphs on the same memory: cached bindings serve both, each with its own weights. Weights
/// that are dropped and loaded again give the same bits.
#[test]
fn graphs_of_one_shape_run_one_executable_with_their_own_weights() {
    let mut bench = Bench::new("cpu", 2);
    let store = weights(&["a", "b"]);
    let graphs = ["a", "b"].map(|name| layer(name, &store));
    let input: Vec<f32> = (0..4 * 32).map(|i| (i % 13) as f32 * 0.2 - 1.0).collect();
    let (x, out) = (floats(&input), floats(&[0.0; 4 * 16]));
    let alone = graphs.each_ref().map(|g| {
        let weights = Weights::compiled(&bench.device, g, &store).unwrap();
        bench.run(vec![task(&weights, 4, &[&x], &[&out])]).outcome.unwrap();
        read(&out)
    });
    assert!(alone[0] != alone[1] && alone[0].iter().all(|v| v.is_finite()));
    let code = Executable::compiled(&bench.device, &graphs[0], &store).unwrap();
    let load = |g| bench.device.load(&code, g, &store).unwrap();
    let mut loaded = graphs.each_ref().map(load);
    assert!(loaded.iter().all(|w| Arc::ptr_eq(w.executable(), &code)));
    let first = task(&loaded[0], 4, &[&x], &[&out]);
    for i in [0, 1, 0, 1, 1, 0] {
        let run = Run { weights: loaded[i].clone(), ..first.clone() };
        bench.run(vec![run]).outcome.unwrap();
        assert_eq!(read(&out), alone[i]);
    }
    drop(first);
    for i in [0, 1] {
        let dropped = Arc::downgrade(&loaded[i]);
        loaded[i] = loaded[1 - i].clone();
        assert!(dropped.upgrade().is_none(), "nobody else holds weights");
        loaded[i] = bench.device.load(&code, &graphs[i], &store).unwrap();
        bench.run(vec![task(&loaded[i], 4, &[&x], &[&out])]).outcome.unwrap();
        assert_eq!(read(&out), alone[i], "loaded again");
    }
    // Errors of a run use the names of its own graph.
    let e = bench.run(vec![task(&loaded[1], 4, &[&out], &[&x])]).outcome.unwrap_err().to_string();
    assert!(e.contains("task b") && e.contains("value b x"), "{e}");
}

/// Kernels rely on the compiled shapes: weights of other shapes are refused.
#[test]
fn weights_of_another_shape_device_or_form_are_refused() {
    let bench = Bench::new("cpu", 1);
    let store = weights(&["a", "b"]);
    let (a, b) = (layer("a", &store), layer("b", &store));
    let code = Executable::compiled(&bench.device, &a, &store).unwrap();
    type Edit = fn(&mut Subgraph);
    let edits: [Edit; 5] = [
        |g| g.weights[2].dtype = DType::F16,
        |g| g.values.iter_mut().for_each(|v| v.shape.0[0] = Dim::Rows(8)),
        |g| g.outputs.insert(0, ValueId(2)),
        |g| {
            g.nodes.iter_mut().for_each(|n| {
                if n.op == Op::Add {
                    n.op = Op::Gate(Activation::Silu)
                }
            })
        },
        |g| g.weights[1].dtype = DType::Q4_0,
    ];
    for (i, edit) in edits.into_iter().enumerate() {
        let mut other = b.clone();
        edit(&mut other);
        let e = bench.device.load(&code, &other, &store).unwrap_err().to_string();
        assert!(e.contains("task b") && e.contains("not of the shape of a"), "{i}: {e}");
    }
    bench.device.load(&code, &b, &store).unwrap();
    let other = Bench::new("other", 1);
    let e = other.device.load(&code, &b, &store).unwrap_err().to_string();
    assert!(e.contains("task b") && e.contains("is none of device other"), "{e}");
    // The right shape, but the store has another one, or none.
    let mut short = store.clone();
    short.edit("b v", |data| data.rows = 15);
    let mut missing = b.clone();
    missing.weights[2].name = "c v".into();
    for (graph, store, says) in [(&b, &short, "b v"), (&missing, &store, "c v")] {
        let e = bench.device.load(&code, graph, store).unwrap_err();
        let DeviceError::Weight { name, .. } = &e else { panic!("{e}") };
        assert_eq!(name, says);
    }
}

#[test]
fn whole_numbers_that_the_kernels_do_not_make_are_refused() {
    let bench = Bench::new("cpu", 1);
    let store = weights(&["a"]);
    let mut graph = layer("a", &store);
    for node in &mut graph.nodes {
        if let Op::Linear { activations: activations @ ActivationFormat::Int(_), .. } = &mut node.op
        {
            *activations = "int8:row".parse().unwrap();
        }
    }
    let e = Executable::compiled(&bench.device, &graph, &store).unwrap_err().to_string();
    assert!(e.contains("op linear of a: its activations are int8:row, the kernels make"), "{e}");
}

/// Code of a slice serves other slices of the same shape, each with its own rows.
#[test]
fn slices_of_one_shape_share_code() {
    let mut bench = Bench::new("cpu", 1);
    let mut store = Store::default();
    let whole = store.add("w", 32, 4, |i| (i / 4) as f32);
    let part = |first: usize| {
        let mut b = SubgraphBuilder::new("part", 2);
        let slice = Some(WeightSlice::Rows { first, of: 32 });
        let weight = b.weight(WeightDecl { rows: 8, slice, ..whole.clone() });
        let x = b.input("x", 4, DType::F32);
        let y = b.op("y", linear(weight, ActivationFormat::F32), &[x], 8);
        b.output(y);
        b.finish().unwrap()
    };
    let code = Executable::compiled(&bench.device, &part(0), &store).unwrap();
    let (x, out) = (floats(&[0.25; 4]), floats(&[0.0; 8]));
    for first in [0, 8, 21] {
        let weights = bench.device.load(&code, &part(first), &store).unwrap();
        bench.run(vec![task(&weights, 1, &[&x], &[&out])]).outcome.unwrap();
        let rows: Vec<f32> = (first..first + 8).map(|r| r as f32).collect();
        assert_eq!(read(&out), rows);
    }
}
