//! A hub that runs in the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

/// Files, by name.
pub type Files = Vec<(String, Vec<u8>)>;

/// What a hub does with a request for more than a byte.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Answers {
    /// It sends the range.
    #[default]
    Range,
    /// It sends everything.
    Whole,
    /// This status, where a range is asked for.
    Status(u16),
    /// A page.
    Page,
}

/// A hub with the repository `o/n`.
#[derive(Clone, Default)]
pub struct Hub {
    pub address: String,
    commit: Arc<Mutex<String>>,
    files: Arc<Mutex<Files>>,
    /// The size that it claims for all files.
    pub claims: Arc<Mutex<Option<u64>>>,
    /// What was asked: paths and ranges.
    pub log: Arc<Mutex<Vec<String>>>,
    /// Number of lists to answer; then the Hub refuses.
    pub lists: Arc<Mutex<usize>>,
    /// Bytes of the next body before the connection stalls.
    pub stall: Arc<Mutex<Option<usize>>>,
    answers: Answers,
}

impl Hub {
    pub fn open(answers: Answers, files: Files) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let lists = Arc::new(Mutex::new(usize::MAX));
        let hub = Hub { address, answers, lists, ..Hub::default() };
        hub.now(SHA, files);
        let serving = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = serving.clone();
                std::thread::spawn(move || drop(hub.serve(stream)));
            }
        });
        hub
    }

    /// Has another version of the model.
    pub fn now(&self, commit: &str, files: Files) {
        *self.commit.lock().unwrap() = commit.to_string();
        *self.files.lock().unwrap() = files;
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (mut path, mut range) = (String::new(), String::new());
        for line in BufReader::new(&stream).lines() {
            let line = line?;
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap().to_string();
            } else if let Some(value) = line.to_lowercase().strip_prefix("range: bytes=") {
                range = value.to_string();
            } else if line.is_empty() {
                break;
            }
        }
        self.log.lock().unwrap().push(format!("{path} {range}"));
        let end = "connection: close\r\n\r\n";
        let (commit, files) =
            (self.commit.lock().unwrap().clone(), self.files.lock().unwrap().clone());
        let claims = *self.claims.lock().unwrap();
        let size = |body: &[u8]| claims.unwrap_or(body.len() as u64);
        if path.starts_with("/api/models/o/n/revision/") {
            let mut left = self.lists.lock().unwrap();
            if *left == 0 {
                return write!(stream, "HTTP/1.1 403 No\r\ncontent-length: 0\r\n{end}");
            }
            *left -= 1;
            let file = |(name, body): &(String, Vec<u8>)| {
                format!("{{\"rfilename\":\"{name}\",\"size\":{}}}", size(body))
            };
            let files = files.iter().map(file).collect::<Vec<_>>().join(",");
            let list = format!("{{\"sha\":\"{commit}\",\"siblings\":[{files}]}}");
            let length = list.len();
            return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{end}{list}");
        }
        let name = path.strip_prefix(&format!("/o/n/resolve/{commit}/"));
        let Some((_, body)) = files.iter().find(|(own, _)| Some(own.as_str()) == name) else {
            return write!(stream, "HTTP/1.1 404 No\r\ncontent-length: 0\r\n{end}");
        };
        let (from, to) = range.split_once('-').unwrap_or(("0", ""));
        let from: usize = from.parse().unwrap();
        let to = to.parse().map_or(body.len(), |last: usize| body.len().min(last + 1));
        let head = format!("etag: \"{}\"\r\nx-repo-commit: {commit}\r\n", etag(body));
        match self.answers {
            _ if to - from == 1 => {}
            Answers::Whole => {
                let length = body.len();
                write!(stream, "HTTP/1.1 200 OK\r\n{head}content-length: {length}\r\n{end}")?;
                return stream.write_all(body);
            }
            Answers::Status(status) if !range.is_empty() => {
                return write!(stream, "HTTP/1.1 {status} No\r\ncontent-length: 0\r\n{end}");
            }
            Answers::Page => {
                return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n{end}<html>");
            }
            _ => {}
        }
        let (last, total) = (to - 1, size(body));
        write!(stream, "HTTP/1.1 206 OK\r\n{head}content-range: bytes {from}-{last}/{total}\r\n")?;
        write!(stream, "content-length: {}\r\n{end}", to - from)?;
        let stall = if to - from > 1 { self.stall.lock().unwrap().take() } else { None };
        stream.write_all(&body[from..stall.map_or(to, |n| from + n)])?;
        stream.flush()?;
        if stall.is_some() {
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok(())
    }
}

/// What names a body: its length and its end.
pub fn etag(body: &[u8]) -> String {
    let end: String = body.iter().rev().take(30).map(|b| format!("{b:02x}")).collect();
    format!("{}-{end}", body.len())
}
