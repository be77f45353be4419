//! Requests, with limits on time and redirects. Decides which servers see the token.

use std::io::{self, Read};
use std::time::Duration;

use ureq::http::{HeaderMap, HeaderValue, Response, Uri};
use ureq::{Agent, Body, Timeout};

use super::HubOptions;

/// The most redirects followed for one request.
const MAX_REDIRECTS: usize = 10;

/// Timeouts and numbers of attempts. A download may take any time in total, as long as bytes keep
/// arriving.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until there is a connection.
    pub connect: Duration,
    /// From the request to the end of the answer's headers.
    pub answer: Duration,
    /// Between two arrivals of bytes.
    pub silence: Duration,
    /// For the whole list of a repository's files.
    pub listing: Duration,
    /// Attempts of a request without progress.
    pub tries: u32,
    /// Pause after the first attempt; each further one is four times as long.
    pub pause: Duration,
    /// The longest pause that a server may request.
    pub longest_pause: Duration,
    /// How long a file that another program is fetching may stay unchanged.
    pub others: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Limits {
            connect: seconds(20),
            answer: seconds(30),
            silence: seconds(60),
            listing: seconds(120),
            tries: 4,
            pause: Duration::from_millis(250),
            longest_pause: seconds(60),
            others: seconds(120),
        }
    }
}

/// Why a request gave no usable answer.
#[derive(Debug)]
pub enum Trouble {
    /// No connection: the host does not exist, or does not listen.
    Unreachable(String),
    /// A temporary failure, with the pause that the server requests, if any.
    Passing(String, Option<Duration>),
    /// A status that refuses the request.
    Status(u16),
    /// Something that a hub would not answer.
    Odd(String),
}

/// Scheme, host and port: what identifies the server that may see a token.
fn origin(uri: &Uri) -> Option<String> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let usual = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
    Some(format!("{scheme}://{host}:{}", uri.port_u16().unwrap_or(usual)))
}

/// Makes requests.
pub struct Client {
    agent: Agent,
    token: Option<String>,
    limits: Limits,
}

/// An answer with a body.
pub struct Answer {
    response: Response<Body>,
    /// Headers of the answers from the Hub itself, in order.
    hub: Vec<HeaderMap>,
    limits: Limits,
}

impl Client {
    /// A client that shows the token in `options` only to the first server that it asks.
    pub fn new(options: &HubOptions, limits: Limits) -> Client {
        let config = Agent::config_builder()
            .user_agent(concat!("troika/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_send_request(Some(limits.answer))
            .timeout_recv_response(Some(limits.answer))
            .timeout_per_read(Some(limits.silence))
            .timeout_per_write(Some(limits.silence));
        Client { agent: config.build().new_agent(), token: options.token.clone(), limits }
    }

    /// Requests `url`, follows redirects, and returns the last answer if its status is a success.
    /// `body` limits the time for its whole body.
    pub fn get(
        &self,
        url: &str,
        range: Option<&str>,
        body: Option<Duration>,
    ) -> Result<Answer, Trouble> {
        let mut uri: Uri = url.parse().map_err(|_| malformed_address())?;
        let mut hub = Vec::new();
        // After a redirect to another server, the token is not sent again.
        let mut at_home = true;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(uri.clone());
            if let Some(token) = self.token.as_ref().filter(|_| at_home) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let request = request.config().timeout_recv_body(body).build();
            let response = request.call().map_err(|e| self.limits.trouble(e))?;
            if at_home {
                hub.push(response.headers().clone());
            }
            let status = response.status().as_u16();
            match status {
                200..=299 => return Ok(Answer { response, hub, limits: self.limits }),
                301 | 302 | 303 | 307 | 308 => {
                    let place = text(response.headers(), "location")
                        .ok_or_else(|| Trouble::Odd("a redirect names no place".to_string()))?;
                    let next = redirected(&uri, place)?;
                    at_home &= origin(&next) == origin(&uri);
                    uri = next;
                }
                408 | 429 | 500.. => return Err(Limits::later(status, response.headers())),
                _ if at_home => return Err(Trouble::Status(status)),
                _ => {
                    let why = format!("the server its files are on says HTTP status {status}");
                    return Err(Trouble::Odd(why));
                }
            }
        }
        Err(Trouble::Odd(format!("it redirects more than {MAX_REDIRECTS} times")))
    }
}

impl Limits {
    /// The pause before another attempt; `None` after too many.
    pub fn pause_after(&self, tries: u32, asked: Option<Duration>) -> Option<Duration> {
        let pause = self.pause.saturating_mul(4_u32.saturating_pow(tries.saturating_sub(1)));
        let pause = asked.unwrap_or_default().max(pause);
        (tries < self.tries && pause <= self.longest_pause).then_some(pause)
    }

