//! A hub in a thread: just enough HTTP for what the client asks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::SHA;

/// How the hub behaves.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Contents of `o/n`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Every request gets this status.
    pub status: Option<u16>,
    /// Only requests with this token are served.
    pub token: Option<String>,
    /// Answers with a body of more than this many bytes break off there...
    pub cut_at: usize,
    /// ... this many times.
    pub cuts: usize,
    /// Ranges of more than one byte are ignored.
    pub no_ranges: bool,
    /// Weights are on another server, as large files are: here, another path.
    pub redirect: bool,
    /// Those redirects lack their destination.
    pub lost: bool,
}

/// A running hub; stops when dropped.
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    behaviour: Arc<Mutex<Behaviour>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server {
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
                let _closed_early = serve(stream, &behaviour, &log);
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

    /// Requests so far as `path range`, and forgets them.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().expect("lock"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

struct Request {
    path: String,
    range: Option<usize>,
    one_byte: bool,
    token: Option<String>,
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    let mut request = Request { path, range: None, one_byte: false, token: None };
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
                request.one_byte = to == "0";
            }
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_string),
            _ => {}
        }
    }
    Ok(request)
}

fn serve(
    mut stream: TcpStream,
    behaviour: &Mutex<Behaviour>,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let request = read(&stream)?;
    let range = request.range.map_or(String::new(), |from| format!(" {from}-"));
    if !request.one_byte {
        log.lock().expect("lock").push(format!("{}{range}", request.path));
    }
    let mut behaviour = behaviour.lock().expect("lock");
    let refused = behaviour.token.is_some() && behaviour.token != request.token;
    if let Some(status) = behaviour.status.or(refused.then_some(401)) {
        return write!(stream, "HTTP/1.1 {status} No\r\ncontent-length: 0\r\n{CLOSE}");
    }
    if request.path.starts_with("/api/models/o/n/revision/main") {
        let names: Vec<String> = behaviour
            .files
            .iter()
            .map(|(name, text)| format!("{{\"rfilename\":\"{name}\",\"size\":{}}}", text.len()))
            .collect();
        let body = format!("{{\"sha\":\"{SHA}\",\"siblings\":[{}]}}", names.join(","));
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{CLOSE}{body}",
            body.len()
        );
    }
    let below = format!("/o/n/resolve/{SHA}/");
    let name = request.path.strip_prefix(&below).or_else(|| request.path.strip_prefix("/large/"));
    let Some((name, body)) = name.and_then(|n| Some((n, behaviour.files.get(n)?.clone()))) else {
        return write!(stream, "HTTP/1.1 404 No\r\ncontent-length: 0\r\n{CLOSE}");
    };
    let tags = format!("etag: \"{}\"\r\nx-repo-commit: {SHA}\r\n", etag(&body));
    if behaviour.redirect && name.ends_with("safetensors") && request.path.starts_with(&below) {
        let tags = tags.replace("etag", "x-linked-etag");
        let place = match behaviour.lost {
            true => String::new(),
            false => format!("location: /large/{name}\r\n"),
        };
        return write!(stream, "HTTP/1.1 302 Found\r\n{tags}{place}content-length: 0\r\n{CLOSE}");
    }
    send(&mut stream, &mut behaviour, &request, &body, &tags)
}

const CLOSE: &str = "connection: close\r\n\r\n";

fn send(
    stream: &mut TcpStream,
    behaviour: &mut Behaviour,
    request: &Request,
    body: &[u8],
    tags: &str,
) -> std::io::Result<()> {
    let total = body.len();
    let (status, from, to) = match request.range {
        Some(from) if from >= total => {
            return write!(stream, "HTTP/1.1 416 No\r\ncontent-length: 0\r\n{CLOSE}");
        }
        Some(from) if request.one_byte => (206, from, 1),
        Some(from) if !behaviour.no_ranges => (206, from, total),
        _ => (200, 0, total),
    };
    let place = if status == 206 {
        format!("content-range: bytes {from}-{}/{total}\r\n", to - 1)
    } else {
        String::new()
    };
    let length = to - from;
    write!(stream, "HTTP/1.1 {status} OK\r\n{tags}{place}content-length: {length}\r\n{CLOSE}")?;
    let cut = length > behaviour.cut_at && behaviour.cuts > 0;
    behaviour.cuts -= usize::from(cut);
    let length = if cut { behaviour.cut_at } else { length };
    stream.write_all(&body[from..from + length])?;
    stream.flush()
}

/// A name for contents; what it is made of does not matter.
pub fn etag(body: &[u8]) -> String {
    let hash = body.iter().fold(7_u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(*b)));
    format!("{hash:016x}")
}
