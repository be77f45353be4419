//! The device on Mesa's software adapter, where it is installed: copies, a product, limits, faults.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

#[path = "common/needed.rs"]
mod needed;
#[path = "common/open.rs"]
mod open;

use std::collections::HashMap;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use open::{device, options};
use troika_device::{
    Bindings, Buffer, CommandList, CompileRequest, CopyRows, Device, DeviceError, ForwardBatch,
    PackFn, PackLayout, Packed, RealClock, Run, SpaceId, Submission, View, WeightBytes, WeightData,
    WeightSource, Weights, Work,
};
use troika_gpu::{GpuDevice, GpuOptions, GpuSpec, PipelineStore};
use troika_graph::{ActivationFormat, DType, Op, Subgraph, SubgraphBuilder, WeightDecl};

fn submit(device: &dyn Device, work: Vec<Work>) -> Result<(), DeviceError> {
    let (done, completions) = sync_channel(1);
    let mut queue = device.queue(0, Arc::new(RealClock::new()), done)?;
    let tasks = work.into_iter().map(|work| Submission { tag: 0, work }).collect();
    queue.submit(CommandList { tasks, ..CommandList::default() })?;
    completions.recv().unwrap().outcome
}

fn copy(from: &View, to: &View) -> Work {
    Work::Copy(CopyRows::whole(from.clone(), to.clone()))
}

/// A weight of small numbers, at the same place each time.
struct Matrix(WeightData);

fn matrix(rows: usize, cols: usize) -> Matrix {
    let float = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
    let bytes = (0..rows * cols).flat_map(|i| float(i).to_le_bytes()).collect();
    Matrix(WeightData { dtype: DType::F32, rows, cols, bytes: WeightBytes::owned(bytes) })
}

impl WeightSource for Matrix {
    fn weight(&self, _: &str) -> Result<WeightData, DeviceError> {
        Ok(self.0.clone())
    }

    fn packed(&self, name: &str, _: PackLayout<'_>, _: PackFn<'_>) -> Result<Packed, DeviceError> {
        Err(DeviceError::Weight { name: name.into(), why: "it is asked for as it is".into() })
    }
}

fn product(Matrix(w): &Matrix) -> Subgraph {
    let mut b = SubgraphBuilder::new("product", 8);
    let x = b.input("x", w.cols, DType::F32);
    let weight = b.weight(WeightDecl::whole("w".into(), w.rows, w.cols, DType::F32));
    let activations = ActivationFormat::F32;
    let y = b.op("y", Op::Linear { weight, bias: None, activations, form: None }, &[x], w.rows);
    b.output(y);
    b.finish().unwrap()
}

fn task(weights: Arc<Weights>, x: &View, y: &View, rows: usize) -> Work {
    let bindings = Bindings { inputs: vec![x.clone()], states: vec![], outputs: vec![y.clone()] };
    let (bindings, forward) = (Arc::new(bindings), Arc::new(ForwardBatch::default()));
    Work::Run(Run { weights, bindings, rows, forward })
}

/// The product with rows of ones.
fn run(device: &GpuDevice, w: &Matrix) -> Result<Vec<f32>, DeviceError> {
    let weights = Weights::compiled(device, &product(w), w)?;
    let rows = 3;
    let place = |cols: usize| {
        let buffer = device.allocate(rows * cols * 4).unwrap();
        View::dense(&buffer, 0, (rows, cols * 4)).unwrap()
    };
    let (x, y) = (place(w.0.cols), place(w.0.rows));
    let [from, to] = [w.0.cols, w.0.rows].map(|cols| Buffer::zeroed(rows * cols * 4).unwrap());
    from.write().unwrap().as_mut_slice::<f32>().fill(1.0);
    let run = task(weights, &x, &y, rows);
    let host = View::dense(&from, 0, (rows, w.0.cols * 4)).unwrap();
    let back = View::dense(&to, 0, (rows, w.0.rows * 4)).unwrap();
    submit(device, vec![copy(&host, &x), run, copy(&y, &back)])?;
    let read = to.read().unwrap();
    Ok(read.as_slice::<f32>().to_vec())
}

fn sums(w: &Matrix) -> Vec<f32> {
    let floats: Vec<f32> =
        w.0.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let row: Vec<f32> = floats.chunks(w.0.cols).map(|row| row.iter().sum()).collect();
    row.repeat(3)
}

