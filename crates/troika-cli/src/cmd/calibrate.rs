//! `troika calibrate`.

use serde_json::json;
use troika::plan::Calibration;
use troika::trace::Tracer;
use troika::{
    Calibrated, Error, OpenOptions, Outliers, SegmentOutliers, ShadowCost, calibrate,
    record_routing,
};
use troika_lab::Subject;

use super::outliers::{Measuring, described};
use super::routing::RoutingSummary;
use super::run::open_options;
use super::{bench, routing};
use crate::error::CliError;
use crate::file::{self, read_file, read_input};
use crate::flags::{CalibrateArgs, OpenArgs};
use crate::interrupt::Interrupt;
use crate::progress::going_on;
use crate::{output, resolve};

/// Tokens of a window, as in `llama-perplexity`.
const WINDOW: usize = 512;

/// The options for reading a text in windows: of the usual length, or of the model's context if that
/// is shorter, where none is named.
pub fn window_options(open: &OpenArgs, context: usize) -> Result<OpenOptions, CliError> {
    let options = open_options(open, Tracer::off())?;
    Ok(OpenOptions { context: options.context.or(Some(WINDOW.min(context))), ..options })
}

/// One window in this many is held out to choose what to prune.
const HELD_OUT: usize = 5;
/// The most windows held out.
const MOST_HELD_OUT: usize = 8;

/// Reads the text with the model and writes what it showed.
pub fn run(args: &CalibrateArgs) -> Result<(), CliError> {
    file::check("calibration", Some(&args.out))?;
    file::check("routing trace", args.routing_trace.as_deref())?;
    let subject = resolve::subject(&args.subject)?;
    let interrupt = Interrupt::listen();
    let options = window_options(&args.open, subject.spec()?.context)?;
    let (tokens, heldout, bos) = texts(args, &subject, options.context.unwrap_or(WINDOW))?;
    let others = match &subject {
        Subject::Files(source) => routing::unseen(&args.unseen, source)?,
        Subject::Synthetic(_) => Vec::new(),
    };
    let bind = || subject.bind(&options, true);
    let model = bind()?;
    let lowered = model.lowered(&model.one_device_plan(&options)?)?;
    let mut counting = going_on("calibrating", &interrupt);
    let share = args.outlier_share;
    let calibration = calibrate(model, &options, &tokens, bos, share, &mut counting)?;
    let ended = || CliError::Interrupted("calibrating was ended; nothing is written".into());
    let Calibrated { mut calibration, routing } = calibration.ok_or_else(ended)?;
    drop(counting);
    if let Subject::Files(source) = &subject {
        let (options, tokens, interrupt) = (&options, &heldout[..], &interrupt);
        Measuring { source, options, tokens, lowered: &lowered, interrupt }
            .choose(&mut calibration)?;
    }
    let (names, texts): (Vec<_>, Vec<_>) = others.iter().map(|(n, t)| (n.clone(), &t[..])).unzip();
    let recorded = match texts.is_empty() || routing.layers.is_empty() {
        true => Vec::new(),
        false => {
            let mut counting = going_on("reading other texts", &interrupt);
            let read = record_routing(bind()?, &options, &texts, false, &mut counting)?;
            read.ok_or_else(ended)?
        }
    };
    let unseen: Vec<_> = names.into_iter().zip(recorded.into_iter().map(|r| r.trace)).collect();
    file::write("calibration", &args.out, |to| to.write_all(calibration.to_json().as_bytes()))?;
    routing::write_trace(&routing, args.routing_trace.as_deref())?;
    let best = Outliers::best(&calibration).map_err(Error::from)?;
    let shadow = ShadowCost::of(&calibration, &lowered, best);
    let segments = SegmentOutliers::of(&calibration, &lowered, best);
    let experts = RoutingSummary::of(&routing, &calibration.transitions, &unseen);
    if !args.json {
        let experts = experts.map_or(String::new(), |experts| experts.table());
        return output::write(&(table(&calibration, shadow, &segments) + &experts));
    }
    let mut report = json(&calibration, shadow, &segments);
    report["file"] = json!(args.out.display().to_string());
    report["routing"] = json!(experts.map(|experts| experts.json()));
    output::json(&report)
}

/// The tokens to calibrate with, those held out, and the one with which texts begin.
type Texts = (Vec<u32>, Vec<u32>, Option<u32>);

