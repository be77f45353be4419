//! Strategies: common ways to divide a model over devices. One table for all commands.

use troika_model::lower::{SegmentKind, segment_kinds};
use troika_model::spec::ModelSpec;

use crate::device::PlanDevice;
use crate::error::PlanError;
use crate::expert_groups::ExpertPolicy;
use crate::layers::{LayerRun, rule};
use crate::plan::{Layers, Phase, Rule, Split};
use crate::ratio::{Ratio, Share};

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        match self {
            Strategy::SplitColumns(r) if *r != Ratio::HALF => {
                write!(f, "={}", f64::from(r.shares()[0]) / 1000.0)
            }
            Strategy::SplitRows(Some(n)) => write!(f, "={n}"),
            Strategy::OneNamed(device) => write!(f, "={device}"),
            Strategy::PrefillDecodeNamed { prefill, decode } => write!(f, "={prefill}:{decode}"),
            Strategy::Experts(policy) if *policy != ExpertPolicy::default() => {
                write!(f, "={}", policy.name())
            }
            Strategy::Layers(runs) => {
                let runs: Vec<String> = runs.iter().map(LayerRun::to_string).collect();
                write!(f, "={}", runs.join("+"))
            }
            _ => Ok(()),
        }
    }
}

/// A way to divide a model over devices. Where it names two, the others compute what both refuse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Everything on the first device.
    #[default]
    OneDevice,
    /// Everything on the device of this name.
    OneNamed(String),
    /// Layer `l` on device `l mod n`, the embedding on the first device, the head on the next.
    Alternate,
    /// The columns of each product divided between two devices.
    SplitColumns(Ratio),
    /// Standard lengths of a prompt's rows on the first device, the rest on the second; decode on
    /// the first.
    SplitRows(StandardLength),
    /// Standard lengths of a prompt's rows on the first device; the rest, and decode, by columns on
    /// both.
    SplitHybrid,
    /// Prefill on the first device, decode on the second.
    PrefillDecode,
    /// A prompt's experts in groups on the first device that runs no functions of the host, or the
    /// second one; all else on the first that does. A strategy knows no prices: whether attention is
    /// with the groups is said by [`ExpertSettings::attention`](crate::ExpertSettings::attention), and
    /// who knows prices asks `troika_solve::attention_pays`.
    Experts(ExpertPolicy),
    /// Prefill and decode on the devices of these names.
    PrefillDecodeNamed {
        /// That of prefill.
        prefill: String,
        /// That of decode.
        decode: String,
    },
    /// Runs of whole layers, the first layers first. The embedding is on the first run's device and
    /// the head on the last one's, also where these have no layers.
    Layers(Vec<LayerRun>),
}

/// Rows of a standard part. `None`: the largest length that all static devices compile for and that
/// leaves a rest; without static devices, slightly more than half a chunk.
pub type StandardLength = Option<usize>;

impl Strategy {
    /// All strategies that need no value, without values.
    pub const ALL: [Strategy; 7] = [
        Strategy::OneDevice,
        Strategy::Alternate,
        Strategy::SplitColumns(Ratio::HALF),
        Strategy::SplitRows(None),
        Strategy::SplitHybrid,
        Strategy::PrefillDecode,
        Strategy::Experts(ExpertPolicy::All),
    ];

