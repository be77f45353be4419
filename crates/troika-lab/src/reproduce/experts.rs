//! Claims about routing, measured with the built-in model: small, trained, and skewed. The papers'
//! figures are of larger models and of other texts.

use troika::plan::{
    ExpertSettings, ExpertUse, LayerRouting, ModelId, Overflow, RoutingPredictor, RoutingTrace,
    Tiers, median_overlap,
};
use troika::{
    BoundModel, Model, OpenOptions, PredictedRecall, PredictorTraining, PruneBy, Pruning,
    RecordedRouting, Scored, Source, predictor_recall, pruned_perplexity, record_routing,
    router_weights, train_predictor,
};
use troika_check::Random;

use super::lab::Lab;
use super::outcome::{Item, Outcome, mean};
use super::two_cpus::{self, shared};
use crate::{LabError, Result};

/// Two texts that the built-in model was not trained on: a novel and a play, both in the public
/// domain.
const TEXTS: [&str; 2] = [include_str!("texts/novel.txt"), include_str!("texts/play.txt")];
/// Parts of a text. Each is compared with the others.
const PARTS: usize = 8;
const WINDOW: usize = 256;
const OF: &str = "The built-in model (4 layers, 16 experts, 2 of a token); the paper's figures are of \
    models of 16 and 128 experts, on other texts.";

fn options() -> OpenOptions {
    OpenOptions { context: Some(WINDOW), ..OpenOptions::default() }
}

fn model() -> Result<BoundModel> {
    Ok(BoundModel::open(Source::BuiltIn, &options())?)
}

/// The tokens of both texts.
fn tokens() -> Result<[Vec<u32>; 2]> {
    let (tokenizer, _) = Source::BuiltIn.tokenizer()?;
    let [novel, play] = TEXTS.map(|text| tokenizer.encode(text, true, false));
    Ok([novel.map_err(troika::Error::from)?, play.map_err(troika::Error::from)?])
}

fn record(texts: &[&[u32]], inputs: bool) -> Result<Vec<RecordedRouting>> {
    Ok(record_routing(model()?, &options(), texts, inputs, &mut |_, _| true)?.unwrap_or_default())
}

pub fn novel() -> Result<Vec<u32>> {
    let [novel, _] = tokens()?;
    Ok(novel)
}

/// What a predictor learns of the first part of a text, and the routing of the rest.
pub fn predictor_of_text() -> Result<(RoutingPredictor, RecordedRouting)> {
    let text = novel()?;
    let (learnt, rest) = text.split_at(text.len() * 3 / 4);
    let mut recorded = record(&[learnt, rest], true)?.into_iter();
    let none = || LabError::Other(troika::Error::NoExperts);
    let (learnt, rest) = (recorded.next().ok_or_else(none)?, recorded.next().ok_or_else(none)?);
    let routers = router_weights(&model()?)?;
    let training = PredictorTraining::default();
    let predictor = train_predictor(&learnt, &routers, training, &mut |_, _| true);
    Ok((predictor.ok_or_else(none)?, rest))
}

/// The routing of both texts.
pub fn built_in_routing() -> Result<RoutingTrace> {
    let [novel, play] = tokens()?;
    let recorded = record(&[&[novel, play].concat()], false)?;
    recorded.into_iter().next().map(|r| r.trace).ok_or(LabError::Other(troika::Error::NoExperts))
}

