//! Recorded, predicted and pruned routing of the built-in model.

#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]

use troika::plan::RoutingTrace;
use troika::{
    BoundModel, DeviceOptions, Error, Model, OpenOptions, PredictorTraining, PruneBy, Pruning,
    RecordedRouting, Scored, Source, calibrate, predictor_recall, pruned_perplexity,
    record_routing, router_weights, train_predictor,
};

const WINDOW: usize = 64;

fn options(threads: usize) -> OpenOptions {
    let devices = DeviceOptions { threads: Some(threads), ..DeviceOptions::default() };
    OpenOptions { devices, context: Some(WINDOW), chunk: Some(24), ..OpenOptions::default() }
}

fn model() -> BoundModel {
    BoundModel::open(Source::BuiltIn, &options(1)).unwrap()
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|i| 10 + i * i * 31 % 900).collect()
}

fn recorded(texts: &[&[u32]], threads: usize) -> Vec<RecordedRouting> {
    record_routing(model(), &options(threads), texts, true, &mut |_, _| true).unwrap().unwrap()
}

#[test]
fn the_routing_of_each_token_is_recorded() {
    let text = tokens(150);
    let all = recorded(&[&text, &text[..40]], 2);
    let trace = &all[0].trace;
    assert_eq!((all.len(), trace.sequences.as_slice()), (2, &[64, 64, 22][..]));
    let spec = model().spec;
    trace.check(&spec).unwrap();
    for (layer, of) in trace.layers.iter().enumerate() {
        assert_eq!((of.layer, of.ids.len()), (layer, 150 * 2));
        assert!(of.ids.chunks(2).all(|ids| ids[0] != ids[1]));
        assert_eq!(all[0].inputs[layer].len(), 150 * spec.hidden);
    }
    // A token depends on those before it in its window alone.
    assert_eq!(all[1].trace.layers[3].ids, trace.layers[3].ids[..80]);
    assert_eq!(all[1].inputs[2], all[0].inputs[2][..40 * spec.hidden]);
    assert_eq!(recorded(&[&text], 1)[0].trace, *trace, "whatever the number of threads");
    let calibrated = calibrate(model(), &options(2), &text, None, None, &mut |_, _| true);
    let calibrated = calibrated.unwrap().unwrap();
    assert_eq!(calibrated.routing, *trace);
    assert_eq!(calibrated.calibration.routing(), trace.counts(0..150));
    assert_eq!(RoutingTrace::from_bytes(&trace.to_bytes()).unwrap(), *trace);
    let stopped = record_routing(model(), &options(1), &[&text], false, &mut |done, _| done < 1);
    assert_eq!(stopped.unwrap(), None);
    let empty = record_routing(model(), &options(1), &[&[]], false, &mut |_, _| true);
    assert!(matches!(empty, Err(Error::ShortText { .. })));
}

#[test]
fn a_predictor_learns_what_a_text_repeats() {
    let text = tokens(900);
    let all = recorded(&[&text[..600], &text[600..]], 2);
    let routers = router_weights(&model()).unwrap();
    let popularity = all[0].trace.counts(0..600);
    let recall = |rank: usize| {
        let training = PredictorTraining { rank, epochs: 4, ..PredictorTraining::default() };
        let mut rounds = Vec::new();
        let mut progress = |done, of| {
            rounds.push(done);
            of == 16
        };
        let predictor = train_predictor(&all[0], &routers, training, &mut progress).unwrap();
        assert_eq!(rounds, (0..=16).collect::<Vec<_>>());
        predictor.check(&model().spec).unwrap();
        let recall = predictor_recall(&predictor, &popularity, &all[1], &[1.0, 1.5, 2.0, 8.0]);
        assert!(recall.iter().filter(|r| r.ratio == 8.0).all(|r| r.predictor == 1.0), "all");
        for of in recall.chunks(4) {
            assert!(of.windows(2).all(|pair| pair[0].predictor <= pair[1].predictor));
        }
        let sum = |of: fn(&troika::PredictedRecall) -> f64| recall.iter().map(of).sum::<f64>();
        assert!(sum(|r| r.predictor) > 1.1 * sum(|r| r.popular), "{recall:?}");
        (predictor.bytes(), sum(|r| r.predictor))
    };
    let (full, low) = (recall(0), recall(8));
    assert!(low.0 < full.0 * 6 / 10 && low.1 > 0.9 * full.1, "{full:?} {low:?}");
    assert!(
        train_predictor(&all[0], &routers, PredictorTraining::default(), &mut |done, _| done < 3)
            .is_none()
    );
}

#[test]
fn dropped_rows_change_what_is_predicted() {
    let text = tokens(256);
    let perplexity = |by, share| {
        let pruning = Pruning { by, share };
        pruned_perplexity(model(), &options(2), &text, WINDOW, pruning).unwrap().value()
    };
    let float = OpenOptions { activations: Some(Vec::new()), ..options(2) };
    let plain = Model::open(Source::BuiltIn, &float).unwrap();
    let plain = plain.perplexity(&text, WINDOW, Scored::default(), &mut |_| true).unwrap().value();
    assert_eq!(perplexity(PruneBy::LowestSaliency, 0.0), plain, "nothing is dropped");
    let ways = [PruneBy::LowestSaliency, PruneBy::HighestSaliency, PruneBy::Random(1)];
    let of: Vec<f64> = ways.into_iter().map(|by| perplexity(by, 0.3)).collect();
    assert!(of[0] != of[1] && of[1] != of[2] && of.iter().all(|p| *p != plain), "{of:?}");
    assert_eq!(perplexity(PruneBy::Random(1), 0.3), of[2], "the same for a seed");
    let all: Vec<f64> = ways.into_iter().map(|by| perplexity(by, 1.0)).collect();
    assert!(all.iter().all(|p| *p == all[0] && *p > plain), "whatever the order: {all:?}");
}
