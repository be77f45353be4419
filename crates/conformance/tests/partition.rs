//! Pieces of every segment of real models give the bits of the whole segment, cut at every op and
//! split by columns with random shares and tiles.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use conformance::golden::find;
use setup::root;
use troika::describe;
use troika::device::{
    Bindings, Buffer, CommandList, Completion, Device, Executable, ForwardBatch, PageTable, Queue,
    RealClock, Run, SeqRows, Submission, View, WeightSource, Weights, Work,
};
use troika::graph::partition::{
    ColumnSplit, Columns, Partitioned, Piece, Stage, cut_at, split_columns,
};
use troika::graph::{
    ActivationFormat, DType, Op, StateKind, Subgraph, ValueId, restrict_activations,
};
use troika::model::lower::{LowerOptions, Lowered, SegmentKind, lower};
use troika::weights::{BindOptions, FloatType, WeightStore};
use troika_check::Random;
use troika_cpu::{CpuDevice, CpuOptions};

const POSITIONS: usize = 64;
const MAX_ROWS: usize = 24;

/// The values of a whole graph, dense: rows of the run, or positions of a cache.
#[derive(Clone)]
struct Memory {
    values: BTreeMap<ValueId, Vec<u8>>,
    rows: usize,
}

impl Memory {
    /// Random inputs and caches; everything else is NaN until it is written.
    fn new(g: &Subgraph, rows: usize, r: &mut Random) -> Memory {
        let experts = g.nodes.iter().find_map(|n| match &n.op {
            Op::Experts(e) => Some(e.gate.len()),
            _ => None,
        });
        let mut values = BTreeMap::new();
        for (i, v) in g.values.iter().enumerate() {
            let (id, cols) = (ValueId(i as u32), v.shape.row_len());
            let state = g.states.contains(&id);
            let rows = if state { POSITIONS } else { rows };
            let bytes: Vec<u8> = match v.dtype {
                _ if !state && !g.inputs.contains(&id) => {
                    vec![0xff; rows * g.value(id).row_bytes()]
                }
                // Token ids and positions; or different experts.
                DType::I32 if cols == 1 => {
                    (0..rows).flat_map(|i| (5 + i as i32).to_le_bytes()).collect()
                }
                DType::I32 => {
                    let id = |i: usize| (i / cols * 3 + i % cols) % experts.unwrap();
                    (0..rows * cols).flat_map(|i| (id(i) as i32).to_le_bytes()).collect()
                }
                dtype => r.bytes(dtype, rows * g.value(id).row_bytes()),
            };
            values.insert(id, bytes);
        }
        Memory { values, rows }
    }

    /// Bytes of a value's row, and the byte range of some columns in it.
    fn place(&self, g: &Subgraph, c: &Columns) -> (usize, std::ops::Range<usize>) {
        let at = |cols| g.value(c.value).dtype.row_size(cols);
        (g.value(c.value).row_bytes(), at(c.cols.start)..at(c.cols.end))
    }

    fn gather(&self, g: &Subgraph, c: &Columns) -> Buffer {
        let (row, part) = self.place(g, c);
        let rows = self.values[&c.value].chunks_exact(row);
        let bytes: Vec<u8> = rows.flat_map(|r| r[part.clone()].to_vec()).collect();
        let buffer = Buffer::zeroed(bytes.len()).unwrap();
        buffer.write().unwrap().as_mut_slice::<u8>().copy_from_slice(&bytes);
        buffer
    }

    fn scatter(&mut self, g: &Subgraph, c: &Columns, buffer: &Buffer) {
        let (row, part) = self.place(g, c);
        let guard = buffer.read().unwrap();
        let from = guard.as_slice::<u8>().chunks_exact(part.len());
        let to = self.values.get_mut(&c.value).unwrap().chunks_exact_mut(row);
        to.zip(from).for_each(|(to, from)| to[part.clone()].copy_from_slice(from));
    }
}

struct Bench {
    device: CpuDevice,
    queue: Box<dyn Queue>,
    done: Receiver<Completion>,
    /// The code of a segment's pieces, each shared by those that are alike.
    codes: Vec<(Subgraph, Arc<Executable>)>,
}

impl Bench {
    fn open() -> Bench {
        let options = CpuOptions { name: "cpu".into(), threads: 2, ..CpuOptions::default() };
        let device = CpuDevice::new(options).unwrap();
        let (send, done) = sync_channel(8);
        let queue = device.queue(0, Arc::new(RealClock::new()), send).unwrap();
        Bench { device, queue, done, codes: Vec::new() }
    }

    fn code(&mut self, g: &Subgraph, weights: &dyn WeightSource) -> Arc<Executable> {
        if let Some((_, code)) = self.codes.iter().find(|(of, _)| of.same_code(g)) {
            return code.clone();
        }
        let code = Executable::compiled(&self.device, g, weights).unwrap();
        self.codes.push((g.clone(), code.clone()));
        code
    }

