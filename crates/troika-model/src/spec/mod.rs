//! The description of a model as plain data, without weights or architecture-specific code.

mod checkpoint;
mod gguf_meta;
mod model_spec;
mod packing;
mod recipe;
mod weight_requirement;
mod weight_role;

pub use checkpoint::{Checkpoint, RawTensor, StoredTensor};
pub use gguf_meta::{GgufMeta, GgufValue, Texts};
pub use model_spec::{
    AltUp, Attn, DecayingSum, DeltaRule, Ffn, GatedNorm, HeadGate, Latent, Layer, Mamba2,
    MambaScales, Mixer, Mlp, ModelSpec, Moe, Norm, PerLayerInput, QkNorm, RopeSpec, SharedExpert,
    ShortConv,
};
pub use packing::{Packing, ScaleBlock};
pub use recipe::{Cols, Recipe};
pub use weight_requirement::{WeightRequirement, weight_requirements};
pub use weight_role::{Key, WeightRole};
