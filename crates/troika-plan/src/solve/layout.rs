//! A rule applied to a segment: its pieces and their devices, as the engine makes them. Segments
//! with equal graphs share a layout.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use troika_graph::partition::{Columns, Partition, Piece, cut_at, kv_heads, split_columns};
use troika_graph::{Subgraph, ValueId, restrict_activations};
use troika_model::lower::{Lowered, Segment, SegmentKind};

use crate::cost::SolveDevice;
use crate::{PlanError, Rule, Split, compiled_rows, own_space, stage_borders};

/// A value that a piece reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// The segment's input with this index.
    Input(usize),
    /// The segment's output with this index.
    Output(usize),
    /// A value between its pieces.
    Between(usize),
}

/// Some columns of a value.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub place: Place,
    pub cols: Range<usize>,
    /// Bytes of an element.
    pub element: usize,
}

/// A piece on a device.
#[derive(Clone, Debug)]
pub(super) struct LaidPiece {
    pub device: usize,
    pub graph: Arc<Subgraph>,
    pub inputs: Vec<Operand>,
    pub outputs: Vec<Operand>,
    /// For static shapes: the rows of its shapes, ascending; else empty.
    pub shapes: Vec<usize>,
}

impl LaidPiece {
    /// The rows of the next run and of its shape, chosen as in the engine.
    pub fn next_run(&self, left: usize, others: bool) -> (usize, usize) {
        let Some(&largest) = self.shapes.last() else { return (left, left) };
        let full = self.shapes.iter().rfind(|n| **n <= left).filter(|_| others);
        let enough = || self.shapes.iter().find(|n| **n >= left).unwrap_or(&largest);
        let room = *full.unwrap_or_else(enough);
        (left.min(room), room)
    }
}

/// A segment's pieces under a rule: stage by stage, or all as one stage.
#[derive(Debug)]
pub(super) struct Layout(pub Vec<StageLayout>);

/// A stage's pieces.
#[derive(Debug)]
pub(super) struct StageLayout {
    pub partition: Partition,
    /// For each part of the partition that computes whole rows, its pieces.
    pub wholes: Vec<Vec<LaidPiece>>,
    /// The pieces of all parts, where they divide the columns.
    pub columns: Vec<LaidPiece>,
}

impl Layout {
    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &LaidPiece> {
        self.0.iter().flat_map(StageLayout::pieces)
    }
}

impl StageLayout {
    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &LaidPiece> {
        self.wholes.iter().flatten().chain(&self.columns)
    }
}

/// Makes and caches layouts.
pub(super) struct Layouts<'a> {
    lowered: &'a Lowered,
    devices: &'a [SolveDevice],
    /// For each segment, the first one with an equal graph and as many cache heads.
    class: Vec<usize>,
    known: HashMap<(usize, LayoutKey), Arc<Layout>>,
}

/// The parts of a rule that affect the layout.
type LayoutKey = (String, Option<Split>, Vec<crate::RefusedOps>, Option<Vec<usize>>, Vec<u8>);

