//! The functions of the host: routing rows to packed buffers, and adding results up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use troika_device::{
    Clock, DeviceError, ExpertForecast, HostData, HostTask, ReadRows, View, WriteRows, lock,
};
use troika_program::{ExpertRows, ExpertStep, LEFT_OUT, LayerCounts, PackedRun};

use super::SharedStats;

/// What is routed to a set of packed buffers. After a panic it is begun anew with the next chunk 0.
#[derive(Debug)]
pub(crate) struct Routing {
    pub rows: ExpertRows,
    /// What can run, and what was counted, by chunk.
    runs: Vec<(Vec<PackedRun>, LayerCounts)>,
    /// When the first of them began.
    pub began: Option<Duration>,
    /// Experts that later layers will probably choose, by layer.
    pub named: Vec<(usize, usize)>,
    /// When the last chunk's rows were packed.
    pub packed: Option<(Duration, Duration)>,
}

impl Routing {
    pub fn new(rows: ExpertRows) -> Routing {
        Routing { rows, runs: Vec::new(), began: None, named: Vec::new(), packed: None }
    }

    /// Notes what can run after a chunk, and what was counted.
    pub fn note(&mut self, chunk: usize, runs: Vec<PackedRun>, counts: LayerCounts) {
        if chunk == 0 {
            self.runs.clear();
            self.began = None;
        }
        self.runs.resize_with(self.runs.len().max(chunk + 1), Default::default);
        self.runs[chunk] = (runs, counts);
    }

    /// Takes what can run after a chunk, and what was counted.
    pub fn take(&mut self, chunk: usize) -> (Vec<PackedRun>, LayerCounts) {
        self.runs.get_mut(chunk).map(std::mem::take).unwrap_or_default()
    }
}

/// What functions of a chunk work with.
#[derive(Clone)]
pub(crate) struct OfChunk {
    pub routing: Arc<Mutex<Routing>>,
    /// The chunk's place among those that share buffers, and whether it is the last.
    pub place: (usize, bool),
    pub layer: usize,
    pub rows: usize,
    pub top_k: usize,
    pub stats: SharedStats,
    pub clock: Arc<dyn Clock>,
    /// Names the experts that later layers will probably choose.
    pub forecast: Option<Arc<ExpertForecast>>,
}

/// The task of a step, on views as its name lists them.
///
/// # Errors
/// Views overlap.
pub(crate) fn host_task(
    name: &str,
    step: ExpertStep,
    reads: Vec<View>,
    writes: Vec<View>,
    parts: Vec<View>,
    of: OfChunk,
) -> Result<HostTask, DeviceError> {
    let views = (reads, writes);
    let task = match step {
        ExpertStep::Route => {
            let packed = parts.clone();
            HostTask::new(name, views, move |reads, _| of.route(reads, &packed))
        }
        // What is dispatched becomes known by it.
        ExpertStep::Dispatch => HostTask::new(name, views, |_, _| Ok(Some(Box::new(())))),
        ExpertStep::Combine => HostTask::new(name, views, move |reads, writes| {
            of.combine(reads, writes).map(|()| None)
        }),
    };
    Ok(task?.with_parts(parts))
}

