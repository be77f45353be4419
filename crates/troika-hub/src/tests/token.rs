//! Which servers see the token.

use super::online::{assert_complete, model};
use super::server::{Behaviour, Server};
use super::*;

const TOKEN: &str = "hf_secret";

/// A hub that requires the token, and the server of its large files.
fn pair(files: Behaviour) -> (Server, Server) {
    let other = Server::start(files.clone());
    let token = Some(TOKEN.to_string());
    (Server::start(Behaviour { token, away: Some(other.url()), ..files }), other)
}

/// Fetches the model with the token.
fn fetch(hub: &Server) {
    let options = HubOptions { token: Some(TOKEN.to_string()), ..hub.options() };
    assert_complete(&run("o/n", &options).0.expect("a model"));
}

#[test]
fn another_server_never_sees_the_token() {
    // The first body breaks off, so that a continued download is covered too.
    let (hub, other) = pair(model());
    other.now(|behaviour| (behaviour.cut_at, behaviour.cuts) = (1_000_000, 1));
    fetch(&hub);
    let asked = hub.asked();
    assert!(asked.len() >= 7, "{asked:?}");
    for request in asked {
        assert_eq!(request.token.as_deref(), Some(TOKEN), "{}", request.path);
    }
    let asked = other.asked();
    assert!(asked.len() >= 4, "metadata and contents, twice: {asked:?}");
    for request in asked {
        assert_eq!(request.token, None, "{}", request.path);
    }
}

#[test]
fn redirects_on_the_same_server_keep_it() {
    let server = Server::start(Behaviour {
        away: Some(String::new()),
        token: Some(TOKEN.into()),
        ..model()
    });
    fetch(&server);
    let asked = server.asked();
    assert!(asked.iter().any(|r| r.path.starts_with("/large/")));
    assert!(asked.iter().all(|r| r.token.as_deref() == Some(TOKEN)), "{asked:?}");
}

#[test]
fn a_list_of_files_that_is_elsewhere_gets_no_token() {
    let other = Server::start(model());
    let hub = Server::start(model());
    let place = format!("location: {}/api/models/o/n/revision/main\r\n", other.url());
    hub.now(|behaviour| behaviour.next = vec![(307, place.leak())]);
    fetch(&hub);
    assert_eq!(other.asked().iter().map(|r| r.token.clone()).collect::<Vec<_>>(), [None]);
    assert!(hub.asked().iter().all(|r| r.token.is_some()));
}

#[test]
fn a_way_back_does_not_bring_the_token_back() {
    let (hub, other) = pair(model());
    let back = format!("location: {}/large/model.safetensors\r\n", hub.url());
    other.now(|behaviour| behaviour.next = vec![(302, back.leak())]);
    fetch(&hub);
    let returned: Vec<_> =
        hub.asked().into_iter().filter(|r| r.path.starts_with("/large/")).collect();
    assert!(matches!(&returned[..], [request] if request.token.is_none()), "{returned:?}");
}

#[test]
fn a_password_in_the_address_is_not_shown() {
    let (server, closed) = (Server::start(model()), "http://127.0.0.1:9".to_string());
    server.now(|behaviour| behaviour.status = Some(404));
    let malformed = "http://a b".to_string();
    for url in [server.url(), closed, malformed, "http://".to_string(), "nowhere".to_string()] {
        let with_user = match url.strip_prefix("http://") {
            Some(host) => format!("http://someone:pass@word@{host}"),
            None => format!("someone:pass@word@{url}"),
        };
        for with_user in [with_user.replace("pass@", "pass"), with_user] {
            let options = HubOptions { endpoint: Some(with_user), ..server.options() };
            let text = format!("{} {options:?}", sentence("o/n", &options));
            assert!(text.contains(&url), "{text}");
            assert!(["someone", "pass", "word"].iter().all(|w| !text.contains(w)), "{text}");
        }
    }
}

#[test]
fn a_token_that_cannot_be_sent_is_the_users_error() {
    let server = Server::start(model());
    for token in ["hf_se\ncret", "hf_se\u{e9}cret\u{7f}"] {
        let options = HubOptions { token: Some(token.to_string()), ..server.options() };
        let text = sentence("o/n", &options);
        assert!(text.contains("HF_TOKEN") && !text.contains("cret"), "{text}");
    }
    assert!(server.requests().is_empty());
}