    /// Runs a piece of a graph on dense copies of its columns.
    fn run(&mut self, g: &Subgraph, piece: &Piece, m: &mut Memory, weights: &dyn WeightSource) {
        let code = self.code(&piece.graph, weights);
        let weights = self.device.load(&code, &piece.graph, weights).unwrap();
        let all = |list: &[Columns]| list.iter().map(|c| m.gather(g, c)).collect::<Vec<_>>();
        let (inputs, states, outputs) =
            (all(&piece.inputs), all(&piece.states), all(&piece.outputs));
        let bind = |list: &[Buffer]| list.iter().map(View::whole).collect();
        let bindings =
            Bindings { inputs: bind(&inputs), states: bind(&states), outputs: bind(&outputs) };
        let sums = |group: usize| {
            let recurs = |op: &Op| {
                matches!(
                    op,
                    Op::DecayingSum(_) | Op::ShortConv(_) | Op::Mamba2(_) | Op::DeltaRule(_)
                )
            };
            let fixed = |op: &Op| recurs(op) && op.page_group() == Some((group, true));
            piece.graph.nodes.iter().any(|n| fixed(&n.op))
        };
        let table = |group| {
            let kind = if sums(group) { StateKind::Fixed } else { StateKind::Paged(None) };
            PageTable::new(kind, 16, vec![2, 0, 3])
        };
        let (rows, tables) = (m.rows, (0..4).map(table).collect());
        let seq = SeqRows { seq: 0, rows: 0..rows, pos: 5, known_len: 5 + rows, tables };
        let run = Run {
            weights,
            bindings: Arc::new(bindings),
            rows,
            forward: Arc::new(ForwardBatch { seqs: vec![seq] }),
        };
        let tasks = vec![Submission { tag: 0, work: Work::Run(run) }];
        self.queue.submit(CommandList { tasks, ..CommandList::default() }).unwrap();
        let outcome = self.done.recv().unwrap().outcome;
        outcome.unwrap_or_else(|e| panic!("{}: {e}", piece.graph.name));
        piece.outputs.iter().zip(&outputs).for_each(|(c, b)| m.scatter(g, c, b));
        piece.states.iter().zip(&states).for_each(|(c, b)| m.scatter(g, c, b));
    }

    /// Runs all pieces and compares the result with that of the whole graph.
    fn check(&mut self, case: &Segment<'_>, start: &Memory, expected: &Memory, p: &Partitioned) {
        let g = case.graph;
        let mut m = start.clone();
        for piece in p.stages.iter().flat_map(|s| &s.pieces) {
            self.run(g, piece, &mut m, case.store);
        }
        for v in g.outputs.iter().chain(&g.states) {
            let same = m.values[v] == expected.values[v];
            assert!(same, "{}: {}: {} differs in {p:#?}", case.model, g.name, g.value(*v).name);
        }
    }
}

/// A segment of a model.
struct Segment<'a> {
    model: &'a str,
    graph: &'a Subgraph,
    store: &'a WeightStore,
    /// Heads of the cache after query, key and value projections.
    groups: Option<usize>,
}

/// Statistics, to ensure that the test covers its cases.
#[derive(Default)]
struct Seen {
    splits: usize,
    cuts: usize,
    sliced: usize,
    kinds: BTreeMap<&'static str, usize>,
    /// Splits that left a segment whole, by its kind.
    whole: BTreeMap<&'static str, usize>,
}

const TILES: [usize; 7] = [1, 3, 4, 8, 16, 32, 64];

fn check_segment(
    bench: &mut Bench,
    case: &Segment<'_>,
    kind: SegmentKind,
    r: &mut Random,
    seen: &mut Seen,
) {
    let g = case.graph;
    let rows = [1, 3, 20][r.below(3)];
    let start = Memory::new(g, rows, r);
    bench.codes.clear();
    let mut expected = start.clone();
    let whole = cut_at(g, &[]).unwrap();
    bench.run(g, &whole[0], &mut expected, case.store);
    let one_each = |pieces: Vec<Piece>| Partitioned {
        stages: pieces.into_iter().map(|p| Stage { pieces: vec![p] }).collect(),
    };
    let boundaries: Vec<usize> = (0..g.nodes.len() - 1).collect();
    let each = boundaries.iter().map(|op| vec![*op]).chain([boundaries.clone()]);
    for at in each {
        bench.check(case, &start, &expected, &one_each(cut_at(g, &at).unwrap()));
        seen.cuts += 1;
    }
    for _ in 0..4 {
        let shares = (0..2 + r.below(2)).map(|_| 1 + r.below(9) as u32).collect();
        let tile = TILES[r.below(TILES.len())];
        let split = ColumnSplit { shares, tile, groups: case.groups.filter(|_| r.below(4) > 0) };
        let p = split_columns(g, &split).unwrap();
        bench.check(case, &start, &expected, &p);
        let pieces = p.stages.iter().flat_map(|s| &s.pieces);
        let slices = pieces.flat_map(|p| &p.graph.weights).filter(|w| w.slice.is_some());
        seen.sliced += slices.count();
        if p.is_split() {
            seen.splits += 1;
            *seen.kinds.entry(kind.name()).or_default() += 1;
        } else {
            *seen.whole.entry(kind.name()).or_default() += 1;
        }
    }
}

