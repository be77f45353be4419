//! Where the server is: on this machine only, since what these chores send would harm others.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::command::Result;

/// A server on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    socket: SocketAddr,
}

impl Address {
    /// Reads a URL such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// It is not `http`, has a path, or names another machine.
    pub fn parse(url: &str) -> Result<Self> {
        let bare =
            url.strip_prefix("http://").ok_or(format!("{url}: say http://127.0.0.1:PORT"))?;
        let bare = bare.trim_end_matches('/');
        let with_port = match bare.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => bare.to_string(),
            _ => format!("{bare}:80"),
        };
        let mut found =
            with_port.to_socket_addrs().map_err(|e| format!("{url} is no address: {e}"))?;
        // All of them: a name may stand for this machine and another.
        match found.clone().all(|a| a.ip().is_loopback()) {
            true => {
                let socket = found.next().ok_or(format!("{url} has no address"))?;
                Ok(Self { socket })
            }
            false => Err(format!("{url} is not on this machine: load is sent to loopback only")),
        }
    }

    /// A server on this machine's port.
    pub fn local(port: u16) -> Self {
        Self { socket: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    /// What the `Host` header says.
    pub fn host(&self) -> String {
        self.socket.to_string()
    }

    /// Connects, with limits on waiting.
    ///
    /// # Errors
    /// Those of the system.
    pub fn connect(&self, wait: Duration) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.socket, wait)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(wait))?;
        stream.set_write_timeout(Some(wait))?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine() {
        for good in ["http://127.0.0.1:8080", "http://127.0.0.1:8080/", "http://[::1]:9"] {
            assert!(Address::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "127.0.0.1:8080",
            "https://127.0.0.1",
            "http://192.0.2.1:80",
            "http://0.0.0.0:80",
            "http://127.0.0.1:8080/v1",
            "http://",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
