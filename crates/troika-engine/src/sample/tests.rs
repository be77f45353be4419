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
    let set: [(&str, Set); 11] = [
        ("temperature", |p, x| p.temperature = x),
        ("top_p", |p, x| p.top_p = x),
        ("min_p", |p, x| p.min_p = x),
        ("repeat_penalty", |p, x| p.repeat_penalty = x),
        ("presence_penalty", |p, x| p.presence_penalty = x),
        ("frequency_penalty", |p, x| p.frequency_penalty = x),
        ("logit_bias", |p, x| _ = p.logit_bias.insert(3, x)),
        ("dry_base", |p, x| p.chain.dry_base = x),
        ("top_n_sigma", |p, x| p.chain.top_n_sigma = x),
        ("typical_p", |p, x| p.chain.typical_p = x),
        ("mirostat_eta", |p, x| p.chain.mirostat_eta = x),
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
        [false, false, false, false, false, true],
        [false, false, false, true, true, true],
        [false, false, false, false, true, false],
        [false, false, false, false, true, true],
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

/// A token a letter.
fn letter(id: u32) -> Vec<u8> {
    vec![b'a' + (id % 26) as u8]
}

/// Probabilities before and after, of llama.cpp's `tests/test-sampling.cpp`.
#[test]
fn chains_leave_what_llama_cpp_leaves() {
    let check = |before: &[f32], recent: &[u32], set: &dyn Fn(&mut Chain), after: &[f64]| {
        let mut p = params();
        set(&mut p.chain);
        let mut chain = chained::Chained::of(&p).unwrap();
        if let Some(history) = &mut chain.history {
            history.spelling = Some(Box::new(letter));
            recent.iter().for_each(|t| history.accept(*t));
        }
        let logits: Vec<f32> = before.iter().map(|p| p.ln()).collect();
        chain.cut(&logits, &p, recent, &mut || 0.5);
        let total: f64 = chain.list.iter().map(|c| c.logit.exp()).sum();
        let mut left = vec![0.0; before.len()];
        chain.list.iter().for_each(|c| left[c.id as usize] = c.logit.exp() / total);
        let sum: f64 = after.iter().sum();
        let near = left.iter().zip(after).all(|(a, b)| (a - b / sum).abs() < 1e-5);
        assert!(near, "{left:?} are not {after:?}");
    };
    let four = [0.1, 0.2, 0.3, 0.4];
    let xtc = |threshold: f32| {
        move |c: &mut Chain| (c.xtc_probability, c.xtc_threshold) = (0.99, threshold)
    };
    check(&four, &[], &xtc(0.09), &[0.1, 0.0, 0.0, 0.0]);
    check(&four, &[], &xtc(0.19), &[0.1, 0.2, 0.0, 0.0]);
    check(&four, &[], &xtc(0.29), &[0.1, 0.2, 0.3, 0.0]);
    check(&four, &[], &xtc(0.39), &[0.1, 0.2, 0.3, 0.4]);
    let typical = |c: &mut Chain| c.typical_p = 0.5;
    check(&[0.97, 0.01, 0.01, 0.01], &[], &typical, &[1.0, 0.0, 0.0, 0.0]);
    check(&[0.4, 0.2, 0.2, 0.2], &[], &typical, &[0.0, 1.0, 1.0, 1.0]);
    check(&four, &[], &|c| c.top_n_sigma = 1.0, &[0.0, 0.0, 0.428571, 0.571429]);
    check(&four, &[], &|c| c.top_n_sigma = 3.0, &[0.1, 0.2, 0.3, 0.4]);
    let dry = |multiplier: f32, allowed: f32, breaker: &'static str| {
        move |c: &mut Chain| {
            (c.dry_multiplier, c.dry_base, c.dry_allowed_length) = (multiplier, 1.1, allowed);
            c.dry_sequence_breakers = vec![breaker.into()];
        }
    };
    let (even, fifths) = ([0.25; 4], [0.2; 5]);
    check(&even, &[0, 1], &dry(1.0, 2.0, ""), &[0.25; 4]);
    let third = [0.296923, 0.296923, 0.109232, 0.296923];
    check(&even, &[0, 1, 2, 0, 1], &dry(1.0, 2.0, ""), &third);
    check(&fifths, &[0, 1, 3, 4, 0, 1], &dry(1.0, 2.0, "d"), &[0.2; 5]);
    let third = [0.241818, 0.241818, 0.032727, 0.241818, 0.241818];
    check(&fifths, &[0, 1, 2, 0, 1], &dry(2.0, 2.0, ""), &third);
    check(&fifths, &[0, 1, 2, 3, 4, 0, 1], &dry(1.0, 4.0, ""), &[0.2; 5]);
}

#[test]
fn orders_are_read_in_llama_cpps_spellings() {
    let order = |text: &str| Step::order(text.split(';'));
    let all = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    assert_eq!(order(all), Ok(Chain::default().samplers));
    assert_eq!(Step::order("edskypmxt".split("").filter(|c| !c.is_empty())), order(all));
    assert_eq!(order("Top-K;infill;nucleus;temp"), order("k;p;t"));
    assert!(order("top_k;k").is_err() && order("top_q").unwrap_err().contains("top_n_sigma"));
}

