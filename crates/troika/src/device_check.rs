//! Checks a device's kernels against the CPU's, on seeded values of odd sizes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use troika_device::{
    Bindings, Buffer, CommandList, CopyRows, Device, DeviceError, ForwardBatch, PackFn, PackLayout,
    Packed, PageTable, RealClock, Run, SeqRows, SpaceId, Submission, View, WeightBytes, WeightData,
    WeightSource, Weights, Work, ZeroedBytes,
};
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, Dim, Experts, KvAppend, Op, Rope, RopeFreqs,
    RopeStyle, Router, Score, Shape, Subgraph, SubgraphBuilder, ValueId, WeightDecl, WeightRef,
};

use crate::devices::open_devices;
use crate::{DeviceOptions, DeviceSpec};

/// How a kernel of a device compares with the CPU's.
#[derive(Clone, Debug)]
pub struct CheckedKernel {
    /// The op, with the type of its weights.
    pub name: String,
    /// The largest difference, relative to the largest result; of several numbers of rows.
    pub error: Option<f32>,
    /// Why it is not used: the device refuses it, fails, or computes something else.
    pub fault: Option<String>,
}

/// The largest difference that is not a fault: sums of f32 in another order give less.
const MOST: f32 = 1e-4;
/// Numbers of rows: one, a few, and more than a tile.
const ROWS: [usize; 3] = [1, 5, 67];
/// The most rows of a graph.
const MOST_ROWS: usize = 96;
/// Positions of a cache.
const POSITIONS: usize = 128;
const PAGE: usize = 16;

/// Compares each kernel of a device with the CPU's.
///
/// # Errors
/// The CPU does not compute a case, or a queue does not start.
pub fn check_device(device: &dyn Device) -> Result<Vec<CheckedKernel>, DeviceError> {
    let cpu = DeviceSpec::default();
    let cpu = DeviceOptions { threads: Some(1), devices: vec![cpu], ..DeviceOptions::default() };
    let reference = open_devices(&cpu)?.pop();
    let reference = reference.ok_or_else(|| DeviceError::Gone("cpu".into()))?;
    cases()?.iter().map(|case| case.check(device, &*reference)).collect()
}

/// A graph with its weights.
struct Case {
    name: String,
    graph: Subgraph,
    weights: CaseWeights,
}

/// Weights in memory.
#[derive(Default)]
struct CaseWeights(BTreeMap<String, WeightData>);

fn lacks(name: &str) -> DeviceError {
    DeviceError::Weight { name: name.into(), why: "is not there".into() }
}

impl WeightSource for CaseWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        self.0.get(name).cloned().ok_or_else(|| lacks(name))
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = self.weight(name)?;
        let len = layout.bytes(data.rows).ok_or_else(|| lacks(name))?;
        let mut bytes = ZeroedBytes::new(len).map_err(DeviceError::memory(name))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)) })
    }
}

/// Seeded numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }
}

struct Build {
    b: SubgraphBuilder,
    weights: CaseWeights,
    numbers: Numbers,
}

impl Build {
    fn new(name: &str) -> Build {
        let seed = name.bytes().fold(7, |seed: u64, b| seed.wrapping_mul(31) + u64::from(b));
        let (b, weights) = (SubgraphBuilder::new(name, MOST_ROWS), CaseWeights::default());
        Build { b, weights, numbers: Numbers(seed) }
    }

    /// A weight of random numbers; of blocks, random bytes that give small ones.
    fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> WeightRef {
        let name = format!("w{}", self.weights.0.len());
        let len = dtype.row_bytes(cols).unwrap_or(0) * rows;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            match dtype {
                DType::F32 => bytes.extend(self.numbers.float().to_le_bytes()),
                DType::F16 => bytes.extend(half::f16::from_f32(self.numbers.float()).to_le_bytes()),
                DType::BF16 => {
                    bytes.extend(half::bf16::from_f32(self.numbers.float()).to_le_bytes());
                }
                DType::MXFP4 if bytes.len() % 17 == 0 => bytes.push(124),
                DType::MXFP4 => bytes.push(self.numbers.next() as u8),
                _ => bytes.push((self.numbers.next() % 40) as u8),
            }
        }
        let data = WeightData { dtype, rows, cols, bytes: WeightBytes::owned(bytes) };
        self.weights.0.insert(name.clone(), data);
        self.b.weight(WeightDecl::whole(name.into(), rows, cols, dtype))
    }

    fn floats(&mut self, cols: usize) -> ValueId {
        self.b.input("x", cols, DType::F32)
    }

    fn op(
        mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        cols: usize,
    ) -> Result<Case, DeviceError> {
        let y = self.b.op("y", op, inputs, cols);
        self.b.output(y);
        self.done(name)
    }

    fn done(self, name: &str) -> Result<Case, DeviceError> {
        Ok(Case { name: name.into(), graph: self.b.finish()?, weights: self.weights })
    }
}