impl<'a> Layouts<'a> {
    pub fn new(lowered: &'a Lowered, devices: &'a [SolveDevice]) -> Layouts<'a> {
        let mut class = Vec::with_capacity(lowered.segments.len());
        for (i, s) in lowered.segments.iter().enumerate() {
            let alike = |j: &usize| {
                let o = &lowered.segments[*j];
                (o.kind, o.inputs.len(), o.outputs.len())
                    == (s.kind, s.inputs.len(), s.outputs.len())
                    && o.graph.same_code(&s.graph)
            };
            let mut firsts: Vec<usize> = class.clone();
            firsts.sort_unstable();
            firsts.dedup();
            class.push(firsts.into_iter().find(alike).unwrap_or(i));
        }
        Layouts { lowered, devices, class, known: HashMap::new() }
    }

    /// The first segment with an equal graph.
    pub fn class(&self, segment: usize) -> usize {
        self.class[segment]
    }

    /// A segment's layout.
    ///
    /// # Errors
    /// A split that the graph does not allow.
    pub fn of(&mut self, segment: usize, rule: &Rule) -> Result<Arc<Layout>, PlanError> {
        let class = self.class[segment];
        let formats = rule.activations.iter().map(|a| *a as u8).collect();
        let key = (
            rule.device.clone(),
            rule.split.clone(),
            rule.refused.clone(),
            rule.row_buckets.clone(),
            formats,
        );
        if let Some(known) = self.known.get(&(class, key.clone())) {
            return Ok(known.clone());
        }
        let layout = Arc::new(self.make(&self.lowered.segments[class], rule)?);
        self.known.insert((class, key), layout.clone());
        Ok(layout)
    }

    fn make(&self, segment: &Segment, rule: &Rule) -> Result<Layout, PlanError> {
        let graph = restrict_activations(&segment.graph, &rule.activations);
        let root = Root::segment(&graph);
        let heads = self.cache_heads(segment);
        let Some(Split::Stages { stages }) = &rule.split else {
            return Ok(Layout(vec![self.stage(root, (segment.kind, heads), (rule, &mut 0))?]));
        };
        let pieces = cut_at(&graph, &stage_borders(&graph)).map_err(refuse)?;
        if pieces.len() != stages.len() {
            let (has, says) = (pieces.len(), stages.len());
            return Err(PlanError::Parse(format!(
                "{} has {has} stages, and its rule places {says}",
                graph.name
            )));
        }
        let (mut scope, mut between, mut all) = (HashMap::new(), 0, Vec::new());
        for (piece, stage) in pieces.into_iter().zip(stages) {
            let (device, split) = (stage.device.clone(), stage.split.clone());
            let rule = Rule { device, split, ..rule.clone() };
            let takes = |device: usize, _: &str| device;
            let mut maker = Maker { devices: self.devices, rule: &rule, takes: &takes, between };
            let root = maker.bind(&root, piece, &mut scope);
            between = maker.between;
            all.push(self.stage(root, (segment.kind, heads), (&rule, &mut between))?);
        }
        Ok(Layout(all))
    }

    /// The layout of a stage. `between` counts the values that pieces pass to each other.
    fn stage(
        &self,
        root: Root,
        (kind, heads): (SegmentKind, Option<usize>),
        (rule, between): (&Rule, &mut usize),
    ) -> Result<StageLayout, PlanError> {
        let names: Vec<&str> = self.devices.iter().map(|d| d.name.as_str()).collect();
        let index = |name: &str| {
            let missing = || PlanError::Device { name: name.into(), known: names.join(", ") };
            names.iter().position(|n| *n == name).ok_or_else(missing)
        };
        let (partition, parts) = rule.partition(heads);
        let parts: Vec<usize> = parts.iter().map(|n| index(n)).collect::<Result<_, _>>()?;
        let takes = |device: usize, op: &str| {
            let by = rule.device_of(names[device], kind, op);
            names.iter().position(|n| *n == by).unwrap_or(device)
        };
        let mut maker = Maker { devices: self.devices, rule, takes: &takes, between: *between };
        let whole =
            |maker: &mut Maker<'_>, device| maker.whole(root.clone(), device).map_err(refuse);
        let mut wholes = Vec::new();
        for (part, device) in parts.iter().enumerate() {
            let alone = match &partition {
                Partition::Whole { part: p } => *p == part,
                Partition::Columns(_) => false,
                Partition::Rows { standard, rest, .. } => part == *standard || part == *rest,
                Partition::Hybrid { standard, .. } => part == *standard,
            };
            wholes.push(if alone { whole(&mut maker, *device)? } else { Vec::new() });
        }
        let mut columns = Vec::new();
        if let Some(split) = partition.columns() {
            let pieces = split_columns(&root.graph, split).map_err(refuse)?;
            let pieces: Vec<Piece> = pieces.stages.into_iter().flat_map(|s| s.pieces).collect();
            columns = if self.states_are_apart(&root.graph, &pieces, &parts) {
                maker.columns(root.clone(), pieces, &parts).map_err(refuse)?
            } else {
                whole(&mut maker, index(&rule.device)?)?
            };
        }
        *between = maker.between;
        Ok(StageLayout { partition, wholes, columns })
    }

    /// The number of key/value heads after a segment of projections.
    fn cache_heads(&self, segment: &Segment) -> Option<usize> {
        if segment.kind != SegmentKind::Qkv {
            return None;
        }
        let of_layer = |s: &&Segment| s.layer == segment.layer && s.kind == SegmentKind::Attention;
        self.lowered.segments.iter().find(of_layer).and_then(|s| kv_heads(&s.graph))
    }

    /// Whether no column of a cache is needed in two places.
    fn states_are_apart(&self, graph: &Subgraph, pieces: &[Piece], parts: &[usize]) -> bool {
        if graph.states.is_empty() {
            return true;
        }
        let uses: Vec<(usize, &Columns)> =
            pieces.iter().flat_map(|p| p.states.iter().map(|s| (parts[p.part], s))).collect();
        let space = |d: usize| own_space(&self.devices[d].caps);
        uses.iter().enumerate().all(|(i, (d, used))| {
            uses[..i].iter().all(|(other, o)| {
                let meets = o.value == used.value
                    && o.cols.start < used.cols.end
                    && used.cols.start < o.cols.end;
                !meets || (space(*other) == space(*d) && o.cols == used.cols)
            })
        })
    }
}

fn refuse(e: troika_graph::partition::PartitionError) -> PlanError {
    PlanError::Parse(e.to_string())
}

