//! GGUF models of known shapes with random weights, for measuring speed only.

use std::path::Path;

use super::gguf::{Gguf, Kind};
use crate::command::Result;

/// The sizes of a model.
struct Shape {
    name: &'static str,
    arch: &'static str,
    hidden: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    /// Inner width of the feed-forward, or of an expert.
    inter: u32,
    vocab: u32,
    context: u32,
    theta: u32,
    /// 0 if it is dense.
    experts: u32,
    experts_used: u32,
}

/// A shape from its numbers, in the order of the fields.
const fn shape(name: &'static str, arch: &'static str, numbers: [u32; 11]) -> Shape {
    let [hidden, layers, heads, kv_heads, head_dim, inter, vocab, context, theta, experts, used] =
        numbers;
    Shape {
        name,
        arch,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        inter,
        vocab,
        context,
        theta,
        experts,
        experts_used: used,
    }
}

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    shape("qwen3-0.6b", "qwen3", [1024, 28, 16, 8, 128, 3072, 151_936, 40_960, 1_000_000, 0, 0]),
    shape("qwen3-moe-1b", "qwen3moe", [1024, 16, 16, 4, 64, 768, 32_000, 32_768, 1_000_000, 32, 4]),
    shape("qwen3-moe-tiny", "qwen3moe", [256, 4, 4, 2, 64, 256, 2048, 4096, 1_000_000, 16, 2]),
    shape("llama-3.2-1b", "llama", [2048, 16, 32, 8, 64, 8192, 128_256, 131_072, 500_000, 0, 0]),
    shape("olmoe-1b-7b", "olmoe", [2048, 16, 16, 16, 128, 1024, 50_304, 4096, 10_000, 64, 8]),
];

/// All shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|s| s.name)
}

/// Writes a model in bf16.
///
/// # Errors
/// An unknown shape, or a file that cannot be written.
pub fn write(name: &str, path: &Path) -> Result<()> {
    let shape = SHAPES.iter().find(|s| s.name == name);
    gguf(shape.ok_or_else(|| format!("unknown shape {name}"))?).save(path)
}

fn gguf(s: &Shape) -> Gguf<'static> {
    let mut g = Gguf::default();
    g.str("general.architecture", s.arch);
    g.str("general.name", &format!("{} with random weights", s.name));
    // Mostly bf16.
    g.u32("general.file_type", 32);
    let mut number = |key: &str, value: u32| g.u32(&format!("{}.{key}", s.arch), value);
    number("context_length", s.context);
    number("embedding_length", s.hidden);
    number("block_count", s.layers);
    number("feed_forward_length", s.inter);
    number("attention.head_count", s.heads);
    number("attention.head_count_kv", s.kv_heads);
    number("attention.key_length", s.head_dim);
    number("attention.value_length", s.head_dim);
    number("rope.dimension_count", s.head_dim);
    number("vocab_size", s.vocab);
    if s.experts > 0 {
        number("expert_count", s.experts);
        number("expert_used_count", s.experts_used);
        number("expert_feed_forward_length", s.inter);
    }
    g.f32(&format!("{}.rope.freq_base", s.arch), s.theta as f32);
    g.f32(&format!("{}.attention.layer_norm_rms_epsilon", s.arch), 1e-6);
    tokenizer(&mut g, s.vocab);
    tensors(&mut g, s);
    g
}

/// A byte-level tokenizer that every reader accepts: a token per byte, then fillers.
fn tokenizer(g: &mut Gguf<'_>, vocab: u32) {
    g.str("tokenizer.ggml.model", "gpt2");
    g.str("tokenizer.ggml.pre", "qwen2");
    let mut tokens: Vec<String> = byte_chars().iter().map(char::to_string).collect();
    tokens.extend((256..vocab).map(|i| format!("<filler_{i}>")));
    let kinds: Vec<i32> = (0..vocab).map(|i| if i < 256 { 1 } else { 5 }).collect();
    g.strs("tokenizer.ggml.tokens", &tokens);
    g.i32s("tokenizer.ggml.token_type", &kinds);
    g.strs("tokenizer.ggml.merges", &["t h".to_string()]);
    g.u32("tokenizer.ggml.bos_token_id", vocab - 2);
    g.u32("tokenizer.ggml.eos_token_id", vocab - 1);
}

/// The characters that GPT-2 uses for bytes: printable ones stand for themselves.
fn byte_chars() -> [char; 256] {
    let is_plain = |b: usize| matches!(b, 33..=126 | 161..=172 | 174..=255);
    std::array::from_fn(|b| {
        let others = (0..b).filter(|&b| !is_plain(b)).count();
        let code = if is_plain(b) { b } else { 256 + others };
        char::from_u32(code as u32).unwrap_or('?')
    })
}

