//! Files of routing, and predictions by them.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;
use troika_model::families;
use troika_model::spec::ModelSpec;
use troika_plan::{
    Calibration, LayerPredictor, Prediction, PredictorSource, RoutingPredictor, RoutingTrace,
    Transitions,
};

const EXPERTS: usize = 8;
const HIDDEN: usize = 19;

fn spec(layers: usize) -> ModelSpec {
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 32, "moe_intermediate_size": 32, "num_experts": EXPERTS,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "vocab_size": 64, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "attention_bias": false,
    });
    families::from_config(&config).unwrap().spec
}

/// Two sequences in which token `t` goes to expert `t` and the one after it, and in the next layer
/// one expert further on.
fn trace() -> RoutingTrace {
    let mut trace = RoutingTrace::new(&spec(3));
    trace.sequences = vec![5, 3];
    for (i, layer) in trace.layers.iter_mut().enumerate() {
        layer.ids = (0..8).flat_map(|t| [t, t + 1]).map(|e| ((e + i) % EXPERTS) as u16).collect();
    }
    trace
}

fn predictor(rank: usize) -> RoutingPredictor {
    let of = |layer: usize| {
        let cols = if rank == 0 { HIDDEN } else { rank };
        let number = |i: usize| ((i * 7919 + layer * 31) % 97) as f32 / 48.5 - 1.0;
        LayerPredictor {
            layer,
            source: match layer {
                0 => PredictorSource::TokenBefore(2),
                _ => PredictorSource::Layer(layer - 1),
            },
            experts: EXPERTS,
            top_k: 2,
            hidden: HIDDEN,
            rank,
            bias: (0..EXPERTS).map(number).collect(),
            inner: (0..rank * HIDDEN).map(number).collect(),
            outer: (0..EXPERTS * cols).map(|i| number(i + 3)).collect(),
        }
    };
    let model = RoutingTrace::new(&spec(3)).model;
    RoutingPredictor { model, layers: (0..3).map(of).collect() }
}

#[test]
fn files_are_read_as_they_were_written() {
    let trace = trace();
    assert_eq!(RoutingTrace::from_bytes(&trace.to_bytes()).unwrap(), trace);
    assert_eq!(trace.check(&spec(3)), Ok(()));
    for rank in [0, 3] {
        let predictor = predictor(rank);
        assert_eq!(RoutingPredictor::from_bytes(&predictor.to_bytes()).unwrap(), predictor);
        assert_eq!(predictor.check(&spec(3)), Ok(()));
    }
}

#[test]
fn other_files_are_refused_with_a_sentence() {
    let whole = trace().to_bytes();
    let says = |bytes: &[u8]| RoutingTrace::from_bytes(bytes).unwrap_err().to_string();
    assert_eq!(says(b"{}"), "it is no routing trace");
    assert_eq!(says(&predictor(0).to_bytes()), "it is no routing trace");
    for cut in [8, 15, 40, whole.len() - 17, whole.len() - 1] {
        assert!(says(&whole[..cut]).contains("is cut short"), "{cut}: {}", says(&whole[..cut]));
    }
    let mut newer = whole.clone();
    newer[8] = 9;
    assert!(says(&newer).contains("of version 9, and this build reads 1"));
    let mut damaged = whole.clone();
    let last = damaged.len() - 20;
    damaged[last] ^= 1;
    assert!(says(&damaged).contains("digest is another"));
    let mut beyond = trace();
    beyond.layers[1].ids[3] = 8;
    assert!(says(&beyond.to_bytes()).contains("expert 8 in layer 1 of 8 experts"));
    let endless = "{\"model\":{\"family\":\"q\",\"layers\":1,\"hidden\":1,\"vocab\":1},\"sequences\":\
        [18446744073709551615,2],\"layers\":[]}";
    let mut huge = whole[..12].to_vec();
    huge.extend((endless.len() as u32).to_le_bytes());
    huge.extend(endless.as_bytes());
    assert!(says(&huge).contains("beyond memory"));

    let other = trace().check(&spec(4)).unwrap_err();
    assert!(other.to_string().contains("and the model is"), "{other}");
    let mut odd = predictor(0);
    odd.layers[1].top_k = 3;
    let why = odd.check(&spec(3)).unwrap_err().to_string();
    assert!(why.contains("3 of 8 experts in layer 1, and the model 2 of 8"), "{why}");
    odd.layers[1].bias[0] = f32::NAN;
    let why = RoutingPredictor::from_bytes(&odd.to_bytes()).unwrap_err().to_string();
    assert!(why.contains("layer 1 has impossible numbers"), "{why}");
}

