//! `troika ps`: what a server is doing.

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use serde_json::Value;
use ureq::http::HeaderValue;
use ureq::{Agent, Timeout};

use crate::error::CliError;
use crate::flags::{DEFAULT_PORT, PsArgs};
use crate::output::{self, bytes, printable};
use crate::table::TextTable;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const MOST_BYTES: u64 = 16 << 20;

/// Asks a server and prints its models.
pub fn run(args: &PsArgs) -> Result<(), CliError> {
    let keys = args.keys.all()?;
    let status = ask(args, keys.first()).map_err(CliError::Failure)?;
    if args.json { output::json(&status) } else { output::write(&as_text(&status)) }
}

/// The host and port as they stand in an address.
fn address(args: &PsArgs) -> Result<String, String> {
    let host = args.host.trim_matches(['[', ']']);
    if let Err(e) = (host, args.port).to_socket_addrs() {
        return Err(format!("there is no host {host:?} ({e}); --host names the server's"));
    }
    Ok(match host.contains(':') {
        true => format!("[{host}]:{}", args.port),
        false => format!("{host}:{}", args.port),
    })
}

/// What the server says of itself.
fn ask(args: &PsArgs, key: Option<&String>) -> Result<Value, String> {
    let at = address(args)?;
    // A proxy is not asked: the server is on this machine, or one named by the user.
    let config = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE));
    let mut request = config.build().new_agent().get(format!("http://{at}/troika/status"));
    if let Some(key) = key {
        let header = HeaderValue::from_str(&format!("Bearer {key}"));
        let header = header.map_err(|_| "--api-key: this can be no key's text")?;
        request = request.header("authorization", header);
    }
    let response = request.call().map_err(|e| no_answer(args, &at, &e))?;
    let other = |what: &str| {
        format!("what listens at {at} is no server of Troika ({what}); --port names another port")
    };
    match response.status().as_u16() {
        200 => {}
        401 | 403 if key.is_none() => {
            return Err(format!(
                "the server at {at} asks for its key: --api-key, --api-key-file or TROIKA_API_KEY"
            ));
        }
        401 | 403 => {
            return Err(format!("the server at {at} has another key than --api-key names"));
        }
        status => return Err(other(&format!("HTTP status {status}"))),
    }
    let body = response.into_body().with_config().limit(MOST_BYTES).read_to_vec();
    let body = body.map_err(|e| other(&e.to_string()))?;
    let status: Value = serde_json::from_slice(&body).map_err(|_| other("it sends no JSON"))?;
    if status["models"].is_array() { Ok(status) } else { Err(other("it names no models")) }
}

/// Why there is no answer, with what helps.
fn no_answer(args: &PsArgs, at: &str, error: &ureq::Error) -> String {
    use ureq::Error as E;
    let start = match args.port {
        DEFAULT_PORT => "troika serve".to_string(),
        port => format!("troika serve --port {port}"),
    };
    let none = || format!("no server listens at {at}; start one with: {start}");
    match error {
        E::ConnectionFailed => none(),
        E::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused => none(),
        E::Timeout(Timeout::Connect) => {
            format!("nothing answers at {at}; start a server there with: {start}")
        }
        E::Timeout(_) => {
            format!("what listens at {at} did not answer within {} s", PATIENCE.as_secs())
        }
        e => format!("{at} does not answer as a server does: {e}"),
    }
}

fn number(value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => whole.to_string(),
        (None, Some(number)) => format!("{number:.1}"),
        _ => "-".to_string(),
    }
}

/// A rate with the digits that matter.
fn rate(value: &Value) -> String {
    value.as_f64().map_or("-".to_string(), |rate| format!("{rate:.1}"))
}

fn size(value: &Value) -> String {
    value.as_u64().map_or("-".to_string(), bytes)
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or("-")).into_owned()
}

fn list(value: &Value) -> String {
    let names: Vec<String> = value.as_array().into_iter().flatten().map(text).collect();
    if names.is_empty() { "-".to_string() } else { names.join("+") }
}

fn row(model: &Value) -> [String; 8] {
    let pages = match model["pages"].as_u64() {
        Some(pages) => format!("{} of {pages}", number(&model["pages_used"])),
        None => "-".to_string(),
    };
    [
        text(&model["name"]),
        text(&model["state"]),
        list(&model["devices"]),
        size(&model["weight_bytes"]),
        number(&model["sequences"]),
        pages,
        rate(&model["prefill_tok_s"]),
        rate(&model["decode_tok_s"]),
    ]
}

fn as_text(status: &Value) -> String {
    let mut table = TextTable::new([
        "model",
        "state",
        "devices",
        "weights",
        "sequences",
        "KV pages",
        "prefill tok/s",
        "decode tok/s",
    ]);
    let models = status["models"].as_array().map_or(&[][..], Vec::as_slice);
    models.iter().for_each(|model| table.add(row(model)));
    let failed = models.iter().filter(|model| model["why"].is_string());
    let whys = failed.map(|m| format!("{}: {}\n", text(&m["name"]), text(&m["why"])));
    let whys: String = whys.collect();
    format!("{table}{whys}{}\n", summary(status))
}

/// A line on the server as a whole.
fn summary(status: &Value) -> String {
    let mut line = format!(
        "troika {}, up {} s: {} {}, {} running, {} queued, memory {}",
        text(&status["version"]),
        status["uptime_s"].as_f64().unwrap_or(0.0).round(),
        number(&status["clients"]),
        if status["clients"] == 1 { "client" } else { "clients" },
        number(&status["running"]),
        number(&status["queued"]),
        size(&status["memory_bytes"])
    );
    if status["memory_budget_bytes"].is_u64() {
        line.push_str(&format!(" of {}", size(&status["memory_budget_bytes"])));
    }
    if let Some(watts) = status["watts"].as_f64() {
        line.push_str(&format!(", {watts:.1} W"));
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::as_text;

    #[test]
    fn a_status_is_a_table_with_a_line() {
        let open = json!({
            "name": "built-in", "state": "open", "why": null, "devices": ["cpu", "npu"],
            "weight_bytes": 6u64 << 20, "sequences": 2, "pages_used": 3, "pages": 64,
            "prefill_tok_s": 1234.04, "decode_tok_s": 321,
        });
        let failed = json!({"name": "a\u{1b}[2J", "state": "failed", "why": "no\nmemory"});
        let status = json!({
            "version": "0.1.0", "uptime_s": 12.3, "clients": 2, "queued": 0, "running": 1,
            "memory_bytes": 1u64 << 30, "memory_budget_bytes": 2u64 << 30, "watts": 5.14,
            "models": [open, failed, 7],
        });
        let told = as_text(&status);
        let lines: Vec<&str> = told.lines().collect();
        let cells = |line: &str| {
            line.split("  ")
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(cells(lines[0]).len(), 8, "{told}");
        let want = ["built-in", "open", "cpu+npu", "6.00 MiB", "2", "3 of 64", "1234.0", "321.0"];
        assert_eq!(cells(lines[1]), want);
        assert!(lines[2].starts_with(r"a\u{1b}[2J  failed"), "{told}");
        assert_eq!(lines[4], r"a\u{1b}[2J: no\u{a}memory");
        let end = "2 clients, 1 running, 0 queued, memory 1.00 GiB of 2.00 GiB, 5.1 W";
        assert_eq!(lines[5], format!("troika 0.1.0, up 12 s: {end}"));
        // Fields that are missing, or of another kind.
        assert!(as_text(&json!({"models": "x", "uptime_s": "y"})).contains("up 0 s: - clients"));
    }
}
