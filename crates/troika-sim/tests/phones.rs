//! The built-in phones: their figures have sources, and single products take as long as measured.

#![allow(clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use troika_device::*;
use troika_graph::{
    ActivationFormat, DType, Op, ProductForm, Subgraph, SubgraphBuilder, WeightDecl, bind_static,
};
use troika_sim::{Board, Soc, SourcedFigure, VirtualClock, VirtualDevice, figures};

struct NoWeights;

impl WeightSource for NoWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        panic!("{name} was read")
    }

    fn packed(&self, name: &str, _: PackLayout<'_>, _: PackFn<'_>) -> Result<Packed, DeviceError> {
        panic!("{name} was packed")
    }
}

/// A product of `[rows, terms]` with four-bit weights of `[outs, terms]`.
fn product((outs, terms, rows): (usize, usize, usize), exchanged: bool) -> Subgraph {
    let mut b = SubgraphBuilder::new("product", rows);
    let weight = b.weight(WeightDecl::whole("w".into(), outs, terms, DType::Q4_0));
    let x = b.input("x", terms, DType::F32);
    let form = exchanged.then_some(ProductForm::Exchanged);
    let op = Op::Linear { weight, bias: None, activations: ActivationFormat::F32, form };
    let y = b.op("y", op, &[x], outs);
    b.output(y);
    b.finish().unwrap()
}

/// Microseconds from submission to report, and of the run alone.
fn measured(soc: &Soc, processor: &str, shape: (usize, usize, usize), pos: usize) -> (f64, f64) {
    let exchanged = processor == "npu" && shape.2 < shape.0;
    run(soc, processor, &product(shape, exchanged), shape, pos)
}

fn run(
    soc: &Soc,
    processor: &str,
    graph: &Subgraph,
    (outs, terms, rows): (usize, usize, usize),
    pos: usize,
) -> (f64, f64) {
    let clock = Arc::new(VirtualClock::new());
    let board = Board::new(soc, clock.clone());
    let device = VirtualDevice::on(&board, "d", soc.processor(Some(processor)).unwrap()).unwrap();
    let fixed = device.caps().static_shapes;
    let graph = if fixed { bind_static(graph, rows) } else { graph.clone() };
    let weights = Weights::compiled(&device, &graph, &NoWeights).unwrap();
    let (send, done) = sync_channel(2);
    let mut queue = device.queue(0, clock.clone(), send).unwrap();
    let memory = |cols: usize, width| View::whole(&Buffer::zeroed(rows * cols * width).unwrap());
    let bindings =
        Bindings { inputs: vec![memory(terms, 4)], states: vec![], outputs: vec![memory(outs, 4)] };
    let seqs = vec![SeqRows { seq: 0, rows: 0..rows, pos, known_len: pos + rows, tables: vec![] }];
    let forward = Arc::new(ForwardBatch { seqs });
    let run = Run { weights, bindings: Arc::new(bindings), rows, forward };
    let tasks = vec![Submission { tag: 0, work: Work::Run(run) }];
    let list =
        CommandList { tasks, timed: true, waiting: Waiting::Block, ..CommandList::default() };
    let start = clock.now();
    queue.submit(list).unwrap();
    let done = loop {
        match done.try_recv() {
            Ok(done) => break done,
            Err(_) => clock.wait(clock.next_event().unwrap() - clock.now()),
        }
    };
    done.outcome.unwrap();
    let time = done.times[0];
    let us = |d: Duration| d.as_nanos() as f64 / 1e3;
    (us(clock.now() - start), us(time.end - time.start))
}

/// Table 3 of HeteroInfer: rows and columns of the weights, rows of the activations; GPU and NPU.
const TABLE_3: [((usize, usize, usize), f64, f64); 6] = [
    ((4096, 4096, 1), 511.0, 693.0),
    ((28672, 4096, 1), 1903.0, 3886.0),
    ((4096, 14336, 1), 1467.0, 6506.0),
    ((4096, 4096, 128), 7306.0, 912.0),
    ((4096, 4096, 256), 10841.0, 1884.0),
    ((4096, 14336, 256), 35231.0, 23445.0),
];

#[test]
fn single_products_take_what_was_measured() {
    let soc = Soc::find("sd8gen3-fp16").unwrap();
    let mut errors = [Vec::new(), Vec::new()];
    for (shape, gpu, npu) in TABLE_3 {
        let pos = usize::from(shape.2 == 1);
        // The paper's GPU times include a waiting call; its NPU times are of the run alone.
        let ours = [measured(&soc, "gpu", shape, pos).0, measured(&soc, "npu", shape, pos).1];
        for ((errors, ours), printed) in errors.iter_mut().zip(ours).zip([gpu, npu]) {
            errors.push((ours / printed - 1.0).abs());
        }
    }
    for errors in errors {
        assert!(errors.iter().all(|e| *e <= 0.2), "{errors:?}");
        assert!(errors.iter().sum::<f64>() / 6.0 <= 0.1, "{errors:?}");
    }
}

#[test]
fn products_take_what_their_order_costs() {
    let soc = Soc::find("sd8gen3-fp16").unwrap();
    let us = |on, rows, exchanged| {
        let shape = (14336, 4096, rows);
        run(&soc, on, &product(shape, exchanged), shape, 0).1
    };
    let ratio = |on, rows| us(on, rows, false) / us(on, rows, true);
    let ratios = [32, 4096, 14336, 16384].map(|rows| ratio("npu", rows));
    assert!(ratios[0] > 10.0 && ratios[1] > 1.0 && ratios[3] < 1.0, "{ratios:?}");
    assert_eq!((ratios[2], ratio("gpu", 32)), (1.0, 1.0), "as many rows as outputs; a GPU");
}

