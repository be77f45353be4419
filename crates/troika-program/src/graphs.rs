//! The graphs of a program that devices compile, without duplicates.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

/// All graphs of a program. Graphs of one shape on one device share their code.
#[derive(Debug, Default)]
pub struct GraphList {
    graphs: Vec<ListedGraph>,
    /// For each code, the first graph that uses it.
    codes: Vec<usize>,
    /// Codes by their device and the shapes of their values.
    alike: HashMap<(usize, u64), Vec<usize>>,
    /// The first graph of the current segment, which has other weights than those before.
    pub(crate) segment: usize,
}

/// A graph on a device.
#[derive(Debug)]
pub struct ListedGraph {
    /// Index of the device in the plan.
    pub device: usize,
    /// The graph.
    pub graph: Subgraph,
    /// The kind of the segment that it is a part of.
    pub kind: SegmentKind,
    /// Index of its code.
    pub code: usize,
}

impl GraphList {
    /// The index of a device's graph, added if it is new. If it shares its code, then with a graph
    /// of the same shape.
    pub(crate) fn add(
        &mut self,
        device: usize,
        kind: SegmentKind,
        graph: Subgraph,
        shares_code: bool,
    ) -> usize {
        let of_segment = &self.graphs[self.segment..];
        if let Some(at) = of_segment.iter().position(|l| (l.device, &l.graph) == (device, &graph)) {
            return self.segment + at;
        }
        let number = self.graphs.len();
        let mut hasher = DefaultHasher::new();
        graph.values.iter().for_each(|v| v.shape.hash(&mut hasher));
        let alike = self.alike.entry((device, hasher.finish())).or_default();
        let same = |code: &usize| graph.same_code(&self.graphs[self.codes[*code]].graph);
        let known = alike.iter().copied().find(same).filter(|_| shares_code);
        let code = known.unwrap_or_else(|| {
            self.codes.push(number);
            alike.push(self.codes.len() - 1);
            self.codes.len() - 1
        });
        self.graphs.push(ListedGraph { device, graph, kind, code });
        number
    }

    /// All graphs, by index.
    pub fn graphs(&self) -> &[ListedGraph] {
        &self.graphs
    }

    /// The graphs that a device compiles: the first one of each code.
    pub fn firsts(&self, device: usize) -> impl Iterator<Item = usize> {
        self.codes.iter().copied().filter(move |at| self.graphs[*at].device == device)
    }

    /// Number of codes to make.
    pub fn codes(&self) -> usize {
        self.codes.len()
    }
}
