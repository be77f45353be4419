//! Single products on a processor of a SoC, and where the strategies would place them. Matches
//! operator tables in papers.

use std::sync::Arc;

use troika::sim::{Board, Soc, VirtualDevice};
use troika_check::{Bench, CaseWeights};
use troika_device::{
    Bindings, Buffer, Clock, CommandList, Device, DeviceError, ForwardBatch, Run, SeqRows,
    Submission, View, Waiting, Weights, Work,
};
use troika_graph::{
    ActivationFormat, DType, Op, ProductForm, Subgraph, SubgraphBuilder, WeightDecl, bind_static,
};
use troika_model::lower::SegmentKind;
use troika_plan::{Phase, PlanDevice, Split, SyncMode};
use troika_solve::Ways;

use super::placed::{Both, on_board};
use super::{Result, SimulateError};
use troika::Error;

/// A product of `rows` activation rows with a four-bit weight matrix of `outs` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Rows of the weight matrix.
    pub outs: usize,
    /// Columns of the weight matrix.
    pub terms: usize,
    /// Rows of the activations.
    pub rows: usize,
    /// Whether the row continues a sequence.
    pub decoding: bool,
    /// Whether the weight matrix is the first operand.
    pub exchanged: bool,
}

/// The cost of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductTime {
    /// From submission to report, in microseconds.
    pub latency_us: f64,
    /// The run alone, in microseconds.
    pub run_us: f64,
    /// Bytes of the weights.
    pub weight_bytes: f64,
}

/// The placement of a product.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductChoice {
    /// `npu-only`, `gpu-only`, `weight-centric`, `activation-centric` or `hybrid`.
    pub strategy: &'static str,
    /// The GPU's share of the divided columns, or of all.
    pub gpu_share: f64,
}

impl ProductShape {
    fn graph(self) -> Result<Subgraph> {
        let mut b = SubgraphBuilder::new("product", self.rows);
        let decl = WeightDecl::whole("w".into(), self.outs, self.terms, DType::Q4_0);
        let weight = b.weight(decl);
        let x = b.input("x", self.terms, DType::F32);
        let activations = ActivationFormat::F32;
        let form = self.exchanged.then_some(ProductForm::Exchanged);
        let op = Op::Linear { weight, bias: None, activations, form };
        let y = b.op("y", op, &[x], self.outs);
        b.output(y);
        b.finish().map_err(|e| SimulateError::Other(Error::Device(e.into())))
    }

    fn forward(self) -> Arc<ForwardBatch> {
        let pos = usize::from(self.decoding);
        let (rows, known_len, tables) = (0..self.rows, pos + self.rows, Vec::new());
        Arc::new(ForwardBatch { seqs: vec![SeqRows { seq: 0, rows, pos, known_len, tables }] })
    }

    /// Runs it on an idle device.
    ///
    /// # Errors
    /// The SoC lacks the processor, or the device refuses the product.
    pub fn measure(self, soc: &Soc, processor: &str, sync: SyncMode) -> Result<ProductTime> {
        let board = Board::new(soc, Arc::default());
        let device = VirtualDevice::on(&board, processor, soc.processor(Some(processor))?)?;
        let clock = board.clock().clone();
        let graph = self.graph()?;
        let fixed = device.caps().static_shapes;
        let graph = if fixed { bind_static(&graph, self.rows) } else { graph };
        let weights = Weights::compiled(&device, &graph, &CaseWeights::default())?;
        let mut bench = Bench::open(&device, 0, clock.clone())?;
        let memory = |cols: usize| {
            let buffer = Buffer::zeroed(self.rows * cols * 4);
            buffer.map(|b| View::whole(&b)).map_err(DeviceError::memory("a product"))
        };
        let (inputs, outputs) = (vec![memory(self.terms)?], vec![memory(self.outs)?]);
        let bindings = Arc::new(Bindings { inputs, states: Vec::new(), outputs });
        let run = Run { weights, bindings, rows: self.rows, forward: self.forward() };
        let tasks = vec![Submission { tag: 0, work: Work::Run(run) }];
        let waiting = match sync {
            SyncMode::Predicted => Waiting::Poll,
            SyncMode::Blocking => Waiting::Block,
        };
        let list = CommandList { tasks, timed: true, waiting, ..CommandList::default() };
        let start = clock.now();
        let times = bench.run(list)?;
        let time = *times.first().ok_or_else(|| DeviceError::Gone(processor.into()))?;
        let us = |d: std::time::Duration| d.as_nanos() as f64 / 1e3;
        let row = DType::Q4_0.row_bytes(self.terms).unwrap_or(0);
        Ok(ProductTime {
            latency_us: us(clock.now() - start),
            run_us: us(time.end - time.start),
            weight_bytes: (row * self.outs) as f64,
        })
    }

    /// Where hetero-tensor would place it, on a SoC with a GPU and an NPU.
    ///
    /// # Errors
    /// The SoC lacks one of them.
    pub fn place(self, soc: &Soc) -> Result<ProductChoice> {
        let devices: Vec<PlanDevice> = on_board(soc)?.0.iter().map(PlanDevice::of).collect();
        let both = Both::of(soc, &devices, self.rows, Ways::All)?;
        let phase = if self.decoding { Phase::Decode } else { Phase::Prefill };
        let placed = both.best(SegmentKind::Ffn, &self.graph()?, phase);
        let (device, split) =
            placed.map_or((both.gpu.name.clone(), None), |placed| (placed.device, placed.split));
        let share = |split: &Split| {
            let all: u32 = split.parts().iter().map(|p| p.share).sum();
            let gpu = split.parts().iter().find(|p| p.device == both.gpu.name);
            gpu.map_or(0.0, |p| f64::from(p.share) / f64::from(all))
        };
        let on_gpu = device == both.gpu.name;
        Ok(match &split {
            None if on_gpu => ProductChoice { strategy: "gpu-only", gpu_share: 1.0 },
            None => ProductChoice { strategy: "npu-only", gpu_share: 0.0 },
            Some(split @ Split::Columns { .. }) => {
                // Columns of a non-standard length are padded, so both kinds of partition apply.
                let standard = both.npu.row_buckets.contains(&self.rows) || self.decoding;
                let strategy = if standard { "weight-centric" } else { "hybrid" };
                ProductChoice { strategy, gpu_share: share(split) }
            }
            Some(Split::Rows { .. }) => {
                ProductChoice { strategy: "activation-centric", gpu_share: 0.0 }
            }
            Some(split) => ProductChoice { strategy: "hybrid", gpu_share: share(split) },
        })
    }
}
