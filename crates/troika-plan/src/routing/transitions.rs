//! Which experts follow which.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::trace::{LayerRouting, RoutingTrace};

/// The successors that are kept of each expert: 128 experts of 48 layers stay below a megabyte.
const KEPT: usize = 8;

/// Which experts of a layer its tokens chose, by the experts that they chose in the layer before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transitions {
    /// The layer before.
    pub from: usize,
    /// The layer.
    pub to: usize,
    /// By expert of the layer before: those most often chosen next and how often, the first first.
    pub successors: Vec<Vec<(usize, u32)>>,
}

impl Transitions {
    /// Those between each layer that has experts and the next one.
    pub fn of(trace: &RoutingTrace) -> Vec<Transitions> {
        trace.layers.windows(2).map(|pair| Transitions::between(&pair[0], &pair[1])).collect()
    }

    fn between(before: &LayerRouting, after: &LayerRouting) -> Transitions {
        let mut counts = vec![0_u32; before.experts * after.experts];
        let tokens = before.ids.chunks_exact(before.top_k.max(1));
        for (from, to) in tokens.zip(after.ids.chunks_exact(after.top_k.max(1))) {
            for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to))) {
                let at = usize::from(from) * after.experts + usize::from(to);
                if let Some(count) = counts.get_mut(at) {
                    *count = count.saturating_add(1);
                }
            }
        }
        let successors = counts.chunks(after.experts.max(1)).map(|counts| {
            let mut all: Vec<(usize, u32)> = counts.iter().copied().enumerate().collect();
            all.sort_by_key(|(_, count)| Reverse(*count));
            all.into_iter().take(KEPT).take_while(|(_, count)| *count > 0).collect()
        });
        Transitions { from: before.layer, to: after.layer, successors: successors.collect() }
    }

    /// How likely an expert's most frequent successor is among the `top_k` of the next layer, in the
    /// mean over choices of the experts; `None` if none was chosen.
    pub fn predictability(&self, used: &[f64]) -> Option<f64> {
        let first = self.successors.iter().filter_map(|list| list.first());
        let first: f64 = first.map(|(_, count)| f64::from(*count)).sum();
        let all: f64 = used.iter().sum();
        (all > 0.0).then_some(first / all)
    }
}
