//! The work of a run: what fits know it by.

use serde::{Deserialize, Serialize};
use troika_graph::{Experts, Op, Subgraph, WeightRef};

/// The counted work of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunWork {
    /// Rows computed, padding included.
    pub room: f64,
    /// Elements of all weight matrices that a row is multiplied with.
    pub products: f64,
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Columns read and written between ops.
    pub columns: f64,
    /// Products with cached keys and values, over all rows.
    pub attended: f64,
    /// Bytes of the cache read.
    pub cache_bytes: f64,
}

impl RunWork {
    /// The work of a graph for `room` computed rows and `cached` earlier positions.
    pub fn of(graph: &Subgraph, room: usize, cached: usize) -> RunWork {
        let mut work = RunWork { room: room as f64, ..RunWork::default() };
        // Conversions of types at a segment's edges cost next to nothing, and no profile has them.
        for node in graph.nodes.iter().filter(|n| !matches!(n.op, Op::Convert)) {
            let cols = |id: &troika_graph::ValueId| graph.value(*id).shape.row_len() as f64;
            let values = node.inputs.iter().chain(&node.outputs);
            work.columns += values.map(cols).sum::<f64>();
            match &node.op {
                Op::Linear { weight, .. } => work.product(graph, *weight, 1.0),
                // A few columns in a thousand have any.
                Op::Outliers { weight, .. } => work.product(graph, *weight, 1.0 / 400.0),
                Op::HeadLinear(h) => h.weights.iter().for_each(|w| work.product(graph, *w, 1.0)),
                Op::Experts(e) => {
                    let chosen = node.inputs.get(1).map_or(1.0, cols);
                    work.experts(graph, e, chosen);
                }
                Op::ExpertGroup(g) => work.experts(graph, &g.experts, 1.0),
                Op::Attention(a) => {
                    let window = a.window.unwrap_or(usize::MAX);
                    let seen = |row: usize| (cached + row + 1).min(window) as f64;
                    let all = (seen(0) + seen(room.max(1) - 1)) / 2.0 * room as f64;
                    work.attended += all * (a.heads * (a.k_dim + a.v_dim)) as f64;
                    let kept = seen(room.max(1) - 1);
                    let state = |id: &troika_graph::ValueId| graph.value(*id).row_bytes() as f64;
                    work.cache_bytes += kept * node.states.iter().map(state).sum::<f64>();
                }
                _ => {}
            }
        }
        work
    }

    /// Experts, where each row chose `chosen` of them.
    fn experts(&mut self, graph: &Subgraph, e: &Experts, chosen: f64) {
        let count = e.gate.len().max(1) as f64;
        // Reads as many experts as the rows can choose.
        let read = (chosen * self.room).min(count) / count;
        for w in e.gate.iter().chain(&e.up).chain(&e.down) {
            let decl = graph.weight(*w);
            self.products += (decl.rows * decl.cols) as f64 * chosen / count;
            self.weight_bytes += decl.bytes() as f64 * read;
        }
    }

    fn product(&mut self, graph: &Subgraph, w: WeightRef, share: f64) {
        let decl = graph.weight(w);
        self.products += (decl.rows * decl.cols) as f64 * share;
        self.weight_bytes += decl.bytes() as f64 * share;
    }
}
