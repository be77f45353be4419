//! The order of operands of products (HeteroInfer, section 3.2): which of them devices compute
//! faster as `(weight * x^T)^T`.

use std::cell::RefCell;
use std::collections::HashMap;

use troika_graph::partition::cut_at;
use troika_graph::{Node, Op, Subgraph, exchange_operands};
use troika_model::lower::{Lowered, ModelPart, Segment, SegmentKind};
use troika_model::spec::WeightRole;
use troika_plan::{Plan, PlanDevice, Rule, stage_borders};

use crate::cost::{CostModel, PricedRun};

/// An exchanged product must take less than this share of the time: profiles know times to 5 %.
const WORTH_EXCHANGING: f64 = 0.95;

/// The order of operands of a model's products, as prices have it.
pub struct Orders<'a> {
    devices: &'a [PlanDevice],
    cost: &'a dyn CostModel,
    products: Vec<Products>,
    /// Whether products gain on a device, by rows and those of its shape.
    known: RefCell<HashMap<[usize; 4], bool>>,
}

/// Products of the same inputs: a stage of a kind of segment.
struct Products {
    kind: SegmentKind,
    graph: Subgraph,
    roles: Vec<WeightRole>,
}

impl Products {
    fn of(segment: &Segment) -> Vec<Products> {
        let of = |graph: Subgraph| {
            let role = |node: &Node| match &node.op {
                Op::Linear { weight, .. } => WeightRole::of(&graph.weight(*weight).name),
                _ => None,
            };
            let roles = graph.nodes.iter().filter_map(role).collect();
            Products { kind: segment.kind, graph, roles }
        };
        let stages = cut_at(&segment.graph, &stage_borders(&segment.graph)).unwrap_or_default();
        stages.into_iter().map(|s| of(s.graph)).filter(|p| !p.roles.is_empty()).collect()
    }
}

impl<'a> Orders<'a> {
    /// Those of a model on devices, by their costs.
    pub fn new(lowered: &Lowered, devices: &'a [PlanDevice], cost: &'a dyn CostModel) -> Self {
        let may = devices.iter().any(|d| d.caps.exchanges);
        let kinds = SegmentKind::ALL.into_iter().filter(|_| may);
        let first = kinds.filter_map(|kind| lowered.segments.iter().find(|s| s.kind == kind));
        let products = first.flat_map(Products::of).collect();
        Orders { devices, cost, products, known: RefCell::default() }
    }

    /// Exchanges the operands of a plan's products where that gains more than profiles know, and
    /// of no others.
    pub fn choose(&self, plan: &mut Plan) {
        let chunk = plan.prefill.chunk;
        let short = plan.prefill.lengths.iter_mut();
        let short = short.flat_map(|l| l.rules.iter_mut().map(|rule| (l.up_to, rule)));
        let full = plan.prefill.rules.iter_mut().map(|rule| (chunk, rule));
        let decode = plan.decode.rules.iter_mut().map(|rule| (1, rule));
        for (rows, rule) in short.chain(full).chain(decode) {
            let gains = |at: &usize| self.gains(*at, rule, rows);
            let all = (0..self.products.len()).filter(gains);
            rule.exchange = all.flat_map(|at| self.products[at].roles.iter().copied()).collect();
        }
    }

    /// Whether all devices of a rule that may exchange some products' operands gain by it.
    fn gains(&self, at: usize, rule: &Rule, rows: usize) -> bool {
        let Products { kind, graph, .. } = &self.products[at];
        if rule.segments.as_ref().is_some_and(|kinds| !kinds.contains(kind)) {
            return false;
        }
        // Only the last row of a prompt has logits. A single row goes on with a sequence.
        let rows = if kind.traits().part == ModelPart::Head { 1 } else { rows };
        let cached = usize::from(rows == 1);
        let devices = self.devices.iter().enumerate();
        let may = |d: &PlanDevice| d.caps.exchanges && rule.devices().any(|name| name == d.name);
        let mut gains = devices.filter(|(_, d)| may(d)).map(|(device, d)| {
            let shapes = rule.row_buckets.as_ref().unwrap_or(&d.caps.row_buckets);
            let room = shapes.iter().find(|n| **n >= rows).or(shapes.last());
            let room = room.copied().filter(|_| d.caps.static_shapes).unwrap_or(rows);
            let run = PricedRun { device, kind: *kind, graph, rows: rows.min(room), room, cached };
            let gains = || self.cost.ordered_ns(&run, true) < self.cost.run_ns(&run);
            *self.known.borrow_mut().entry([at, device, run.rows, room]).or_insert_with(gains)
        });
        gains.next().is_some_and(|first| first && gains.all(|gains| gains))
    }
}

impl dyn CostModel + '_ {
    /// Nanoseconds of a run on an otherwise idle machine, with operands of products exchanged if the
    /// device `exchanges` them and gains by it.
    pub fn ordered_ns(&self, run: &PricedRun<'_>, exchanges: bool) -> f64 {
        let ns = self.run_ns(run);
        let graph = || exchange_operands(run.graph, |_| true);
        let exchanged = || self.run_ns(&PricedRun { graph: &graph(), ..*run });
        exchanges.then(exchanged).filter(|e| *e < ns * WORTH_EXCHANGING).unwrap_or(ns)
    }
}
