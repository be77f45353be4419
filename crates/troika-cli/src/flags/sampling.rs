//! Sampling flags and what they mean for a model.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use troika::GenerationDefaults;
use troika::engine::sample::SampleParams;

use crate::error::CliError;

/// Sampling, with llama.cpp's names. A flag wins over the model's generation_config.json, which
/// wins over llama.cpp's defaults.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 (or less) takes the most likely token [default: the model's, or 0.8]
    #[arg(long, value_name = "T", env = "TROIKA_TEMP", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Keep the K most likely tokens; 0: all [default: the model's, or 40]
    #[arg(long, value_name = "K", env = "TROIKA_TOP_K", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Keep the smallest set whose probability reaches P; 1: all [default: the model's, or 0.95]
    #[arg(long, value_name = "P", env = "TROIKA_TOP_P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the best; 0: all [default: the model's, or 0.05]
    #[arg(long, value_name = "P", env = "TROIKA_MIN_P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Penalty on tokens seen before; 1: none [default: the model's, or 1]
    #[arg(long, value_name = "R", env = "TROIKA_REPEAT_PENALTY", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Tokens the penalties look back; 0: none, -1: all
    #[arg(long, value_name = "N", default_value_t = 64, env = "TROIKA_REPEAT_LAST_N")]
    #[arg(allow_negative_numbers = true)]
    pub repeat_last_n: i64,
    /// Subtracted once from tokens seen before
    #[arg(long, value_name = "X", default_value_t = 0.0, env = "TROIKA_PRESENCE_PENALTY")]
    #[arg(allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted from tokens seen before, once per occurrence
    #[arg(long, value_name = "X", default_value_t = 0.0, env = "TROIKA_FREQUENCY_PENALTY")]
    #[arg(allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Changes a token's logit: TOKEN+BIAS or TOKEN-BIAS, for instance 15043-1;
    /// TOKEN-inf: never
    #[arg(short, long, value_name = "TOKEN(+/-)BIAS")]
    pub logit_bias: Vec<String>,
    /// Seed; -1: another one each time
    #[arg(short, long, value_name = "N", default_value_t = -1, env = "TROIKA_SEED")]
    #[arg(allow_negative_numbers = true)]
    pub seed: i64,
    /// Go on after the end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Text that ends the generation (repeatable)
    #[arg(short = 'r', long = "stop", visible_alias = "reverse-prompt", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// The parameters for a model.
    pub fn resolve(&self, d: &GenerationDefaults) -> Result<SampleParams, CliError> {
        let base = d.params();
        // As in llama.cpp, negative values are greedy too; NaN is refused later.
        let temperature = self.temp.unwrap_or(base.temperature);
        let temperature = if temperature < 0.0 { 0.0 } else { temperature };
        let n = self.repeat_last_n;
        if n < -1 {
            return Err(CliError::Usage(format!(
                "--repeat-last-n {n} is neither -1 nor 0 or more"
            )));
        }
        let params = SampleParams {
            temperature,
            top_k: self.top_k.map_or(base.top_k, |k| usize::try_from(k).unwrap_or(0)),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            repeat_last_n: usize::try_from(n).unwrap_or(usize::MAX),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().map(|s| parse_bias(s)).collect::<Result<_, _>>()?,
            chain: base.chain,
            seed: u64::try_from(self.seed).unwrap_or_else(|_| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                now.as_nanos() as u64
            }),
        };
        let flag = |name: &str| match name {
            "temperature" => "--temp".to_string(),
            name => format!("--{}", name.replace('_', "-")),
        };
        params.check().map_err(|e| CliError::Usage(format!("{}: {e}", flag(e.name))))?;
        let penalties = (params.repeat_penalty, params.presence_penalty, params.frequency_penalty);
        // A variable is a default for other runs, too.
        let is_typed = n != 64 && std::env::var_os("TROIKA_REPEAT_LAST_N").is_none();
        if is_typed && penalties == (1.0, 0.0, 0.0) {
            let why = "--repeat-last-n has no effect without --repeat-penalty, --presence-penalty \
                       or --frequency-penalty: the model asks for none";
            return Err(CliError::Usage(why.into()));
        }
        Ok(params)
    }
}

fn parse_bias(s: &str) -> Result<(u32, f32), CliError> {
    let wrong = || {
        CliError::Usage(format!("--logit-bias {s:?} is not TOKEN+BIAS or TOKEN-BIAS, as 15043-1"))
    };
    let at = s.find(['+', '-']).ok_or_else(wrong)?;
    let (token, bias) = s.split_at(at);
    let bias = match bias {
        "-inf" => f32::NEG_INFINITY,
        b => b.parse::<f32>().ok().filter(|b| b.is_finite()).ok_or_else(wrong)?,
    };
    Ok((token.parse().map_err(|_| wrong())?, bias))
}

#[cfg(test)]
mod tests {
    use super::parse_bias;

    #[test]
    fn biases_parse_or_are_refused() {
        assert_eq!(parse_bias("15+0.5").unwrap(), (15, 0.5));
        assert_eq!(parse_bias("15-2").unwrap(), (15, -2.0));
        assert_eq!(parse_bias("15-inf").unwrap(), (15, f32::NEG_INFINITY));
        for bad in ["15", "+2", "x-1", "15+nan", "15-nan", "15-NaN", "15+inf", "15-1e99", ""] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
