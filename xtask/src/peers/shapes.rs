//! GGUF models of known shapes with random weights, for measuring speed only.
//!
//! With a Zipf exponent, tokens choose experts as skewed as real ones: the logit of the expert of
//! rank r is -exponent * ln(r) and noise. No engine has a bias of the router for all families, so
//! the file has one that each sees: channel 0 of the residual stream is a constant. Embeddings
//! write it, no layer changes it, and the router's column 0 multiplies it by the logits. What
//! layers add is small, so that the noise is the token's.

use std::path::Path;

use half::f16;

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
    shape("qwen3-moe-wide", "qwen3moe", [512, 4, 8, 2, 64, 256, 4096, 8192, 1_000_000, 128, 8]),
    shape("llama-3.2-1b", "llama", [2048, 16, 32, 8, 64, 8192, 128_256, 131_072, 500_000, 0, 0]),
    shape("qwen3-30b-a3b", "qwen3moe", [2048, 48, 32, 4, 128, 768, 151_936, 40_960, 1_000_000, 128, 8]),
    shape("olmoe-1b-7b", "olmoe", [2048, 16, 16, 16, 128, 1024, 50_304, 4096, 10_000, 64, 8]),
];

/// All shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|s| s.name)
}

/// What the weights of a shape are.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// The type of matrices, except routers.
    pub kind: Kind,
    /// How skewed the choice of experts is: the exponent of Zipf's law. `None`: as it falls out.
    pub zipf: Option<f32>,
}

/// Writes a model in bf16.
///
/// # Errors
/// An unknown shape, or a file that cannot be written.
pub fn write(name: &str, path: &Path) -> Result<()> {
    write_as(name, Content { kind: Kind::BF16, zipf: None }, path)
}

/// Writes a model, a tensor at a time.
///
/// # Errors
/// An unknown shape, or a file that cannot be written.
pub fn write_as(name: &str, content: Content, path: &Path) -> Result<()> {
    let shape = SHAPES.iter().find(|s| s.name == name);
    let known = || {
        let known: Vec<&str> = names().collect();
        format!("unknown shape {name}; there are {}", known.join(", "))
    };
    gguf(shape.ok_or_else(known)?, content).save(path)
}

fn gguf(s: &Shape, content: Content) -> Gguf<'static> {
    let mut g = Gguf::default();
    g.str("general.architecture", s.arch);
    g.str("general.name", &format!("{} with random weights", s.name));
    // llama.cpp's numbers of types that most matrices have.
    let file_type = match content.kind {
        Kind::F32 => 0,
        Kind::Q4_0 => 2,
        Kind::Q8_0 => 7,
        Kind::BF16 => 32,
    };
    g.u32("general.file_type", file_type);
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
    tensors(&mut g, s, content);
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

/// What a matrix of a shape with skewed routing has besides noise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// Noise alone.
    Noise,
    /// The constant in channel 0, and noise of deviation 1.
    Embedding,
    /// Little noise, and none for channel 0.
    Adds,
}