/// A model whose products use the allowed activation formats.
fn lowered(
    model: &Path,
    bind: BindOptions,
    (options, allowed): (LowerOptions, &[ActivationFormat]),
) -> (WeightStore, Lowered) {
    let d = describe(model, bind).unwrap();
    let mut lowered = lower(&d.spec, &|key| d.store.shape(key), options).unwrap();
    for s in &mut lowered.segments {
        s.graph = restrict_activations(&s.graph, allowed);
    }
    (d.store, lowered)
}

fn check_model(
    bench: &mut Bench,
    name: &str,
    (store, l): &(WeightStore, Lowered),
    r: &mut Random,
    seen: &mut Seen,
) {
    for s in &l.segments {
        let groups = l.heads_behind(s);
        let case = Segment { model: name, graph: &s.graph, store, groups };
        check_segment(bench, &case, s.kind, r, seen);
    }
}

const F32: LowerOptions =
    LowerOptions { max_rows: MAX_ROWS, max_kv: POSITIONS, kv_dtype: DType::F32 };

#[test]
fn pieces_of_float_models_give_the_bits_of_the_whole() {
    let (mut bench, mut r, mut seen) = (Bench::open(), Random(1), Seen::default());
    let young = find(&root("tests/golden-2026")).unwrap().into_iter();
    let young = young.filter(|case| ["qwen3.5", "gemma-4-moe", "gemma-3n"].contains(&&*case.name));
    for case in find(&root("tests/golden")).unwrap().into_iter().chain(young) {
        let f16 = LowerOptions { kv_dtype: DType::F16, ..F32 };
        let bf16 = LowerOptions { kv_dtype: DType::BF16, ..F32 };
        let formats =
            [(FloatType::F32, f16, &[][..]), (FloatType::BF16, bf16, &[ActivationFormat::Bf16])];
        for (float, options, allowed) in formats {
            let model = lowered(&case.model, float.into(), (options, allowed));
            check_model(&mut bench, &case.name, &model, &mut r, &mut seen);
        }
    }
    println!(
        "{} splits, {} cuts, {} slices; {:?}",
        seen.splits, seen.cuts, seen.sliced, seen.kinds
    );
    println!("whole: {:?}", seen.whole);
    assert!(seen.splits > 500 && seen.cuts > 500 && seen.sliced > 2000);
    let kinds = ["qkv", "attention", "attn_out", "ffn", "router", "experts", "head"];
    assert!(kinds.iter().all(|k| seen.kinds.contains_key(k)), "{:?}", seen.kinds);
    assert!(["embed", "router", "experts"].iter().all(|k| seen.whole.contains_key(k)));
}

#[test]
fn pieces_of_quantized_models_give_the_bits_of_the_whole() {
    let (mut bench, mut r, mut seen) = (Bench::open(), Random(2), Seen::default());
    for case in find(&root("tests/gguf")).unwrap() {
        for allowed in [&[][..], &[ActivationFormat::INT8]] {
            let model = lowered(&case.model, BindOptions::default(), (F32, allowed));
            check_model(&mut bench, &case.name, &model, &mut r, &mut seen);
        }
    }
    println!(
        "{} splits, {} cuts, {} slices; {:?}",
        seen.splits, seen.cuts, seen.sliced, seen.kinds
    );
    assert!(seen.splits > 500 && seen.sliced > 2000);
}

/// Both devices' weights together have the bytes of the whole.
#[test]
fn weights_of_pieces_are_held_once() {
    let mut bench = Bench::open();
    let file = root("tests/gguf").join("llama-q8_0.gguf");
    let compile_all = |bench: &mut Bench, split: Option<&ColumnSplit>| {
        let (store, l) = lowered(&file, BindOptions::default(), (F32, &[ActivationFormat::INT8]));
        for s in &l.segments {
            let pieces = match split {
                None => cut_at(&s.graph, &[]).unwrap(),
                Some(split) => {
                    let stages = split_columns(&s.graph, split).unwrap().stages;
                    stages.into_iter().flat_map(|s| s.pieces).collect()
                }
            };
            for piece in pieces {
                Weights::compiled(&bench.device, &piece.graph, &store).unwrap();
            }
        }
        store.report()
    };
    let whole = compile_all(&mut bench, None);
    assert!(!whole.packed.is_empty());
    let at_panels = ColumnSplit { shares: vec![2, 1], tile: 16, groups: None };
    assert_eq!(compile_all(&mut bench, Some(&at_panels)), whole);
    // Parts that begin within a panel are packed separately, and counted.
    let within = ColumnSplit { shares: vec![2, 1], tile: 3, groups: None };
    let more = compile_all(&mut bench, Some(&within));
    assert!(more.packed.values().sum::<u64>() > whole.packed.values().sum());
    assert!(more.packed.keys().any(|form| form.contains("rows")), "{:?}", more.packed);
}
