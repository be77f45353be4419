//! Names of weights, the same for all architectures and file formats.

use std::fmt;

/// What a weight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are the documentation
pub enum Slot {
    Embed,
    FinalNorm,
    FinalNormBias,
    Head,
    HeadBias,
    AttnPre,
    AttnPreBias,
    AttnPost,
    AttnPostBias,
    FfnPre,
    FfnPreBias,
    FfnPost,
    FfnPostBias,
    Q,
    K,
    V,
    O,
    QBias,
    KBias,
    VBias,
    OBias,
    QNorm,
    QNormBias,
    KNorm,
    KNormBias,
    Sinks,
    /// Latent: hidden -> q_rank.
    QDown,
    QDownBias,
    QDownNorm,
    /// Latent: q_rank -> heads * k_dim.
    QUp,
    /// Latent: hidden -> kv_rank.
    KvDown,
    KvDownBias,
    /// Latent: hidden -> rope.
    KRope,
    KRopeBias,
    KvDownNorm,
    /// Latent, per head (index): `[kv_rank, nope]`, absorbs the key expansion into the query.
    KAbsorb,
    /// Latent, per head (index): `[v_dim, kv_rank]`.
    VUp,
    Gate,
    Up,
    Down,
    GateBias,
    UpBias,
    DownBias,
    Router,
    RouterBias,
    /// Experts: index is the expert.
    ExpertGate,
    ExpertUp,
    ExpertDown,
    ExpertGateBias,
    ExpertUpBias,
    ExpertDownBias,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedGateBias,
    SharedUpBias,
    SharedDownBias,
    /// `[1, hidden]`: gate of the shared expert's output.
    SharedOutGate,
}

impl Slot {
    /// Its name. Packed weights are kept on disk by it, so it stays when the variant is renamed.
    pub const fn name(self) -> &'static str {
        match self {
            Slot::Embed => "Embed",
            Slot::FinalNorm => "FinalNorm",
            Slot::FinalNormBias => "FinalNormBias",
            Slot::Head => "Head",
            Slot::HeadBias => "HeadBias",
            Slot::AttnPre => "AttnPre",
            Slot::AttnPreBias => "AttnPreBias",
            Slot::AttnPost => "AttnPost",
            Slot::AttnPostBias => "AttnPostBias",
            Slot::FfnPre => "FfnPre",
            Slot::FfnPreBias => "FfnPreBias",
            Slot::FfnPost => "FfnPost",
            Slot::FfnPostBias => "FfnPostBias",
            Slot::Q => "Q",
            Slot::K => "K",
            Slot::V => "V",
            Slot::O => "O",
            Slot::QBias => "QBias",
            Slot::KBias => "KBias",
            Slot::VBias => "VBias",
            Slot::OBias => "OBias",
            Slot::QNorm => "QNorm",
            Slot::QNormBias => "QNormBias",
            Slot::KNorm => "KNorm",
            Slot::KNormBias => "KNormBias",
            Slot::Sinks => "Sinks",
            Slot::QDown => "QDown",
            Slot::QDownBias => "QDownBias",
            Slot::QDownNorm => "QDownNorm",
            Slot::QUp => "QUp",
            Slot::KvDown => "KvDown",
            Slot::KvDownBias => "KvDownBias",
            Slot::KRope => "KRope",
            Slot::KRopeBias => "KRopeBias",
            Slot::KvDownNorm => "KvDownNorm",
            Slot::KAbsorb => "KAbsorb",
            Slot::VUp => "VUp",
            Slot::Gate => "Gate",
            Slot::Up => "Up",
            Slot::Down => "Down",
            Slot::GateBias => "GateBias",
            Slot::UpBias => "UpBias",
            Slot::DownBias => "DownBias",
            Slot::Router => "Router",
            Slot::RouterBias => "RouterBias",
            Slot::ExpertGate => "ExpertGate",
            Slot::ExpertUp => "ExpertUp",
            Slot::ExpertDown => "ExpertDown",
            Slot::ExpertGateBias => "ExpertGateBias",
            Slot::ExpertUpBias => "ExpertUpBias",
            Slot::ExpertDownBias => "ExpertDownBias",
            Slot::SharedGate => "SharedGate",
            Slot::SharedUp => "SharedUp",
            Slot::SharedDown => "SharedDown",
            Slot::SharedGateBias => "SharedGateBias",
            Slot::SharedUpBias => "SharedUpBias",
            Slot::SharedDownBias => "SharedDownBias",
            Slot::SharedOutGate => "SharedOutGate",
        }
    }
}

/// A weight of a model: slot, layer (for all but the outermost) and index (expert or head).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// What for.
    pub slot: Slot,
    /// Which layer.
    pub layer: Option<usize>,
    /// Which expert or head.
    pub index: Option<usize>,
}

impl Key {
    /// A weight outside the layers.
    pub fn model(slot: Slot) -> Key {
        Key { slot, layer: None, index: None }
    }

    /// A weight of a layer.
    pub fn layer(layer: usize, slot: Slot) -> Key {
        Key { slot, layer: Some(layer), index: None }
    }

    /// A weight of an expert or head of a layer.
    pub fn indexed(layer: usize, slot: Slot, index: usize) -> Key {
        Key { slot, layer: Some(layer), index: Some(index) }
    }
}

/// The logical name used in subgraphs and the weight store: `layers.3.ExpertUp.7`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(l) = self.layer {
            write!(f, "layers.{l}.")?;
        }
        f.write_str(self.slot.name())?;
        self.index.map_or(Ok(()), |i| write!(f, ".{i}"))
    }
}
