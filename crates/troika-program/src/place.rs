//! Places a segment by a rule: divides its graph into pieces on devices. The engine and the solver
//! both place segments here.

use std::sync::Arc;

use troika_graph::partition::residual;
use troika_graph::{
    ActivationFormat, Subgraph, adapt_activations, convert_products, form_products,
    restrict_activations,
};
use troika_model::lower::{Lowered, Segment, SegmentKind};
use troika_model::spec::WeightRole;
use troika_plan::{Phase, PlanDevice, Rule, Split, compiled_rows, own_space};

use crate::error::ProgramError;
use crate::pieces::{self, PlacedGraph};
use crate::placed::StateOperand;
use crate::placed::{Between, Operand, PlacedPiece, PlacedSegment, PlacedStage, SegmentValue};
use crate::residency::Instance;
use crate::shapes::EdgeTypes;

/// The op that stays on a rule's own device where outliers are computed elsewhere.
const LINEAR: &str = "linear";

/// Places segments on devices.
#[derive(Clone, Copy)]
pub struct Placer<'a> {
    /// The model.
    pub lowered: &'a Lowered,
    /// The devices, in the order by which pieces refer to them.
    pub devices: &'a [PlanDevice],
    /// The types of values between segments.
    pub types: &'a EdgeTypes,
}

/// The graph of a segment, or of one of its stages.
pub(crate) struct Stage<'a> {
    pub root: PlacedGraph,
    pub rule: &'a Rule,
    pub kind: SegmentKind,
    /// Key/value heads that follow, by which columns are divided.
    pub heads: Option<usize>,
    /// Whether several devices share the segment. A rule's formats are then those that products may
    /// take, and each part takes what its device has.
    pub shared: bool,
}

