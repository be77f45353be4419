use proptest::prelude::*;

use super::*;

fn logits() -> Vec<f32> {
    vec![0.0, 3.0, 1.0, 2.0, f32::NAN, 3.0, -5.0]
}

fn params() -> SampleParams {
    SampleParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SampleParams::default() }
}

fn histogram(params: SampleParams, n: usize) -> Vec<usize> {
    let mut s = Sampler::new(params);
    let mut counts = vec![0; 7];
    for _ in 0..n {
        counts[s.sample(&logits()).unwrap() as usize] += 1;
    }
    counts
}

#[test]
fn greedy_takes_the_first_of_the_best() {
    let p = SampleParams { temperature: 0.0, ..params() };
    assert_eq!(Sampler::new(p).sample(&logits()), Ok(1));
    let bias =
        SampleParams { temperature: 0.0, logit_bias: [(6, 100.0), (1, -1.0)].into(), ..params() };
    assert_eq!(Sampler::new(bias).sample(&logits()), Ok(6));
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let draw = |seed| {
        let mut s = Sampler::new(SampleParams { seed, ..params() });
        (0..40).map(|_| s.sample(&logits()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn frequencies_follow_the_softmax() {
    let n = 20_000;
    let counts = histogram(params(), n);
    let weights: Vec<f64> =
        logits().iter().map(|l| if l.is_nan() { 0.0 } else { f64::from(*l).exp() }).collect();
    let total: f64 = weights.iter().sum();
    for (c, w) in counts.iter().zip(weights) {
        let expected = w / total * n as f64;
        assert!((*c as f64 - expected).abs() <= 5.0 * expected.sqrt() + 5.0, "{c} vs {expected}");
    }
}

#[test]
fn truncation_removes_the_tail() {
    let kept = |p| histogram(p, 2000).iter().map(|&c| c > 0).collect::<Vec<_>>();
    let top3 = SampleParams { top_k: 3, ..params() };
    assert_eq!(kept(top3), [false, true, false, true, false, true, false]);
    let top_p = SampleParams { top_p: 0.5, ..params() };
    assert_eq!(kept(top_p), [false, true, false, false, false, true, false]);
    let min_p = SampleParams { min_p: 0.3, ..params() };
    assert_eq!(kept(min_p), [false, true, false, true, false, true, false]);
    let top_p0 = SampleParams { top_p: 0.0, ..params() };
    assert_eq!(kept(top_p0), [false, true, false, false, false, false, false]);
}

#[test]
fn penalties_push_repeated_tokens_down() {
    let pick = |p: SampleParams| {
        let mut s = Sampler::new(SampleParams { temperature: 0.0, ..p });
        [1, 1, 5, 6].into_iter().for_each(|t| s.accept(t));
        s.sample(&logits()).unwrap()
    };
    assert_eq!(pick(SampleParams { repeat_penalty: 2.0, ..params() }), 3);
    assert_eq!(pick(SampleParams { presence_penalty: 1.5, ..params() }), 3);
    assert_eq!(pick(SampleParams { frequency_penalty: 0.6, ..params() }), 5);
    let short = SampleParams { repeat_penalty: 2.0, repeat_last_n: 1, ..params() };
    assert_eq!(pick(short), 1);
}

#[test]
fn damaged_logits_are_an_error_not_a_panic() {
    let nan = [f32::NAN; 3];
    assert_eq!(Sampler::new(params()).sample(&nan), Err(SampleError::NoFinite));
    let greedy = SampleParams { temperature: 0.0, ..params() };
    assert_eq!(Sampler::new(greedy).sample(&nan), Err(SampleError::NoFinite));
    assert_eq!(Sampler::new(params()).sample(&[f32::INFINITY, 0.0]), Ok(0));
}

#[test]
fn logits_of_minus_infinity_are_never_chosen() {
    let none = [f32::NEG_INFINITY; 2];
    let some = [f32::NEG_INFINITY, f32::NAN, -1e30, f32::NEG_INFINITY];
    for temperature in [0.0, 1.0, 1e30] {
        for logit_bias in [BTreeMap::new(), [(0, 5.0), (3, f32::INFINITY)].into()] {
            let mut s = Sampler::new(SampleParams { temperature, logit_bias, ..params() });
            assert_eq!(s.sample(&none), Err(SampleError::NoFinite));
            (0..50).for_each(|_| assert_eq!(s.sample(&some), Ok(2)));
        }
    }
}

/// Penalties so large that sums overflow still order the tokens.
#[test]
fn extreme_parameters_make_no_nan() {
    let huge = f32::MAX;
    let tiny = f32::from_bits(1);
    let logits = [huge, 1.0, f32::MIN, 0.5];
    let pick = |p: SampleParams| {
        let mut s = Sampler::new(p);
        [0, 0, 2].into_iter().for_each(|t| s.accept(t));
        s.sample(&logits).unwrap()
    };
    for temperature in [0.0, tiny, 1.0] {
        let base = SampleParams { temperature, repeat_penalty: tiny, ..params() };
        assert!(base.check().is_ok());
        // Without the penalty token 0 would be taken; with it, its probability is almost 0.
        let down = SampleParams { frequency_penalty: huge, presence_penalty: huge, ..base.clone() };
        let first = if temperature == 1.0 { [1, 3] } else { [1, 1] };
        assert!(first.contains(&pick(down)), "temperature {temperature}");
        let up = SampleParams { frequency_penalty: -huge, presence_penalty: -huge, ..base };
        let first = if temperature == 0.0 { [0, 0] } else { [0, 2] };
        assert!(first.contains(&pick(up)), "temperature {temperature}");
    }
    let strong = SampleParams { temperature: 0.0, repeat_penalty: huge, ..params() };
    assert_eq!(pick(strong), 0, "divided by itself it is 1, the lower id of two");
    let banned = [(0, f32::NEG_INFINITY), (1, f32::MIN)].into();
    assert_eq!(pick(SampleParams { logit_bias: banned, ..params() }), 3);
    let forced = [(2, f32::INFINITY), (0, f32::NEG_INFINITY)].into();
    assert_eq!(pick(SampleParams { logit_bias: forced, ..params() }), 2);
}

#[test]
fn ranges_are_checked() {
    assert!(params().check().is_ok());
    type Set = fn(&mut SampleParams, f32);
    let set: [(&str, Set); 7] = [
        ("temperature", |p, x| p.temperature = x),
        ("top_p", |p, x| p.top_p = x),
        ("min_p", |p, x| p.min_p = x),
        ("repeat_penalty", |p, x| p.repeat_penalty = x),
        ("presence_penalty", |p, x| p.presence_penalty = x),
        ("frequency_penalty", |p, x| p.frequency_penalty = x),
        ("logit_bias", |p, x| _ = p.logit_bias.insert(3, x)),
    ];
    // NaN, the infinities, below 0, 0, above 1: whether each is taken.
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5, 0.0, 1.5];
    let taken = [
        [false, false, false, false, true, true],
        [false, false, false, false, true, false],
        [false, false, false, false, true, false],
        [false, false, false, false, false, true],
        [false, false, false, true, true, true],
        [false, false, false, true, true, true],
        [false, true, true, true, true, true],
    ];
    for ((name, set), taken) in set.iter().zip(taken) {
        for (value, taken) in values.into_iter().zip(taken) {
            let mut p = params();
            set(&mut p, value);
            let refused = p.check().err().map(|e| e.name);
            assert_eq!(refused, (!taken).then_some(*name), "{name} = {value}");
        }
    }
}

#[derive(Debug)]
struct Only(Vec<u32>);
impl Constraint for Only {
    fn allowed(&mut self) -> Option<&[u32]> {
        self.0.last().map(std::slice::from_ref)
    }
    fn accept(&mut self, _: u32) {
        self.0.pop();
    }
}

#[test]
fn a_constraint_allows_some_tokens() {
    for temperature in [0.0, 1.0] {
        let mut s = Sampler::new(SampleParams { temperature, ..params() });
        s.accept(5);
        // Token 4 is NaN, and there is no token 7; the last mask comes first.
        s.constrain(Box::new(Only(vec![1 << 4 | 1 << 7, 1 << 6, 1 << 2])));
        for want in [Ok(2), Ok(6), Err(SampleError::Constrained)] {
            assert_eq!(s.sample(&logits()), want);
            s.accept(0);
        }
        assert_eq!(s.sample(&[0.0, 80.0]), Ok(1));
    }
}

#[test]
fn logprobs_are_those_of_the_softmax() {
    let sum: f32 = logits().iter().filter(|l| !l.is_nan()).map(|l| l.exp()).sum();
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} is not {b}");
    let of = Logprobs::of(&logits(), 2, 3);
    near(of.chosen, 1.0 - sum.ln());
    assert_eq!(of.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 5, 3]);
    of.top.iter().zip([3.0, 3.0, 2.0]).for_each(|(t, logit)| near(t.1, logit - sum.ln()));
    assert_eq!(Logprobs::of(&logits(), 4, 0), Logprobs { chosen: f32::NEG_INFINITY, top: vec![] });
}

/// Logits with many that are equal, infinite or NaN.
fn odd_logits(len: usize, seed: &mut u32) -> Vec<f32> {
    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0, 0.0];
    let mut random = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*seed >> 8) as usize
    };
    let mut logit = || match random() % 8 {
        0 => odd[random() % odd.len()],
        1..4 => (random() % 5) as f32,
        _ => random() as f32 / 1e6 - 8.0,
    };
    (0..len).map(|_| logit()).collect()
}