/// Few rows are multiplied without expanding the weights, which are read once per four rows.
#[test]
fn a_gpu_reads_weights_once_for_a_few_rows() {
    let mut soc = Soc::find("sd8gen3-fp16").unwrap();
    let gpu = |soc: &Soc, rows| measured(soc, "gpu", (4096, 4096, rows), 0).1;
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.05;
    let at_once = [1, 4, 5, 16, 128].map(|rows| gpu(&soc, rows));
    assert!(near(at_once[1], at_once[0]) && near(at_once[2], 2.0 * at_once[0]), "{at_once:?}");
    assert!(near(at_once[3], 4.0 * at_once[0]), "{at_once:?}");
    soc.processors.iter_mut().for_each(|p| p.products.rows_at_once = 1);
    let one_by_one = [4, 128].map(|rows| gpu(&soc, rows));
    assert!(near(one_by_one[0], 4.0 * at_once[0]), "{one_by_one:?}");
    assert_eq!(one_by_one[1], at_once[4], "many rows are worth expanding weights for");
}

#[test]
fn times_are_the_same_to_the_nanosecond() {
    let soc = Soc::find("sd8elite-fp16").unwrap();
    let run = || measured(&soc, "npu", (4096, 14336, 77), 0);
    assert_eq!(run(), run());
}

/// Targets for choosing constants, with the number of values each provides.
const CALIBRATION: [(&str, usize); 9] = [
    ("H01", 6),
    ("H02", 6),
    ("H03", 1),
    ("H04", 1),
    ("H05", 4),
    ("H06", 3),
    ("H07", 2),
    ("H09", 2),
    ("H29", 1),
];

fn read(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../socs");
    std::fs::read_to_string(dir.join(format!("{name}.toml"))).unwrap()
}

/// What is wrong with a figure's source.
fn fault(figure: &SourcedFigure) -> Option<String> {
    let place = &figure.place;
    let Some(from) = &figure.from else { return Some(format!("{place} has no source")) };
    if let Some(why) = from.strip_prefix("assumed: ") {
        let sentence = why.split_whitespace().count() >= 4;
        return (!sentence).then(|| format!("{place} is assumed without a sentence"));
    }
    let known = CALIBRATION.iter().any(|(id, _)| id == from);
    (!known).then(|| format!("{place} is from {from}, which no constant may be chosen by"))
}

/// Every figure has a source, none is a held-out target, and there are no more chosen constants
/// than values to choose them by.
#[test]
fn figures_have_sources_and_none_is_held_out() {
    for name in Soc::names() {
        let all = figures(&read(name)).unwrap();
        assert!(all.len() > 20, "{name}: {}", all.len());
        for figure in &all {
            assert_eq!(fault(figure), None, "{name}");
        }
    }
    let free = |f: &SourcedFigure| f.from.as_ref().is_some_and(|s| s.starts_with('H'));
    let base: Vec<SourcedFigure> = figures(&read("sd8gen3-fp16")).unwrap();
    let chosen: Vec<&SourcedFigure> = base.iter().filter(|f| free(f)).collect();
    let sources: BTreeSet<&str> = chosen.iter().filter_map(|f| f.from.as_deref()).collect();
    let numbers: usize =
        CALIBRATION.iter().filter(|(id, _)| sources.contains(id)).map(|c| c.1).sum();
    assert!(chosen.len() <= numbers, "{} constants of {numbers} numbers", chosen.len());
}

/// The 8 Elite is the 8 Gen 3 with one factor (H29) on all compute rates.
#[test]
fn the_other_phone_has_one_constant_of_its_own() {
    let number =
        |f: &SourcedFigure| f.value.as_float().or(f.value.as_integer().map(|n| n as f64)).unwrap();
    let [base, elite] = ["sd8gen3-fp16", "sd8elite-fp16"].map(|n| figures(&read(n)).unwrap());
    assert_eq!(base.len(), elite.len());
    let own = base.iter().zip(&elite).filter(|(a, b)| a != b);
    let own: Vec<(&SourcedFigure, &SourcedFigure)> = own.collect();
    assert_eq!(own.len(), 4);
    for (a, b) in own {
        assert_eq!((&a.place, b.from.as_deref()), (&b.place, Some("H29")));
        let factor = number(b) / number(a);
        assert!((factor - 1.105).abs() < 1e-3, "{}: {factor}", a.place);
    }
}

#[test]
fn figures_without_a_proper_source_are_found() {
    let text = "[[processor]]\nname = \"p\"\na = 3\nb = { value = 4.5, from = \"H12\" }\n\
                c = { value = [1, 2], from = \"assumed: yes\" }\n\
                d = { value = 1, from = \"H05\" }\n\
                e = { value = 1, from = \"assumed: it is so in all of them\" }\nf = true\n";
    let faults: Vec<Option<String>> = figures(text).unwrap().iter().map(fault).collect();
    let found: Vec<&str> = faults.iter().flatten().map(|f| f.as_str()).collect();
    assert_eq!(
        found,
        [
            "processor.p.a has no source",
            "processor.p.b is from H12, which no constant may be chosen by",
            "processor.p.c is assumed without a sentence",
        ]
    );
    assert_eq!(faults.len(), 5);
}
