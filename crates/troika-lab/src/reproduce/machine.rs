//! Claims of papers about machines other than phones, measured on this one if requested by name.
//! Measured figures differ from run to run, so they are not tests.

use std::time::Duration;

use troika::engine::WantedLogits;
use troika::graph::DType;
use troika::plan::Strategy;
use troika::weights::FloatType;
use troika::{DeviceOptions, DeviceSpec, Model, OpenOptions, Source};
use troika_check::relative_error;

use super::lab::Lab;
use super::outcome::Outcome;
use crate::{HandOverBy, HandOvers, LabError, Result, measure_hand_overs};

/// Number of hand-overs per way of waiting, and the duration of each task.
const HAND_OVERS: usize = 1000;
const EACH: Duration = Duration::from_micros(1000);

/// Predicted waits compared with blocking and spinning.
pub fn waits(_: &mut Lab) -> Result<Outcome> {
    let measure = |by| measure_hand_overs(by, HAND_OVERS, EACH);
    let predicted = measure(HandOverBy::Predicting)?;
    let spinning = measure(HandOverBy::Spinning)?;
    let blocking = measure(HandOverBy::Blocking)?;
    let us = |d: Duration| d.as_nanos() as f64 * 1e-3;
    let said = |found: &HandOvers| match found.share() {
        Some(share) => format!("p50 {:.1} us, {:.1} % of a core", us(found.p50()), share * 100.0),
        None => format!("p50 {:.1} us, processor time not readable", us(found.p50())),
    };
    let less = predicted.share().zip(spinning.share()).is_some_and(|(own, spun)| own < spun);
    let pass = predicted.p50() < Duration::from_micros(100) && less;
    let ours = format!(
        "{}; spinning: {}; sleeping until woken: {}",
        said(&predicted),
        said(&spinning),
        said(&blocking)
    );
    let note = format!(
        "Measured on this machine: {HAND_OVERS} hand-overs in each way, {} us of waiting before each, \
         for a queue that uses no core meanwhile.",
        EACH.as_micros()
    );
    Ok(Outcome::words("p50 below 100 us, less than spinning", ours, pass).noted(note))
}

/// Length of a prompt with an odd number of tokens, whose ids every model has.
const PROMPT: usize = 37;

/// Compares the built-in model's logits on two devices with different kernels, divided in each way,
/// with those on one device.
pub fn partitions(_: &mut Lab) -> Result<Outcome> {
    let ways = ["split-columns", "split-columns=0.3", "split-rows=16", "split-hybrid"];
    let one = logits(Strategy::OneDevice)?;
    let (mut said, mut pass) = (Vec::new(), true);
    for name in ways {
        let split = logits(Strategy::parse(name).map_err(LabError::Impossible)?)?;
        let off = relative_error(&split, &one);
        pass &= off <= 1e-5;
        said.push(format!("{name}: {off:.1e}"));
    }
    let note = "Measured on this machine: largest difference of the built-in model's logits, against \
                the largest of them, in f32; the second device has other kernels than the first.";
    Ok(Outcome::words("1e-5", said.join("; "), pass).noted(note))
}

fn logits(strategy: Strategy) -> Result<Vec<f32>> {
    let spec = |name: &str, isa: Option<&str>| DeviceSpec {
        name: Some(name.into()),
        isa: isa.map(String::from),
        ..DeviceSpec::default()
    };
    let devices = vec![spec("a", None), spec("b", Some("scalar"))];
    let devices = DeviceOptions { devices, ..DeviceOptions::default() };
    built_in_logits(PROMPT, OpenOptions { strategy, devices, ..OpenOptions::default() })
}

/// The built-in model's logits in f32, of all tokens of a prompt.
pub fn built_in_logits(tokens: usize, options: OpenOptions) -> Result<Vec<f32>> {
    let (dtype, kv_dtype) = (FloatType::F32, Some(DType::F32));
    let model = Model::open(Source::BuiltIn, &OpenOptions { dtype, kv_dtype, ..options })?;
    let tokens: Vec<u32> = (0..tokens as u32).map(|i| 10 + i * 7).collect();
    let mut all = Vec::new();
    model.session()?.feed(&tokens, WantedLogits::All, &mut |_, row| all.extend_from_slice(row))?;
    Ok(all)
}