/// Softmax of a list.
fn softmax(list: &[(u32, f64)]) -> Vec<f64> {
    let best = list.iter().fold(f64::MIN, |best, c| best.max(c.1));
    let sum: f64 = list.iter().map(|c| (c.1 - best).exp()).sum();
    list.iter().map(|c| (c.1 - best).exp() / sum).collect()
}

/// DRY's penalties: each place is compared with the end token by token.
fn dry_reference(past: &[u32], p: &Chain) -> BTreeMap<u32, f64> {
    let text: Vec<u8> = past.iter().flat_map(|t| letter(*t)).collect();
    let breaks = |text: &[u8]| {
        p.dry_sequence_breakers.iter().any(|b| !b.is_empty() && text.ends_with(b.as_bytes()))
    };
    let unbroken = (0..text.len()).take_while(|n| !breaks(&text[..text.len() - n])).count();
    let recent = &past[past.len().saturating_sub(p.window())..];
    let mut penalties = BTreeMap::new();
    for end in 1..recent.len() {
        let pairs = recent[..end].iter().rev().zip(recent.iter().rev());
        let same = pairs.take_while(|(a, b)| a == b).count().min(unbroken);
        if same >= p.dry_allowed_length as usize && !breaks(&letter(recent[end])) {
            let power = same as i32 - p.dry_allowed_length as i32;
            let penalty = f64::from(p.dry_multiplier) * f64::from(p.dry_base).powi(power);
            let most = penalties.entry(recent[end]).or_insert(0.0);
            *most = penalty.max(*most);
        }
    }
    penalties
}

