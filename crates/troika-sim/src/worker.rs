//! The tasks of a queue: checks, claims, computation and costs.

use std::sync::Arc;

use troika_device::{
    Access, CommandList, DeviceError, DeviceId, ForwardBatch, HeldClaim, PagesView, Queue, Rect,
    Run, Submission, View, Work,
};
use troika_graph::Subgraph;
use troika_time::TaskCost;

use crate::cost::Rates;
use crate::demand::Demand;
use crate::limits::{Bound, Limits};
use crate::loaded::Loaded;
use crate::measured::MeasuredRuns;
use crate::soc::Tile;

/// Computes the tasks of one queue.
pub(crate) struct Worker {
    pub limits: Arc<Limits>,
    pub rates: Rates,
    pub id: DeviceId,
    /// Whether it loads weights.
    pub loads: bool,
    /// The queue that computes; `None` with numerics off.
    pub inner: Option<Box<dyn Queue>>,
}

/// A checked task.
pub(crate) struct Prepared {
    pub need: TaskCost,
    /// The places of a run's values; `None` for other tasks.
    run: Option<Bound>,
}

impl Prepared {
    /// Bytes that a run writes for others.
    pub fn written_bytes(&self) -> u64 {
        let outputs = self.run.iter().flat_map(|bound| &bound.outputs);
        outputs.map(bytes_of).fold(0, u64::saturating_add)
    }
}

impl Worker {
    /// The weights of a run, if this device loaded them.
    fn loaded<'a>(&self, run: &'a Run) -> Result<&'a Loaded, DeviceError> {
        run.weights.made(&self.limits.device, |loaded: &Loaded| loaded.device == self.id)
    }

    /// Checks a task.
    pub fn prepare(&self, work: &Work) -> Result<Prepared, DeviceError> {
        match work {
            Work::Run(run) => {
                let loaded = self.loaded(run)?;
                let bound = self.limits.check_run(loaded, run)?;
                let tile = self.limits.processor.tile;
                let need = run_need(&self.rates, tile, &loaded.graph, run.rows, &run.forward);
                Ok(Prepared { need, run: Some(bound) })
            }
            Work::Copy(copy) => {
                self.limits.check_copy(copy)?;
                Ok(Prepared { need: self.rates.copy(bytes_of(copy.from.rect())), run: None })
            }
            Work::Host(host) => {
                self.limits.check_host(host.name(), [host.reads(), host.writes()])?;
                // What is there already takes no time to load.
                let need = match host.bytes() {
                    0 if self.loads => TaskCost::default(),
                    bytes => self.rates.copy(bytes),
                };
                Ok(Prepared { need, run: None })
            }
        }
    }

    /// Claims the memory of a task while it runs.
    pub fn claim(&self, work: &Work, task: &Prepared) -> Result<Vec<HeldClaim>, DeviceError> {
        let mut claims = Vec::new();
        match (work, &task.run) {
            (Work::Run(run), Some(bound)) => {
                claim_run(run, self.loaded(run)?, bound, &mut claims)?;
            }
            (Work::Copy(copy), _) => {
                hold([(&copy.from, copy.from.rect())], Access::Read, &mut claims)?;
                hold([(&copy.to, copy.to.rect())], Access::Write, &mut claims)?;
            }
            (Work::Host(host), _) => {
                let whole = |view| (view, View::rect(view));
                hold(host.reads().iter().map(whole), Access::Read, &mut claims)?;
                hold(host.writes().iter().map(whole), Access::Write, &mut claims)?;
            }
            (Work::Run(_), None) => {}
        }
        Ok(claims)
    }

    /// Computes a task whose claims were released, since the kernels make their own. With numerics
    /// off nothing is computed; host functions are skipped too, since there are no bytes to read.
    pub fn compute(&mut self, work: &Work, task: &Prepared) -> Result<(), DeviceError> {
        let loaded = if let Work::Run(run) = work { Some(self.loaded(run)?) } else { None };
        let Some(queue) = &mut self.inner else { return Ok(()) };
        match (work, &task.run) {
            (Work::Run(run), Some(_)) => {
                let Some(weights) = loaded.and_then(|l| l.inner.clone()) else { return Ok(()) };
                let run = Run { weights, ..run.clone() };
                let tasks = vec![Submission { tag: 0, work: Work::Run(run) }];
                let list = CommandList { tasks, ..CommandList::default() };
                match queue.run_here(list) {
                    Ok(completion) => completion.outcome,
                    Err(_) => Err(DeviceError::System {
                        device: self.limits.device.clone(),
                        why: "its kernels do not compute on this thread".into(),
                    }),
                }
            }
            (Work::Copy(copy), _) => Ok(copy.from.copy_to(&copy.to)?),
            (Work::Host(host), _) => host.run(&self.limits.device),
            (Work::Run(_), None) => Ok(()),
        }
    }
}

/// Whether each sequence has one row, be it its first.
pub(crate) fn decoding(forward: &ForwardBatch) -> bool {
    !forward.seqs.is_empty() && forward.seqs.iter().all(|s| s.rows.len() == 1)
}

/// The cost of a run of a graph on some rows.
pub(crate) fn run_need(
    rates: &Rates,
    tile: Tile,
    graph: &Subgraph,
    rows: usize,
    forward: &ForwardBatch,
) -> TaskCost {
    if let Some(measured) = MeasuredRuns::of(&rates.measured, graph) {
        let bytes = Demand::of(graph, rows, forward, tile).bytes;
        return rates.measured(measured.ns(graph, rows, forward), bytes, decoding(forward));
    }
    match &rates.products {
        None => rates.run(&Demand::of(graph, rows, forward, tile)),
        Some(traits) => {
            let demand = Demand::and_products(graph, rows, forward);
            rates.run_with(&demand.0, &demand.1, traits, decoding(forward))
        }
    }
}

fn bytes_of(r: &Rect) -> u64 {
    (r.rows() as u64).saturating_mul(r.row_bytes() as u64)
}

fn hold<'a>(
    places: impl IntoIterator<Item = (&'a View, &'a Rect)>,
    access: Access,
    claims: &mut Vec<HeldClaim>,
) -> Result<(), DeviceError> {
    for (view, rect) in places {
        claims.push(view.buffer().hold(&[(*rect, access)])?);
    }
    Ok(())
}

/// Claims inputs, outputs, and the state rows of the sequences' pages.
fn claim_run(
    run: &Run,
    loaded: &Loaded,
    bound: &Bound,
    claims: &mut Vec<HeldClaim>,
) -> Result<(), DeviceError> {
    let b = &*run.bindings;
    hold(b.inputs.iter().zip(&bound.inputs), Access::Read, claims)?;
    for (i, (view, rect)) in b.states.iter().zip(&bound.states).enumerate() {
        let row = loaded.graph.value(loaded.graph.states[i]).row_bytes();
        let (all, written) = (rect.span(), loaded.code.state_written[i]);
        // The kernel refuses positions past the end.
        let byte = |r: usize| r.saturating_mul(row).saturating_add(all.start).min(all.end);
        let mut wanted = Vec::new();
        for (_, group) in loaded.code.state_groups.iter().filter(|g| g.0 == i) {
            for pages in run.forward.seqs.iter().filter_map(|s| PagesView::new(s, *group)) {
                pages.runs(|rows, appended| {
                    let access = if appended && written { Access::Write } else { Access::Read };
                    wanted.push((Rect::bytes(byte(rows.start)..byte(rows.end)), access));
                });
            }
        }
        claims.push(view.buffer().hold(&wanted)?);
    }
    hold(b.outputs.iter().zip(&bound.outputs), Access::Write, claims)
}