/// Routing that is drawn: each token of a layer takes some of its experts by Zipf's law, with another
/// order of experts in each layer.
pub fn zipf_routing() -> RoutingTrace {
    const LAYERS: usize = 8;
    const EXPERTS: usize = 128;
    const TOP_K: usize = 8;
    const SEQUENCES: usize = 8;
    let mut random = Random(7);
    let layer = |layer: usize| {
        let mut order: Vec<u16> = (0..EXPERTS as u16).collect();
        (1..EXPERTS).rev().for_each(|i| order.swap(i, random.below(i + 1)));
        let mut ids = Vec::new();
        for _ in 0..SEQUENCES * WINDOW {
            let mut chosen = Vec::new();
            while chosen.len() < TOP_K {
                // The sum of 1/rank up to a rank is close to its logarithm.
                let share = f64::from(random.bits() as u32) / f64::from(u32::MAX);
                let rank = ((EXPERTS as f64 + 1.0).powf(share) as usize - 1).min(EXPERTS - 1);
                if !chosen.contains(&order[rank]) {
                    chosen.push(order[rank]);
                }
            }
            ids.extend(chosen);
        }
        LayerRouting { layer, experts: EXPERTS, top_k: TOP_K, ids }
    };
    let layers = (0..LAYERS).map(layer).collect();
    let model = ModelId { family: "zipf".into(), layers: LAYERS, hidden: 0, vocab: 0 };
    RoutingTrace { model, sequences: vec![WINDOW; SEQUENCES], layers }
}

/// Overlap of each part of a text with the rest of it, and of two texts.
pub fn overlaps(_: &mut Lab) -> Result<Outcome> {
    let [novel, play] = tokens()?;
    let recorded = record(&[&novel, &play], false)?;
    let traces: Vec<&RoutingTrace> = recorded.iter().map(|r| &r.trace).collect();
    let whole: Vec<Vec<ExpertUse>> = traces.iter().map(|t| t.counts(0..t.tokens())).collect();
    let unseen = |k: usize| {
        let of_parts = traces.iter().zip(&whole).flat_map(|(trace, whole)| {
            let part = trace.tokens() / PARTS;
            (0..PARTS).filter_map(move |i| {
                let seen = trace.counts(i * part..(i + 1) * part);
                median_overlap(&without(whole, &seen), &seen, k)
            })
        });
        100.0 * mean(&of_parts.collect::<Vec<_>>())
    };
    let across = |k: usize| 100.0 * median_overlap(&whole[0], &whole[1], k).unwrap_or(f64::NAN);
    let items = vec![
        Item::new("top 4 of an unseen part, %", 86.0, unseen(4)),
        Item::new("top 8 of an unseen part, %", 94.0, unseen(8)),
        Item::new("top 4 of another kind of text, %", 65.2, across(4)),
        Item::new("top 8 of another kind of text, %", 77.0, across(8)),
    ];
    let note = format!(
        "{OF} An eighth of a text, against the rest of it; a novel against a play. Here few experts have \
         most rows, so that the first 4 change less than the next 4."
    );
    Ok(Outcome::numbers(items, |i| i[1].ours >= i[0].ours && i[0].ours > 25.0).noted(note))
}

/// Counts without the counts of a part.
fn without(all: &[ExpertUse], part: &[ExpertUse]) -> Vec<ExpertUse> {
    let of = |(all, part): (&ExpertUse, &ExpertUse)| ExpertUse {
        layer: all.layer,
        counts: all.counts.iter().zip(&part.counts).map(|(a, b)| a - b).collect(),
    };
    all.iter().zip(part).map(of).collect()
}