/// The formulas as they are written, over lists that are sorted as a whole at each step.
fn chain_reference(
    logits: &[f32],
    p: &SampleParams,
    past: &[u32],
    mu: &mut f64,
    random: &mut dyn FnMut() -> f64,
) -> u32 {
    let c = &p.chain;
    let is_number = |(_, l): &(u32, &f32)| **l > f32::NEG_INFINITY;
    let list = (0..).zip(logits).filter(is_number);
    let mut list: Vec<(u32, f64)> =
        list.map(|(id, l)| (id, f64::from(l.min(f32::MAX) + 0.0))).collect();
    let only = [Step::Temperature];
    for step in if c.mirostat == 2.0 { only.as_slice() } else { &c.samplers } {
        list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let (probs, len) = (softmax(&list), list.len());
        let entropy: f64 = probs.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let before = |i: usize| probs[..i].iter().sum::<f64>();
        let keep = |keep: &dyn Fn(usize) -> bool| (0..len).filter(|i| keep(*i)).collect::<Vec<_>>();
        let mean = list.iter().map(|c| c.1).sum::<f64>() / len as f64;
        let kept = match step {
            Step::Penalties | Step::Dry => {
                let (repeats, dry) = (penalty::counts(past, p), dry_reference(past, c));
                list.iter_mut().for_each(|(id, l)| match (step, repeats.get(id)) {
                    (Step::Dry, _) if c.dry_multiplier > 0.0 => *l -= dry.get(id).unwrap_or(&0.0),
                    (Step::Penalties, Some(count)) => {
                        let repeat = f64::from(p.repeat_penalty);
                        *l = if *l > 0.0 { *l / repeat } else { *l * repeat };
                        *l -= f64::from(*count) * f64::from(p.frequency_penalty);
                        *l -= f64::from(p.presence_penalty);
                    }
                    _ => {}
                });
                continue;
            }
            Step::TopNSigma if c.top_n_sigma > 0.0 => {
                let square = list.iter().map(|c| (c.1 - mean).powi(2)).sum::<f64>() / len as f64;
                keep(&|i| list[i].1 >= list[0].1 - f64::from(c.top_n_sigma) * square.sqrt())
            }
            Step::TopK if p.top_k > 0 => keep(&|i| i < p.top_k),
            Step::TypicalP if c.typical_p < 1.0 => {
                let mut order: Vec<(f64, usize)> =
                    (0..len).map(|i| ((-probs[i].ln() - entropy).abs(), i)).collect();
                order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                let mut sum = 0.0;
                let few = order.iter().take_while(|(_, i)| {
                    let more = sum <= f64::from(c.typical_p);
                    sum += probs[*i];
                    more
                });
                few.map(|(_, i)| *i).collect()
            }
            Step::TopP if p.top_p < 1.0 => keep(&|i| i == 0 || before(i) < f64::from(p.top_p)),
            Step::MinP => keep(&|i| probs[i] >= probs[0] * f64::from(p.min_p)),
            Step::Xtc if c.xtc_probability > 0.0 && len > 1 => {
                let works = random() <= f64::from(c.xtc_probability);
                let top = |i: usize| probs[i] >= f64::from(c.xtc_threshold);
                keep(&|i| !works || i + 1 >= len || !top(i + 1))
            }
            Step::Temperature => {
                let (t, range) = (f64::from(p.temperature), f64::from(c.dynatemp_range));
                let (t, part) = match range > 0.0 && len > 1 && c.mirostat == 0.0 {
                    true => ((t - range).max(0.0), entropy / (len as f64).ln()),
                    false => (t, 0.0),
                };
                let span = f64::from(p.temperature) + range - t;
                let t =
                    if part > 0.0 { t + span * part.powf(c.dynatemp_exponent.into()) } else { t };
                let only_best = t == 0.0;
                list.iter_mut().filter(|_| !only_best).for_each(|c| c.1 /= t);
                keep(&|i| i == 0 || !only_best)
            }
            _ => continue,
        };
        list = kept.into_iter().map(|i| list[i]).collect();
    }
    list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if c.mirostat == 2.0 {
        let bits: Vec<f64> = softmax(&list).iter().map(|p| -p.log2()).collect();
        list.truncate(bits.iter().filter(|b| **b <= *mu).count().max(1));
    }
    let (probs, draw) = (softmax(&list), random());
    let at = (0..probs.len()).find(|i| probs[..=*i].iter().sum::<f64>() > draw);
    let at = at.unwrap_or(probs.len() - 1);
    *mu -= f64::from(c.mirostat_eta) * (-probs[at].log2() - f64::from(c.mirostat_tau));
    list[at].0
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
            ..params()
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

    /// Other samplers, in any order, take the tokens that their formulas take.
    #[test]
    fn chains_are_their_formulas(
        len in prop::sample::select(vec![1usize, 2, 30, 500]),
        order in Just(Chain::default().samplers).prop_shuffle(),
        left_out in 0..9usize,
        odd: bool,
        usual in prop::sample::select(vec![(0usize, 1.0f32, 0.0f32), (40, 0.951, 0.0507), (7, 0.313, 0.0)]),
        temperature in prop::sample::select(vec![0.0f32, 0.1, 0.8, 1.0, 3.0]),
        dynatemp in prop::sample::select(vec![(0.0f32, 1.0f32), (0.5, 1.0), (2.0, 1.7)]),
        repeat_penalty in prop::sample::select(vec![1.0f32, 1.3]),
        dry in prop::sample::select(vec![(0.0f32, 2.0f32, 64.0f32), (0.8, 1.0, 30.0), (2.0, 2.0, -1.0), (0.5, 0.0, 5.0)]),
        top_n_sigma in prop::sample::select(vec![-1.0f32, 0.613, 1.913]),
        typical_p in prop::sample::select(vec![1.0f32, 0.217, 0.917]),
        xtc in prop::sample::select(vec![(0.0f32, 0.1f32), (0.5, 0.0931), (1.0, 0.0113)]),
        mirostat in prop::sample::select(vec![0.0f32, 0.0, 0.0, 2.0]),
        seed: u32,
    ) {
        let mut state = seed;
        let mut logits = odd_logits(len, &mut state);
        logits.iter_mut().filter(|_| !odd).for_each(|l| *l = l.clamp(-30.0, 30.0) * 0.37);
        prop_assume!(logits.iter().any(|l| *l > f32::NEG_INFINITY));
        let mut samplers = order;
        samplers.remove(left_out);
        let chain = Chain {
            samplers,
            dry_multiplier: dry.0,
            dry_allowed_length: dry.1,
            dry_penalty_last_n: dry.2,
            dry_sequence_breakers: ["b", "ec", "ad", ""].map(String::from).to_vec(),
            top_n_sigma,
            typical_p,
            xtc_probability: xtc.0,
            xtc_threshold: xtc.1,
            dynatemp_range: dynatemp.0,
            dynatemp_exponent: dynatemp.1,
            mirostat,
            mirostat_tau: 2.3,
            mirostat_eta: 0.3,
            ..Chain::default()
        };
        let (top_k, top_p, min_p) = usual;
        let p = SampleParams {
            temperature, top_k, top_p, min_p, repeat_penalty, chain,
            presence_penalty: repeat_penalty - 1.0, repeat_last_n: 9, seed: seed.into(),
            ..params()
        };
        prop_assert!(p.check().is_ok());
        let (mut sampler, mut rng) = (Sampler::new(p.clone()), ChaCha8Rng::seed_from_u64(p.seed));
        prop_assert_eq!(sampler.wanted_top_k(), None);
        sampler.spell(Box::new(letter));
        let mut past: Vec<u32> = (0..50).map(|i| seed.rotate_left(i) % len.min(5 + seed as usize % 9) as u32).collect();
        past.iter().for_each(|t| sampler.accept(*t));
        let mut mu = 2.0 * f64::from(p.chain.mirostat_tau);
        let mut random = || f64::from(rng.next_u32() >> 8) / f64::from(1u32 << 24);
        for _ in 0..8 {
            let expected = chain_reference(&logits, &p, &past, &mut mu, &mut random);
            prop_assert_eq!(sampler.sample(&logits), Ok(expected));
            sampler.accept(expected);
            past.push(expected);
        }
    }
}