    /// The name in commands and plan files.
    pub const fn name(&self) -> &'static str {
        match self {
            Strategy::OneDevice | Strategy::OneNamed(_) => "one-device",
            Strategy::Alternate => "alternate",
            Strategy::SplitColumns(_) => "split-columns",
            Strategy::SplitRows(_) => "split-rows",
            Strategy::SplitHybrid => "split-hybrid",
            Strategy::PrefillDecode | Strategy::PrefillDecodeNamed { .. } => "prefill-decode",
            Strategy::Experts(_) => "experts",
            Strategy::Layers(_) => "layers",
        }
    }

    /// Parses a name, `split-columns=RATIO` with the first device's share of the columns,
    /// `split-rows=N` with the rows of a standard part, `one-device=NAME`,
    /// `prefill-decode=NAME:NAME`, `experts=POLICY`, or `layers=NAME:N+NAME:N`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Strategy, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if let ("layers", Some(runs)) = (name, value) {
            return LayerRun::parse_all(runs).map(Strategy::Layers);
        }
        let strategy = Strategy::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| {
            let known = Strategy::ALL.each_ref().map(Strategy::name).join(", ");
            format!(
                "there is no strategy {name:?}; the strategies are {known}, layers=NAME:N+NAME:N"
            )
        })?;
        let Some(value) = value else { return Ok(strategy) };
        match strategy {
            Strategy::SplitColumns(_) => Ratio::parse(value).map(Strategy::SplitColumns),
            Strategy::SplitRows(_) => match value.parse() {
                Ok(n) if n > 0 => Ok(Strategy::SplitRows(Some(n))),
                _ => Err(format!("{value:?} is no number of rows of a standard part")),
            },
            Strategy::OneDevice if !value.is_empty() => Ok(Strategy::OneNamed(value.into())),
            Strategy::PrefillDecode => match value.split_once(':') {
                Some((prefill, decode)) if !prefill.is_empty() && !decode.is_empty() => {
                    let [prefill, decode] = [prefill, decode].map(String::from);
                    Ok(Strategy::PrefillDecodeNamed { prefill, decode })
                }
                _ => Err(format!("{value:?} is not the names of two devices, as in npu:cpu")),
            },
            Strategy::Experts(_) => {
                ExpertPolicy::parse(value).map(Strategy::Experts).ok_or_else(|| {
                    let known = ExpertPolicy::ALL.map(ExpertPolicy::name).join(", ");
                    format!("{value:?} is no policy for experts; the policies are {known}")
                })
            }
            _ => Err(format!("strategy {name} takes no value")),
        }
    }

    /// Checks that the devices that it names are among these.
    pub(crate) fn check_names(&self, devices: &[PlanDevice]) -> Result<(), PlanError> {
        let named = match self {
            Strategy::OneNamed(device) => vec![device],
            Strategy::PrefillDecodeNamed { prefill, decode } => vec![prefill, decode],
            Strategy::Layers(runs) => runs.iter().flat_map(LayerRun::devices).collect(),
            _ => Vec::new(),
        };
        match named.into_iter().find(|name| !devices.iter().any(|d| d.name == **name)) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
                Err(PlanError::Device { name: name.clone(), known: known.join(", ") })
            }
        }
    }

    /// Checks the number of devices.
    pub fn check(&self, count: usize) -> Result<(), PlanError> {
        let (fits, need) = match self {
            Strategy::OneNamed(_)
            | Strategy::PrefillDecodeNamed { .. }
            | Strategy::OneDevice
            | Strategy::Layers(_) => (count >= 1, "a device"),
            // Those beyond the second compute what both refuse.
            _ => (count >= 2, "two devices or more"),
        };
        if fits { Ok(()) } else { Err(PlanError::Strategy { strategy: self.name(), need, count }) }
    }

    /// The rules of a phase, for checked devices. Activation formats are filled in later.
    pub(crate) fn rules(
        &self,
        spec: &ModelSpec,
        devices: &[PlanDevice],
        phase: Phase,
        chunk: usize,
    ) -> Vec<Rule> {
        let all_on = |at: usize| vec![rule(None, None, &devices[at])];
        let on = |name: &String| all_on(devices.iter().position(|d| d.name == *name).unwrap_or(0));
        let two = &devices[..devices.len().min(2)];
        match (self, phase) {
            // The rules of experts need more than this.
            (Strategy::OneDevice | Strategy::Experts(_), _)
            | (Strategy::PrefillDecode, Phase::Prefill) => all_on(0),
            (Strategy::PrefillDecode, Phase::Decode) => all_on(1),
            (Strategy::Layers(runs), _) => LayerRun::rules(runs, spec, devices),
            (Strategy::OneNamed(name), _)
            | (Strategy::PrefillDecodeNamed { prefill: name, .. }, Phase::Prefill)
            | (Strategy::PrefillDecodeNamed { decode: name, .. }, Phase::Decode) => on(name),
            (Strategy::SplitColumns(ratio), _) => split(spec, two, ratio.columns(two), true),
            (Strategy::SplitRows(_), Phase::Decode) => all_on(0),
            (Strategy::SplitHybrid, Phase::Decode) => {
                split(spec, two, Ratio::HALF.columns(two), false)
            }
            (Strategy::SplitRows(length), Phase::Prefill) => {
                let lengths = vec![length.unwrap_or_else(|| standard(two, chunk))];
                let rest = devices[1].name.clone();
                split(spec, two, Split::Rows { lengths, rest }, false)
            }
            (Strategy::SplitHybrid, Phase::Prefill) => {
                let lengths = vec![standard(two, chunk)];
                let parts = Ratio::HALF.parts(two);
                split(spec, two, Split::Hybrid { lengths, parts }, false)
            }
            (Strategy::Alternate, _) => {
                let head = &devices[spec.layers.len() % devices.len()];
                let mut rules = vec![
                    rule(Some(vec![SegmentKind::Embed]), None, &devices[0]),
                    rule(Some(vec![SegmentKind::Head]), None, head),
                ];
                rules.extend((0..devices.len()).filter_map(|d| {
                    let layers = every(spec.layers.len(), d, devices.len())?;
                    Some(rule(None, Some(layers), &devices[d]))
                }));
                rules
            }
        }
    }
}

