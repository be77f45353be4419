//! Broken, slow or hostile servers, and damaged caches.

use std::time::Instant;

use super::online::{WEIGHTS, assert_complete, model, weights};
use super::server::{Behaviour, Ranges, Server, etag};
use super::*;

/// The error for a model on such a server, and the notes before it.
fn said(behaviour: Behaviour) -> (String, Vec<String>) {
    let server = Server::start(behaviour);
    let start = Instant::now();
    let (got, told) = server.run();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let blob = server.home().join("blobs").join(etag(&weights()));
    assert!(!blob.exists() && !server.home().join("refs/main").exists());
    (got.expect_err("no model").to_string(), told)
}

fn away(change: impl FnOnce(&mut Behaviour)) -> Behaviour {
    let mut behaviour = Behaviour { away: Some(String::new()), ..model() };
    change(&mut behaviour);
    behaviour
}

#[test]
fn redirects_end() {
    let own = format!("location: /o/n/resolve/{SHA}/model.safetensors\r\n");
    let text = said(away(|b| b.location = Some(own))).0;
    assert!(text.contains("does not answer like a model hub: it redirects more than 10"), "{text}");
    let text = said(away(|b| b.location = Some(String::new()))).0;
    assert!(text.contains("a redirect names no place"), "{text}");
    for place in ["ftp://localhost/x", "file:///etc/passwd", "http://", "::"] {
        let text = said(away(|b| b.location = Some(format!("location: {place}\r\n")))).0;
        assert!(text.contains("the place of a redirect is malformed"), "{text}");
    }
}

#[test]
fn a_stalled_download_is_given_up_and_goes_on_later() {
    let stalled = Behaviour { cut_at: 300_000, cuts: 3, stall: true, ..model() };
    let server = Server::start(stalled);
    let (got, told) = server.run();
    let text = got.expect_err("no model").to_string();
    assert!(text.contains("nothing arrived for 1 s"), "{text}");
    assert_eq!(told.iter().filter(|line| line.contains("trying again")).count(), 2, "{told:?}");
    assert_eq!(server.part().metadata().expect("a part").len(), 900_000);
    server.requests();
    server.completes();
    let last = server.requests().pop().expect("a request");
    assert!(last.ends_with(" 900000-"), "{last}");
}

#[test]
fn a_slow_download_is_not_cut() {
    // Three times as long as any limit, and never silent for long.
    let slow = Some((WEIGHTS / 12, Duration::from_millis(300)));
    let server = Server::start(model());
    server.now(|behaviour| behaviour.slow = slow);
    let limits = Limits { silence: Duration::from_millis(900), ..quick() };
    let limits = Limits { answer: Duration::from_secs(1), tries: 1, ..limits };
    let (got, told) = run_within("o/n", &server.options(), limits);
    assert_complete(&got.expect("a model"));
    assert!(!told.iter().any(|line| line.starts_with("note")), "{told:?}");
}

