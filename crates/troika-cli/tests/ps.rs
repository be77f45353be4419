//! `troika ps` where no server of Troika is.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::TcpListener;

use common::{answering, command, said};

/// What the command says of a place where something answers with a text, or nothing listens.
fn refused(answer: Option<&'static str>, args: &[&str]) -> String {
    let port = answer.map_or_else(
        || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string(),
        |answer| answering(answer.into()),
    );
    let mut c = command(&["ps", "--port", &port]);
    // A proxy would not reach this machine.
    c.env_remove("TROIKA_API_KEY").env("http_proxy", "http://127.0.0.1:9");
    let out = c.args(args).output().unwrap();
    common::refused(&out, 1, &[]);
    said(&out).replace(&port, "PORT")
}

#[test]
fn without_a_server_it_says_how_to_start_one() {
    let told = refused(None, &[]);
    assert!(
        told.contains(
            "no server listens at 127.0.0.1:PORT; start one with: troika serve --port PORT"
        ),
        "{told}"
    );
    let told = refused(None, &["--host", "::1"]);
    assert!(told.contains("[::1]:PORT"), "{told}");
    for host in ["no host", "a/b", "", "user@", "x\ny"] {
        let told = refused(None, &["--host", host]);
        assert!(told.contains("--host names"), "{host:?}: {told}");
    }
}

#[test]
fn what_is_no_server_of_troika_is_said() {
    for (answer, says) in [
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "is no server of Troika (HTTP status 404)",
        ),
        (
            "HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
            "is no server of Troika",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n<a/>", "it sends no JSON"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "it names no models"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", "is no server of Troika"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1", "does not answer as a server does"),
        ("SSH-2.0-x\r\n", "does not answer as a server does"),
        ("HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", "asks for its key: --api-key"),
    ] {
        let told = refused(Some(answer), &[]);
        assert!(told.contains(says), "{answer:?}: {told}");
    }
    let denied = "HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n";
    assert!(refused(Some(denied), &["--api-key", "secret"]).contains("has another key"));
    let told = refused(Some(denied), &["--api-key", "a\nb"]);
    assert!(told.contains("--api-key") && !told.contains("a\\nb"), "{told}");
}
