//! The phones that come along: their figures have sources, and single products take what was
//! measured.

#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use troika_device::*;
use troika_graph::{
    ActivationFormat, DType, Op, Subgraph, SubgraphBuilder, WeightDecl, bind_static,
};
use troika_sim::{Board, Soc, VirtualClock, VirtualDevice, figures};

struct NoWeights;

impl WeightSource for NoWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        panic!("{name} was read")
    }

    fn packed(&self, name: &str, _: PackLayout<'_>, _: PackFn<'_>) -> Result<Packed, DeviceError> {
        panic!("{name} was packed")
    }
}

/// A product of `[rows, terms]` with weights of `[outs, terms]` in four bits.
fn product(outs: usize, terms: usize, rows: usize) -> Subgraph {
    let mut b = SubgraphBuilder::new("product", rows);
    let weight = b.weight(WeightDecl::whole("w".into(), outs, terms, DType::Q4_0));
    let x = b.input("x", terms, DType::F32);
    let op = Op::Linear { weight, bias: None, activations: ActivationFormat::F32 };
    let y = b.op("y", op, &[x], outs);
    b.output(y);
    b.finish().unwrap()
}

/// Microseconds from submission to report, and of the run alone.
fn measured(soc: &Soc, processor: &str, shape: (usize, usize, usize), pos: usize) -> (f64, f64) {
    let clock = Arc::new(VirtualClock::new());
    let board = Board::new(soc, clock.clone());
    let device = VirtualDevice::on(&board, "d", soc.processor(Some(processor)).unwrap()).unwrap();
    let (outs, terms, rows) = shape;
    let graph = product(outs, terms, rows);
    let graph = if device.caps().static_shapes { bind_static(&graph, rows) } else { graph };
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

#[test]
fn prints() {
    let soc = Soc::find("sd8gen3-fp16").unwrap();
    for (shape, gpu, npu) in [
        ((4096, 4096, 1), 511.0, 693.0),
        ((28672, 4096, 1), 1903.0, 3886.0),
        ((4096, 14336, 1), 1467.0, 6506.0),
        ((4096, 4096, 128), 7306.0, 912.0),
        ((4096, 4096, 256), 10841.0, 1884.0),
        ((4096, 14336, 256), 35231.0, 23445.0),
    ] {
        let pos = if shape.2 == 1 { 9 } else { 0 };
        let g = measured(&soc, "gpu", shape, pos).0;
        let n = measured(&soc, "npu", shape, pos).1;
        println!("{shape:?} gpu {g} {:.3} npu {n} {:.3}", g / gpu - 1.0, n / npu - 1.0);
    }
    let _ = (BTreeSet::<u8>::new(), figures(""));
}
