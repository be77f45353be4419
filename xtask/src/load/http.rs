//! HTTP/1.1 as a client speaks it, so plainly that a client may also stall, or send what is wrong.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::address::Address;

/// The longest line of a head that is read.
const LINE: u64 = 64 << 10;

/// A connection that is kept between requests.
pub struct Connection {
    reader: BufReader<TcpStream>,
    host: String,
}

/// What an answer begins with.
pub struct Head {
    /// 200, where all is well.
    pub status: u16,
    headers: Vec<(String, String)>,
}

/// How much of a body is still to come.
enum Framing {
    Length(u64),
    /// Bytes left in the chunk; none before the first one.
    Chunked(Option<u64>),
    UntilClosed,
    Ended,
}

/// A body while it comes.
pub struct Incoming<'a> {
    connection: &'a mut Connection,
    framing: Framing,
    text: Vec<u8>,
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(address: &Address, wait: Duration) -> Result<Self> {
        let reader = BufReader::with_capacity(16 << 10, address.connect(wait)?);
        Ok(Self { reader, host: address.host() })
    }

    /// The socket, for what is not a request.
    pub fn socket(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Those of the system.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// The bytes of a request with a JSON body.
    pub fn request_bytes(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let (host, length) = (&self.host, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        [head.as_bytes(), body].concat()
    }

    /// Sends a request, and reads the head of its answer.
    ///
    /// # Errors
    /// Those of the system, or the answer is not HTTP.
    pub fn start(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Head> {
        self.send(&self.request_bytes(method, path, body))?;
        self.head()
    }

    /// Sends a request, and reads its answer to the end.
    ///
    /// # Errors
    /// Those of the system, or the answer is not HTTP.
    pub fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(Head, Vec<u8>)> {
        let head = self.start(method, path, body)?;
        let body = self.incoming(&head).rest()?;
        Ok((head, body))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(LINE).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "closed without an answer"));
        }
        if line.pop() != Some(b'\n') {
            return Err(broken("a line of the head does not end"));
        }
        line.pop_if(|b| *b == b'\r');
        String::from_utf8(line).map_err(|_| broken("a head that is not text"))
    }

    /// The head of the next answer.
    ///
    /// # Errors
    /// Those of the system, or it is not HTTP.
    pub fn head(&mut self) -> Result<Head> {
        let first = self.line()?;
        let mut words = first.split(' ');
        if !words.next().is_some_and(|w| w.starts_with("HTTP/1.")) {
            return Err(broken("an answer that is not HTTP/1"));
        }
        let status = words.next().and_then(|w| w.parse().ok());
        let status = status.ok_or_else(|| broken("an answer without a status"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, headers });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| broken("a header without :"))?;
            headers.push((name.to_lowercase(), value.trim().to_string()));
        }
    }

    /// The body that comes after a head.
    pub fn incoming(&mut self, head: &Head) -> Incoming<'_> {
        let framing = match head.header("content-length").map(str::parse) {
            Some(Ok(length)) => Framing::Length(length),
            _ if head.header("transfer-encoding") == Some("chunked") => Framing::Chunked(None),
            _ if matches!(head.status, 204 | 304) => Framing::Ended,
            _ => Framing::UntilClosed,
        };
        Incoming { connection: self, framing, text: Vec::new() }
    }

    /// Goes away without reading what is left.
    pub fn abandon(self) {
        // It may be closed already, which is as good.
        let _ = self.reader.get_ref().shutdown(Shutdown::Both);
    }
}

impl Head {
    /// A header's value; names are in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Whether the next request needs a new connection.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"))
    }
}

impl Incoming<'_> {
    /// Reads what is there, at least a byte; false at the end.
    fn piece(&mut self) -> Result<bool> {
        if let Framing::Chunked(left) = self.framing {
            self.chunk(left)?;
        }
        let most = match self.framing {
            Framing::Ended | Framing::Length(0) => return Ok(false),
            Framing::Length(n) | Framing::Chunked(Some(n)) => n,
            Framing::UntilClosed | Framing::Chunked(None) => u64::MAX,
        };
        let there = self.connection.reader.fill_buf()?;
        if there.is_empty() {
            return match self.framing {
                Framing::UntilClosed => Ok(false),
                _ => Err(Error::new(ErrorKind::UnexpectedEof, "closed in the middle of a body")),
            };
        }
        let taken = there.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        self.text.extend_from_slice(&there[..taken]);
        self.connection.reader.consume(taken);
        if let Framing::Length(n) | Framing::Chunked(Some(n)) = &mut self.framing {
            *n -= taken as u64;
        }
        Ok(true)
    }

    /// Reads the length of the next chunk, if this one has been read.
    fn chunk(&mut self, left: Option<u64>) -> Result<()> {
        if left.is_some_and(|n| n > 0) {
            return Ok(());
        }
        if left == Some(0) && !self.connection.line()?.is_empty() {
            return Err(broken("a chunk that is longer than it says"));
        }
        let line = self.connection.line()?;
        let length = line.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(length, 16).map_err(|_| broken("a chunk's length"))?;
        self.framing = Framing::Chunked(Some(length));
        if length == 0 {
            while !self.connection.line()?.is_empty() {}
            self.framing = Framing::Ended;
        }
        Ok(())
    }

    /// The next line without its end; none at the end of the body.
    ///
    /// # Errors
    /// Those of the system, or the body is cut off.
    pub fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.text[seen..].iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.text.drain(..=seen + at).collect();
                line.pop();
                return Ok(Some(line));
            }
            seen = self.text.len();
            if !self.piece()? {
                let last = std::mem::take(&mut self.text);
                return Ok((!last.is_empty()).then_some(last));
            }
        }
    }

    /// All that is left.
    ///
    /// # Errors
    /// Those of the system, or the body is cut off.
    pub fn rest(mut self) -> Result<Vec<u8>> {
        while self.piece()? {}
        Ok(self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with these bytes.
    fn answer(bytes: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::local(listener.local_addr().unwrap().port());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for byte in bytes {
                stream.write_all(&[*byte]).unwrap();
            }
        });
        Connection::open(&address, Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn bodies_are_read() {
        for bytes in [
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata: a\n\n".as_slice(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n5\r\n: a\n\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\ndata: a\n\n",
        ] {
            let mut connection = answer(bytes);
            let head = connection.head().unwrap();
            assert_eq!(head.status, 200);
            let mut incoming = connection.incoming(&head);
            assert_eq!(incoming.line().unwrap().unwrap(), b"data: a");
            assert_eq!(incoming.line().unwrap().unwrap(), b"");
            assert_eq!(incoming.line().unwrap(), None);
        }
    }

    #[test]
    fn cut_answers_are_errors() {
        for bytes in [
            b"".as_slice(),
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"SSH-2.0\r\n\r\n",
        ] {
            let mut connection = answer(bytes);
            let read = connection.head().and_then(|head| connection.incoming(&head).rest());
            assert!(read.is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
