//! A hub on a thread: just enough HTTP for the client.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use tempfile::TempDir;

use super::SHA;

/// How the hub behaves.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Contents of `o/n`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Every request gets this status.
    pub status: Option<u16>,
    /// The next requests get these statuses and headers.
    pub next: Vec<(u16, &'static str)>,
    /// Only requests to the Hub's own paths with this token are served.
    pub token: Option<String>,
    /// Answers with longer bodies break off after this many bytes...
    pub cut_at: usize,
    /// ... this many times.
    pub cuts: usize,
    /// Whether the connection stalls instead of breaking off.
    pub stall: bool,
    /// Bodies come in pieces of this many bytes, with a pause before each.
    pub slow: Option<(usize, Duration)>,
    /// Which ranges are ignored: none, ranges of more than one byte, or all.
    pub no_ranges: Ranges,
    /// Ranges of more than one byte get this status.
    pub range_status: Option<u16>,
    /// Weights are below `/large/` of this server (empty: of this one), as large files are.
    pub away: Option<String>,
    /// Sent instead of the place of that server.
    pub location: Option<String>,
    /// This many bodies have a wrong byte in the middle.
    pub spoiled: usize,
    /// Whether ranges begin a byte too late.
    pub wrong_range: bool,
    /// Whether files below `/large/` are an error page.
    pub page: bool,
    /// Whether answers end inside the headers.
    pub half_head: bool,
    /// Answers of the Hub's API, instead of the list of files.
    pub list: Option<String>,
}

/// Ranges that are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ranges {
    #[default]
    None,
    Large,
    All,
}

/// A running hub, with a cache to fetch into; stops when dropped.
pub struct Server {
    pub cache: TempDir,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    behaviour: Arc<Mutex<Behaviour>>,
    log: Arc<Mutex<Vec<Request>>>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub token: Option<String>,
    range: Option<usize>,
    /// The last byte of the range, where one is named.
    last: Option<usize>,
    one_byte: bool,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server {
            cache: tempfile::tempdir().expect("folder"),
            address: listener.local_addr().expect("an address"),
            stop: Arc::default(),
            behaviour: Arc::new(Mutex::new(behaviour)),
            log: Arc::default(),
        };
        let (stop, behaviour, log) =
            (server.stop.clone(), server.behaviour.clone(), server.log.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (behaviour, log) = (behaviour.clone(), log.clone());
                std::thread::spawn(move || {
                    let _closed_early = serve(stream, &behaviour, &log);
                });
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the behaviour from now on.
    pub fn now(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().expect("lock"));
    }

    /// All requests so far; forgets them.
    pub fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut self.log.lock().expect("lock"))
    }

    /// Requests so far as `path range`, except those for a first byte; forgets them.
    pub fn requests(&self) -> Vec<String> {
        let line = |r: Request| {
            let range = r.range.map_or(String::new(), |from| format!(" {from}-"));
            let last = r.last.map_or(String::new(), |last| last.to_string());
            format!("{}{range}{last}", r.path)
        };
        self.asked().into_iter().filter(|r| !r.one_byte).map(line).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    let mut request = Request { path, range: None, last: None, one_byte: false, token: None };
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
        match name.to_lowercase().as_str() {
            "range" => {
                let (from, to) =
                    value.trim_start_matches("bytes=").split_once('-').unwrap_or_default();
                request.range = from.parse().ok();
                request.last = to.parse().ok();
                request.one_byte = to == "0";
            }
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_string),
            _ => {}
        }
    }
    Ok(request)
}

const CLOSE: &str = "connection: close\r\n\r\n";

