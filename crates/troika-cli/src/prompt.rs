//! Makes prompts by the flags of `troika run`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use troika::Model;

use crate::error::CliError;
use crate::flags::RunArgs;

/// The system message, if any, as the start of a conversation.
pub fn system(args: &RunArgs) -> Vec<Value> {
    let message = |text| json!({"role": "system", "content": text});
    args.system_prompt.iter().map(message).collect()
}

/// Today's date (UTC) for templates that print it.
pub fn today() -> Option<(i32, u32, u32)> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(civil((seconds / 86_400) as i64))
}

/// Days since 1970 as year, month, day (Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i32, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = (if mp < 10 { mp + 3 } else { mp - 9 }) as u32;
    let year = yoe + era * 400 + i64::from(month <= 2);
    (year as i32, month, day)
}

/// Converts text to ids, through the model's chat template if it has one, unless told otherwise.
///
/// # Errors
/// A model without a tokenizer, or an error of its template.
pub fn tokenize(
    model: &Model,
    args: &RunArgs,
    text: &str,
) -> Result<(Vec<u32>, Duration), CliError> {
    if args.raw || !model.has_template() {
        return Ok(model.tokenize(text)?);
    }
    let mut messages = system(args);
    messages.push(json!({"role": "user", "content": text}));
    let (none, today) = (serde_json::Map::new(), today());
    let prompt = model.chat_prompt(&messages, none, today, args.parse_special)?;
    Ok(model.tokenize_chat(&prompt)?)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }
}
