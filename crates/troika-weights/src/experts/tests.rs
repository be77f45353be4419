//! The cache on real files: bytes, budgets, faults, several threads.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use troika_device::{Eviction, ExpertPart, ExpertsOnDisk};

use super::cache::ExpertCache;

const LAYERS: usize = 3;
const EXPERTS: usize = 6;
/// Bytes of gate, up and down. The second is not a whole number of pages.
const BYTES: [usize; 3] = [4096, 5000, 64];
/// Bytes of an expert in memory.
const ROOM: u64 = 4096 + 8192 + 4096;

struct Case {
    _dir: tempfile::TempDir,
    path: PathBuf,
    cache: Arc<ExpertCache>,
    layers: Vec<Arc<dyn ExpertsOnDisk>>,
}

fn byte(layer: usize, expert: usize, part: usize) -> u8 {
    (layer * 50 + expert * 7 + part + 1) as u8
}

fn name(layer: usize, expert: usize, part: usize) -> String {
    format!("layers.{layer}.{part}.{expert}")
}

/// A file with all parts, in pages, and where each is.
fn write(path: &Path) -> Vec<(String, u64, String)> {
    let (mut bytes, mut places) = (vec![0u8; 4096], Vec::new());
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            for (part, len) in BYTES.into_iter().enumerate() {
                let own = vec![byte(layer, expert, part); len];
                let hash = blake3::hash(&own).to_hex().to_string();
                places.push((name(layer, expert, part), bytes.len() as u64, hash));
                bytes.extend(own);
                bytes.resize(bytes.len().next_multiple_of(4096), 0);
            }
        }
    }
    bytes.extend([0; 100]);
    std::fs::File::create(path).unwrap().write_all(&bytes).unwrap();
    places
}

impl Case {
    fn new(budget: u64, ring: bool) -> Case {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("experts");
        let places = write(&path);
        let cache = ExpertCache::new(budget, Eviction::Frequency, ring);
        let part = |layer, expert, part: usize| ExpertPart {
            weight: name(layer, expert, part).into(),
            layout: "l".into(),
            bytes: BYTES[part],
        };
        let layers = (0..LAYERS).map(|layer| {
            let parts = |e| [part(layer, e, 0), part(layer, e, 1), part(layer, e, 2)];
            cache.add_layer((0..EXPERTS).map(parts).collect()).unwrap()
        });
        let layers = layers.collect();
        let stored = |part: &ExpertPart| {
            let found = places.iter().find(|(name, _, _)| *name == *part.weight)?;
            Some((found.1, found.2.clone()))
        };
        cache.open(path.clone(), &stored).unwrap();
        Case { _dir: dir, path, cache, layers }
    }

    /// Takes experts as a run does, and checks their bytes.
    fn run(&self, layer: usize, experts: &[u32]) {
        self.run_of(layer, experts, None);
    }

    /// The same for a row that tells what comes.
    fn run_of(&self, layer: usize, experts: &[u32], row: Option<&[f32]>) {
        let mut chosen: Vec<(u32, u32)> = experts.iter().map(|e| (*e, 1)).collect();
        self.layers[layer].choose(&mut chosen, 1, row);
        let (mut left, mut taken, mut seen) = (&chosen[..], Vec::new(), Vec::new());
        while !left.is_empty() {
            taken.clear();
            self.layers[layer].take(left, &mut taken).unwrap();
            assert!(!taken.is_empty() && taken.len() <= left.len());
            for ((expert, _), parts) in left.iter().zip(&taken) {
                seen.push(*expert);
                for (part, bytes) in parts.iter().enumerate() {
                    assert_eq!(bytes.len(), BYTES[part]);
                    let want = byte(layer, *expert as usize, part);
                    assert!(bytes.iter().all(|b| *b == want), "layer {layer} expert {expert}");
                }
            }
            left = &left[taken.len()..];
        }
        seen.sort_unstable();
        let mut want = experts.to_vec();
        want.sort_unstable();
        assert_eq!(seen, want, "each once");
    }
}

#[test]
fn experts_come_with_their_bytes_whatever_fits() {
    for ring in [true, false] {
        for budget in [ROOM, 2 * ROOM, 5 * ROOM, 100 * ROOM] {
            let case = Case::new(budget, ring);
            for turn in 0..3u32 {
                for layer in 0..LAYERS {
                    case.run(layer, &[turn % 6, (turn + 2) % 6, (turn + 5) % 6]);
                    case.run(layer, &[0, 1, 2, 3, 4, 5]);
                }
            }
            let stats = case.cache.stats();
            assert!(stats.held <= budget, "{stats:?}");
            assert_eq!(stats.chosen, 3 * 3 * 9);
            let misses = stats.chosen - stats.hits;
            if budget == 100 * ROOM {
                assert_eq!(misses, 18, "{stats:?}");
            }
            assert!(stats.bytes_read >= misses.min(18) * BYTES.iter().sum::<usize>() as u64);
        }
    }
}

#[test]
fn what_is_expected_is_there_and_costs_no_more_than_its_share() {
    let case = Case::new(18 * ROOM, true);
    case.cache.set_forecast(Arc::new(next_layer));
    // Two of eighteen are an eighth and less.
    case.run_of(0, &[0], Some(&[4.0, 2.0, 77.0]));
    case.run(1, &[2, 4, 5]);
    let stats = case.cache.stats();
    assert_eq!((stats.expected, stats.expected_used), (2, 2), "{stats:?}");
    assert!(stats.hits + stats.coming >= 2);
    let small = Case::new(2 * ROOM, true);
    small.cache.set_forecast(Arc::new(next_layer));
    small.run_of(0, &[3], Some(&[0.0, 1.0, 2.0]));
    assert_eq!(small.cache.stats().expected, 0);
}

