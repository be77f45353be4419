//! Shapes of the models in the papers.

/// The paper's Llama-8B.
pub const B8: &str = "llama-3-8b";
/// Its Llama-7B.
pub const B7: &str = "llama-2-7b";
/// Its Llama-3B.
pub const B3: &str = "llama-3.2-3b";
/// Its InternLM-1.8B.
pub const B1_8: &str = "internlm2-1.8b";
/// The model of llm.npu's section 2.1.
pub const UI: &str = "qwen1.5-1.8b";
/// A model of 48 layers, in which a token chooses 8 of 128 experts.
pub const MANY_EXPERTS: &str = "qwen3-30b-a3b";