#[test]
fn the_largest_logits_decide_as_all_of_them() {
    let mut seed = 1;
    for len in [1, 2, 63, 64, 65, 200, 1000, 5000] {
        for top_k in [0, 1, 2, 5, 40, 64, 2000] {
            let logits = odd_logits(len, &mut seed);
            // All, in the order in which devices pick them.
            let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
            let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().map(|x| number(*x))).collect();
            all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            all.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
            for temperature in [0.0, 0.7] {
                let params = SampleParams { temperature, top_k, seed: 7, ..params() };
                let mut samplers = [0; 3].map(|_| Sampler::new(params.clone()));
                let Some(enough) = samplers[0].wanted_top_k() else {
                    assert!(top_k == 0 && temperature > 0.0);
                    continue;
                };
                // A bias of a token that is not there has all logits looked at.
                let bias = [(len as u32, 1.0)].into();
                samplers[2] = Sampler::new(SampleParams { logit_bias: bias, ..params });
                assert_eq!(samplers[2].wanted_top_k(), None);
                for _ in 0..20 {
                    let [few, picked, whole] = &mut samplers;
                    let expected = whole.sample(&logits);
                    assert_eq!(few.sample(&logits), expected, "{len} {top_k} {temperature}");
                    let largest = &all[..all.len().min(enough + len % 3)];
                    assert_eq!(picked.sample_top_k(largest), expected, "{len} {top_k}");
                }
            }
        }
    }
}