#[test]
fn a_layer_that_two_devices_ask_for_is_there_once() {
    let case = Case::new(100 * ROOM, true);
    let part = |expert, part: usize| ExpertPart {
        weight: name(1, expert, part).into(),
        layout: "l".into(),
        bytes: BYTES[part],
    };
    let parts = |e| [part(e, 0), part(e, 1), part(e, 2)];
    let again = case.cache.add_layer((0..EXPERTS).map(parts).collect()).unwrap();
    assert_eq!(case.cache.stats().experts, LAYERS * EXPERTS);
    case.run(1, &[3]);
    let mut chosen = vec![(3, 1)];
    again.choose(&mut chosen, 1, None);
    assert_eq!(case.cache.stats().hits, 1);
}

/// A forecast whose numbers are the experts of the next layer.
fn next_layer(layer: usize, row: &[f32], expect: &mut dyn FnMut(usize, &[u16])) {
    let experts: Vec<u16> = row.iter().map(|x| *x as u16).collect();
    expect(layer + 1, &experts);
}

#[test]
fn a_file_that_is_cut_short_is_an_error_and_the_next_run_tries_again() {
    for ring in [true, false] {
        let case = Case::new(100 * ROOM, ring);
        case.run(0, &[0]);
        let whole = std::fs::read(&case.path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&case.path).unwrap();
        file.set_len(4096 * 20).unwrap();
        let mut chosen = vec![(5, 1), (0, 1)];
        case.layers[2].choose(&mut chosen, 1, None);
        let mut taken = Vec::new();
        let error = case.layers[2].take(&chosen, &mut taken).unwrap_err().to_string();
        assert!(error.contains("cut short") && error.contains("layers.2.0."), "{error}");
        // What is in memory is still there.
        case.run(0, &[0]);
        std::fs::write(&case.path, whole).unwrap();
        case.run(2, &[5]);
    }
}

/// A folder in place of the file: it can be opened, and each read of it fails.
#[cfg(unix)]
#[test]
fn a_read_that_fails_is_an_error_and_the_next_run_tries_again() {
    for ring in [true, false] {
        let case = Case::new(100 * ROOM, ring);
        case.run(0, &[0]);
        let stored = |_: &ExpertPart| Some((0, String::new()));
        let folder = case.path.parent().unwrap().to_path_buf();
        case.cache.open(folder.clone(), &stored).unwrap();
        let mut chosen = vec![(5, 1), (0, 1)];
        for _ in 0..3 {
            case.layers[2].choose(&mut chosen, 1, None);
            let error = case.layers[2].take(&chosen, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains("layers.2.0.") && error.contains("directory"), "{error}");
            assert!(error.contains(&*folder.to_string_lossy()), "{error}");
        }
        case.run(0, &[0]);
        case.cache.open(case.path.clone(), &stored).unwrap();
        case.run(2, &[5, 0]);
    }
}

#[test]
fn damaged_bytes_are_told() {
    let case = Case::new(100 * ROOM, true);
    let mut bytes = std::fs::read(&case.path).unwrap();
    bytes[4096 + 7] ^= 1;
    std::fs::write(&case.path, bytes).unwrap();
    let mut chosen = vec![(0, 1)];
    case.layers[0].choose(&mut chosen, 1, None);
    let error = case.layers[0].take(&chosen, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("layers.0.0.0") && error.contains("damaged"), "{error}");
}

#[test]
fn an_expert_larger_than_the_budget_is_refused() {
    let cache = ExpertCache::new(ROOM, Eviction::Lru, true);
    let part = |bytes| ExpertPart { weight: "w".into(), layout: "l".into(), bytes };
    let error = cache.add_layer(vec![[part(8192), part(8192), part(1)]]).unwrap_err().to_string();
    assert!(error.contains("--expert-cache-mib"), "{error}");
}

#[test]
fn reads_in_flight_outlive_nobody() {
    for ring in [true, false] {
        for _ in 0..20 {
            let case = Case::new(100 * ROOM, ring);
            let mut chosen: Vec<(u32, u32)> = (0..6).map(|e| (e, 1)).collect();
            case.layers.iter().for_each(|layer| layer.choose(&mut chosen, 1, None));
        }
    }
}

#[test]
fn threads_share_a_budget_that_is_smaller_than_what_they_choose() {
    let case = Case::new(2 * ROOM, true);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let case = &case;
            scope.spawn(move || {
                for turn in 0..40 {
                    case.run((thread + turn) % LAYERS, &[0, 1, 2, 3, 4, 5]);
                }
            });
        }
    });
    assert!(case.cache.stats().held <= 2 * ROOM);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_gets_its_experts(
        runs in proptest::collection::vec(
            (0..LAYERS, proptest::collection::btree_set(0u32..6, 1..6), any::<bool>()), 1..30),
        room in 1u64..12,
        ring in any::<bool>(),
    ) {
        let case = Case::new(room * ROOM, ring);
        case.cache.set_forecast(Arc::new(next_layer));
        for (layer, experts, ahead) in runs {
            let experts: Vec<u32> = experts.into_iter().collect();
            let row: Vec<f32> = experts.iter().map(|e| *e as f32).collect();
            case.run_of(layer, &experts, Some(&row[..]).filter(|_| ahead));
        }
        prop_assert!(case.cache.stats().held <= room * ROOM);
    }
}