#[test]
fn rows_are_copied_there_and_back() {
    let Some(device) = device(options()) else { return };
    let (rows, row) = (5, 48);
    let host = Buffer::zeroed(rows * row).unwrap();
    let bytes: Vec<u8> = (0..rows * row).map(|i| i as u8).collect();
    host.write().unwrap().copy_from_slice(&bytes);
    let host = View::dense(&host, 0, (rows, row)).unwrap();
    let own = View::dense(&device.allocate(rows * row).unwrap(), 0, (rows, row)).unwrap();
    let other = View::dense(&device.allocate(rows * row).unwrap(), 0, (rows, row)).unwrap();
    let back = View::dense(&Buffer::zeroed(rows * row).unwrap(), 0, (rows, row)).unwrap();
    // Columns go another way, and within one buffer.
    let columns = |v: &View, range| v.columns(range).unwrap();
    submit(
        &device,
        vec![
            copy(&host, &own),
            copy(&columns(&own, 0..16), &columns(&other, 0..16)),
            copy(&columns(&own, 16..48), &columns(&other, 16..48)),
            copy(&columns(&other, 16..32), &columns(&other, 32..48)),
            copy(&other, &back),
        ],
    )
    .unwrap();
    let read = back.read().unwrap();
    for i in 0..rows {
        let (got, expected) = (read.row::<u8>(i).unwrap(), &bytes[i * row..][..row]);
        assert_eq!(got[..32], expected[..32]);
        assert_eq!(got[32..], expected[16..32]);
    }
    // Unlike shapes, and words that are torn.
    let wrong = submit(&device, vec![copy(&columns(&host, 0..8), &columns(&own, 0..16))]);
    assert!(wrong.is_err());
    let torn = submit(&device, vec![copy(&columns(&host, 1..8), &columns(&own, 1..8))]);
    assert!(torn.unwrap_err().to_string().contains("words of 4 bytes"));
}

/// The largest numbers of a row with their columns, as plain code finds them.
fn largest(row: &[f32], kept: usize) -> Vec<(f32, u32)> {
    let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
    let mut all: Vec<(f32, u32)> = row.iter().map(|x| number(*x)).zip(0..).collect();
    all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
    all.truncate(kept);
    all
}

#[test]
fn copies_pick_the_largest_numbers_of_rows() {
    let Some(device) = device(options()) else { return };
    let most = device.caps().top_k;
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0, 0.0, f32::MAX, f32::MIN, 1e-40];
    for (rows, cols, gap, kept) in [
        (1, 1, 0, 1),
        (2, 3, 1, 3),
        (1, 2047, 0, most),
        (3, 2048, 0, 2),
        (2, 2049, 5, most),
        (5, 9001, 0, 40),
        (1, 152_000, 3, most),
        (2, 300_001, 0, 1),
    ] {
        for kind in 0..4 {
            let mut number = || match kind {
                // All differ, many are equal, some are no numbers, nothing else.
                0 => random() as f32 / 1e3 - 8e3,
                1 => (random() % 7) as f32 - 3.0,
                2 if random() % 3 > 0 => odd[random() as usize % odd.len()],
                2 => random() as f32 - 8e6,
                _ => [f32::NAN, f32::NEG_INFINITY][random() as usize % 2],
            };
            let stride = cols + gap;
            let numbers: Vec<f32> = (0..1 + rows * stride).map(|_| number()).collect();
            let host = Buffer::zeroed(numbers.len() * 4).unwrap();
            host.write().unwrap().as_mut_slice::<f32>().copy_from_slice(&numbers);
            let own = device.allocate(numbers.len() * 4).unwrap();
            // The destination has gaps, too, and what lies there stays.
            let to_stride = 2 * kept + 3;
            let to = Buffer::zeroed(rows * to_stride * 4).unwrap();
            to.write().unwrap().as_mut_slice::<u32>().fill(77);
            let from = View::new(&own, 4, (rows, cols * 4), stride * 4).unwrap();
            let into = View::new(&to, 0, (rows, kept * 8), to_stride * 4).unwrap();
            let pick = Work::Copy(CopyRows { from, to: into, top_k: Some(kept) });
            let upload = copy(&View::whole(&host), &View::whole(&own));
            // Twice: what was prepared serves again.
            submit(&device, vec![upload, pick.clone(), pick]).unwrap();
            let read = to.read().unwrap();
            for (r, got) in read.as_slice::<u32>().chunks(to_stride).enumerate() {
                let expected = largest(&numbers[1 + r * stride..][..cols], kept);
                for (i, (x, col)) in expected.into_iter().enumerate() {
                    let found = (f32::from_bits(got[i]), got[kept + i]);
                    assert_eq!(found, (x, col), "{cols} {kept} {kind}: row {r}, number {i}");
                }
                assert!(got[2 * kept..].iter().all(|gap| *gap == 77), "a gap between rows");
            }
        }
    }
    // More than there are, more than it picks, and room for other numbers.
    let own = device.allocate(400).unwrap();
    let to = Buffer::zeroed(8 * 200).unwrap();
    for (kept, room, says) in [
        (0, 0, "0 largest"),
        (101, 101, "of 100"),
        (most + 1, most + 1, "largest"),
        (3, 4, "go to"),
    ] {
        let into = View::dense(&to, 0, (1, room * 8)).unwrap();
        let pick = CopyRows { from: View::whole(&own), to: into, top_k: Some(kept) };
        let why = submit(&device, vec![Work::Copy(pick)]).unwrap_err().to_string();
        assert!(why.contains("device gpu") && why.contains(says), "{why}");
    }
}

