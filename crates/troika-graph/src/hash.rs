//! A stable hash of a subgraph, for executable caches.

use crate::subgraph::Subgraph;

/// BLAKE3 of the subgraph's canonical form. Subgraphs with equal hashes compute the same on weights
/// of the same names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphHash(pub [u8; 32]);

impl GraphHash {
    /// Hashes a subgraph without its own name, which does not affect the meaning.
    pub fn of(graph: &Subgraph) -> GraphHash {
        let mut hasher = blake3::Hasher::new();
        // Field order is fixed by the types and floats print shortest-round-trip, so the JSON is
        // canonical.
        let parts = (&graph.values, &graph.inputs, &graph.states, &graph.outputs);
        let mut sink = HashSink(&mut hasher);
        // Writing into a hasher cannot fail, and all keys are strings.
        let ok = serde_json::to_writer(&mut sink, &parts)
            .and_then(|()| serde_json::to_writer(&mut sink, &(&graph.weights, &graph.nodes)));
        debug_assert!(ok.is_ok());
        GraphHash(*hasher.finalize().as_bytes())
    }
}

impl std::fmt::Display for GraphHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::fmt::Debug for GraphHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

struct HashSink<'a>(&'a mut blake3::Hasher);

impl std::io::Write for HashSink<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.update(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
