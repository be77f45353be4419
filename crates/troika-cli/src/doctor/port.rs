//! The port of a server.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use super::finding::Finding;
use super::machine::HostMachine;

/// Whether a server could listen.
pub fn free(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "port";
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop);
    let port = machine.port;
    vec![match listen(port) {
        Ok(()) => Finding::fine(TOPIC, format!("{port} is free for a server")),
        Err(e) => {
            let why = match e.kind() {
                io::ErrorKind::AddrInUse => "is taken".to_string(),
                _ => format!("cannot be used: {e}"),
            };
            let found = Finding::improvable(TOPIC, format!("{port} {why}"));
            let other = (port.saturating_add(1).max(8080)..).find(|port| listen(*port).is_ok());
            match other {
                Some(other) => found.mended_by(format!("troika serve --port {other}")),
                None => found,
            }
        }
    }]
}
