//! What goes over the network: the Hub, and a server's port.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use super::finding::Finding;
use super::machine::HostMachine;

const HUB: &str = "Hub";

/// Whether there is a token of the Hub.
pub fn token(machine: &HostMachine) -> Vec<Finding> {
    if machine.hub.offline {
        let says = "HF_HUB_OFFLINE is set: models are not fetched";
        return vec![Finding::improvable(HUB, says).mended_by("unset HF_HUB_OFFLINE")];
    }
    vec![match machine.hub.token {
        Some(_) => Finding::fine(HUB, "there is a token"),
        None => Finding::missing(HUB, "no token: models that ask for a login cannot be fetched")
            .mended_by("export HF_TOKEN=hf_..."),
    }]
}

/// Whether the Hub answers. It is asked only if the user wants that.
pub fn hub(machine: &HostMachine) -> Vec<Finding> {
    if !machine.online {
        return Vec::new();
    }
    vec![match troika_hub::reach(&machine.hub) {
        Ok(says) => Finding::fine(HUB, says),
        Err(why) => Finding::missing(HUB, why),
    }]
}

/// Whether a server could listen.
pub fn port(machine: &HostMachine) -> Vec<Finding> {
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
