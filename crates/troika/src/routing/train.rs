//! Trains a routing predictor: a linear function for each layer, by logistic loss over its experts.

use troika_model::spec::{Key, WeightRole};
use troika_plan::{LayerPredictor, LayerRouting, PredictorSource, RoutingPredictor, RoutingTrace};

use super::low_rank::factors;
use super::record::RecordedRouting;
use super::shuffle::mixed;
use crate::describe::BoundModel;
use crate::error::Error;
use crate::floats::floats;

/// Tokens of a step.
const STEP_TOKENS: usize = 32;
/// How fast the two moments of gradients are forgotten (Adam's usual values).
const MOMENTS: [f32; 2] = [0.9, 0.999];

/// How a predictor is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictorTraining {
    /// How often the text is gone through.
    pub epochs: usize,
    /// The size of the first steps; later ones are smaller, down to none.
    pub rate: f32,
    /// Rank of the matrices; 0: full.
    pub rank: usize,
}

impl Default for PredictorTraining {
    fn default() -> PredictorTraining {
        PredictorTraining { epochs: 6, rate: 2e-3, rank: 0 }
    }
}

/// The weights of the routers of a model, from which training starts: what a router reads changes
/// little from layer to layer, so that a router says much about its layer by an earlier state, too.
///
/// # Errors
/// A weight that cannot be read.
pub fn router_weights(model: &BoundModel) -> Result<Vec<Vec<f32>>, Error> {
    let layers = RoutingTrace::new(&model.spec).layers;
    let read = |l: &LayerRouting| floats(&model.store, Key::layer(l.layer, WeightRole::Router));
    layers.iter().map(read).collect()
}

/// Trains a predictor on recorded routing with its inputs. `routers`: [`router_weights`].
/// `progress` receives the rounds that are done, and all of them; `false` stops.
pub fn train_predictor(
    recorded: &RecordedRouting,
    routers: &[Vec<f32>],
    training: PredictorTraining,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Option<RoutingPredictor> {
    let layers = &recorded.trace.layers;
    let all = layers.len() * training.epochs;
    let mut predictors = Vec::new();
    for (i, routing) in layers.iter().enumerate() {
        let before = i.checked_sub(1).unwrap_or(layers.len() - 1);
        let samples = Samples::of(recorded, i, before);
        let mut fit = Fit::start(&samples, routers.get(i).map_or(&[], Vec::as_slice));
        for epoch in 0..training.epochs {
            if !progress(i * training.epochs + epoch, all) {
                return None;
            }
            fit.epoch(&samples, training, epoch);
        }
        let source = match i {
            0 => PredictorSource::TokenBefore(layers[before].layer),
            _ => PredictorSource::Layer(layers[before].layer),
        };
        predictors.push(fit.finish(routing, source, training.rank));
    }
    progress(all, all);
    let model = recorded.trace.model.clone();
    Some(RoutingPredictor { model, layers: predictors })
}

/// What a layer learns from: earlier states, and the experts that were used.
struct Samples<'a> {
    recorded: &'a RecordedRouting,
    routing: &'a LayerRouting,
    /// The layer of the trace whose router's inputs are read.
    source: usize,
    /// Tokens, and those whose states are read.
    tokens: Vec<[usize; 2]>,
    /// The root of the mean square of each column of the inputs of the source, and of the layer's
    /// own router.
    sizes: [Vec<f32>; 2],
}

impl<'a> Samples<'a> {
    fn of(recorded: &'a RecordedRouting, layer: usize, source: usize) -> Samples<'a> {
        let back = usize::from(source >= layer);
        let of_sequence = |range: std::ops::Range<usize>| {
            (range.start + back..range.end).map(move |token| [token, token - back])
        };
        let tokens = recorded.trace.ranges().flat_map(of_sequence).collect();
        let sizes = [source, layer].map(|layer| column_sizes(recorded, layer));
        Samples { recorded, routing: &recorded.trace.layers[layer], source, tokens, sizes }
    }
}

fn column_sizes(recorded: &RecordedRouting, layer: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f32; recorded.hidden];
    let mut row = Vec::new();
    for token in 0..recorded.trace.tokens() {
        recorded.input(layer, token, &mut row);
        sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x * x);
    }
    let tokens = recorded.trace.tokens().max(1) as f32;
    // A column that is always 0 says nothing, whatever its size.
    sums.iter().map(|sum| (sum / tokens).sqrt().max(1e-6)).collect()
}

/// A layer's function while it is trained, on inputs whose columns are all of one size.
struct Fit {
    hidden: usize,
    experts: usize,
    /// A row for each expert: the weights, then the bias.
    weights: Vec<f32>,
    /// Moments of the gradients.
    moments: [Vec<f32>; 2],
    steps: i32,
    scale: Vec<f32>,
}

