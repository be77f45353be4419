//! `troika train-predictor`.

use serde_json::{Value, json};
use troika::plan::{ExpertUse, RoutingPredictor};
use troika::{
    BoundModel, PredictedRecall, PredictorTraining, RecordedRouting, predictor_recall,
    record_routing, router_weights, train_predictor,
};

use super::calibrate::window_options;
use super::routing::unseen;
use crate::error::CliError;
use crate::file::{self, read_input};
use crate::flags::TrainPredictorArgs;
use crate::interrupt::Interrupt;
use crate::progress::going_on;
use crate::{output, resolve};

/// Rank of a layer's matrix, where that is smaller and faster than all of it.
const RANK: usize = 32;

/// Loaded experts of a token as multiples of those it uses.
const RATIOS: [f64; 3] = [1.0, 1.5, 2.0];
/// The most bytes of recorded states; of a longer text the beginning is used.
const MOST_BYTES: usize = 2 << 30;

/// Reads the text with the model, trains, tries the result on other text, and writes it.
pub fn run(args: &TrainPredictorArgs) -> Result<(), CliError> {
    file::check("routing predictor", Some(&args.out))?;
    let source = resolve::model(&args.model)?;
    let interrupt = Interrupt::listen();
    let spec = source.spec()?;
    let options = window_options(&args.open, spec.context)?;
    let mut tokens = resolve::tokens(&source, &read_input(args.file.as_deref())?)?;
    let most = MOST_BYTES / (2 * spec.hidden * spec.layers.len()).max(1);
    if tokens.len() > most {
        let all = tokens.len();
        output::note_line(&format!("note: the first {most} of {all} tokens are used"));
        tokens.truncate(most);
    }
    let others = unseen(&args.unseen, &source)?;
    let own = others.is_empty();
    let (train, rest) =
        tokens.split_at(if own { tokens.len() - tokens.len() / 4 } else { tokens.len() });
    let names = others.iter().map(|(name, _)| name.as_str());
    let names: Vec<&str> = if own { vec!["the last quarter"] } else { names.collect() };
    let tried = others.iter().map(|(_, tokens)| tokens.as_slice()).chain(own.then_some(rest));
    let texts: Vec<&[u32]> = [train].into_iter().chain(tried).collect();

    let model = BoundModel::open(&source, &options)?;
    let routers = router_weights(&model)?;
    let ended = || CliError::Interrupted("training was ended; nothing is written".into());
    let mut counting = going_on("reading", &interrupt);
    let recorded = record_routing(model, &options, &texts, true, &mut counting)?;
    let recorded = recorded.ok_or_else(ended)?;
    let training = PredictorTraining { rank: RANK, ..PredictorTraining::default() };
    let mut counting = going_on("training", &interrupt);
    let predictor = train_predictor(&recorded[0], &routers, training, &mut counting);
    let predictor = predictor.ok_or_else(ended)?;
    let bytes = predictor.to_bytes();
    file::write("routing predictor", &args.out, |to| to.write_all(&bytes))?;
    let popularity = recorded[0].trace.counts(0..train.len());
    let tried = Tried { predictor: &predictor, popularity, tokens: train.len() };
    let texts: Vec<(&str, &RecordedRouting)> = names.into_iter().zip(&recorded[1..]).collect();
    if args.json { output::json(&tried.json(&texts)) } else { output::write(&tried.table(&texts)) }
}

/// A predictor that is tried on texts.
struct Tried<'a> {
    predictor: &'a RoutingPredictor,
    popularity: Vec<ExpertUse>,
    /// Tokens that it was trained on.
    tokens: usize,
}

impl Tried<'_> {
    fn recall(&self, on: &RecordedRouting) -> Vec<PredictedRecall> {
        predictor_recall(self.predictor, &self.popularity, on, &RATIOS)
    }

    fn table(&self, texts: &[(&str, &RecordedRouting)]) -> String {
        let mut text = format!(
            "Trained on {} tokens: {} layers, {} bytes. Found of the experts that are used, in %, if so \
             many are loaded for each one used:\n",
            self.tokens,
            self.predictor.layers.len(),
            self.predictor.bytes()
        );
        for (name, recorded) in texts {
            text.push_str(&format!(
                "\n{name}, {} tokens\n\n| layer | loaded / used | predictor | most popular | used last |\n\
                 | ---: | ---: | ---: | ---: | ---: |\n",
                recorded.trace.tokens()
            ));
            let of_layers = self.recall(recorded);
            let lines = of_layers.iter().map(|r| (r.layer.to_string(), *r));
            let means = means(&of_layers).into_iter().map(|r| ("all".to_string(), r));
            for (layer, r) in lines.chain(means) {
                let [predictor, popular, recent] =
                    [r.predictor, r.popular, r.recent].map(|x| 100.0 * x);
                text.push_str(&format!(
                    "| {layer} | {:.1} | {predictor:.1} | {popular:.1} | {recent:.1} |\n",
                    r.ratio
                ));
            }
        }
        text
    }

    fn json(&self, texts: &[(&str, &RecordedRouting)]) -> Value {
        let recall = |r: &PredictedRecall| {
            json!({
                "layer": r.layer,
                "ratio": r.ratio,
                "predictor": r.predictor,
                "popular": r.popular,
                "recent": r.recent,
            })
        };
        let tried = texts.iter().map(|(name, recorded)| {
            let all: Vec<Value> = self.recall(recorded).iter().map(recall).collect();
            json!({ "text": name, "tokens": recorded.trace.tokens(), "recall": all })
        });
        json!({
            "tokens": self.tokens,
            "layers": self.predictor.layers.len(),
            "bytes": self.predictor.bytes(),
            "unseen": tried.collect::<Vec<_>>(),
        })
    }
}

/// The means over layers, by ratio.
fn means(all: &[PredictedRecall]) -> Vec<PredictedRecall> {
    let mean = |ratio: f64| {
        let of: Vec<_> = all.iter().filter(|r| r.ratio == ratio).collect();
        let mean = |value: fn(&PredictedRecall) -> f64| {
            of.iter().map(|r| value(r)).sum::<f64>() / of.len().max(1) as f64
        };
        let (predictor, popular, recent) =
            (mean(|r| r.predictor), mean(|r| r.popular), mean(|r| r.recent));
        PredictedRecall { layer: 0, ratio, predictor, popular, recent }
    };
    RATIOS.into_iter().map(mean).collect()
}