fn serve(
    mut stream: TcpStream,
    shared: &Mutex<Behaviour>,
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let request = read(&stream)?;
    log.lock().expect("lock").push(request.clone());
    let mut behaviour = shared.lock().expect("lock").clone();
    if behaviour.half_head {
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-le");
    }
    if !behaviour.next.is_empty() {
        let (status, headers) = shared.lock().expect("lock").next.remove(0);
        return write!(stream, "HTTP/1.1 {status} No\r\n{headers}content-length: 0\r\n{CLOSE}");
    }
    let large = request.path.starts_with("/large/");
    let refused_range = request.range.and(behaviour.range_status).filter(|_| !request.one_byte);
    let refused = !large && behaviour.token.is_some() && behaviour.token != request.token;
    if let Some(status) = behaviour.status.or(refused.then_some(401)).or(refused_range) {
        return write!(stream, "HTTP/1.1 {status} No\r\ncontent-length: 0\r\n{CLOSE}");
    }
    if request.path.starts_with("/api/models/o/n/revision/main") {
        let body = behaviour.list.take().unwrap_or_else(|| list(&behaviour.files));
        let length = body.len();
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{CLOSE}{body}");
    }
    let below = format!("/o/n/resolve/{SHA}/");
    let name = request.path.strip_prefix(&below).or_else(|| request.path.strip_prefix("/large/"));
    let Some((name, body)) = name.and_then(|n| Some((n, behaviour.files.get(n)?.clone()))) else {
        return write!(stream, "HTTP/1.1 404 No\r\ncontent-length: 0\r\n{CLOSE}");
    };
    let hub = format!("x-repo-commit: {SHA}\r\n");
    if let Some(away) = behaviour.away.as_ref().filter(|_| !large && is_weight(name)) {
        let place = match &behaviour.location {
            Some(location) => location.clone(),
            None => format!("location: {away}/large/{name}\r\n"),
        };
        let tags = format!("x-linked-etag: \"{}\"\r\n{hub}", etag(&body));
        return write!(stream, "HTTP/1.1 302 Found\r\n{tags}{place}content-length: 0\r\n{CLOSE}");
    }
    if large && behaviour.page {
        let text = "<html>Sorry</html>";
        let length = text.len();
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{CLOSE}{text}");
    }
    // The other server has its own ETags.
    let tags = if large { "etag: \"7-7\"\r\n".to_string() } else { tags(&body, &hub) };
    send(&mut stream, shared, &request, &body, &tags)
}

fn is_weight(name: &str) -> bool {
    name.ends_with("safetensors") || name.ends_with("gguf")
}

fn tags(body: &[u8], hub: &str) -> String {
    format!("etag: \"{}\"\r\n{hub}", etag(body))
}

/// The Hub's description of a revision.
fn list(files: &BTreeMap<String, Vec<u8>>) -> String {
    let entry = |(name, text): (&String, &Vec<u8>)| {
        format!("{{\"rfilename\":\"{name}\",\"size\":{}}}", text.len())
    };
    let names: Vec<String> = files.iter().map(entry).collect();
    format!("{{\"sha\":\"{SHA}\",\"siblings\":[{}]}}", names.join(","))
}

fn send(
    stream: &mut TcpStream,
    shared: &Mutex<Behaviour>,
    request: &Request,
    body: &[u8],
    tags: &str,
) -> std::io::Result<()> {
    let total = body.len();
    let behaviour = shared.lock().expect("lock").clone();
    let (status, from, to) = match request.range {
        Some(from) if from >= total => {
            return write!(stream, "HTTP/1.1 416 No\r\ncontent-length: 0\r\n{CLOSE}");
        }
        Some(from) if request.one_byte && behaviour.no_ranges != Ranges::All => (206, from, 1),
        Some(from) if behaviour.no_ranges == Ranges::None => {
            (206, from, request.last.map_or(total, |last| (last + 1).min(total)))
        }
        _ => (200, 0, total),
    };
    let from = from + usize::from(behaviour.wrong_range && from > 0);
    let place = if status == 206 {
        format!("content-range: bytes {from}-{}/{total}\r\n", to - 1)
    } else {
        String::new()
    };
    let length = to - from;
    write!(stream, "HTTP/1.1 {status} OK\r\n{tags}{place}content-length: {length}\r\n{CLOSE}")?;
    let cut = length > behaviour.cut_at && behaviour.cuts > 0;
    let spoil = length > 1 && !cut && behaviour.spoiled > 0;
    shared.lock().expect("lock").cuts -= usize::from(cut);
    shared.lock().expect("lock").spoiled -= usize::from(spoil);
    let length = if cut { behaviour.cut_at } else { length };
    let mut body = body[from..from + length].to_vec();
    if spoil {
        body[length / 2] ^= 1;
    }
    match behaviour.slow {
        Some((piece, pause)) => {
            for piece in body.chunks(piece) {
                std::thread::sleep(pause);
                stream.write_all(piece)?;
            }
        }
        None => stream.write_all(&body)?,
    }
    stream.flush()?;
    if cut && behaviour.stall {
        std::thread::sleep(Duration::from_secs(60));
    }
    Ok(())
}

/// The Hub's name of contents: SHA-256 of large ones, git's name of small ones.
pub fn etag(body: &[u8]) -> String {
    let hash = match body.len() {
        ..1000 => {
            let blob = [format!("blob {}\0", body.len()).as_bytes(), body].concat();
            digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob)
        }
        _ => digest(&SHA256, body),
    };
    hash.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}