/// The texts, of which one is cut in two where no other is held out.
fn texts(args: &CalibrateArgs, subject: &Subject, window: usize) -> Result<Texts, CliError> {
    let Subject::Files(source) = subject else {
        return Ok((bench::ids(WINDOW, 0, subject.spec()?.vocab), Vec::new(), None));
    };
    let mut tokens = resolve::tokens(source, &read_input(args.file.as_deref())?)?;
    let bos = resolve::tokenizer(source)?.0.bos().filter(|bos| tokens.first() == Some(bos));
    let heldout = match &args.heldout {
        Some(file) => resolve::tokens(source, &read_file(file)?)?,
        None => {
            let windows = (tokens.len() / window / HELD_OUT).min(MOST_HELD_OUT);
            let mut last = tokens.split_off(tokens.len() - windows * window);
            last.iter_mut().take(1).zip(bos).for_each(|(first, bos)| *first = bos);
            last
        }
    };
    Ok((tokens, heldout, bos))
}

fn json(
    calibration: &Calibration,
    shadow: ShadowCost,
    segments: &[SegmentOutliers],
) -> serde_json::Value {
    let found = calibration.summary();
    json!({
        "tokens": calibration.tokens,
        "products": found.products,
        "columns": found.columns,
        "outlier_columns": found.outlier_columns,
        "hot_share": found.hot_share,
        "layers": found.layers,
        "segments": segments.iter().map(segment_json).collect::<Vec<_>>(),
        "measured": calibration.measured,
        "shadow_hot_bytes": shadow.hot,
        "shadow_all_bytes": shadow.all,
        "weight_bytes": shadow.weights,
        "multiplications": { "outliers": shadow.outliers, "products": shadow.products },
    })
}

fn segment_json(of: &SegmentOutliers) -> serde_json::Value {
    let SegmentOutliers { at: (kind, layer), importance, cost, pruned } = of;
    json!({
        "layer": layer,
        "segment": kind.name(),
        "importance": importance,
        "cost": cost,
        "pruned": pruned,
    })
}

fn table(calibration: &Calibration, shadow: ShadowCost, segments: &[SegmentOutliers]) -> String {
    let found = calibration.summary();
    let percent = |part: usize| 100.0 * part as f64 / found.columns.max(1) as f64;
    let mut text = format!(
        "{} tokens, {} products. {} of {} input columns had outliers ({:.2} %); in the mean, {:.2} % \
         of a product's columns have 80 % of them.\n",
        calibration.tokens,
        found.products,
        found.outlier_columns,
        found.columns,
        percent(found.outlier_columns),
        100.0 * found.hot_share
    );
    let mib = |n: u64| n as f64 / f64::from(1 << 20);
    let share = |part: f64, of: f64| 100.0 * part / of.max(1.0);
    let ShadowCost { hot, all, weights, outliers, products } = shadow;
    text.push_str(&format!(
        "The columns that shadow products hold: {:.2} MiB, of {:.2} for all columns ({:.1} % less); \
         that is {:.2} % of the model's weights. Outliers take {:.2} % of the multiplications of \
         the NPU's products.\n",
        mib(hot),
        mib(all),
        share((all - hot) as f64, all as f64),
        share(hot as f64, weights as f64),
        share(outliers, products)
    ));
    text.push_str(&described(calibration.measured.as_ref()));
    text.push_str(
        "\n| layer | columns | with outliers, % | outliers of values, % | columns of 80 %, % | largest \
         by limit | cost | pruned |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
    );
    for l in &found.layers {
        let values = l.columns as f64 * calibration.tokens as f64;
        let here = |s: &&SegmentOutliers| s.at.1.is_some_and(|n| l.layer == format!("layers.{n}"));
        let here: Vec<&SegmentOutliers> = segments.iter().filter(here).collect();
        let pruned: Vec<&str> = here.iter().filter(|s| s.pruned).map(|s| s.at.0.name()).collect();
        text.push_str(&format!(
            "| {} | {} | {:.2} | {:.3} | {:.2} | {:.1} | {:.1e} | {} |\n",
            l.layer,
            l.columns,
            share(l.outlier_columns as f64, l.columns as f64),
            share(l.outliers, values),
            100.0 * l.most,
            here.iter().map(|s| s.importance).fold(1.0, f64::max),
            here.iter().map(|s| s.cost).sum::<f64>(),
            pruned.join(", ")
        ));
    }
    text
}