impl Fit {
    fn start(samples: &Samples<'_>, router: &[f32]) -> Fit {
        let (hidden, experts) = (samples.recorded.hidden, samples.routing.experts);
        let [sizes, own] = &samples.sizes;
        let counts = samples.routing.counts(0..samples.recorded.trace.tokens()).counts;
        let tokens = samples.recorded.trace.tokens() as f64;
        let mut weights = Vec::with_capacity(experts * (hidden + 1));
        for (expert, count) in counts.iter().enumerate() {
            let row = router.get(expert * hidden..(expert + 1) * hidden);
            match row {
                Some(row) => weights.extend(row.iter().zip(own).map(|(w, size)| w * size)),
                None => weights.extend(std::iter::repeat_n(0.0, hidden)),
            }
            let share = (count + 0.5) / (tokens + 1.0);
            weights.push((share / (1.0 - share).max(1e-6)).ln() as f32);
        }
        let moments = [0, 1].map(|_| vec![0.0; weights.len()]);
        let scale = sizes.iter().map(|size| 1.0 / size).collect();
        Fit { hidden, experts, weights, moments, steps: 0, scale }
    }

    fn epoch(&mut self, samples: &Samples<'_>, training: PredictorTraining, epoch: usize) {
        let mut order: Vec<usize> = (0..samples.tokens.len()).collect();
        order.sort_by_key(|i| mixed(*i as u64, epoch as u64));
        let steps = order.len().div_ceil(STEP_TOKENS).max(1);
        let all = (steps * training.epochs) as f32;
        let mut gradient = vec![0.0; self.weights.len()];
        let mut row = Vec::new();
        for (step, tokens) in order.chunks(STEP_TOKENS).enumerate() {
            gradient.fill(0.0);
            for at in tokens {
                let [token, read] = samples.tokens[*at];
                samples.recorded.input(samples.source, read, &mut row);
                row.iter_mut().zip(&self.scale).for_each(|(x, scale)| *x *= scale);
                row.push(1.0);
                self.add_gradient(&row, samples.routing.of_token(token), &mut gradient);
            }
            let left = 1.0 - (epoch * steps + step) as f32 / all;
            self.step(&gradient, training.rate * left, tokens.len());
        }
    }

    /// Adds the gradient of the logistic loss: which experts were used, against how likely that was.
    fn add_gradient(&self, x: &[f32], used: &[u16], gradient: &mut [f32]) {
        let rows = self.weights.chunks_exact(self.hidden + 1);
        for (expert, (w, g)) in rows.zip(gradient.chunks_exact_mut(self.hidden + 1)).enumerate() {
            let score: f32 = w.iter().zip(x).map(|(w, x)| w * x).sum();
            let likely = 1.0 / (1.0 + (-score).exp());
            let is = f32::from(u8::from(used.iter().any(|e| usize::from(*e) == expert)));
            g.iter_mut().zip(x).for_each(|(g, x)| *g += (likely - is) * x);
        }
    }

    /// A step of Adam.
    fn step(&mut self, gradient: &[f32], rate: f32, tokens: usize) {
        self.steps += 1;
        let [first, second] = &mut self.moments;
        let [of_first, of_second] = MOMENTS.map(|m| 1.0 - m.powi(self.steps));
        let moments = first.iter_mut().zip(second);
        for ((w, g), (m, v)) in self.weights.iter_mut().zip(gradient).zip(moments) {
            let g = g / tokens as f32;
            *m = MOMENTS[0] * *m + (1.0 - MOMENTS[0]) * g;
            *v = MOMENTS[1] * *v + (1.0 - MOMENTS[1]) * g * g;
            *w -= rate * (*m / of_first) / ((*v / of_second).sqrt() + 1e-8);
        }
    }

    /// The function of inputs as they are.
    fn finish(
        self,
        routing: &LayerRouting,
        source: PredictorSource,
        rank: usize,
    ) -> LayerPredictor {
        let Fit { hidden, experts, weights, scale, .. } = self;
        let rows = || weights.chunks_exact(hidden + 1);
        let bias = rows().map(|row| row[hidden]).collect();
        let matrix: Vec<f32> = rows().flat_map(|row| row[..hidden].iter().copied()).collect();
        // A rank that saves nothing is none.
        let rank = if rank * (experts + hidden) < experts * hidden { rank } else { 0 };
        let (mut outer, mut inner) = match rank {
            0 => (matrix, Vec::new()),
            _ => factors(&matrix, experts, rank),
        };
        let reads_input = if rank == 0 { &mut outer } else { &mut inner };
        for row in reads_input.chunks_exact_mut(hidden.max(1)) {
            row.iter_mut().zip(&scale).for_each(|(w, scale)| *w *= scale);
        }
        let LayerRouting { layer, top_k, .. } = *routing;
        LayerPredictor { layer, source, experts, top_k, hidden, rank, bias, inner, outer }
    }
}