#[test]
fn large_copies_take_turns() {
    let Some(device) = device(options()) else { return };
    let len = 70 << 20;
    let host = Buffer::zeroed(len).unwrap();
    for (i, x) in host.write().unwrap().as_mut_slice::<u32>().iter_mut().enumerate() {
        *x = i as u32;
    }
    let own = device.allocate(len).unwrap();
    let back = Buffer::zeroed(len).unwrap();
    let whole = View::whole;
    submit(&device, vec![copy(&whole(&host), &whole(&own)), copy(&whole(&own), &whole(&back))])
        .unwrap();
    assert!(*host.read().unwrap() == *back.read().unwrap());
}

#[test]
fn weights_beyond_the_limit_of_bindings_are_split() {
    let w = matrix(700, 64);
    let expected = sums(&w);
    for binding_limit in [None, Some(64 << 10)] {
        let Some(device) = device(GpuOptions { binding_limit, ..options() }) else { return };
        let got = run(&device, &w).unwrap();
        assert_eq!(got.len(), expected.len());
        for (a, b) in got.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}

#[test]
fn weights_stay_within_the_memory_that_is_given() {
    let w = matrix(700, 64);
    for memory in [0, 1, 700 * 64 * 2] {
        let Some(device) = device(GpuOptions { memory: Some(memory), ..options() }) else { return };
        let why = run(&device, &w).unwrap_err();
        assert!(matches!(why, DeviceError::Memory { .. }), "{why}");
        assert!(why.to_string().contains("device gpu") && !why.to_string().contains('\n'), "{why}");
    }
}

#[test]
fn weights_are_freed_and_shared() {
    let Some(device) = device(options()) else { return };
    let w = matrix(700, 64);
    let first = Weights::compiled(&device, &product(&w), &w).unwrap();
    let held = device.held_bytes();
    let second = Weights::compiled(&device, &product(&w), &w).unwrap();
    assert_eq!(device.held_bytes(), held);
    drop((first, second));
    assert!(device.held_bytes() + 700 * 64 * 4 <= held);
}

#[test]
fn a_lost_device_is_an_error_by_name() {
    let Some(device) = device(options()) else { return };
    let w = matrix(7, 64);
    run(&device, &w).unwrap();
    device.lose();
    let why = run(&device, &w).unwrap_err().to_string();
    assert!(why.contains("device gpu") && !why.contains('\n'), "{why}");
}

#[test]
fn kernels_work_in_the_memory_of_the_host() {
    let Some(device) = device(GpuOptions { own_memory: false, ..options() }) else { return };
    assert_eq!(device.caps().spaces, [SpaceId::HOST]);
    let w = matrix(7, 64);
    let weights = Weights::compiled(&device, &product(&w), &w).unwrap();
    let held = device.held_bytes();
    // Rows at odd places of buffers, of which later ones may get the addresses of earlier ones.
    for round in 0..20 {
        let (rows, skipped) = (1 + round % 3, 4 * round);
        let [x, y] = [w.0.cols, w.0.rows].map(|cols| {
            let buffer = Buffer::zeroed(skipped + rows * cols * 4).unwrap();
            View::dense(&buffer, skipped, (rows, cols * 4)).unwrap()
        });
        x.write().unwrap().as_mut_slice::<f32>().unwrap().fill(round as f32);
        let run = task(weights.clone(), &x, &y, rows);
        let twice = || vec![run.clone(), run.clone()];
        // Whoever reads what kernels write is in their way.
        let read = y.read().unwrap();
        assert!(submit(&device, twice()).unwrap_err().to_string().contains("two tasks at once"));
        drop(read);
        submit(&device, twice()).unwrap();
        let expected: Vec<f32> = sums(&w).iter().map(|sum| round as f32 * sum).collect();
        let got = y.read().unwrap();
        for (got, expected) in got.as_slice::<f32>().unwrap().iter().zip(&expected) {
            assert!((got - expected).abs() < 1e-3, "{got} {expected}");
        }
        // Nobody holds the rows any longer.
        x.write().unwrap();
    }
    assert_eq!(device.held_bytes(), held);
}

#[test]
fn memory_of_the_host_outlives_what_kernels_are_bound_to() {
    let options = || GpuOptions { own_memory: false, ..options() };
    let Some(first) = device(options()) else { return };
    let buffer = Buffer::zeroed(1 << 20).unwrap();
    let rows = View::dense(&buffer, 0, (4, 64 * 4)).unwrap();
    let y = View::dense(&Buffer::zeroed(4 * 7 * 4).unwrap(), 0, (4, 7 * 4)).unwrap();
    rows.write().unwrap().as_mut_slice::<f32>().unwrap().fill(1.0);
    // Two devices take the same memory.
    let devices = [first, device(options()).unwrap()];
    for device in &devices {
        let w = matrix(7, 64);
        let weights = Weights::compiled(device, &product(&w), &w).unwrap();
        y.write().unwrap().as_mut_slice::<f32>().unwrap().fill(0.0);
        submit(device, vec![task(weights, &rows, &y, 4)]).unwrap();
        let got = y.read().unwrap();
        let each = got.as_slice::<f32>().unwrap().chunks(w.0.rows);
        assert!(each.flatten().zip(sums(&w)).all(|(a, b)| (a - b).abs() < 1e-3));
    }
    drop((buffer, rows));
    for device in &devices {
        let w = matrix(7, 64);
        let expected = sums(&w);
        let got = run(device, &w).unwrap();
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3));
    }
}