fn tensors(g: &mut Gguf<'static>, s: &Shape, content: Content) {
    let (h, q, kv) = (s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let Content { kind, zipf } = content;
    let mut seed = 1u64;
    let mut matrix = |g: &mut Gguf<'static>, name: &str, dims: &[u32], part: Part| {
        let dims: Vec<u64> = dims.iter().map(|&d| d.into()).collect();
        seed += 1;
        let noise = Noise { dims: dims.clone(), kind, seed };
        g.tensor(name, &dims, kind, move || match (zipf, part) {
            (Some(_), Part::Embedding) => noise.with_constant(),
            (Some(_), Part::Adds) => noise.small(),
            _ => noise.plain(),
        });
    };
    let ones = |g: &mut Gguf<'static>, name: &str, n: u32| {
        g.tensor(name, &[n.into()], Kind::F32, move || 1f32.to_le_bytes().repeat(n as usize));
    };
    matrix(g, "token_embd.weight", &[h, s.vocab], Part::Embedding);
    ones(g, "output_norm.weight", h);
    if s.arch == "olmoe" || zipf.is_some() {
        matrix(g, "output.weight", &[h, s.vocab], Part::Noise);
    }
    for i in 0..s.layers {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        ones(g, &name("attn_norm"), h);
        ones(g, &name("ffn_norm"), h);
        for (part, dims) in [("attn_q", [h, q]), ("attn_k", [h, kv]), ("attn_v", [h, kv])] {
            matrix(g, &name(part), &dims, Part::Noise);
        }
        matrix(g, &name("attn_output"), &[q, h], Part::Adds);
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
            let (hidden, experts, layer) = (h as usize, s.experts as usize, u64::from(i));
            let dims = [h.into(), s.experts.into()];
            let router = Noise { dims: dims.to_vec(), kind: Kind::F32, seed: (layer + 1) << 32 };
            g.tensor(&name("ffn_gate_inp"), &dims, Kind::F32, move || match zipf {
                Some(exponent) => skewed(hidden, experts, exponent, layer),
                None => router.plain(),
            });
            matrix(g, &name("ffn_gate_exps"), &[h, s.inter, s.experts], Part::Noise);
            matrix(g, &name("ffn_up_exps"), &[h, s.inter, s.experts], Part::Noise);
            matrix(g, &name("ffn_down_exps"), &[s.inter, h, s.experts], Part::Adds);
        } else {
            matrix(g, &name("ffn_gate"), &[h, s.inter], Part::Noise);
            matrix(g, &name("ffn_up"), &[h, s.inter], Part::Noise);
            matrix(g, &name("ffn_down"), &[s.inter, h], Part::Adds);
        }
    }
}

/// The constant in channel 0 of embeddings. With 2048 channels of deviation 1 it is half of the
/// power, so that the norm makes about 32 of it.
const CONSTANT: f32 = 45.0;
/// The deviation of what layers add to the residual stream, in that of a whole product.
const ADDED: f32 = 0.1;
/// The deviation of the router's noise. Experts are drawn exactly by their probabilities with
/// Gumbel's noise; with normal noise of this deviation, the 8 best of 128 are in the first quarter of
/// the ranks in 68 % of all cases (Gumbel: 70 %), in the first half in 85 % (85 %).
const NOISE: f32 = 1.9;

/// A router whose experts are chosen by Zipf's law: ranks are drawn anew for each layer.
fn skewed(hidden: usize, experts: usize, exponent: f32, layer: u64) -> Vec<u8> {
    let mut draw = Draw::new(0xE0_0000 + layer);
    let mut ranks: Vec<usize> = (1..=experts).collect();
    for i in (1..experts).rev() {
        ranks.swap(i, draw.next() as usize % (i + 1));
    }
    let channels = hidden as f32;
    let rms = ((channels + CONSTANT * CONSTANT) / channels).sqrt();
    let deviation = NOISE * rms / channels.sqrt();
    let mut bytes = Vec::with_capacity(4 * hidden * experts);
    for rank in ranks {
        let bias = -exponent * (rank as f32).ln() * rms / CONSTANT;
        bytes.extend(bias.to_le_bytes());
        (1..hidden).for_each(|_| bytes.extend((draw.normal() * deviation).to_le_bytes()));
    }
    bytes
}

/// Numbers drawn by xorshift64*.
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    }

    /// Approximately of the normal distribution: a sum of four bytes, of mean 510 and deviation 148
    /// (sqrt(4 (256^2 - 1) / 12)).
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255);
        (sum as f32 - 510.0) / 147.8
    }
}

/// Noise of deviation 1 / sqrt(columns), so that products keep their inputs' deviation. To a
/// quantizer it resembles trained weights.
struct Noise {
    /// Columns first.
    dims: Vec<u64>,
    kind: Kind,
    seed: u64,
}

impl Noise {
    fn plain(&self) -> Vec<u8> {
        self.scaled(1.0)
    }

    fn values(&self) -> u64 {
        self.dims.iter().product()
    }