    /// What a failed request means.
    fn trouble(&self, error: ureq::Error) -> Trouble {
        use ureq::Error as E;
        let seconds = |time: Duration| format!("{} s", time.as_secs_f32());
        match error {
            E::HostNotFound => Trouble::Unreachable("no such host".to_string()),
            E::ConnectionFailed => Trouble::Unreachable("no connection".to_string()),
            E::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                Trouble::Unreachable(e.to_string())
            }
            E::Timeout(Timeout::Resolve | Timeout::Connect) => {
                Trouble::Unreachable(format!("no connection within {}", seconds(self.connect)))
            }
            E::Timeout(Timeout::SendRequest | Timeout::RecvResponse) => {
                Trouble::Passing(format!("no answer within {}", seconds(self.answer)), None)
            }
            E::Timeout(Timeout::PerRead | Timeout::PerWrite) => {
                Trouble::Passing(format!("nothing arrived for {}", seconds(self.silence)), None)
            }
            E::Timeout(_) => {
                Trouble::Passing(format!("not done within {}", seconds(self.listing)), None)
            }
            E::Io(e) => Trouble::Passing(e.to_string(), None),
            // Usually a connection that ended inside the headers.
            E::Protocol(e) => Trouble::Passing(e.to_string(), None),
            E::Tls(_) | E::Rustls(_) | E::Pem(_) => {
                Trouble::Unreachable(format!("no secure connection: {error}"))
            }
            // Its text would show the address, which may contain a password.
            E::BadUri(_) => malformed_address(),
            e => Trouble::Odd(shown(&e.to_string())),
        }
    }

    /// A status that may change soon.
    fn later(status: u16, headers: &HeaderMap) -> Trouble {
        let wait = text(headers, "retry-after").and_then(|text| text.trim().parse().ok());
        let when = wait.map_or(String::new(), |s: u64| format!(", to be asked again in {s} s"));
        Trouble::Passing(format!("HTTP status {status}{when}"), wait.map(Duration::from_secs))
    }
}

impl Answer {
    /// The status, a success.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// A header of the answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(self.response.headers(), name)
    }

    /// A header that the Hub itself sent, on the way to the answer or with it.
    pub fn hub_header(&self, name: &str) -> Option<&str> {
        self.hub.iter().find_map(|headers| text(headers, name))
    }

    /// The number of bytes in the body, if known.
    pub fn length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// First byte, last byte and total of the range that was sent.
    pub fn range(&self) -> Option<(u64, u64, u64)> {
        let (range, total) =
            self.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        let (from, to) = range.split_once('-')?;
        Some((from.trim().parse().ok()?, to.trim().parse().ok()?, total.trim().parse().ok()?))
    }

    /// All of the body, a list of files, which has at most so many bytes.
    pub fn into_bytes(self, most: u64) -> Result<Vec<u8>, Trouble> {
        let read = self.response.into_body().with_config().limit(most).read_to_vec();
        read.map_err(|e| match e {
            ureq::Error::BodyExceedsLimit(_) => {
                Trouble::Odd(format!("its list of files is longer than {} MiB", most >> 20))
            }
            e => self.limits.trouble(e),
        })
    }

    /// The body: each call reads some bytes of it, 0 at its end. Errors say what happened.
    pub fn into_reader(self) -> impl FnMut(&mut [u8]) -> Result<usize, Trouble> {
        let mut reader = self.response.into_body().into_reader();
        move |buffer: &mut [u8]| loop {
            match reader.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(|e| self.limits.trouble(e.into())),
            }
        }
    }
}