impl Placer<'_> {
    /// Divides a segment as a rule says.
    ///
    /// # Errors
    /// A device that is not at hand, a split that does not fit the segment, or standard lengths
    /// that static shapes do not add up to.
    pub fn place(
        &self,
        segment: &Segment,
        rule: &Rule,
        phase: Phase,
    ) -> Result<PlacedSegment, ProgramError> {
        let graph = restrict_activations(&segment.graph, &rule.activations);
        let graph = self.types.convert(&graph, segment, phase);
        let root = root(graph, segment, self.lowered);
        let (kind, heads) = (segment.kind, self.lowered.heads_behind(segment));
        if let Some(split) = rule.experts() {
            return self.experts(segment, root, rule, split);
        }
        let (mut between, shared) = (Vec::new(), rule.split.is_some());
        let Some(Split::Stages { stages }) = &rule.split else {
            let stage = self.stage(Stage { root, rule, kind, heads, shared }, &mut between)?;
            return Ok(PlacedSegment::new(vec![stage], between, None));
        };
        let graphs = pieces::stages(root, &mut between)?;
        if graphs.len() != stages.len() {
            let (segment, has, says) = (&segment.graph.name, graphs.len(), stages.len());
            let why = format!("segment {segment} has {has} stages, the plan's rule {says}");
            return Err(ProgramError::Misfit(why));
        }
        let mut placed = Vec::new();
        for (root, stage) in graphs.into_iter().zip(stages) {
            let (device, split) = (stage.device.clone(), stage.split.clone());
            let rule = &Rule { device, split, ..rule.clone() };
            placed.push(self.stage(Stage { root, rule, kind, heads, shared }, &mut between)?);
        }
        Ok(PlacedSegment::new(placed, between, None))
    }

    pub(crate) fn stage(
        &self,
        stage: Stage<'_>,
        between: &mut Vec<Between>,
    ) -> Result<PlacedStage, ProgramError> {
        let Stage { mut root, rule, kind, heads, shared } = stage;
        let format = converting(rule).unwrap_or_default();
        // Not where a device without the format computes the products instead.
        let own = rule.device_of(&rule.device, kind, LINEAR);
        let has = |d: &PlanDevice| d.name == own && d.caps.activation_formats.contains(&format);
        let by = match &rule.split {
            Some(Split::Residual { by }) if self.devices.iter().any(has) => Some(by.as_str()),
            _ => None,
        };
        if by.is_some() {
            root.graph = residual(&convert_products(&root.graph, format));
        }
        let (partition, parts) = rule.partition(heads);
        let unplaced = || ProgramError::Unplaced(root.graph.name.clone());
        let parts: Option<Vec<usize>> = parts.iter().map(|name| self.index(name)).collect();
        let parts = parts.ok_or_else(unplaced)?;
        let devices = self.devices;
        let takes = |device: usize, op: &str| {
            let at = by.filter(|_| op != LINEAR).unwrap_or(&devices[device].name);
            let at = rule.device_of(at, kind, op);
            devices.iter().position(|d| d.name == at).unwrap_or(device)
        };
        let on = |device| PlacedGraph { device, ..root.clone() };
        let mut placed = PlacedStage { wholes: Vec::new(), columns: Vec::new(), partition };
        let alone = pieces::whole_parts(&placed.partition);
        for (part, device) in parts.iter().enumerate() {
            let mut whole = Vec::new();
            if alone.contains(&part) {
                let pieces = pieces::whole(on(*device), &takes, between)?;
                whole = self.pieces(pieces, rule, shared);
            }
            placed.wholes.push(whole);
        }
        if let Some(split) = placed.partition.columns() {
            let mut pieces = pieces::columns(&root, split, &parts, &takes, between)?;
            if !self.states_are_apart(&pieces) {
                let owner = self.index(&rule.device).ok_or_else(unplaced)?;
                pieces = pieces::whole(on(owner), &takes, between)?;
            }
            placed.columns = self.pieces(pieces, rule, shared);
        }
        self.check_lengths(rule, &placed)?;
        Ok(placed)
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|d| d.name == name)
    }

    /// Whether no column of a state is needed in two places. It is where all query heads share one
    /// head of the cache.
    fn states_are_apart(&self, pieces: &[PlacedGraph]) -> bool {
        let uses = pieces.iter().flat_map(|p| p.states.iter().map(move |s| (p.device, s)));
        let uses: Vec<(usize, &StateOperand)> = uses.collect();
        let instance =
            |device: usize, used: &StateOperand| state_instance(&self.devices[device], used);
        uses.iter().enumerate().all(|(i, (device, used))| {
            let here = instance(*device, used);
            let before = uses[..i].iter().filter(|(_, o)| o.meets(used));
            before.map(|(other, o)| instance(*other, o)).all(|there| there == here)
        })
    }

    /// Checks that standard lengths need no padding by static shapes, since other rows follow them.
    fn check_lengths(&self, rule: &Rule, placed: &PlacedStage) -> Result<(), ProgramError> {
        let lengths = rule.split.as_ref().map_or(&[][..], Split::lengths);
        for &length in lengths {
            for piece in placed.areas(length)?.iter().flat_map(|a| a.pieces) {
                let mut left = length;
                while let Some(run) = piece.next_run(left, true) {
                    if run.rows < run.room {
                        let (device, rows) = (&self.devices[piece.device].name, &piece.shapes);
                        return Err(ProgramError::NotTaken(format!(
                            "the plan gives device {device} {length} rows at once, which its \
                             shapes of {rows:?} rows do not make up"
                        )));
                    }
                    left -= run.rows;
                }
            }
        }
        Ok(())
    }

    fn pieces(&self, graphs: Vec<PlacedGraph>, rule: &Rule, shared: bool) -> Vec<PlacedPiece> {
        graphs.into_iter().map(|g| self.piece(g, rule, shared)).collect()
    }

    /// The piece of a graph; `shared` as in [`Stage::shared`].
    pub(crate) fn piece(&self, p: PlacedGraph, rule: &Rule, shared: bool) -> PlacedPiece {
        let caps = &self.devices[p.device].caps;
        let format = converting(rule).filter(|f| caps.activation_formats.contains(f));
        let mut graph = p.graph;
        if shared {
            graph = adapt_activations(&graph, &caps.activation_formats);
        }
        if let Some(format) = format {
            graph = convert_products(&graph, format);
        }
        if !caps.forms.is_empty() && rule.has_forms() {
            graph = form_products(&graph, |name| rule.form(WeightRole::of(name)?));
        }
        PlacedPiece {
            // Set when the segment is complete.
            index: 0,
            device: p.device,
            name: Arc::from(graph.name.as_str()),
            shapes: compiled_rows(&graph, caps, rule.row_buckets.as_deref()),
            static_shapes: caps.static_shapes,
            graph: Arc::new(graph),
            inputs: p.inputs,
            states: p.states,
            outputs: p.outputs,
        }
    }
}

/// The format of a rule for which devices that have it convert weights.
fn converting(rule: &Rule) -> Option<ActivationFormat> {
    rule.activations.iter().copied().find(ActivationFormat::converts_weights)
}

/// A segment's whole graph with its operands, before it is divided.
fn root(graph: Subgraph, segment: &Segment, lowered: &Lowered) -> PlacedGraph {
    let operand =
        |value: SegmentValue, edge: usize| Operand { value, cols: 0..lowered.edges[edge].cols };
    let inputs = segment.inputs.iter().enumerate();
    let outputs = segment.outputs.iter().enumerate();
    let states = segment.graph.states.iter().enumerate();
    let state = |(state, value)| StateOperand {
        state,
        cols: 0..segment.graph.value(value).shape.row_len(),
    };
    PlacedGraph {
        device: 0,
        inputs: inputs.map(|(i, e)| operand(SegmentValue::Input(i), e.0)).collect(),
        states: states.map(|(i, v)| state((i, *v))).collect(),
        outputs: outputs.map(|(i, e)| operand(SegmentValue::Output(i), e.0)).collect(),
        graph,
    }
}

/// The instance with a device's columns of a state.
pub(crate) fn state_instance(device: &PlanDevice, used: &StateOperand) -> Instance {
    Instance::new(own_space(&device.caps), used.cols.clone())
}