fn tensors(g: &mut Gguf<'static>, s: &Shape) {
    let (h, q, kv) = (s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let mut seed = 1u64;
    let mut matrix = |g: &mut Gguf<'static>, name: &str, dims: &[u32], kind: Kind| {
        let dims: Vec<u64> = dims.iter().map(|&d| d.into()).collect();
        let (n, cols) = (dims.iter().product::<u64>(), dims[0]);
        seed += 1;
        let seed = seed;
        g.tensor(name, &dims, kind, move || random(n, cols, kind, seed));
    };
    let ones = |g: &mut Gguf<'static>, name: &str, n: u32| {
        g.tensor(name, &[n.into()], Kind::F32, move || 1f32.to_le_bytes().repeat(n as usize));
    };
    matrix(g, "token_embd.weight", &[h, s.vocab], Kind::BF16);
    ones(g, "output_norm.weight", h);
    if s.arch == "olmoe" {
        matrix(g, "output.weight", &[h, s.vocab], Kind::BF16);
    }
    for i in 0..s.layers {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        ones(g, &name("attn_norm"), h);
        ones(g, &name("ffn_norm"), h);
        for (part, dims) in
            [("attn_q", [h, q]), ("attn_k", [h, kv]), ("attn_v", [h, kv]), ("attn_output", [q, h])]
        {
            matrix(g, &name(part), &dims, Kind::BF16);
        }
        match s.arch {
            "olmoe" => {
                ones(g, &name("attn_q_norm"), q);
                ones(g, &name("attn_k_norm"), kv);
            }
            "qwen3" | "qwen3moe" => {
                ones(g, &name("attn_q_norm"), s.head_dim);
                ones(g, &name("attn_k_norm"), s.head_dim);
            }
            _ => {}
        }
        if s.experts > 0 {
            matrix(g, &name("ffn_gate_inp"), &[h, s.experts], Kind::F32);
            matrix(g, &name("ffn_gate_exps"), &[h, s.inter, s.experts], Kind::BF16);
            matrix(g, &name("ffn_up_exps"), &[h, s.inter, s.experts], Kind::BF16);
            matrix(g, &name("ffn_down_exps"), &[s.inter, h, s.experts], Kind::BF16);
        } else {
            matrix(g, &name("ffn_gate"), &[h, s.inter], Kind::BF16);
            matrix(g, &name("ffn_up"), &[h, s.inter], Kind::BF16);
            matrix(g, &name("ffn_down"), &[s.inter, h], Kind::BF16);
        }
    }
}

/// `n` numbers in an approximate bell curve of deviation 1 / sqrt(cols), as sums of four bytes. To
/// a quantizer they resemble trained weights.
fn random(n: u64, cols: u64, kind: Kind, seed: u64) -> Vec<u8> {
    // The sum of four bytes: mean 510, deviation 148 (sqrt(4 (256^2 - 1) / 12)).
    let scale = 1.0 / (147.8 * (cols as f32).sqrt());
    // Of bf16 the upper half: truncated instead of rounded, which is good enough for noise.
    let from = if kind == Kind::BF16 { 2 } else { 0 };
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(n as usize * (4 - from));
    for _ in 0..n {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        let sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255);
        bytes.extend(&((sum as f32 - 510.0) * scale).to_le_bytes()[from..]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_shape_has_all_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        write("qwen3-moe-tiny", &path).unwrap();
        let layer = 256 * 256 * 2 + 2 * 256 * 128 + 16 * 3 * 256 * 256;
        let matrices = 2 * (2048 * 256 + 4 * layer) + 4 * 4 * 16 * 256;
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"GGUF"));
        assert!(bytes.len() > matrices && bytes.len() < matrices + (128 << 10));
        assert!(write("gpt-9", &path).is_err());
    }

    #[test]
    fn numbers_have_the_deviation_asked_for() {
        let out = random(10_000, 64, Kind::F32, 3);
        let x: Vec<f32> = out.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let sd = (x.iter().map(|x| x * x).sum::<f32>() / 10_000.0).sqrt();
        assert!((0.12..0.13).contains(&sd), "{sd}");
    }

    #[test]
    fn bytes_have_a_character_each() {
        let chars = byte_chars();
        assert_eq!((chars[b'A' as usize], chars[b' ' as usize]), ('A', 'Ġ'));
        let unique: std::collections::BTreeSet<char> = chars.into_iter().collect();
        assert_eq!(unique.len(), 256);
    }
}
