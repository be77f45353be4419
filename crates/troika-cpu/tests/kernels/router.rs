use troika_cpu::kernels::router::{Choice, route, router};
use troika_graph::{Router, Score};

use crate::{Random, on_each_isa};

pub fn op(score: Score, experts: usize, top_k: usize) -> Router {
    Router {
        experts,
        top_k,
        score,
        normalize: false,
        scale: 1.0,
        groups: None,
        bias: None,
        expert_scales: None,
    }
}

fn one(op: &Router, logits: &[f32]) -> (Vec<i32>, Vec<f32>) {
    biased(op, None, logits)
}

fn biased(op: &Router, bias: Option<&[f32]>, logits: &[f32]) -> (Vec<i32>, Vec<f32>) {
    routed(Choice { op, bias, scales: None }, logits)
}

fn routed(of: Choice<'_>, logits: &[f32]) -> (Vec<i32>, Vec<f32>) {
    let (mut scores, mut rest) = (logits.to_vec(), vec![0.0; logits.len()]);
    let (mut ids, mut w) = (vec![0; of.op.top_k], vec![0.0; of.op.top_k]);
    route(of, &mut scores, &mut rest, &mut ids, &mut w);
    (ids, w)
}

#[track_caller]
fn near(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((f64::from(*g) - w).abs() < 1e-6, "{got:?} is not {want:?}");
    }
}

const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, 0.0];

fn exp_sum(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).exp()).sum()
}

#[test]
fn softmax_chooses_the_largest_and_the_first_of_equals() {
    let (ids, w) = one(&op(Score::Softmax, 6, 3), &LOGITS);
    assert_eq!(ids, [1, 3, 4]);
    let p = |x: f64| x.exp() / exp_sum(&LOGITS);
    near(&w, &[p(2.0), p(2.0), p(1.0)]);
}

#[test]
fn normalising_and_scaling_come_last() {
    let normal = Router { normalize: true, scale: 2.5, ..op(Score::Softmax, 6, 3) };
    let (_, w) = one(&normal, &LOGITS);
    let sum = 2.0 * 2f64.exp() + 1f64.exp();
    near(&w, &[2.5 * 2f64.exp() / sum, 2.5 * 2f64.exp() / sum, 2.5 * 1f64.exp() / sum]);
    let (ids, same) = one(&op(Score::TopKSoftmax, 6, 3), &LOGITS);
    assert_eq!(ids, [1, 3, 4]);
    near(&same, &w.iter().map(|w| f64::from(*w) / 2.5).collect::<Vec<_>>());
}

#[test]
fn weights_of_experts_are_scaled_at_last() {
    let normal = Router { normalize: true, ..op(Score::Softmax, 6, 3) };
    let (ids, w) = one(&normal, &LOGITS);
    let scales = Some(&[9.0, 0.5, 9.0, 2.0, -1.0, 9.0][..]);
    let (same, scaled) = routed(Choice { op: &normal, bias: None, scales }, &LOGITS);
    assert_eq!((ids, same), (vec![1, 3, 4], vec![1, 3, 4]));
    near(&scaled, &[w[0] * 0.5, w[1] * 2.0, -w[2]].map(f64::from));
}

#[test]
fn sigmoid_scores_stand_alone() {
    let (ids, w) = one(&op(Score::Sigmoid, 6, 2), &LOGITS);
    assert_eq!(ids, [1, 3]);
    let s = 1.0 / (1.0 + (-2f64).exp());
    near(&w, &[s, s]);
    let (_, w) = one(&Router { normalize: true, ..op(Score::Sigmoid, 6, 2) }, &LOGITS);
    near(&w, &[0.5, 0.5]);
}

#[test]
fn only_experts_of_the_best_groups_are_chosen() {
    // Groups of two: best 2.0, 2.5, 1.0 and 2.25; two are kept.
    let logits = [0.5, 2.0, -1.0, 2.5, 1.0, 0.0, 2.25, 2.2];
    let limited = Router { groups: Some((4, 2)), ..op(Score::Softmax, 8, 3) };
    assert_eq!(one(&limited, &logits).0, [3, 6, 7]);
    // Of equal groups the first stays.
    let equal = Router { groups: Some((4, 1)), ..op(Score::Softmax, 8, 1) };
    assert_eq!(one(&equal, &[1.0; 8]).0, [0]);
    let equal = Router { groups: Some((4, 2)), ..op(Score::Softmax, 8, 3) };
    assert_eq!(one(&equal, &[1.0; 8]).0, [0, 1, 2]);
}

#[test]
fn a_bias_chooses_and_does_not_weigh() {
    let s = |x: f64| 1.0 / (1.0 + (-x).exp());
    let bias = [0.0, -1.0, 0.5, 0.0, 0.0, 0.5];
    let (ids, w) = biased(&op(Score::Sigmoid, 6, 2), Some(&bias), &LOGITS);
    assert_eq!(ids, [5, 3]);
    near(&w, &[s(0.0), s(2.0)]);
    // The group of the best expert has a worse sum of two than both others.
    let limited = Router { groups: Some((3, 2)), ..op(Score::Softmax, 6, 2) };
    let scores = [4f32, 1.0, 3.0, 3.0, 3.5, 3.0];
    let logits = scores.map(f32::ln);
    assert_eq!(one(&limited, &logits).0, [0, 4]);
    assert_eq!(biased(&limited, Some(&[0.0; 6]), &logits).0, [4, 2]);
}

#[test]
fn sparsemixer_weighs_each_choice_among_its_near_ones() {
    let mixer = op(Score::SparseMixer { eps: 0.1 }, 4, 2);
    // Threshold 0.2: near 2.0 are those above 1.6; near 1.7 (2.0 gone) those above 1.36.
    let (ids, w) = one(&mixer, &[1.7, 2.0, 1.4, 0.3]);
    assert_eq!(ids, [1, 0]);
    let first = 2f64.exp() / (2f64.exp() + 1.7f64.exp());
    let second = 1.7f64.exp() / (1.7f64.exp() + 1.4f64.exp());
    near(&w, &[first, second]);
    // A large negative logit is measured against its own magnitude: (1 + 9) / 9 is far.
    let (ids, w) = one(&mixer, &[-9.0, 1.0, -8.0, -9.5]);
    assert_eq!(ids, [1, 2]);
    // (-8 + 9) / 9 and (-8 + 9.5) / 9.5 are below 0.2.
    let all = (-8f64).exp() + (-9f64).exp() + (-9.5f64).exp();
    near(&w, &[1.0, (-8f64).exp() / all]);
}

#[test]
fn rows_are_routed_alike_in_parallel() {
    let mut r = Random(8);
    let (rows, experts) = (300, 33);
    let logits = r.floats(rows * experts);
    let op = op(Score::Softmax, experts, 4);
    on_each_isa(3, |cx| {
        let (mut ids, mut w) = (vec![0; rows * 4], vec![0.0; rows * 4]);
        router(cx, Choice { op: &op, bias: None, scales: None }, &logits, &mut ids, &mut w)
            .unwrap();
        for row in 0..rows {
            let (i, v) = one(&op, &logits[row * experts..][..experts]);
            assert_eq!((&ids[row * 4..][..4], &w[row * 4..][..4]), (&i[..], &v[..]));
        }
    });
}
