//! What a token costs: the weights it is multiplied by, and the bytes they take.

use troika_model::spec::{Ffn, ModelSpec, WeightRole};

use crate::report::account::is_expert;
use crate::store::WeightStore;

/// Weights a token uses. Of the experts only the chosen ones count, of an embedding that is no
/// head nothing but one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCost {
    /// Parameters of all products but the head's.
    pub body: u64,
    /// Parameters of the head, which only tokens with wanted logits pass.
    pub head: u64,
    /// Bytes of both, as stored.
    pub bytes: u64,
}

impl WeightStore {
    /// What a token costs.
    pub fn token_cost(&self, spec: &ModelSpec) -> TokenCost {
        let mut cost = TokenCost::default();
        // A tied head that is quantized is a weight of its own.
        let tied = !self.bound.iter().any(|b| b.key.role == WeightRole::Head);
        for b in &self.bound {
            let is_head = match b.key.role {
                WeightRole::Embed => tied,
                role => role == WeightRole::Head,
            };
            let share = match (b.key.role, b.key.layer.map(|l| &spec.layers[l].ffn)) {
                (WeightRole::Embed, _) if !tied => 1.0 / b.shape.rows as f64,
                (_, Some(Ffn::Moe(m))) if b.key.index.is_some() && is_expert(b.key.role) => {
                    m.top_k as f64 / m.experts as f64
                }
                _ => 1.0,
            };
            let parameters = (b.values() as f64 * share) as u64;
            cost.bytes += (b.bytes() as f64 * share) as u64;
            match b.key.role {
                _ if is_head => cost.head += parameters,
                WeightRole::Embed => {}
                _ => cost.body += parameters,
            }
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use troika_graph::DType;

    use super::*;
    use crate::Quant;

    #[test]
    fn only_what_a_token_uses_counts() {
        let config = troika_model::presets::config("qwen3-moe-tiny").unwrap();
        let spec = troika_model::families::from_config(&config).unwrap().spec;
        let store = WeightStore::synthetic(&spec, DType::BF16, 1, Quant::None);
        let cost = store.token_cost(&spec);
        let norms = 4 * (2 * 256 + 2 * 64) + 256;
        let layer = 256 * 64 * (4 + 2 + 2 + 4) + 16 * 256 + 2 * 3 * 256 * 256;
        assert_eq!(cost.body, 4 * layer + norms);
        assert_eq!(cost.head, 2048 * 256);
        assert_eq!(cost.bytes, 2 * (cost.body + cost.head));
    }
}
