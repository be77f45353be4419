//! Names of weights, the same for all architectures and file formats.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

macro_rules! weight_roles {
    ($($(#[$docs:meta])* $role:ident),* $(,)?) => {
        /// The purpose of a weight. Its name keys packed weights on disk.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[allow(missing_docs)] // the names are the documentation
        pub enum WeightRole { $($(#[$docs])* $role),* }

        /// All roles.
        const ROLES: &[WeightRole] = &[$(WeightRole::$role),*];
    };
}

weight_roles! {
    Embed, FinalNorm, FinalNormBias, Head, HeadBias,
    AttnPre, AttnPreBias, AttnPost, AttnPostBias, FfnPre, FfnPreBias, FfnPost, FfnPostBias,
    Q, K, V, O, QBias, KBias, VBias, OBias, QNorm, QNormBias, KNorm, KNormBias, Sinks,
    /// Latent: hidden -> q_rank.
    QDown, QDownBias, QDownNorm,
    /// Latent: q_rank -> heads * k_dim.
    QUp,
    /// Latent: hidden -> kv_rank.
    KvDown, KvDownBias,
    /// Latent: hidden -> rope.
    KRope, KRopeBias, KvDownNorm,
    /// Latent, per head (index): `[kv_rank, nope]`, absorbs the key expansion into the query.
    KAbsorb,
    /// Latent, per head (index): `[v_dim, kv_rank]`.
    VUp,
    Gate, Up, Down, GateBias, UpBias, DownBias, Router, RouterBias,
    /// Experts: index is the expert.
    ExpertGate, ExpertUp, ExpertDown, ExpertGateBias, ExpertUpBias, ExpertDownBias,
    SharedGate, SharedUp, SharedDown, SharedGateBias, SharedUpBias, SharedDownBias,
    /// `[1, hidden]`: gate of the shared expert's output.
    SharedOutGate,
    /// hidden -> the width of a recurrence, and back.
    MixIn, MixOut,
    /// hidden -> heads * v_dim: gate of the heads' outputs.
    AttnGate,
    /// `[1, experts]`: added to scores where experts are chosen.
    ExpertChoice,
    MixInBias, MixOutBias,
    /// `[width, taps]`: a short convolution.
    MixConv, MixConvBias,
    /// Mamba-2: hidden -> the gate of results, and the steps of heads.
    MixGate, MixGateBias, MixStep, MixStepBias,
    /// Mamba-2, a number for each head: rates, factors of inputs, what is added to steps.
    MixRate, MixSkip, MixStepShift,
    /// Mamba-2: the norm of results.
    MixNorm,
    /// Depthwise `[columns, taps]`, of queries, keys and values (index).
    Taps,
    /// Delta rule: hidden -> what decays and shares of new values follow from; decay by way of a rank.
    DecayDown, Decay, DecayBias, Beta, GateDown,
    /// Delta rule: `[1, heads]`, and the norm of a head's output.
    DecayRate, HeadNorm,
    /// Inputs of all layers: a table of tokens, what the embedding adds, and the norm of that.
    PerLayerEmbed, PerLayerIn, PerLayerInNorm,
    /// A layer's own input: hidden -> its width, and back; the norm of what is added.
    PerLayerGate, PerLayerUp, PerLayerNorm,
    /// Norms of experts beside a dense feed-forward: of what the router reads, before and behind
    /// the experts, and behind the feed-forward; and what weights of each expert are multiplied with.
    RouterNorm, ExpertPre, ExpertPost, SharedPost, ExpertScales,
    /// AltUp: the embedding to a stream, and a stream to the last state; index is the stream less one.
    AltIn, AltOut,
    /// AltUp: hidden -> streams, and from there the coefficients of predictions and corrections.
    AltRouter, AltRouterNorm, AltPredict, AltCorrect,
    /// AltUp: `[1, hidden]`, the scale of the active stream where a layer's own input meets it.
    AltScale,
    /// LAuReL: hidden -> its rank, and back; the norm of what is added.
    LaurelDown, LaurelUp, LaurelNorm,
}

static BIASES: LazyLock<BTreeMap<WeightRole, WeightRole>> = LazyLock::new(|| {
    let name = |role: &WeightRole| format!("{role:?}");
    let bias = |role: &WeightRole| ROLES.iter().find(|bias| name(bias) == name(role) + "Bias");
    ROLES.iter().filter_map(|role| Some((*role, *bias(role)?))).collect()
});

impl WeightRole {
    /// The role of a weight of a subgraph, by its name there.
    pub fn of(name: &str) -> Option<WeightRole> {
        let is = |role: &&WeightRole| name.split('.').any(|part| part == format!("{role:?}"));
        ROLES.iter().find(is).copied()
    }

    /// The bias of a norm or projection, by its name. For those that never have one it is the weight
    /// itself.
    pub(crate) fn bias(self) -> WeightRole {
        BIASES.get(&self).copied().unwrap_or(self)
    }

    /// The norm or projection that this is the bias of.
    pub(crate) fn of_bias(self) -> Option<WeightRole> {
        BIASES.iter().find(|(_, bias)| **bias == self).map(|(weight, _)| *weight)
    }
}

/// A weight of a model: role, layer (inside layers) and index (expert or head).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its purpose.
    pub role: WeightRole,
    /// Its layer.
    pub layer: Option<usize>,
    /// Its expert or head.
    pub index: Option<usize>,
}

impl Key {
    /// A weight outside the layers.
    pub fn model(role: WeightRole) -> Key {
        Key { role, layer: None, index: None }
    }

    /// A weight of a layer.
    pub fn layer(layer: usize, role: WeightRole) -> Key {
        Key { role, layer: Some(layer), index: None }
    }

    /// A weight of an expert or head of a layer.
    pub fn indexed(layer: usize, role: WeightRole, index: usize) -> Key {
        Key { role, layer: Some(layer), index: Some(index) }
    }
}

/// The logical name used in subgraphs and the weight store: `layers.3.ExpertUp.7`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(l) = self.layer {
            write!(f, "layers.{l}.")?;
        }
        write!(f, "{:?}", self.role)?;
        self.index.map_or(Ok(()), |i| write!(f, ".{i}"))
    }
}

#[cfg(test)]
mod tests {
    use super::WeightRole::*;
    use super::*;

    /// Packed weights on disk are found by these names: variants may be renamed, but not these.
    #[test]
    fn names_are_those_of_earlier_builds() {
        let names: Vec<String> = ROLES.iter().map(|role| format!("{role:?}")).collect();
        let kept = "Embed FinalNorm FinalNormBias Head HeadBias AttnPre AttnPreBias AttnPost \
            AttnPostBias FfnPre FfnPreBias FfnPost FfnPostBias Q K V O QBias KBias \
            VBias OBias QNorm QNormBias KNorm KNormBias Sinks QDown QDownBias QDownNorm \
            QUp KvDown KvDownBias KRope KRopeBias KvDownNorm KAbsorb VUp Gate Up Down \
            GateBias UpBias DownBias Router RouterBias ExpertGate ExpertUp ExpertDown \
            ExpertGateBias ExpertUpBias ExpertDownBias SharedGate SharedUp SharedDown \
            SharedGateBias SharedUpBias SharedDownBias SharedOutGate MixIn MixOut AttnGate ExpertChoice \
            MixInBias MixOutBias MixConv MixConvBias MixGate MixGateBias MixStep MixStepBias \
            MixRate MixSkip MixStepShift MixNorm Taps DecayDown Decay DecayBias Beta GateDown \
            DecayRate HeadNorm PerLayerEmbed PerLayerIn PerLayerInNorm PerLayerGate PerLayerUp \
             PerLayerNorm RouterNorm ExpertPre ExpertPost SharedPost ExpertScales AltIn AltOut AltRouter \
             AltRouterNorm AltPredict AltCorrect AltScale LaurelDown LaurelUp LaurelNorm";
        assert_eq!(names, kept.split(' ').collect::<Vec<_>>());
        assert_eq!(Key::indexed(3, ExpertUp, 7).to_string(), "layers.3.ExpertUp.7");
        assert_eq!(Key::model(Embed).to_string(), "Embed");
    }
}
