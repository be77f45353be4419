//! `strftime_now`.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, FixedOffset, Local, SecondsFormat, Timelike, Utc};

/// A time with its distance from UTC.
pub type LocalTime = DateTime<FixedOffset>;

/// The time where this process runs.
pub fn local_time() -> LocalTime {
    Local::now().fixed_offset()
}

/// A time since 1970 as RFC 3339 says it.
pub fn rfc3339(time: Duration) -> String {
    DateTime::<Utc>::from(UNIX_EPOCH + time).to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// The codes of Python's `strftime` on Linux, in its locale "C", but for `%f`, `%Z` and `%z`.
const CODES: &str = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%";

/// Formats a time as Python's `datetime.now().strftime` does. Other codes stay as they are.
pub(super) fn strftime(format: &str, now: LocalTime) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, code)) = rest.split_once('%') {
        out.push_str(before);
        let flags = code.len() - code.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let Some(letter) = code[flags..].chars().next() else {
            out.push('%');
            rest = code;
            break;
        };
        let (code, after) = code.split_at(flags + letter.len_utf8());
        rest = after;
        // The last flag decides; these two are not chrono's.
        let pad = code[..flags].chars().rfind(|flag| !"^#".contains(*flag)).map(String::from);
        let spec = format!("%{}{letter}", pad.unwrap_or_default());
        let start = out.len();
        match letter {
            'f' => drop(write!(out, "{:06}", now.nanosecond() / 1000 % 1_000_000)),
            // Python's `now` knows no time zone.
            'Z' | 'z' => {}
            _ if !CODES.contains(letter) || write!(out, "{}", now.format(&spec)).is_err() => {
                out.truncate(start);
                out.extend(["%", code]);
            }
            _ if code[..flags].contains(['^', '#']) => {
                let upper = out.split_off(start).to_uppercase();
                out.push_str(&upper);
            }
            _ => {}
        }
    }
    out + rest
}
