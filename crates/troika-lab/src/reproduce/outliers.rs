//! Claims of llm.npu that need no virtual SoC: shared graphs, chunks and outliers.

use troika::OpenOptions;
use troika::graph::DType;
use troika::graph::partition::cut_at;
use troika::graph::{Op, Subgraph};
use troika::model::lower::{LowerOptions, lower};
use troika::weights::Quant;
use troika_check::relative_error;

use super::lab::Lab;
use super::machine::built_in_logits;
use super::outcome::{Item, Outcome};
use super::presets;
use crate::{Result, Shape};

/// The prompt and chunk of the claim.
const PROMPT: usize = 1024;
const CHUNK: usize = 256;

/// Counts a model's subgraphs, cut where llm.npu cuts them, and what they take with their weights:
/// one for each chunk, or those shared that depend on the number of rows alone.
pub fn shared(_: &mut Lab) -> Result<Outcome> {
    let shape = Shape::find(presets::UI, DType::Q8_0)?;
    let store = shape.lazy_weights(Quant::None);
    let bounds = LowerOptions { max_rows: CHUNK, max_kv: PROMPT, kv_dtype: DType::F16 };
    let lowered = lower(&shape.spec, &|key| store.shape(key), bounds)?;
    let in_layers = lowered.segments.iter().filter(|s| s.layer.is_some());
    let graphs: Vec<Subgraph> = in_layers.flat_map(|s| behind_norm(&s.graph)).collect();
    // Attention also looks at what came before its chunk.
    let (of_chunk, of_rows): (Vec<_>, Vec<_>) = graphs.iter().partition(|g| !g.states.is_empty());
    let bytes = |list: &[&Subgraph]| list.iter().map(|g| bytes(g)).sum::<f64>();
    let chunks = (PROMPT / CHUNK) as f64;
    let alone = chunks * (bytes(&of_chunk) + bytes(&of_rows));
    let together = chunks * bytes(&of_chunk) + bytes(&of_rows);
    let less = 100.0 * (1.0 - together / alone);
    let items = vec![
        Item::new("subgraphs of a chunk", 144.0, graphs.len() as f64),
        Item::new("of them shared", 120.0, of_rows.len() as f64),
        Item::new("% less memory of graphs", 75.0, less),
    ];
    let exact = |i: &Item| i.error().abs() < 1e-9;
    Ok(Outcome::numbers(items, |items| exact(&items[0]) && exact(&items[1]) && less >= 70.0))
}

/// A segment's graph, cut behind a norm that it begins with.
fn behind_norm(graph: &Subgraph) -> Vec<Subgraph> {
    let begins = matches!(
        graph.nodes.first().map(|n| &n.op),
        Some(Op::RmsNorm { .. } | Op::LayerNorm { .. })
    );
    match cut_at(graph, &[0]) {
        Ok(pieces) if begins => pieces.into_iter().map(|p| p.graph).collect(),
        _ => vec![graph.clone()],
    }
}

/// Bytes of a graph's weights, and of its values as halves, which is how the phone's NPU keeps
/// floats.
fn bytes(graph: &Subgraph) -> f64 {
    let weights: usize = graph.weights.iter().map(|w| w.bytes() as usize).sum();
    let states = |i: &usize| graph.states.iter().any(|s| s.0 as usize == *i);
    let values = graph.values.iter().enumerate().filter(|(i, _)| !states(i));
    let values = values.map(|(_, v)| CHUNK * DType::F16.row_size(v.shape.row_len()));
    (weights + values.sum::<usize>()) as f64
}

/// The built-in model's logits in chunks, against the logits of the whole prompt.
pub fn chunked(_: &mut Lab) -> Result<Outcome> {
    const SHORT: usize = 16;
    let (mut worst, mut pass) = (0.0_f32, true);
    for tokens in [1, SHORT - 1, SHORT, SHORT + 1, 3 * SHORT + 7] {
        let logits = |chunk| {
            let chunk = Some(chunk);
            built_in_logits(tokens, OpenOptions { chunk, ..OpenOptions::default() })
        };
        let off = relative_error(&logits(SHORT)?, &logits(512)?);
        pass &= off <= 1e-4;
        worst = worst.max(off);
    }
    let ours = format!("{worst:.1e}");
    let note =
        format!("The built-in model in f32, with chunks of {SHORT}, and lengths around them.");
    Ok(Outcome::words("1e-4", ours, pass).noted(note))
}