fn cases() -> Result<Vec<Case>, DeviceError> {
    let mut all = Vec::new();
    for dtype in DType::WEIGHTS {
        let name = format!("linear of {dtype}");
        let mut b = Build::new(&name);
        let (n, k) = (53, if dtype.block_len() == 1 { 97 } else { 512 });
        let (weight, bias) = (b.weight(dtype, n, k), b.weight(DType::F32, 1, n));
        let x = b.floats(k);
        let activations = ActivationFormat::F32;
        all.push(b.op(&name, Op::Linear { weight, bias: Some(bias), activations }, &[x], n)?);
        let name = format!("embed of {dtype}");
        let mut b = Build::new(&name);
        let table = b.weight(dtype, POSITIONS, k);
        let ids = b.b.input("ids", 1, DType::I32);
        all.push(b.op(&name, Op::Embed { table, scale: 1.5 }, &[ids], k)?);
        let name = format!("experts of {dtype}");
        let mut b = Build::new(&name);
        let k = if dtype.block_len() == 1 { 72 } else { 256 };
        let mut list = |rows, cols| (0..5).map(|_| b.weight(dtype, rows, cols)).collect::<Vec<_>>();
        let experts = Experts {
            gate: list(k, k),
            up: list(k, k),
            down: list(k, k),
            gate_bias: vec![],
            up_bias: vec![],
            down_bias: vec![],
            act: Activation::Silu,
            activations: ActivationFormat::F32,
        };
        let x = b.floats(k);
        let logits = b.b.input("logits", 5, DType::F32);
        let router = Router {
            experts: 5,
            top_k: 2,
            score: Score::Softmax,
            normalize: true,
            scale: 1.0,
            groups: None,
        };
        let (ids, shares) = b.b.router(router, logits);
        all.push(b.op(&name, Op::Experts(experts), &[x, ids, shares], k)?);
    }
    for (name, act) in [
        ("gate with silu", Activation::Silu),
        ("gate with gelu", Activation::Gelu),
        ("gate with gelu by tanh", Activation::GeluTanh),
        ("gate with relu", Activation::Relu),
        ("clamped gate", Activation::ClampedSwiglu { alpha: 1.7, limit: 0.5 }),
    ] {
        let mut b = Build::new(name);
        let inputs = [b.floats(301), b.floats(301)];
        all.push(b.op(name, Op::Gate(act), &inputs, 301)?);
    }
    let mut b = Build::new("rms_norm");
    let (weight, x) = (b.weight(DType::F32, 1, 77), b.floats(3 * 77));
    let op = Op::RmsNorm { weight: Some(weight), eps: 1e-5, offset: 1.0, group: 77 };
    all.push(b.op("rms_norm", op, &[x], 3 * 77)?);
    let mut b = Build::new("layer_norm");
    let (weight, bias, x) =
        (b.weight(DType::F32, 1, 301), b.weight(DType::F32, 1, 301), b.floats(301));
    let op = Op::LayerNorm { weight, bias: Some(bias), eps: 1e-5, group: 301 };
    all.push(b.op("layer_norm", op, &[x], 301)?);
    for (name, style) in [("rope", RopeStyle::Half), ("rope of neighbours", RopeStyle::Interleaved)]
    {
        let mut b = Build::new(name);
        let (x, positions) = (b.floats(3 * 22), b.b.input("positions", 1, DType::I32));
        let inv_freq = (0..8).map(|i| 1e4_f32.powf(-i as f32 / 8.0)).collect();
        let freqs = RopeFreqs { inv_freq, factor: 1.0 };
        let op = Rope { head_dim: 22, offset: 2, rotary_dim: 16, style, freqs, long: None };
        all.push(b.op(name, Op::Rope(op), &[x, positions], 3 * 22)?);
    }
    for dtype in [DType::F32, DType::F16] {
        for window in [None, Some(9)] {
            all.push(attention(dtype, window)?);
        }
    }
    Ok(all)
}

/// Appends keys and values, and attends to them.
fn attention(dtype: DType, window: Option<usize>) -> Result<Case, DeviceError> {
    let of_window = if window.is_some() { " in a window" } else { "" };
    let name = format!("attention to {dtype}{of_window}");
    let mut b = Build::new(&name);
    let (heads, kv_heads, dim) = (6, 2, 34);
    let q = b.b.input("q", heads * dim, DType::F32);
    let new = ["k", "v"].map(|name| b.b.input(name, kv_heads * dim, DType::F32));
    let shape = Shape(vec![Dim::KvLen(POSITIONS), Dim::Fixed(kv_heads * dim)]);
    let caches = ["keys", "values"].map(|name| b.b.state(name, shape.clone(), dtype));
    for (x, cache) in new.iter().zip(&caches) {
        let op = Op::KvAppend(KvAppend { width: kv_heads * dim, page_group: 0 });
        b.b.node(op, &[*x], &[*cache], &[]);
    }
    let op = Attention {
        heads,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        scale: 0.2,
        window,
        softcap: window.map(|_| 5.0),
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    };
    let y = b.b.attention(op, q, &caches);
    b.b.output(y);
    b.done(&name)
}

