//! How many dispatches GPU devices need for a layer of each architecture. No device is needed.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::collections::BTreeMap;
use std::path::Path;

use conformance::golden::find;
use conformance::suite::model_cases;
use setup::root;
use troika_gpu::kernels_of;

/// The most dispatches of a layer in decoding.
const MOST: [(&str, usize); 20] = [
    ("deepseek-v2", 17),
    ("exaone-4", 8),
    ("gemma", 6),
    ("gemma-2", 8),
    ("gemma-3", 8),
    ("gpt-oss", 8),
    ("llama-2", 6),
    ("llama-3.2", 6),
    ("mistral", 6),
    ("mixtral", 8),
    ("olmoe", 8),
    ("phi-2", 6),
    ("phi-3", 6),
    ("phimoe", 8),
    ("qwen1.5", 6),
    ("qwen2-moe", 11),
    ("qwen2.5", 6),
    ("qwen3", 6),
    ("qwen3-moe", 8),
    ("smollm3", 6),
];

/// The kernels of each layer, for so many rows that see so many positions.
fn layers(model: &Path, rows: usize, positions: usize) -> BTreeMap<usize, Vec<&'static str>> {
    let mut layers: BTreeMap<usize, Vec<&'static str>> = BTreeMap::new();
    for case in model_cases(model).unwrap() {
        let Some(rest) = case.graph.name.strip_prefix("layer ") else { continue };
        let layer = rest.split(' ').next().unwrap().parse().unwrap();
        layers.entry(layer).or_default().extend(kernels_of(&case.graph, rows, positions).unwrap());
    }
    layers
}

#[test]
fn layers_take_few_dispatches() {
    let mut wrong = Vec::new();
    // No kernel has decaying sums.
    for case in find(&root("tests/golden"))
        .unwrap()
        .into_iter()
        .filter(|case| case.name != "test-recurrent")
    {
        let most_of = |rows, positions| {
            let layers = layers(&case.model, rows, positions);
            layers.into_values().max_by_key(Vec::len).unwrap()
        };
        let decode = most_of(1, 100);
        let [far, few, many] = [(1, 5000), (4, 100), (64, 100)].map(|(r, p)| most_of(r, p).len());
        let name = &case.name;
        println!(
            "{name}: {} in decode, {far} far on, {few} for 4 rows, {many} for 64: {}",
            decode.len(),
            decode.join(" ")
        );
        let most = MOST.iter().find(|(known, _)| known == name).map(|(_, most)| *most);
        if most.is_none_or(|most| decode.len() > most) {
            wrong
                .push(format!("{name}: {} dispatches, and at most {most:?} are due", decode.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
