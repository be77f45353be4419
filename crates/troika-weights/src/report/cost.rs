//! The cost of a token: the weights it is multiplied with, and their bytes.

use troika_model::spec::{Ffn, ModelSpec, WeightRole};

use crate::report::account::is_expert;
use crate::store::WeightStore;

/// The weights that a token uses. Only the chosen experts count, and only one row of an embedding
/// that is not the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCost {
    /// Parameters of all products except the head.
    pub body: u64,
    /// Parameters of the head, used only for tokens whose logits are wanted.
    pub head: u64,
    /// Bytes of both, as stored.
    pub bytes: u64,
}

impl WeightStore {
    /// The cost of a token.
    pub fn token_cost(&self, spec: &ModelSpec) -> TokenCost {
        let mut cost = TokenCost::default();
        // A quantized tied head is a separate weight.
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
