//! What a plan is predicted to cost, and what it should be best at.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

troika_model::named! {
    /// What a plan should optimise.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Goal {
        /// The time to the first token; for equal plans, tokens per second.
        #[default]
        Ttft = "ttft",
        /// Tokens per second in decoding; for equal plans, the time to the first token.
        Tps = "tps",
        /// The energy of prompt and answer. It is modelled, not measured.
        Energy = "energy",
    }
}

/// The predicted costs of a plan, with their source. Part of the plan file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// The source of the figures.
    pub source: String,
    /// Tokens of the assumed prompt.
    pub prompt: usize,
    /// Tokens generated after it.
    pub generate: usize,
    /// From the start of the prompt to its last logits.
    pub ttft_us: f64,
    /// The time of a generated token.
    pub tpot_us: f64,
    /// Energy of prompt and answer; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// The time to compile all graphs, before anything runs.
    #[serde(default)]
    pub compile_us: f64,
    /// Bytes of weights on each device. Devices that share memory share weights of the same form.
    #[serde(default)]
    pub weight_bytes: BTreeMap<String, u64>,
    /// Bytes of all weights; each form is counted once per memory.
    #[serde(default)]
    pub total_bytes: u64,
    /// Predictions for prompts of other lengths.
    #[serde(default)]
    pub lengths: Vec<PredictedLength>,
}

/// The predicted time of a prompt of some length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedLength {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// From the start of the prompt to its last logits.
    pub ttft_us: f64,
}

impl Predicted {
    /// The quantity that a goal minimises. Unknown energy is replaced by the total time, since a
    /// slower plan keeps the machine awake longer.
    pub fn score(&self, goal: Goal) -> f64 {
        let all = self.ttft_us + self.tpot_us * self.generate as f64;
        match goal {
            // The other figure only decides between equal plans.
            Goal::Ttft => self.ttft_us + self.tpot_us * 1e-6,
            Goal::Tps => self.tpot_us + self.ttft_us * 1e-9,
            Goal::Energy => self.energy_j.unwrap_or(all),
        }
    }
}
