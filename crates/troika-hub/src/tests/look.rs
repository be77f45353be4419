//! Looking at models before their weights are fetched.

use super::server::{Behaviour, Ranges, Server};
use super::*;
use crate::{Glimpse, Offer, Verdict, offers};

const SIZE: usize = 20 << 20;
const FIRST: u64 = 8 << 20;

/// Says what the first word of a GGUF file asks for.
fn says(seen: &Glimpse<'_>) -> Verdict {
    let Some(len) = seen.gguf else { return Ok(Some("a folder".to_string())) };
    let start = std::fs::read(seen.place).expect("the first bytes");
    let told = format!("{} of {len}, {:?} in all", start.len(), seen.bytes);
    match &start[..4] {
        b"more" if start.len() as u64 <= FIRST => Ok(None),
        b"none" => Err("it is of no use".to_string()),
        _ => Ok(Some(told)),
    }
}

/// A GGUF file that begins with a word.
fn file(word: &str) -> Vec<u8> {
    let rest = (word.len()..SIZE).map(|k| (k * 7 % 251) as u8);
    word.bytes().chain(rest).collect()
}

/// A hub with one model, whose file begins with a word.
fn start(word: &str, behaviour: Behaviour) -> Server {
    let files = [("m-Q4_0.gguf".to_string(), file(word))].into();
    Server::start(Behaviour { files, ..behaviour })
}

fn options(hub: &Server) -> HubOptions {
    HubOptions { look: Some(says), ..hub.options() }
}

/// The ranges of the weights that were asked for.
fn ranges(hub: &Server) -> Vec<String> {
    let all = hub.requests();
    let ranges = all.iter().filter(|line| line.contains("gguf"));
    ranges.map(|line| line.split_once(' ').map_or("", |(_, range)| range).to_string()).collect()
}

fn notes(told: &[String]) -> Vec<&str> {
    told.iter().filter_map(|line| line.strip_prefix("note ")).collect()
}

#[test]
fn the_first_bytes_of_a_file_are_looked_at_and_fetched_once() {
    // A header that is longer than the range gets another one.
    for (word, seen) in [("good", FIRST), ("more", SIZE as u64)] {
        let hub = start(word, Behaviour::default());
        let (got, told) = run("o/n", &options(&hub));
        assert_eq!(std::fs::read(got.expect("a model")).expect("a file"), file(word));
        assert_eq!(ranges(&hub), ["0-8388607", "8388608-"]);
        assert_eq!(notes(&told), [format!("{seen} of {SIZE}, Some({SIZE}) in all")]);
    }
}

#[test]
fn what_is_of_no_use_is_not_fetched() {
    let hub = start("none", Behaviour::default());
    assert_eq!(sentence("o/n", &options(&hub)), "o/n: it is of no use");
    assert_eq!(ranges(&hub), ["0-8388607"]);
}

#[test]
fn looking_fetches_no_weights() {
    let hub = start("good", Behaviour::default());
    let options = HubOptions { only_look: true, ..options(&hub) };
    let (got, told) = run("o/n", &options);
    assert!(got.is_ok() && notes(&told).len() == 1 && told[0].starts_with("file "), "{told:?}");
    assert_eq!(ranges(&hub), ["0-8388607"]);
    let home = hub.home();
    assert!(!home.join("refs").exists() && !home.join("snapshots").exists());
}

#[test]
fn a_hub_without_ranges_is_no_obstacle() {
    for behaviour in [
        Behaviour { no_ranges: Ranges::Large, ..Behaviour::default() },
        Behaviour { no_ranges: Ranges::All, ..Behaviour::default() },
        Behaviour { range_status: Some(416), ..Behaviour::default() },
    ] {
        let refused = behaviour.range_status.is_some();
        let hub = start("good", behaviour);
        let (got, told) = run("o/n", &options(&hub));
        assert_eq!(std::fs::read(got.expect("a model")).expect("a file"), file("good"));
        let want = match refused {
            true => "m-Q4_0.gguf: its header cannot be looked at before it is fetched".to_string(),
            false => format!("{FIRST} of {SIZE}, Some({SIZE}) in all"),
        };
        assert_eq!(notes(&told), [want]);
    }
}

#[test]
fn a_hub_that_fails_or_sends_a_page_is_told() {
    let hub = start("good", Behaviour { range_status: Some(503), ..Behaviour::default() });
    let text = sentence("o/n", &options(&hub));
    assert!(text.starts_with("o/n: cannot fetch from") && text.contains("503"), "{text}");
    let away = Some(String::new());
    let hub = start("good", Behaviour { away, page: true, ..Behaviour::default() });
    let text = sentence("o/n", &options(&hub));
    assert!(text.contains("does not answer like a model hub"), "{text}");
}

#[test]
fn a_repository_tells_all_its_models_and_their_sizes() {
    let kinds = ["Q2_K", "Q3_K_M", "Q4_K_M", "Q8_0", "BF16"];
    let mut files: std::collections::BTreeMap<String, Vec<u8>> = kinds
        .iter()
        .flat_map(|kind| (0..39).map(move |k| format!("{kind}/m{k}-{kind}.gguf")))
        .map(|name| (name.clone(), name.into_bytes()))
        .collect();
    for name in ["README.md", "config.json", "model.safetensors"] {
        files.insert(name.to_string(), vec![1; 100]);
    }
    files.insert("b-Q6_K-00001-of-00002.gguf".to_string(), vec![1; 60]);
    files.insert("b-Q6_K-00002-of-00002.gguf".to_string(), vec![1; 50]);
    assert_eq!(files.len(), 200);
    let server = Server::start(Behaviour { files, ..Behaviour::default() });
    let got = offers("o/n", &server.options()).expect("offers");
    assert_eq!(got.len(), 39 * kinds.len() + 2);
    assert!(got.is_sorted_by_key(|offer| offer.bytes));
    let split = Offer {
        name: "o/n:Q6_K".to_string(),
        quantization: Some("Q6_K".to_string()),
        bytes: Some(110),
    };
    assert!(got.contains(&split));
    let whole = got.last().expect("an offer");
    assert_eq!(whole, &Offer { name: "o/n".to_string(), quantization: None, bytes: Some(200) });
    // Each name leads to its model.
    let names: std::collections::BTreeSet<&str> = got.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names.len(), got.len());
    assert!(names.contains("o/n:Q2_K/m7-Q2_K.gguf"), "{names:?}");
}