/// Perplexity with rows dropped in each way.
pub fn dropped(_: &mut Lab) -> Result<Outcome> {
    let ids = tokens()?.concat();
    let measure = |by, share| -> Result<f64> {
        Ok(pruned_perplexity(model()?, &options(), &ids, WINDOW, Pruning { by, share })?.value())
    };
    let plain = measure(PruneBy::LowestSaliency, 0.0)?;
    let (mut words, mut best) = (Vec::new(), true);
    for share in [0.1, 0.2, 0.3, 0.4] {
        let loss = |by| Ok::<f64, LabError>(100.0 * (measure(by, share)? / plain - 1.0));
        let saliency = loss(PruneBy::LowestSaliency)?;
        let seeds = [1, 2, 3].map(|seed| loss(PruneBy::Random(seed)));
        let random = mean(&seeds.into_iter().collect::<Result<Vec<f64>>>()?);
        let highest = loss(PruneBy::HighestSaliency)?;
        best &= saliency < random && saliency < highest;
        words.push(format!(
            "{:.0} % dropped: {saliency:+.2} %, at random {random:+.2} %, highest {highest:+.2} %",
            100.0 * share
        ));
    }
    let of = |overflow, rows| {
        let settings = ExpertSettings { overflow, ..ExpertSettings::default() };
        by_capacity(&ids, settings, Tiers::Rows(rows))
    };
    let (lossless, _) = of(Overflow::Cpu, 64)?;
    for rows in [128, 96, 64] {
        let (pruned, share) = of(Overflow::Prune, rows)?;
        let loss = 100.0 * (pruned / lossless - 1.0);
        words.push(format!("{rows} rows an expert: {:.1} % left out, {loss:+.2} %", 100.0 * share));
    }
    let one = Model::open(Source::BuiltIn, &two_cpus::plain(WINDOW, WINDOW))?;
    let one = one.perplexity(&ids, WINDOW, Scored::All, &mut |_| true)?.value();
    let lost = lossless / one - 1.0;
    best &= lost.abs() <= 1e-5;
    words.push(format!("64 rows an expert, the others on the CPU: {:+.1e} %", 100.0 * lost));
    let note = format!(
        "{OF} Perplexity against {plain:.2} of the whole model, with the lowest saliency dropped first, \
         at random (3 seeds), and the highest first: of all rows of a layer. Rows an expert: groups of \
         experts on a second CPU device, in chunks of {WINDOW} rows; what an expert has no room for is \
         left out (prune)."
    );
    Ok(Outcome::words("at most 1.1 % at 10 to 20 %", words.join("\n"), best).noted(note))
}

/// Perplexity with groups of experts on a second device, and the share of rows that are left out.
fn by_capacity(ids: &[u32], settings: ExpertSettings, tiers: Tiers) -> Result<(f64, f64)> {
    let model =
        Model::open(Source::BuiltIn, &shared(two_cpus::plain(WINDOW, WINDOW), tiers, settings))?;
    let measured = model.perplexity(ids, WINDOW, Scored::All, &mut |_| true)?;
    let (dropped, all) = model.engine()?.group_stats().dropped();
    Ok((measured.value(), dropped as f64 / all.max(1) as f64))
}

/// Recall of a predictor, and of simple rules.
pub fn predicted(_: &mut Lab) -> Result<Outcome> {
    let [novel, play] = tokens()?;
    let [novel, play] = [&novel, &play].map(|text| text.split_at(text.len() - text.len() / 4));
    let train = [novel.0, play.0].concat();
    let routers = router_weights(&model()?)?;
    let recorded = record(&[&train, novel.1, play.1], true)?;
    let Some((learnt, unseen)) = recorded.split_first() else {
        return Ok(Outcome::not_run("nothing was recorded"));
    };
    let training = PredictorTraining::default();
    let predictor = train_predictor(learnt, &routers, training, &mut |_, _| true);
    let Some(predictor) = predictor else { return Ok(Outcome::not_run("it was ended")) };
    let popularity = learnt.trace.counts(0..train.len());
    let (mut words, mut above) = (Vec::new(), true);
    for ratio in [1.0, 1.5, 2.0] {
        let of = |text| predictor_recall(&predictor, &popularity, text, &[ratio]);
        let all: Vec<PredictedRecall> = unseen.iter().flat_map(of).collect();
        let share =
            |of: fn(&PredictedRecall) -> f64| 100.0 * mean(&all.iter().map(of).collect::<Vec<_>>());
        let [ours, popular, recent] =
            [share(|r| r.predictor), share(|r| r.popular), share(|r| r.recent)];
        above &= ours > popular && ours > recent;
        words.push(format!(
            "{ratio} loaded for each used: {ours:.1} % (most popular {popular:.1}, used last {recent:.1})"
        ));
    }
    let note = format!(
        "{OF} Trained on {} tokens, tried on {} others; {} bytes. The notes print no figure.",
        train.len(),
        novel.1.len() + play.1.len(),
        predictor.bytes()
    );
    Ok(Outcome::words("none", words.join("\n"), above).noted(note))
}
