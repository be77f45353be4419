//! How many of the experts that are used a predictor finds.

use troika_plan::{ExpertUse, LayerRouting, Prediction, PredictorSource, RoutingPredictor};

use super::record::RecordedRouting;

/// The share of a layer's used experts that were among those a rule would have loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PredictedRecall {
    /// The layer.
    pub layer: usize,
    /// Loaded experts of a token as a multiple of those it uses.
    pub ratio: f64,
    /// Those that the predictor names.
    pub predictor: f64,
    /// Those that a calibration counts most often.
    pub popular: f64,
    /// Those that were used last: by the token before, then by those before it.
    pub recent: f64,
}

/// The recall of a predictor and of two simple rules on a text, by layer and ratio.
pub fn predictor_recall(
    predictor: &RoutingPredictor,
    popularity: &[ExpertUse],
    recorded: &RecordedRouting,
    ratios: &[f64],
) -> Vec<PredictedRecall> {
    let mut all = Vec::new();
    for routing in &recorded.trace.layers {
        let popular = popularity.iter().find(|of| of.layer == routing.layer);
        let popular = popular.map_or_else(|| (0..routing.experts).collect(), ExpertUse::ranking);
        all.extend(Layer { predictor, recorded, routing, popular: &popular }.recall(ratios));
    }
    all
}

struct Layer<'a> {
    predictor: &'a RoutingPredictor,
    recorded: &'a RecordedRouting,
    routing: &'a LayerRouting,
    /// Experts, the most often counted one first.
    popular: &'a [usize],
}

impl Layer<'_> {
    fn recall(&self, ratios: &[f64]) -> Vec<PredictedRecall> {
        let Layer { recorded, routing, popular, .. } = self;
        let loaded = |ratio: f64| ((ratio * routing.top_k as f64).round() as usize).max(1);
        let mut hits = vec![[0_usize; 3]; ratios.len()];
        let (mut state, mut prediction) = (Vec::new(), Prediction::default());
        for range in recorded.trace.ranges() {
            let mut recent = popular.to_vec();
            for token in range.clone() {
                let used = routing.of_token(token);
                let ranked = self.ranked(token, token > range.start, &mut state, &mut prediction);
                for (hits, ratio) in hits.iter_mut().zip(ratios) {
                    let count = loaded(*ratio);
                    let found = |list: &[usize]| {
                        used.iter()
                            .filter(|e| list[..count.min(list.len())].contains(&usize::from(**e)))
                            .count()
                    };
                    hits[0] += found(&ranked);
                    hits[1] += found(popular);
                    hits[2] += found(&recent);
                }
                for expert in used.iter().rev().map(|e| usize::from(*e)) {
                    recent.retain(|e| *e != expert);
                    recent.insert(0, expert);
                }
            }
        }
        let all = routing.ids.len().max(1) as f64;
        let recall = |(hits, ratio): (&[usize; 3], &f64)| {
            let [predictor, popular, recent] = hits.map(|n| n as f64 / all);
            PredictedRecall { layer: routing.layer, ratio: *ratio, predictor, popular, recent }
        };
        hits.iter().zip(ratios).map(recall).collect()
    }

    /// All experts, the likeliest first; by popularity where nothing is known that a prediction could
    /// read.
    fn ranked(
        &self,
        token: usize,
        has_before: bool,
        state: &mut Vec<f32>,
        prediction: &mut Prediction,
    ) -> Vec<usize> {
        let Layer { predictor, recorded, routing, popular } = self;
        let source = predictor.layer(routing.layer).map(|l| l.source);
        let token = match source {
            Some(PredictorSource::TokenBefore(_)) if has_before => token - 1,
            Some(PredictorSource::Layer(_)) => token,
            _ => return popular.to_vec(),
        };
        let layers = &recorded.trace.layers;
        let at = source.and_then(|s| layers.iter().position(|l| l.layer == s.layer()));
        recorded.input(at.unwrap_or(usize::MAX), token, state);
        let experts = predictor.predict(routing.layer, state, routing.experts, prediction);
        experts.iter().map(|e| usize::from(*e)).collect()
    }
}