/// A graph, and the places of its values in the segment.
#[derive(Clone)]
struct Root {
    graph: Arc<Subgraph>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
}

impl Root {
    fn segment(graph: &Subgraph) -> Root {
        let operand = |id: &ValueId, place| Operand {
            place,
            cols: 0..graph.value(*id).shape.row_len(),
            element: graph.value(*id).dtype.block_bytes(),
        };
        let inputs = graph.inputs.iter().enumerate().map(|(i, v)| operand(v, Place::Input(i)));
        let outputs = graph.outputs.iter().enumerate().map(|(i, v)| operand(v, Place::Output(i)));
        let (inputs, outputs) = (inputs.collect(), outputs.collect());
        Root { graph: Arc::new(graph.clone()), inputs, outputs }
    }
}

type Partitioned<T> = Result<T, troika_graph::partition::PartitionError>;

struct Maker<'a> {
    devices: &'a [SolveDevice],
    rule: &'a Rule,
    takes: &'a dyn Fn(usize, &str) -> usize,
    between: usize,
}

impl Maker<'_> {
    /// Places a graph on one device, cut around ops that others compute.
    fn whole(&mut self, root: Root, device: usize) -> Partitioned<Vec<LaidPiece>> {
        let nodes = &root.graph.nodes;
        let mut by: Vec<usize> = nodes.iter().map(|n| (self.takes)(device, n.op.name())).collect();
        let caches: Vec<usize> =
            (0..nodes.len()).filter(|i| !nodes[*i].states.is_empty()).collect();
        if let Some(other) = caches.iter().map(|i| by[*i]).find(|d| *d != device) {
            caches.iter().for_each(|i| by[*i] = other);
        }
        let borders: Vec<usize> =
            (1..by.len()).filter(|&i| by[i] != by[i - 1]).map(|i| i - 1).collect();
        if borders.is_empty() {
            let device = by.first().copied().unwrap_or(device);
            return Ok(vec![self.laid(device, root)]);
        }
        let firsts: Vec<usize> =
            std::iter::once(0).chain(borders.iter().map(|b| b + 1)).map(|i| by[i]).collect();
        let pieces = cut_at(&root.graph, &borders)?;
        let mut scope = HashMap::new();
        let placed = pieces.into_iter().zip(firsts);
        Ok(placed
            .map(|(piece, device)| {
                let root = self.bind(&root, piece, &mut scope);
                self.laid(device, root)
            })
            .collect())
    }

    fn columns(
        &mut self,
        root: Root,
        pieces: Vec<Piece>,
        parts: &[usize],
    ) -> Partitioned<Vec<LaidPiece>> {
        let mut scope = HashMap::new();
        let mut all = Vec::new();
        for piece in pieces {
            let device = parts[piece.part];
            let bound = self.bind(&root, piece, &mut scope);
            all.extend(self.whole(bound, device)?);
        }
        Ok(all)
    }

    /// The places of a piece's operands in the segment.
    fn bind(&mut self, whole: &Root, piece: Piece, scope: &mut HashMap<ValueId, Operand>) -> Root {
        let find = |ids: &[ValueId], operands: &[Operand], value: ValueId| {
            ids.iter().position(|v| *v == value).and_then(|at| operands.get(at).cloned())
        };
        let mut operand = |c: &Columns, read: bool| {
            let input = find(&whole.graph.inputs, &whole.inputs, c.value).filter(|_| read);
            let known = input.or_else(|| find(&whole.graph.outputs, &whole.outputs, c.value));
            let all = known.unwrap_or_else(|| {
                let add = || {
                    let value = whole.graph.value(c.value);
                    self.between += 1;
                    Operand {
                        place: Place::Between(self.between - 1),
                        cols: 0..value.shape.row_len(),
                        element: value.dtype.block_bytes(),
                    }
                };
                scope.entry(c.value).or_insert_with(add).clone()
            });
            let first = all.cols.start;
            Operand { cols: first + c.cols.start..first + c.cols.end, ..all }
        };
        let inputs = piece.inputs.iter().map(|c| operand(c, true)).collect();
        let outputs = piece.outputs.iter().map(|c| operand(c, false)).collect();
        Root { graph: Arc::new(piece.graph), inputs, outputs }
    }

    fn laid(&self, device: usize, root: Root) -> LaidPiece {
        let caps = &self.devices[device].caps;
        let buckets = self.rule.row_buckets.as_deref();
        // Other devices take any number of rows.
        let shapes = match caps.static_shapes {
            true => compiled_rows(&root.graph, caps, buckets),
            false => Vec::new(),
        };
        LaidPiece { device, graph: root.graph, inputs: root.inputs, outputs: root.outputs, shapes }
    }
}