/// A header as text: printable ASCII.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Text from a server, safe to print.
pub fn shown(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars().take(200) {
        match c {
            '\'' | '"' | '\\' => short.push(c),
            c => short.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(200).is_some() {
        short.push_str("...");
    }
    short
}

/// The address of the Hub cannot be asked. The error around this one names it.
fn malformed_address() -> Trouble {
    Trouble::Odd("its address is malformed".to_string())
}

/// Whether a token can stand in the header of a request.
pub fn can_be_sent(token: &str) -> bool {
    HeaderValue::from_str(token).is_ok()
}

fn odd(what: &str, text: &str) -> Trouble {
    Trouble::Odd(format!("{what} is malformed ({})", shown(text)))
}

/// Where a redirect leads (RFC 3986, section 5, without dots).
fn redirected(from: &Uri, place: &str) -> Result<Uri, Trouble> {
    let malformed = || odd("the place of a redirect", place);
    let place = place.trim().split('#').next().unwrap_or_default();
    let (scheme, host) = (from.scheme_str().unwrap_or("http"), from.authority());
    let host = host.map_or("", |host| host.as_str());
    let here = from.path();
    let lower = place.to_ascii_lowercase();
    let whole = if lower.starts_with("http://") || lower.starts_with("https://") {
        place.to_string()
    } else if place.starts_with("//") {
        format!("{scheme}:{place}")
    } else if place.starts_with('/') {
        format!("{scheme}://{host}{place}")
    } else if place.starts_with('?') {
        format!("{scheme}://{host}{here}{place}")
    } else if place.is_empty() || place.split(['/', '?']).next().is_some_and(|p| p.contains(':')) {
        return Err(malformed());
    } else {
        let folder = here.rfind('/').map_or("/", |end| &here[..=end]);
        format!("{scheme}://{host}{folder}{place}")
    };
    let next: Uri = whole.parse().map_err(|_| malformed())?;
    let origin = origin(&next).ok_or_else(malformed)?;
    if scheme == "https" && !origin.starts_with("https:") {
        return Err(Trouble::Odd(format!("it redirects to {origin}, which is not encrypted")));
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect(text)
    }

    #[test]
    fn redirects_are_resolved_as_browsers_do() {
        let from = uri("https://hub.example:8443/o/n/resolve/x?a=b");
        for (place, want) in [
            ("https://cdn.example/f?s=1", "https://cdn.example/f?s=1"),
            ("HTTPS://cdn.example/f", "https://cdn.example/f"),
            ("//cdn.example/f", "https://cdn.example/f"),
            ("/f#part", "https://hub.example:8443/f"),
            ("y?u=http://h", "https://hub.example:8443/o/n/resolve/y?u=http://h"),
            ("?c", "https://hub.example:8443/o/n/resolve/x?c"),
        ] {
            assert_eq!(redirected(&from, place).expect(place), uri(want), "{place}");
        }
        for place in ["", "ftp://h/f", "file:/etc/passwd", "https://", "https:///f", "/a b", "//"] {
            assert!(matches!(redirected(&from, place), Err(Trouble::Odd(_))), "{place}");
        }
    }

    #[test]
    fn an_encrypted_connection_is_not_left_for_a_plain_one() {
        let from = uri("https://hub.example/f");
        let told = redirected(&from, "http://hub.example/f");
        assert!(matches!(told, Err(Trouble::Odd(why)) if why.contains("not encrypted")));
        assert!(redirected(&uri("http://hub.example/f"), "https://hub.example/f").is_ok());
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| origin(&uri(a)) == origin(&uri(b));
        assert!(same("https://h.example/a", "https://H.example:443/b"));
        assert!(!same("https://h.example/", "https://h.example:444/"));
        assert!(!same("http://h.example/", "https://h.example/"));
        assert!(!same("https://h.example/", "https://h.example.org/"));
    }

    #[test]
    fn text_of_a_server_cannot_write_to_a_terminal() {
        assert_eq!(shown("it's \x1b[31m\n"), "it's \\u{1b}[31m\\n");
        assert!(shown(&"x".repeat(1000)).len() < 210);
    }
}