#[test]
fn half_a_header_and_no_header_are_not_waited_for() {
    let text = said(Behaviour { half_head: true, ..model() }).0;
    assert!(text.contains("cannot fetch from http://127.0.0.1"), "{text}");
    // A listener that never answers: the system accepts connections, but nothing more happens.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let folder = tempfile::tempdir().expect("folder");
    let options = HubOptions { endpoint: Some(url), ..options(folder.path()) };
    let start = Instant::now();
    let text = sentence("o/n", &options);
    assert!(text.contains("cannot fetch from") && text.contains("for 1 s"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
    for next in [(503, ""), (429, "retry-after: 1\r\n"), (500, "retry-after: soon\r\n")] {
        let server = Server::start(model());
        // The list, then the first file.
        for after in [0, 1] {
            let first =
                (after == 1).then_some((307, "location: /api/models/o/n/revision/main\r\n"));
            server.now(|b| b.next = first.into_iter().chain([next]).collect());
            let start = Instant::now();
            let told = server.completes();
            let wanted = format!("HTTP status {}", next.0);
            assert!(told.iter().any(|t| t.contains(&wanted) && t.contains("again")), "{told:?}");
            let waited = start.elapsed() >= Duration::from_secs(1);
            assert!(waited || next.0 != 429, "{:?}", start.elapsed());
        }
    }
    let server = Server::start(model());
    for (status, headers) in [(400, ""), (404, ""), (410, ""), (429, "retry-after: 100\r\n")] {
        server.now(|behaviour| behaviour.next = vec![(status, headers)]);
        let (got, told) = server.run();
        let text = got.expect_err("no model").to_string();
        assert!(told.is_empty() && server.asked().len() == 1, "{status}: {told:?}");
        assert!(status != 429 || text.contains("to be asked again in 100 s"), "{text}");
    }
}

#[test]
fn damaged_contents_are_fetched_again_and_never_kept() {
    let server = Server::start(model());
    // Only the body of the weights: the small files were fetched before.
    let path = server.run().0.expect("a model");
    for name in ["model.safetensors", "config.json"] {
        let blob = std::fs::canonicalize(path.join(name)).expect("a blob");
        std::fs::remove_file(blob).expect("a blob");
        server.now(|behaviour| behaviour.spoiled = 1);
        let told = server.completes();
        let noted = |t: &String| t.contains("its contents are not those") && t.contains(name);
        assert!(told.iter().any(noted), "{told:?}");
    }
    let text = said(Behaviour { spoiled: 100, ..model() }).0;
    assert!(text.contains("config.json arrives damaged"), "{text}");
}

#[test]
fn a_damaged_part_does_not_become_a_file() {
    let server = Server::start(model());
    for length in [1_000_000, WEIGHTS] {
        std::fs::write(server.part(), vec![7; length]).expect("part");
        let told = server.completes();
        assert!(told.iter().any(|t| t.contains("its contents are not those")), "{told:?}");
        std::fs::remove_file(server.part().with_extension("")).expect("blob");
    }
}

#[test]
fn another_range_than_asked_for_is_refused() {
    let text = said(Behaviour { cut_at: 500_000, cuts: 1, wrong_range: true, ..model() }).0;
    assert!(text.contains("it sends another range than was asked for"), "{text}");
}

#[test]
fn a_web_page_is_not_a_model() {
    let text = said(away(|b| b.page = true)).0;
    let why = format!("model.safetensors has {WEIGHTS} bytes, but 18 are offered");
    assert!(text.contains(&why), "{text}");
    let text = said(Behaviour { list: Some("<html>Sorry</html>".into()), ..model() }).0;
    assert!(text.contains("its list of files is not the JSON of a hub"), "{text}");
}

#[test]
fn lists_have_an_end() {
    let endless = format!("{{\"sha\":\"{SHA}\",\"x\":\"{}\"}}", "x".repeat(33 << 20));
    let text = said(Behaviour { list: Some(endless), ..model() }).0;
    assert!(text.contains("its list of files is longer than 32 MiB"), "{text}");
}

#[test]
fn names_in_a_list_stay_below_the_cache() {
    let server = Server::start(model());
    let name = "../../../../escaped/model.safetensors";
    let list = format!(
        r#"{{"sha":"{SHA}","siblings":[{{"rfilename":"{name}"}},{{"rfilename":"a\u001b[2J.gguf"}}]}}"#
    );
    server.now(|behaviour| behaviour.list = Some(list));
    let text = server.sentence();
    assert!(text.contains("no weights in safetensors or GGUF"), "{text}");
    let list = format!(r#"{{"sha":"../../{SHA}","siblings":[]}}"#);
    server.now(|behaviour| behaviour.list = Some(list));
    let text = server.sentence();
    assert!(text.contains("the commit's name is malformed"), "{text}");
}

#[test]
fn two_at_once_share_one_download() {
    let slow = Some((WEIGHTS / 5, Duration::from_millis(200)));
    let server = Server::start(model());
    server.now(|behaviour| (behaviour.slow, behaviour.no_ranges) = (slow, Ranges::Large));
    let told: Vec<Vec<String>> = std::thread::scope(|scope| {
        let both = [scope.spawn(|| server.completes()), scope.spawn(|| server.completes())];
        both.map(|thread| thread.join().expect("no panic")).into()
    });
    let waits = told.iter().flatten().filter(|t| t.contains("another program is fetching")).count();
    assert!(waits >= 1, "{told:?}");
    let weights = |line: &&String| line.ends_with("model.safetensors");
    assert_eq!(server.requests().iter().filter(weights).count(), 1);
}

#[test]
fn the_locks_of_the_hubs_own_tools_are_heeded() {
    let server = Server::start(model());
    let name = format!("{}.lock", etag(&weights()));
    for place in ["models--o--n/blobs", ".locks/models--o--n"] {
        let place = server.cache.path().join(place);
        std::fs::create_dir_all(&place).expect("folder");
        let file = std::fs::File::create(place.join(&name)).expect("a lock file");
        file.lock().expect("a lock");
        let text = server.sentence();
        assert!(text.contains("another program is fetching it and gets no further"), "{text}");
        assert!(!server.requests().iter().any(|line| line.contains("safetensors")));
    }
    server.completes();
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said() {
    let server = Server::start(model());
    let part = server.part();
    link(Path::new("/dev/full"), &part);
    let text = server.sentence();
    assert!(text.contains("cannot write to the cache at") && text.contains("space"), "{text}");
    std::fs::remove_file(part).expect("link");
    server.completes();
}