    fn scaled(&self, factor: f32) -> Vec<u8> {
        let (n, scale) = (self.values(), factor / (self.dims[0] as f32).sqrt());
        let mut draw = Draw::new(self.seed);
        let mut bytes = Vec::with_capacity(self.kind.bytes(n) as usize);
        match self.kind {
            Kind::F32 => (0..n).for_each(|_| bytes.extend((draw.normal() * scale).to_le_bytes())),
            // The upper half of a float: truncated, which is good enough for noise.
            Kind::BF16 => {
                (0..n).for_each(|_| bytes.extend(&(draw.normal() * scale).to_le_bytes()[2..]));
            }
            // Between -7 and 7, of deviation 4.18. Without -8, which becomes 0, since a mean other
            // than 0 would grow from layer to layer.
            Kind::Q4_0 => {
                let scale = f16::from_f32(scale / 4.18).to_le_bytes();
                for _ in 0..n / 32 {
                    bytes.extend(scale);
                    for _ in 0..4 {
                        let x = draw.next() as u32;
                        let zeros = !(x | x >> 1 | x >> 2 | x >> 3) & 0x1111_1111;
                        bytes.extend((x | zeros << 3).to_le_bytes());
                    }
                }
            }
            // Between -127 and 127, of deviation 73.6; -128 becomes 127.
            Kind::Q8_0 => {
                let scale = f16::from_f32(scale / 73.6).to_le_bytes();
                for _ in 0..n / 32 {
                    bytes.extend(scale);
                    for _ in 0..8 {
                        let x = (draw.next() as u32).to_le_bytes();
                        bytes.extend(x.map(|b| if b == 0x80 { 0x7F } else { b }));
                    }
                }
            }
        }
        bytes
    }

    /// Noise of deviation 1 whose channel 0 is the constant; in blocks, the other channels of its
    /// block are zero.
    fn with_constant(&self) -> Vec<u8> {
        let mut bytes = self.scaled((self.dims[0] as f32).sqrt());
        for row in bytes.chunks_exact_mut(self.kind.bytes(self.dims[0]) as usize) {
            match self.kind {
                Kind::F32 => row[..4].copy_from_slice(&CONSTANT.to_le_bytes()),
                Kind::BF16 => row[..2].copy_from_slice(&CONSTANT.to_le_bytes()[2..]),
                Kind::Q4_0 => {
                    row[..2].copy_from_slice(&f16::from_f32(CONSTANT / 7.0).to_le_bytes());
                    row[2..18].fill(0x88);
                    row[2] = 0x8F;
                }
                Kind::Q8_0 => {
                    row[..2].copy_from_slice(&f16::from_f32(CONSTANT / 100.0).to_le_bytes());
                    row[2..34].fill(0);
                    row[2] = 100;
                }
            }
        }
        bytes
    }

    /// Little noise, and none in row 0 of each matrix.
    fn small(&self) -> Vec<u8> {
        let mut bytes = self.scaled(ADDED);
        let row = self.kind.bytes(self.dims[0]) as usize;
        let matrix = row * self.dims[1] as usize;
        bytes.chunks_exact_mut(matrix.max(1)).for_each(|m| m[..row].fill(0));
        bytes
    }
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
        let out = Noise { dims: vec![64, 157], kind: Kind::F32, seed: 3 }.plain();
        let x: Vec<f32> = out.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let sd = (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
        assert!((0.12..0.13).contains(&sd), "{sd}");
    }

    #[test]
    fn a_skewed_router_follows_the_law() {
        // Normed rows: the constant, and noise of what is left of the power.
        let (hidden, experts) = (2048usize, 16usize);
        let router = skewed(hidden, experts, 1.0, 7);
        let router: Vec<f32> =
            router.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let rms = ((hidden as f32 + CONSTANT * CONSTANT) / hidden as f32).sqrt();
        let mut draw = Draw::new(5);
        let mut counts = vec![0usize; experts];
        for _ in 0..2000 {
            let mut x: Vec<f32> = (0..hidden).map(|_| draw.normal() / rms).collect();
            x[0] = CONSTANT / rms;
            let logit = |e: &usize| -> f32 {
                x.iter().zip(&router[e * hidden..]).map(|(x, w)| x * w).sum()
            };
            let best = (0..experts).max_by(|a, b| logit(a).total_cmp(&logit(b)));
            counts[best.unwrap()] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // Of 16 experts, the law gives the first 592 and the second 296.
        assert!((430..620).contains(&counts[0]), "{counts:?}");
        assert!((220..400).contains(&counts[1]), "{counts:?}");
        assert!(counts[15] > 5, "{counts:?}");
    }

    #[test]
    fn bytes_have_a_character_each() {
        let chars = byte_chars();
        assert_eq!((chars[b'A' as usize], chars[b' ' as usize]), ('A', 'Ġ'));
        let unique: std::collections::BTreeSet<char> = chars.into_iter().collect();
        assert_eq!(unique.len(), 256);
    }
}