/// What is kept, by name.
#[derive(Debug, Default)]
struct Kept(Mutex<HashMap<String, Vec<u8>>>);

impl PipelineStore for Kept {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(name).cloned()
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        self.0.lock().unwrap().insert(name.into(), bytes.to_vec());
    }
}

#[test]
fn what_the_driver_compiled_is_kept() {
    let kept = Arc::new(Kept::default());
    let options = || GpuOptions { kept: Some(kept.clone()), ..options() };
    let Some(first) = device(options()) else { return };
    let w = matrix(7, 64);
    let expected = run(&first, &w).unwrap();
    let (name, bytes) = kept.0.lock().unwrap().clone().into_iter().next().unwrap();
    assert!(
        name.contains(&needed::adapter()) && name.contains(env!("CARGO_PKG_VERSION")),
        "{name}"
    );
    // Whole, and what no driver wrote.
    for kept_bytes in [bytes.clone(), b"damage".to_vec(), bytes[..bytes.len() / 2].to_vec()] {
        kept.put(&name, &kept_bytes);
        let again = device(options()).unwrap();
        assert_eq!(run(&again, &w).unwrap(), expected);
        assert_eq!(kept.get(&name).unwrap().len(), bytes.len());
    }
}

#[test]
fn kernels_are_compiled_before_they_run() {
    let Some(device) = device(options()) else { return };
    let w = matrix(7, 64);
    let graph = product(&w);
    let told = Mutex::new(Vec::new());
    let go_on = |done| {
        told.lock().unwrap().push(done);
        true
    };
    let request =
        CompileRequest { graphs: &[&graph, &graph], weights: &w, report_progress: &go_on };
    assert!(device.compile(&request).iter().all(Result::is_ok));
    let told = told.into_inner().unwrap();
    assert!(told.is_sorted() && told.last() == Some(&2), "{told:?}");
    // Whoever stops it gets nothing.
    let other = product(&matrix(7, 96));
    let request = CompileRequest { graphs: &[&other], weights: &w, report_progress: &|_| false };
    assert!(matches!(device.compile(&request)[..], [Err(DeviceError::Cancelled)]));
}

#[test]
fn adapters_that_are_not_there_are_named() {
    let open =
        |spec| GpuDevice::open(GpuOptions { spec, ..options() }).err().map(|e| e.to_string());
    for spec in [GpuSpec::Number(77), GpuSpec::Named("no such adapter".into())] {
        let why = open(spec).unwrap();
        assert!(why.contains("no GPU adapter") && !why.contains('\n'), "{why}");
    }
}
