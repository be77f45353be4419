//! Prices of runs by a SoC's file, without running them: pure functions for planning.

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::Subgraph;
use troika_time::TaskCost;

use crate::cost::Rates;
use crate::device::{compile_ns, loading};
use crate::soc::{Processor, Soc};
use crate::worker::run_need;

/// The prices of a processor.
#[derive(Clone, Debug)]
pub struct Prices {
    rates: Rates,
    loading: Rates,
    processor: Processor,
}

/// The rows of a run to be priced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PricedRows {
    /// Rows needed.
    pub rows: usize,
    /// Rows computed, padding included.
    pub room: usize,
    /// Positions of the sequence before the first row.
    pub cached: usize,
}

impl Prices {
    /// The prices of a processor of a SoC.
    pub fn new(soc: &Soc, processor: &Processor) -> Prices {
        let loading = Rates::new(soc, &loading(processor));
        Prices { rates: Rates::new(soc, processor), loading, processor: processor.clone() }
    }

    /// The price of a run of a graph with symbolic rows.
    pub fn run(&self, graph: &Subgraph, r: PricedRows) -> TaskCost {
        let rows = 0..r.rows;
        let (pos, known_len, tables) = (r.cached, r.cached + r.rows, Vec::new());
        let seqs = vec![SeqRows { seq: 0, rows, pos, known_len, tables }];
        let (room, tile) = (r.room.max(r.rows), self.processor.tile);
        run_need(&self.rates, tile, graph, room, &ForwardBatch { seqs })
    }

    /// The bandwidth at which the processor moves bytes.
    pub fn bytes_per_ns(&self) -> f64 {
        self.rates.bandwidth
    }

    /// The price of a copy.
    pub fn copy(&self, bytes: u64) -> TaskCost {
        self.rates.copy(bytes)
    }

    /// The price of loading weights.
    pub fn load(&self, bytes: u64) -> TaskCost {
        self.loading.copy(bytes)
    }

    /// The time to compile a graph.
    pub fn compile_ns(&self, graph: &Subgraph) -> u64 {
        compile_ns(&self.processor, graph)
    }
}
