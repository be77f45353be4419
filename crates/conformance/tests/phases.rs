//! A long prompt does not stop other sessions, in virtual time: equal in every run.

#![allow(clippy::unwrap_used)]

mod setup;

use std::time::Duration;

use conformance::golden::greedy_request as greedy;
use setup::{TWO_PROCESSORS, golden_dir};
use troika::engine::Sharing;
use troika::plan::Strategy;
use troika::weights::FloatType;
use troika::{DeviceOptions, Model, OpenOptions};

const PROMPT: usize = 200;

/// Tokens of one session between the start of another's prompt and its first token, all tokens, and
/// the final time.
fn tokens_meanwhile(
    devices: &[&str],
    strategy: Strategy,
    rows_per_step: usize,
) -> (usize, Vec<u32>, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("two.toml");
    // The first one is slow to begin.
    let soc = TWO_PROCESSORS.replace("gops = 1.0", "gops = 100.0").replace("20.0", "1000.0");
    std::fs::write(&file, soc).unwrap();
    let spec = |name: &&str| format!("virtual:{}:{name}", file.display()).parse().unwrap();
    let options = OpenOptions {
        dtype: FloatType::F32,
        strategy,
        chunk: Some(64),
        devices: DeviceOptions {
            devices: devices.iter().map(spec).collect(),
            ..DeviceOptions::default()
        },
        sharing: Sharing { sequences: 2, rows_per_step, ..Sharing::default() },
        ..OpenOptions::default()
    };
    let model = Model::open(&golden_dir("qwen3"), &options).unwrap();
    let (mut a, mut b) = (model.session().unwrap(), model.session().unwrap());
    a.start(&[1, 2, 3], &greedy(200)).unwrap();
    let mut tokens = vec![a.next_piece().unwrap().unwrap().token];
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 37 % 250).collect();
    b.start(&prompt, &greedy(1)).unwrap();
    let mut meanwhile = 0;
    let first = loop {
        assert!(model.step().unwrap());
        while let Some(piece) = a.try_next().unwrap() {
            tokens.push(piece.token);
            meanwhile += 1;
        }
        if let Some(piece) = b.try_next().unwrap() {
            break piece.token;
        }
    };
    tokens.push(first);
    (meanwhile, tokens, model.clock().now())
}

#[test]
fn tokens_come_while_a_chunk_of_another_prompt_is_in_flight() {
    let run = || tokens_meanwhile(&["a", "b"], Strategy::PrefillDecode, 128);
    let (meanwhile, tokens, end) = run();
    // Many per chunk, not just one after each.
    assert!(meanwhile > 5 * PROMPT.div_ceil(64), "{meanwhile}");
    assert_eq!(run(), (meanwhile, tokens, end), "it is the same in every run");
}

#[test]
fn a_prompt_is_mixed_with_decoding_within_the_rows_of_a_step() {
    for rows in [17, 33, 64] {
        let (meanwhile, ..) = tokens_meanwhile(&["b"], Strategy::OneDevice, rows);
        // Each step has a row of the decoding session.
        let steps = PROMPT.div_ceil(rows - 1);
        assert!((steps - 1..=steps + 1).contains(&meanwhile), "{rows}: {meanwhile} in {steps}");
    }
}
