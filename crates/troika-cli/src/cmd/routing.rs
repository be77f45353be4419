//! What verbs say of the routing of models with experts.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use troika::plan::{Calibration, ExpertUse, RoutingTrace, Transitions, median_overlap};
use troika::{Error, Source};

use crate::error::CliError;
use crate::file::{self, read_file};
use crate::flags::UnseenArgs;
use crate::resolve;

/// Overlap is reported for this many most chosen experts, where a layer has more experts.
const TOPS: [usize; 4] = [2, 4, 8, 16];

/// The tokens of the texts to try a result on, with their names.
pub fn unseen(args: &UnseenArgs, source: &Source) -> Result<Vec<(String, Vec<u32>)>, CliError> {
    let of = |path: &PathBuf| {
        Ok((path.display().to_string(), resolve::tokens(source, &read_file(path)?)?))
    };
    args.unseen.iter().map(of).collect()
}

/// Writes the chosen experts of each token.
pub fn write_trace(trace: &RoutingTrace, path: Option<&Path>) -> Result<(), CliError> {
    let Some(path) = path else { return Ok(()) };
    if trace.layers.is_empty() {
        return Err(Error::NoExperts.into());
    }
    let bytes = trace.to_bytes();
    file::write("routing trace", path, |to| to.write_all(&bytes))
}

/// What a text showed of experts, and how much of it holds on others.
pub struct RoutingSummary {
    layers: Vec<ExpertUse>,
    transitions: Vec<Transitions>,
    /// By text: its name, and the overlap of each number of experts.
    overlaps: Vec<(String, Vec<f64>)>,
    tops: Vec<usize>,
}

impl RoutingSummary {
    /// The summary of a text, tried on others, or on its own last quarter if there are none. `None`
    /// for a model without experts.
    pub fn of(
        trace: &RoutingTrace,
        transitions: &[Transitions],
        unseen: &[(String, RoutingTrace)],
    ) -> Option<RoutingSummary> {
        let tokens = trace.tokens();
        let fewest = trace.layers.iter().map(|l| l.experts).min()?;
        let tops: Vec<usize> = TOPS.into_iter().filter(|k| *k < fewest).collect();
        let layers = trace.counts(0..tokens);
        let overlap = |a: &[ExpertUse], b: &[ExpertUse]| -> Vec<f64> {
            tops.iter().filter_map(|k| median_overlap(a, b, *k)).collect()
        };
        let overlaps = match unseen {
            [] => {
                let border = tokens - tokens / 4;
                let [first, last] = [0..border, border..tokens].map(|part| trace.counts(part));
                vec![("the last quarter, by the first three".into(), overlap(&first, &last))]
            }
            _ => unseen
                .iter()
                .map(|(name, other)| {
                    (name.clone(), overlap(&layers, &other.counts(0..other.tokens())))
                })
                .collect(),
        };
        Some(RoutingSummary { layers, transitions: transitions.to_vec(), overlaps, tops })
    }

    /// The summary of a calibration, which is of one text. `None` for a model without experts.
    pub fn of_calibration(calibration: &Calibration) -> Option<RoutingSummary> {
        let (layers, transitions) = (calibration.routing(), calibration.transitions.clone());
        let (overlaps, tops) = Default::default();
        (!layers.is_empty()).then_some(RoutingSummary { layers, transitions, overlaps, tops })
    }

    /// The layers' numbers, with how often each expert was chosen.
    pub fn counts(&self) -> impl Iterator<Item = (usize, Vec<f64>)> {
        self.layers.iter().map(|of| (of.layer, of.counts.clone()))
    }

    /// The usual successor's share of the experts that are chosen next.
    fn predictability(&self, of: &ExpertUse) -> Option<f64> {
        let transitions = self.transitions.iter().find(|t| t.from == of.layer)?;
        transitions.predictability(&of.counts)
    }

    /// As tables.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "\n| layer | experts | never chosen | busiest by mean | top quarter, % | usual successor, % |\n\
             | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for of in &self.layers {
            let next =
                self.predictability(of).map_or("none".into(), |p| format!("{:.1}", 100.0 * p));
            text.push_str(&format!(
                "| {} | {} | {} | {:.2} | {:.1} | {next} |\n",
                of.layer,
                of.counts.len(),
                of.unused(),
                of.imbalance(),
                100.0 * of.share_of_top(of.counts.len() / 4),
            ));
        }
        if self.overlaps.is_empty() {
            return text;
        }
        let heads: Vec<String> = self.tops.iter().map(|k| format!("top {k}, %")).collect();
        text.push_str(&format!("\n| overlap with | {} |\n| --- |", heads.join(" | ")));
        text.push_str(&" ---: |".repeat(self.tops.len()));
        text.push('\n');
        for (name, overlaps) in &self.overlaps {
            let all: Vec<String> = overlaps.iter().map(|o| format!("{:.1}", 100.0 * o)).collect();
            text.push_str(&format!("| {name} | {} |\n", all.join(" | ")));
        }
        text
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let layer = |of: &ExpertUse| {
            json!({
                "layer": of.layer,
                "experts": of.counts.len(),
                "counts": of.counts,
                "ranking": of.ranking(),
                "unused": of.unused(),
                "imbalance": of.imbalance(),
                "usual_successor": self.predictability(of),
            })
        };
        let overlap = |(name, overlaps): &(String, Vec<f64>)| {
            let of = self.tops.iter().zip(overlaps);
            let all: Vec<Value> = of.map(|(k, o)| json!({ "k": k, "overlap": o })).collect();
            json!({ "text": name, "top": all })
        };
        json!({
            "layers": self.layers.iter().map(layer).collect::<Vec<_>>(),
            "overlap": self.overlaps.iter().map(overlap).collect::<Vec<_>>(),
        })
    }
}
