//! Resident weights, counted once however many executables use them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use troika_device::lock;
use troika_graph::{Subgraph, WeightDecl};

/// A weight's name, with its rows and columns. One name is one weight, since a device serves one
/// model.
type Key = (Arc<str>, Range<usize>, Range<usize>);

#[derive(Default)]
struct Counted {
    /// Bytes and number of holders.
    weights: HashMap<Key, (u64, usize)>,
    bytes: u64,
    graphs: usize,
}

/// The resident weights of a device.
#[derive(Clone, Default)]
pub(crate) struct Resident(Arc<Mutex<Counted>>);

/// The weights of a graph, resident until this is dropped.
pub(crate) struct Residency {
    home: Resident,
    keys: Vec<Key>,
}

fn key(w: &WeightDecl) -> Key {
    (w.name.clone(), w.stored_rows(), w.stored_cols())
}

impl Resident {
    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).bytes
    }

    pub fn has(&self, w: &WeightDecl) -> bool {
        lock(&self.0).weights.contains_key(&key(w))
    }

    /// Adds a graph and its weights if all together stay within limits; otherwise says which one
    /// they exceed.
    pub fn enter(
        &self,
        graph: &Subgraph,
        max_bytes: Option<u64>,
        max_graphs: Option<usize>,
    ) -> Result<Residency, String> {
        let mut counted = lock(&self.0);
        if let Some(most) = max_graphs.filter(|most| counted.graphs >= *most) {
            return Err(format!("{most} graphs are loaded, no more are (max_graphs)"));
        }
        let mut keys: Vec<(Key, u64)> = Vec::new();
        for w in &graph.weights {
            let (key, bytes) = (key(w), w.bytes());
            if !keys.iter().any(|(k, _)| *k == key) {
                keys.push((key, bytes));
            }
        }
        let new = keys.iter().filter(|(k, _)| !counted.weights.contains_key(k));
        let sum = new.fold(counted.bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if max_bytes.is_some_and(|most| sum > most) {
            return Err(format!("{sum} bytes of weights would be resident (max_resident_bytes)"));
        }
        counted.bytes = sum;
        counted.graphs += 1;
        for (key, bytes) in &keys {
            counted.weights.entry(key.clone()).or_insert((*bytes, 0)).1 += 1;
        }
        let keys = keys.into_iter().map(|(k, _)| k).collect();
        Ok(Residency { home: self.clone(), keys })
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        let mut counted = lock(&self.home.0);
        counted.graphs -= 1;
        for key in &self.keys {
            let Some((bytes, holders)) = counted.weights.get_mut(key) else { continue };
            *holders -= 1;
            if *holders == 0 {
                let bytes = *bytes;
                counted.weights.remove(key);
                counted.bytes = counted.bytes.saturating_sub(bytes);
            }
        }
    }
}