#[test]
fn calibrations_say_how_often_experts_were_chosen_and_what_follows() {
    let trace = trace();
    let counts = trace.counts(0..8);
    assert!(counts.iter().all(|of| of.counts == [2.0; EXPERTS] && of.imbalance() == 1.0));
    assert_eq!(trace.counts(0..1)[1].counts, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(trace.ranges().collect::<Vec<_>>(), [0..5, 5..8]);
    let transitions = Transitions::of(&trace);
    assert_eq!((transitions.len(), transitions[1].from, transitions[1].to), (2, 1, 2));
    // Expert 0 is chosen with 1, and with 7: experts 1 and 2 follow, or 0 and 1.
    assert_eq!(transitions[0].successors[0], [(1, 2), (0, 1), (2, 1)]);
    assert_eq!(transitions[0].predictability(&counts[0].counts), Some(1.0));
    let mut calibration = Calibration::new(&spec(3));
    let digest = calibration.digest();
    calibration.transitions = transitions;
    calibration.tensors.insert("layer 2 router.routed".into(), vec![3.0, 1.0]);
    calibration.tensors.insert("layer 0 router.routed".into(), vec![1.0]);
    assert_ne!(calibration.digest(), digest);
    assert_eq!(Calibration::from_json(&calibration.to_json()).unwrap(), calibration);
    let routing = calibration.routing();
    assert_eq!(routing.iter().map(|of| of.layer).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(routing[1].imbalance(), 1.5);
}

/// A product as it is written.
fn plain(of: &LayerPredictor, x: &[f32]) -> Vec<f32> {
    let product = |m: &[f32], x: &[f32]| -> Vec<f32> {
        m.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    let x = if of.rank == 0 { x.to_vec() } else { product(&of.inner, x) };
    product(&of.outer, &x).iter().zip(&of.bias).map(|(y, bias)| y + bias).collect()
}

proptest! {
    #[test]
    fn predictions_are_the_best_of_a_product(
        x in prop::collection::vec(-2.0_f32..2.0, HIDDEN),
        layer in 0..3_usize,
        rank in 0..4_usize,
        count in 0..10_usize,
    ) {
        let predictor = predictor(rank);
        let mut memory = Prediction::default();
        let got = predictor.predict(layer, &x, count, &mut memory).to_vec();
        let scores = plain(predictor.layer(layer).unwrap(), &x);
        prop_assert_eq!(got.len(), count.min(EXPERTS));
        let score = |e: &u16| scores[usize::from(*e)];
        prop_assert!(got.windows(2).all(|p| score(&p[0]) >= score(&p[1]) - 1e-4));
        let worst = got.iter().map(score).fold(f32::INFINITY, f32::min);
        let left = (0..EXPERTS as u16).filter(|e| !got.contains(e)).map(|e| score(&e));
        prop_assert!(count == 0 || left.fold(f32::NEG_INFINITY, f32::max) <= worst + 1e-4);
        prop_assert!(predictor.predict(9, &x, count, &mut memory).is_empty());
        prop_assert!(predictor.predict(layer, &x[1..], count, &mut memory).is_empty());
    }
}

#[test]
fn a_router_is_followed_by_the_layer_that_reads_it() {
    let predictor = predictor(0);
    assert_eq!(predictor.after(0).unwrap().layer, 1);
    assert_eq!(predictor.after(2).unwrap().layer, 0, "of the next token");
    assert_eq!(predictor.bytes(), 3 * 4 * (EXPERTS + EXPERTS * HIDDEN));
}