/// Softmax, truncation and draw as they are defined, over logits that are sorted as a whole.
fn reference(logits: &[f32], p: &SampleParams, draw: f64) -> u32 {
    let mut all: Vec<(u32, f64)> = (0..)
        .zip(logits)
        .filter(|(_, l)| **l > f32::NEG_INFINITY)
        .map(|(id, l)| (id, f64::from(l.min(f32::MAX))))
        .collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    if p.top_k > 0 {
        all.truncate(p.top_k);
    }
    let best = all[0].1 as f32;
    let weight = |l: f64, t: f32| (f64::from(l as f32 - best) / f64::from(t)).exp();
    let reach = |all: &[(u32, f64)], t: f32, enough: &dyn Fn(f64, f64) -> bool| {
        let total: f64 = all.iter().map(|c| weight(c.1, t)).sum();
        let mut sum = 0.0;
        all.iter().position(|c| {
            sum += weight(c.1, t);
            enough(sum, total)
        })
    };
    if p.top_p < 1.0 {
        let last = reach(&all, 1.0, &|sum, total| sum >= f64::from(p.top_p) * total);
        all.truncate(last.map_or(all.len(), |n| n + 1));
    }
    all.retain(|c| weight(c.1, 1.0) >= f64::from(p.min_p));
    let chosen = reach(&all, p.temperature, &|sum, total| sum > draw * total);
    all[chosen.unwrap_or(all.len() - 1)].0
}

