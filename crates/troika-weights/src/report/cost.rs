//! The cost of a token: the weights it is multiplied with, and their bytes.

use troika_model::spec::{ModelSpec, WeightRole};

use crate::report::account::is_expert;
use crate::store::WeightStore;

/// Weights a token uses. Only the chosen experts count, and only one row of an embedding that is
/// not also the head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenCost {
    /// Parameters of all products except the head.
    pub body: u64,
    /// Parameters of the head, used only for tokens whose logits are wanted.
    pub head: u64,
    /// Bytes of all but experts, as stored.
    shared_bytes: u64,
    /// Of experts: which part of them a token uses, and bytes of all.
    experts: Vec<(f64, u64)>,
}

impl TokenCost {
    /// Bytes that are read for `tokens` tokens at once, from sequences that have nothing in common.
    ///
    /// Each chooses `k` of `E` experts, and so leaves one out with a probability of `1 - k / E`.
    /// By linearity of expectation `n` tokens use `E * (1 - (1 - k / E)^n)` different ones, if their
    /// choices are independent and all experts are equally likely (the occupancy problem: Feller,
    /// An Introduction to Probability Theory and Its Applications, volume 1, chapter IV.2).
    pub fn bytes(&self, tokens: usize) -> u64 {
        let missed = |share: f64| (1.0 - share).powf(tokens as f64);
        let experts = self.experts.iter().map(|(share, all)| *all as f64 * (1.0 - missed(*share)));
        self.shared_bytes + experts.sum::<f64>().round() as u64
    }
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
            let mut share = 1.0;
            match (b.key.role, b.key.layer.and_then(|l| spec.layers[l].moe())) {
                (WeightRole::Embed, _) if !tied => {
                    share = 1.0 / b.shape.rows as f64;
                    cost.shared_bytes += (b.bytes() as f64 * share) as u64;
                }
                (_, Some(m)) if b.key.index.is_some() && is_expert(b.key.role) => {
                    share = m.top_k as f64 / m.experts as f64;
                    cost.experts.push((share, b.bytes()));
                }
                _ => cost.shared_bytes += b.bytes(),
            }
            let parameters = (b.values() as f64 * share) as u64;
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
        assert_eq!(cost.bytes(1), 2 * (cost.body + cost.head));
        // Two tokens choose 2 of 16 each: 15/4 different ones are to be expected.
        let expert = 2 * 3 * 256 * 256;
        assert_eq!(cost.bytes(2), cost.bytes(1) + 4 * expert * 7 / 4);
        // Many use all of them.
        assert_eq!(cost.bytes(10_000), cost.bytes(1) + 4 * expert * 14);
    }
}
