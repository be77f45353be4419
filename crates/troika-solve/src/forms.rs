//! The forms of products: the order of operands (HeteroInfer, section 3.2) and equivalent shapes of
//! inputs (llm.npu, section 4). Which of them devices compute faster.

use std::cell::RefCell;
use std::collections::HashMap;

use troika_graph::partition::cut_at;
use troika_graph::{Node, Op, ProductForm, Subgraph, form_products};
use troika_model::lower::{Lowered, ModelPart, Segment, SegmentKind};
use troika_model::spec::WeightRole;
use troika_plan::{Plan, PlanDevice, Rule, stage_borders};

use crate::cost::{CostModel, PricedRun};

/// A product in another form must take less than this share of the time: profiles know times to 5 %.
const WORTH_FORMING: f64 = 0.95;

/// The forms of a model's products, as prices have it.
pub struct Forms<'a> {
    devices: &'a [PlanDevice],
    cost: &'a dyn CostModel,
    products: Vec<(SegmentKind, Products)>,
    /// The fastest form of products on a device, by rows and those of its shape.
    known: RefCell<HashMap<[usize; 4], Option<ProductForm>>>,
}

/// Products of the same inputs: a stage of a segment.
pub(crate) struct Products {
    pub graph: Subgraph,
    /// The weights' roles.
    pub roles: Vec<WeightRole>,
}

impl Products {
    /// Those of a graph.
    pub fn of(graph: &Subgraph) -> Vec<Products> {
        let of = |graph: Subgraph| {
            let role = |node: &Node| match &node.op {
                Op::Linear { weight, .. } => WeightRole::of(&graph.weight(*weight).name),
                _ => None,
            };
            let roles = graph.nodes.iter().filter_map(role).collect();
            Products { graph, roles }
        };
        let stages = cut_at(graph, &stage_borders(graph)).unwrap_or_default();
        stages.into_iter().map(|s| of(s.graph)).filter(|p| !p.roles.is_empty()).collect()
    }
}

impl<'a> Forms<'a> {
    /// Those of a model on devices, by their costs.
    pub fn new(lowered: &Lowered, devices: &'a [PlanDevice], cost: &'a dyn CostModel) -> Self {
        let may = devices.iter().any(|d| !d.caps.forms.is_empty());
        let kinds = SegmentKind::ALL.into_iter().filter(|_| may);
        let first = kinds.filter_map(|kind| lowered.segments.iter().find(|s| s.kind == kind));
        let of = |s: &Segment| {
            Products::of(&s.graph).into_iter().map(|p| (s.kind, p)).collect::<Vec<_>>()
        };
        let products = first.flat_map(of).collect();
        Forms { devices, cost, products, known: RefCell::default() }
    }

    /// Gives a plan's products the forms that gain more than profiles know, and no others.
    pub fn choose(&self, plan: &mut Plan) {
        let chunk = plan.prefill.chunk;
        let short = plan.prefill.lengths.iter_mut();
        let short = short.flat_map(|l| l.rules.iter_mut().map(|rule| (l.up_to, rule)));
        let full = plan.prefill.rules.iter_mut().map(|rule| (chunk, rule));
        let decode = plan.decode.rules.iter_mut().map(|rule| (1, rule));
        for (rows, rule) in short.chain(full).chain(decode) {
            let all = self.products.iter().enumerate();
            let forms = all.filter_map(|(at, (_, p))| Some((p, self.fastest(at, rule, rows)?)));
            let forms = forms.flat_map(|(p, form)| p.roles.iter().map(move |role| (*role, form)));
            let forms: Vec<_> = forms.collect();
            rule.set_forms(forms);
        }
    }

    /// The form in which all devices of a rule that may gain are fastest with some products.
    fn fastest(&self, at: usize, rule: &Rule, rows: usize) -> Option<ProductForm> {
        let (kind, Products { graph, .. }) = &self.products[at];
        if rule.segments.as_ref().is_some_and(|kinds| !kinds.contains(kind)) {
            return None;
        }
        // Only the last row of a prompt has logits. A single row goes on with a sequence.
        let rows = if kind.traits().part == ModelPart::Head { 1 } else { rows };
        let cached = usize::from(rows == 1);
        let devices = self.devices.iter().enumerate();
        let may = |d: &PlanDevice| !d.caps.forms.is_empty() && rule.devices().any(|n| n == d.name);
        let mut fastest = devices.filter(|(_, d)| may(d)).map(|(device, d)| {
            let shapes = rule.row_buckets.as_ref().unwrap_or(&d.caps.row_buckets);
            let room = shapes.iter().find(|n| **n >= rows).or(shapes.last());
            let room = room.copied().filter(|_| d.caps.static_shapes).unwrap_or(rows);
            let run = PricedRun { device, kind: *kind, graph, rows: rows.min(room), room, cached };
            let fastest = || self.cost.fastest_form(&run, &d.caps.forms);
            *self.known.borrow_mut().entry([at, device, run.rows, room]).or_insert_with(fastest)
        });
        let first = fastest.next()??;
        fastest.all(|form| form == Some(first)).then_some(first)
    }
}

impl dyn CostModel + '_ {
    /// Nanoseconds of a run on an otherwise idle machine, with each of its products in the form that
    /// its device is fastest with.
    pub fn formed_ns(&self, run: &PricedRun<'_>, forms: &[ProductForm]) -> f64 {
        let products = if forms.is_empty() { Vec::new() } else { Products::of(run.graph) };
        let fastest = |p: &Products| {
            let form = self.fastest_form(&PricedRun { graph: &p.graph, ..*run }, forms)?;
            Some(p.roles.iter().map(move |role| (*role, form)).collect::<Vec<_>>())
        };
        let forms: HashMap<WeightRole, ProductForm> =
            products.iter().filter_map(fastest).flatten().collect();
        if forms.is_empty() {
            return self.run_ns(run);
        }
        let graph = form_products(run.graph, |name| forms.get(&WeightRole::of(name)?).copied());
        self.run_ns(&PricedRun { graph: &graph, ..*run })
    }

    /// The form in which products take least, if it gains more than profiles know.
    fn fastest_form(&self, run: &PricedRun<'_>, forms: &[ProductForm]) -> Option<ProductForm> {
        let ns = |form| {
            let graph = form_products(run.graph, |_| form);
            self.run_ns(&PricedRun { graph: &graph, ..*run })
        };
        let most = ns(None) * WORTH_FORMING;
        // Fewer rows than a group has are no group.
        let fits = |form: &&ProductForm| !matches!(form, ProductForm::Groups(n) if *n > run.rows);
        let all = forms.iter().filter(fits).map(|form| (*form, ns(Some(*form))));
        let gains = all.filter(|(_, ns)| *ns < most);
        gains.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(form, _)| form)
    }
}
