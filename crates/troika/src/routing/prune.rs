//! What a model loses when experts drop rows, as NPUMoE does with rows beyond an expert's capacity.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use troika_model::spec::{Key, ModelSpec, WeightRole};
use troika_plan::{LayerRouting, RoutingTrace};

use super::observe::{observed, router_graph};
use super::shuffle::mixed;
use crate::describe::BoundModel;
use crate::devices::{Observer, Routed};
use crate::error::Error;
use crate::options::OpenOptions;
use crate::perplexity::{Perplexity, Scored};
use crate::session_state::lock;

/// Which rows of an expert are dropped first. A row's saliency is the L2 norm of its attention's
/// output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneBy {
    /// Those of the lowest saliency, as the paper does.
    LowestSaliency,
    /// Those of the highest saliency.
    HighestSaliency,
    /// Any, by a seed.
    Random(u64),
}

/// How rows are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pruning {
    /// Which ones.
    pub by: PruneBy,
    /// The share of each expert's rows that is dropped, in each batch.
    pub share: f64,
}

/// The perplexity of token ids in windows of `window` tokens, with dropped rows of experts.
///
/// # Errors
/// A model without experts, and the errors of [`crate::Model::perplexity`].
pub fn pruned_perplexity(
    model: BoundModel,
    options: &OpenOptions,
    ids: &[u32],
    window: usize,
    pruning: Pruning,
) -> Result<Perplexity, Error> {
    let pruner = Pruner::new(&model.spec, pruning);
    if pruner.graphs.is_empty() {
        return Err(Error::NoExperts);
    }
    let model = observed(model, options, Arc::new(pruner))?;
    model.perplexity(ids, window, Scored::default(), &mut |_| true)
}

/// Drops rows behind each router.
struct Pruner {
    pruning: Pruning,
    hidden: usize,
    /// Layers, with the experts of a token, by the names of their routers' graphs.
    graphs: HashMap<String, [usize; 2]>,
    /// Layers by the names of the weights that make attention's output.
    outputs: HashMap<String, usize>,
    /// By layer: the saliency of the rows of the batch that is computed.
    saliency: Mutex<HashMap<usize, Vec<f32>>>,
}

impl Pruner {
    fn new(spec: &ModelSpec, pruning: Pruning) -> Pruner {
        let layers = RoutingTrace::new(spec).layers;
        let graph = |l: &LayerRouting| (router_graph(l.layer), [l.layer, l.top_k]);
        let output = |l: &LayerRouting| (Key::layer(l.layer, WeightRole::O).to_string(), l.layer);
        let graphs = layers.iter().map(graph).collect();
        let outputs = layers.iter().map(output).collect();
        let hidden = spec.hidden;
        Pruner { pruning, hidden, graphs, outputs, saliency: Mutex::default() }
    }

    /// The rows, those first that are dropped first.
    fn order(&self, layer: usize, rows: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rows).collect();
        let saliency = lock(&self.saliency);
        let of = |row: &usize| {
            saliency.get(&layer).and_then(|rows| rows.get(*row)).copied().unwrap_or(0.0)
        };
        match self.pruning.by {
            PruneBy::LowestSaliency => order.sort_by(|a, b| of(a).total_cmp(&of(b))),
            PruneBy::HighestSaliency => order.sort_by(|a, b| of(b).total_cmp(&of(a))),
            PruneBy::Random(seed) => {
                // Another order for each layer and batch, the same in each run.
                let batch = saliency.get(&layer).map_or(0, |rows| {
                    rows.iter().fold(0, |all, x| mixed(all, u64::from(x.to_bits())))
                });
                let seed = mixed(seed, batch.wrapping_add(layer as u64));
                order.sort_by_key(|row| mixed(*row as u64, seed));
            }
        }
        order
    }
}

impl Observer for Pruner {
    fn product(&self, weight: &str, _: &[f32], _: usize, y: &[f32]) {
        let Some(layer) = self.outputs.get(weight) else { return };
        let norms = y.chunks_exact(self.hidden.max(1));
        let norms = norms.map(|row| row.iter().map(|x| x * x).sum::<f32>()).collect();
        lock(&self.saliency).insert(*layer, norms);
    }

    fn routed(&self, routed: Routed<'_>) {
        let Some([layer, top_k]) = self.graphs.get(routed.graph).copied() else { return };
        let rows = routed.ids.len() / top_k.max(1);
        let mut of_expert = vec![0_usize; routed.experts];
        let expert = |id: &i32| usize::try_from(*id).ok();
        for e in routed.ids.iter().filter_map(expert) {
            of_expert[e] += 1;
        }
        let mut left: Vec<usize> =
            of_expert.iter().map(|n| (*n as f64 * self.pruning.share).round() as usize).collect();
        for row in self.order(layer, rows) {
            for slot in row * top_k..(row + 1) * top_k {
                let Some(left) = expert(&routed.ids[slot]).and_then(|e| left.get_mut(e)) else {
                    continue;
                };
                if *left > 0 {
                    *left -= 1;
                    routed.weights[slot] = 0.0;
                }
            }
        }
    }
}