impl Ratio {
    fn parts(self, devices: &[PlanDevice]) -> Vec<Share> {
        let parts = devices.iter().zip(self.shares());
        parts.map(|(d, share)| Share { device: d.name.clone(), share }).collect()
    }

    fn columns(self, devices: &[PlanDevice]) -> Split {
        Split::Columns { parts: self.parts(devices) }
    }
}

/// The default rows of a standard part.
fn standard(devices: &[PlanDevice], chunk: usize) -> usize {
    let compiled = || devices.iter().map(|d| &d.caps.row_buckets).filter(|rows| !rows.is_empty());
    let Some(first) = compiled().next() else { return (chunk / 2 + 1).min(chunk.max(1)) };
    let by_all = first.iter().copied().filter(|n| compiled().all(|rows| rows.contains(n)));
    // Chunks shorter than every length have no standard part.
    let least = || first.iter().copied().min().unwrap_or(1);
    by_all.filter(|n| *n < chunk).max().unwrap_or_else(least)
}

/// Splits the segments of products, and attention if `heads` is set; the others run on the first
/// device.
fn split(spec: &ModelSpec, devices: &[PlanDevice], split: Split, heads: bool) -> Vec<Rule> {
    let columns = matches!(split, Split::Columns { .. });
    let splits = |kind: &SegmentKind| {
        let t = kind.traits();
        // If prefill leaves a state whole, decode does too: it stays in place.
        if columns || t.keeps_state { t.by_columns && (heads || !t.keeps_state) } else { t.by_rows }
    };
    let (split_kinds, whole): (Vec<_>, Vec<_>) = segment_kinds(spec).into_iter().partition(splits);
    let largest = |parts: &[Share]| {
        let most = parts.iter().map(|p| p.share).max().unwrap_or(0);
        parts.iter().position(|p| p.share == most).unwrap_or(0)
    };
    let owner = if columns { largest(split.parts()) } else { 0 };
    let shared = Rule { split: Some(split), ..rule(Some(split_kinds), None, &devices[owner]) };
    vec![shared, rule(Some(whole), None, &devices[0])]
}

/// Every `step`-th layer from `first` on, if there is one.
fn every(layers: usize, first: usize, step: usize) -> Option<Layers> {
    let last = layers.checked_sub(1)?.checked_sub(first)? / step * step + first;
    Some(Layers { first, last, step })
}