impl OfChunk {
    /// Reads rows and the experts that they chose; writes packed rows, and the experts of those
    /// outside groups.
    fn route(&self, reads: &[ReadRows<'_>], packed: &[View]) -> Result<Option<HostData>, String> {
        let ([rows, ids, attention @ ..], [input, of_rest]) = (reads, packed) else {
            return Err("it lacks views".into());
        };
        let began = self.clock.now();
        let mut all = Vec::with_capacity(self.rows * self.top_k);
        for row in 0..self.rows {
            all.extend_from_slice(ids.row::<i32>(row).ok_or("ids have no rows")?);
        }
        let saliency = match attention {
            [before, after] => Some(added(self.rows, before, after)?),
            _ => None,
        };
        let mut routing = lock(&self.routing);
        let (place, saliency) = (self.place, saliency.as_deref());
        let mut counts = LayerCounts::default();
        let runs = routing.rows.route(place, &all, saliency, &mut counts)?;
        let routed = self.clock.now();
        let grouped = |run: &PackedRun| run.group.is_some();
        for unfilled in runs.iter().filter(|run| grouped(run)).flat_map(|run| &run.unfilled) {
            let view = input.rows(unfilled.clone()).map_err(|e| e.to_string())?;
            let mut unfilled = view.write().map_err(|e| e.to_string())?;
            unfilled.as_mut_slice::<f32>().ok_or("packed rows have gaps")?.fill(0.0);
        }
        let mut pairs: Vec<(u32, u32)> =
            routing.rows.places(self.place.0).iter().copied().zip(0..).collect();
        pairs.retain(|(place, _)| *place != LEFT_OUT);
        pairs.sort_unstable();
        for next in pairs.chunk_by(|a, b| a.0 + 1 == b.0) {
            self.pack(next, rows, input)?;
            self.name_experts(next, &all, of_rest)?;
        }
        routing.note(self.place.0, runs, counts);
        if let (Some(forecast), 1) = (&self.forecast, self.rows) {
            let row = rows.row::<f32>(0).ok_or("there is no such row")?;
            routing.named.clear();
            forecast(self.layer, row, &mut |layer, experts| {
                routing.named.extend(experts.iter().map(|e| (layer, usize::from(*e))));
            });
        }
        let done = self.clock.now();
        routing.packed = Some((routed, done));
        self.stats.with(|stats| {
            stats.route += routed.saturating_sub(began);
            stats.pack += done.saturating_sub(routed);
        });
        Ok(None)
    }

    /// Copies the rows of pairs whose places follow each other.
    fn pack(&self, pairs: &[(u32, u32)], rows: &ReadRows<'_>, to: &View) -> Result<(), String> {
        let first = pairs[0].0 as usize;
        let view = to.rows(first..first + pairs.len()).map_err(|e| e.to_string())?;
        let mut packed = view.write().map_err(|e| e.to_string())?;
        for (i, (_, pair)) in pairs.iter().enumerate() {
            let row = rows.row::<f32>(*pair as usize / self.top_k).ok_or("there is no such row")?;
            let to = packed.row_mut::<f32>(i).filter(|to| to.len() == row.len());
            to.ok_or("packed rows have another width")?.copy_from_slice(row);
        }
        Ok(())
    }

    /// Writes the experts of pairs whose places follow each other.
    fn name_experts(&self, pairs: &[(u32, u32)], ids: &[i32], to: &View) -> Result<(), String> {
        let first = pairs[0].0 as usize;
        let view = to.rows(first..first + pairs.len()).map_err(|e| e.to_string())?;
        let mut to = view.write().map_err(|e| e.to_string())?;
        let to = to.as_mut_slice::<i32>().ok_or("ids of packed rows have gaps")?;
        to.iter_mut().zip(pairs).for_each(|(to, (_, pair))| *to = ids[*pair as usize]);
        Ok(())
    }

    /// Reads weights and results; writes the sum of each row's experts in the order of its slots.
    fn combine(&self, reads: &[ReadRows<'_>], writes: &mut [WriteRows<'_>]) -> Result<(), String> {
        let ([weights, results], [sums]) = (reads, writes) else {
            return Err("it lacks views".into());
        };
        let began = self.clock.now();
        let mut routing = lock(&self.routing);
        let first_run = routing.began.take();
        let places = routing.rows.places(self.place.0);
        for row in 0..self.rows {
            let weights = weights.row::<f32>(row).ok_or("weights have no rows")?;
            let sum = sums.row_mut::<f32>(row).ok_or("sums have no rows")?;
            sum.fill(0.0);
            let places = places.get(row * self.top_k..(row + 1) * self.top_k);
            for (place, w) in places.ok_or("its rows were not routed")?.iter().zip(weights) {
                if *place == LEFT_OUT {
                    continue;
                }
                let made = results.row::<f32>(*place as usize).ok_or("results have no rows")?;
                sum.iter_mut().zip(made).for_each(|(sum, made)| *sum += w * made);
            }
        }
        let done = self.clock.now();
        self.stats.with(|stats| {
            stats.combine += done.saturating_sub(began);
            stats.experts += first_run.map_or(Duration::ZERO, |t| began.saturating_sub(t));
        });
        Ok(())
    }
}

/// The L2 norm of what attention added to each row.
fn added(rows: usize, before: &ReadRows<'_>, after: &ReadRows<'_>) -> Result<Vec<f32>, String> {
    let norm = |row: usize| {
        let (before, after) = (before.row::<f32>(row)?, after.row::<f32>(row)?);
        let squares = before.iter().zip(after).map(|(b, a)| (a - b) * (a - b));
        Some(squares.sum::<f32>().sqrt())
    };
    let norms: Option<Vec<f32>> = (0..rows).map(norm).collect();
    norms.ok_or_else(|| "attention has no rows".into())
}