/// Bias and penalties as they are defined, one token after another.
fn penalized(logits: &[f32], p: &SampleParams, recent: &[u32]) -> Vec<f32> {
    let recent = &recent[recent.len().saturating_sub(p.repeat_last_n)..];
    let one = |(id, l): (u32, &f32)| {
        let mut l = l.min(f32::MAX) + p.logit_bias.get(&id).copied().unwrap_or(0.0);
        let count = recent.iter().filter(|t| **t == id).count() as f32;
        if count > 0.0 {
            l = if l <= 0.0 { l * p.repeat_penalty } else { l / p.repeat_penalty };
            l = l - count * p.frequency_penalty - p.presence_penalty;
        }
        l
    };
    (0..).zip(logits).map(|(id, l)| if l.is_nan() { *l } else { one((id, l)) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every draw takes the token that sorting everything takes.
    #[test]
    fn tokens_are_those_of_the_sorted_distribution(
        len in prop::sample::select(vec![1usize, 2, 63, 64, 65, 500, 5000, 40_000]),
        shape in 0..4,
        temperature in prop::sample::select(vec![1e-30f32, 0.1, 0.8, 1.0, 3.0, 1e4, 1e30]),
        top_k in prop::sample::select(vec![0usize, 0, 0, 1, 40, 3000]),
        top_p in prop::sample::select(vec![1.0f32, 0.0, 0.3, 0.95, 0.9999]),
        min_p in prop::sample::select(vec![0.0f32, 1e-40, 0.01, 0.05, 0.7, 1.0]),
        penalty in prop::sample::select(vec![(1.0f32, 0.0f32, 0.0f32), (1.3, 0.0, 0.0), (0.8, 0.5, -0.2)]),
        seed: u32,
    ) {
        let mut state = seed;
        let logits: Vec<f32> = match shape {
            0 => odd_logits(len, &mut state),
            // All equal; a hair apart; like a model's.
            1 => vec![1.5; len],
            2 => (0..len).map(|i| 3.0 + (i * 7919 % len) as f32 * 1e-6).collect(),
            _ => odd_logits(len, &mut state).iter().map(|l| (l * 1.7).max(-30.0)).collect(),
        };
        prop_assume!(logits.iter().any(|l| *l > f32::NEG_INFINITY));
        let (repeat_penalty, presence_penalty, frequency_penalty) = penalty;
        let logit_bias = if seed % 3 == 0 { [(0, -2.5), (7, 1.0)].into() } else { BTreeMap::new() };
        let p = SampleParams {
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty,
            frequency_penalty, logit_bias, repeat_last_n: 20, seed: u64::from(seed),
        };
        let (mut sampler, mut rng) = (Sampler::new(p.clone()), ChaCha8Rng::seed_from_u64(p.seed));
        let recent: Vec<u32> = (0..50).map(|i| (i * i) % len.min(90) as u32).collect();
        recent.iter().for_each(|t| sampler.accept(*t));
        let changed = penalized(&logits, &p, &recent);
        for _ in 0..8 {
            let draw = f64::from(rng.next_u32() >> 8) / f64::from(1u32 << 24);
            prop_assert_eq!(sampler.sample(&logits), Ok(reference(&changed, &p, draw)));
        }
    }
}