impl Case {
    fn check(
        &self,
        device: &dyn Device,
        reference: &dyn Device,
    ) -> Result<CheckedKernel, DeviceError> {
        let name = self.name.clone();
        if let Some(why) = device.examine(&self.graph).into_iter().flatten().next() {
            return Ok(CheckedKernel { name, error: None, fault: Some(why) });
        }
        let mut worst = 0_f32;
        for rows in ROWS {
            let expected = self.run(reference, rows)?;
            let got = match self.run(device, rows) {
                Ok(got) => got,
                Err(e) => {
                    let fault = Some(format!("{rows} rows: {e}"));
                    return Ok(CheckedKernel { name, error: None, fault });
                }
            };
            let top = expected.iter().fold(f32::MIN_POSITIVE, |top, x| top.max(x.abs()));
            let differ = got.iter().zip(&expected).fold(0_f32, |most, (a, b)| {
                let d = (a - b).abs() / top;
                if d.is_nan() { f32::INFINITY } else { most.max(d) }
            });
            let differ = if got.len() == expected.len() { differ } else { f32::INFINITY };
            worst = worst.max(differ);
        }
        let fault = (worst > MOST).then(|| {
            format!("it computes something else: {worst:.0e} off, where {MOST:.0e} is allowed")
        });
        Ok(CheckedKernel { name, error: Some(worst), fault })
    }

    /// The outputs of a run on seeded inputs.
    fn run(&self, device: &dyn Device, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let g = &self.graph;
        let weights = Weights::compiled(device, g, &self.weights)?;
        let mut numbers = Numbers(rows as u64 * 977 + 13);
        let mut tasks = Vec::new();
        let mut place = |id: &ValueId, is_output: bool| {
            let value = g.value(*id);
            let (cols, is_state) = (value.shape.row_len(), g.states.contains(id));
            let count = if is_state { POSITIONS } else { rows };
            let row = cols * value.dtype.block_bytes();
            let what = || DeviceError::memory("checking a device");
            let host = Buffer::zeroed(count * row).map_err(what())?;
            if !is_output {
                let mut bytes = host.write()?;
                for (i, chunk) in bytes.chunks_mut(value.dtype.block_bytes()).enumerate() {
                    match value.dtype {
                        DType::I32 => {
                            chunk.copy_from_slice(&((i % POSITIONS) as i32).to_le_bytes())
                        }
                        DType::F32 => chunk.copy_from_slice(&numbers.float().to_le_bytes()),
                        _ => {}
                    }
                }
            }
            let own = match device.caps().spaces.first() {
                None | Some(&SpaceId::HOST) => host.clone(),
                Some(_) => device.allocate(count * row).map_err(what())?,
            };
            let views = (View::dense(&host, 0, (count, row))?, View::dense(&own, 0, (count, row))?);
            Ok::<_, DeviceError>(views)
        };
        let inputs = g.inputs.iter().map(|id| place(id, false)).collect::<Result<Vec<_>, _>>()?;
        let states = g.states.iter().map(|id| place(id, false)).collect::<Result<Vec<_>, _>>()?;
        let outputs = g.outputs.iter().map(|id| place(id, true)).collect::<Result<Vec<_>, _>>()?;
        let apart = |(a, b): &&(View, View)| a.buffer().id() != b.buffer().id();
        for (host, own) in inputs.iter().chain(&states).filter(apart) {
            tasks.push(Work::Copy(CopyRows { from: host.clone(), to: own.clone() }));
        }
        let own = |list: &[(View, View)]| list.iter().map(|(_, own)| own.clone()).collect();
        let bindings =
            Bindings { inputs: own(&inputs), states: own(&states), outputs: own(&outputs) };
        let pages = [3, 0, 6, 2, 5, 1, 7, 4].to_vec();
        let table = PageTable { page_len: PAGE, first: 0, pages };
        let seq =
            SeqRows { seq: 1, rows: 0..rows, pos: 40, known_len: 40 + rows, tables: vec![table] };
        let forward = Arc::new(ForwardBatch { seqs: vec![seq] });
        tasks.push(Work::Run(Run { weights, bindings: Arc::new(bindings), rows, forward }));
        for (host, own) in outputs.iter().filter(apart) {
            tasks.push(Work::Copy(CopyRows { from: own.clone(), to: host.clone() }));
        }
        let tasks = tasks.into_iter().map(|work| Submission { tag: 0, work }).collect();
        let (done, completions) = sync_channel(1);
        let mut queue = device.queue(0, Arc::new(RealClock::new()), done)?;
        queue.submit(CommandList { tasks, ..CommandList::default() })?;
        let gone = |_| DeviceError::Gone(device.name().into());
        completions.recv().map_err(gone)?.outcome?;
        let mut all = Vec::new();
        for (host, _) in &outputs {
            let read = host.read()?;
            all.extend_from_slice(read.as_slice::<f32>().unwrap_or_default());
        }
        Ok(all)
    }
}
