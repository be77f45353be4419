//! The points at which a graph is measured, and their measurements on a device.

use troika_device::DeviceError;
use troika_model::lower::ModelPart;
use troika_solve::{Profile, ProfiledGraph, RunAt, RunSample, Spread};
use troika_time::RunWork;
use troika_weights::WeightStore;

use super::bench::{DeviceProfiler, LoadedGraph};
use super::inputs::RowsAt;

/// Runs that would take longer are not measured: the fits extrapolate.
const LONGEST_NS: f64 = 2e9;

/// Where a graph is measured on each device, for the fits or to judge them.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub at: RowsAt,
    pub held_out: bool,
}

/// The points of a graph that a visit measures on a device.
#[derive(Clone, Copy)]
pub(super) struct PointsOf<'a> {
    pub device: usize,
    pub graph: &'a ProfiledGraph,
    pub visit: usize,
    pub points: &'a [Point],
}

/// Them, with the graph loaded.
pub(super) struct LoadedPoints<'a> {
    pub of: PointsOf<'a>,
    loaded: LoadedGraph,
    /// The time of the last point, and its rows.
    last_ns: f64,
    last_rows: usize,
}

impl<'a> PointsOf<'a> {
    /// The most rows of a run. Of heads each number of rows may take half a gigabyte on the device:
    /// one is enough.
    fn most(&self, profiler: &DeviceProfiler<'_>) -> usize {
        let is_head = self.graph.kind.traits().part == ModelPart::Head;
        if is_head && profiler.device.caps().code_weights.is_some_and(|code| code.per_shape) {
            return 1;
        }
        self.points.iter().map(|p| p.at.rows).max().unwrap_or(1)
    }

    /// The rows that are computed for a point's; `None` if it takes several runs.
    fn room(&self, profiler: &DeviceProfiler<'_>, point: Point) -> Option<usize> {
        let rows = point.at.rows;
        let room = profiler.room(rows, self.graph.rows);
        (room >= rows && rows <= self.most(profiler)).then_some(room)
    }

    fn is_known(&self, profiler: &DeviceProfiler<'_>, point: Point, profile: &Profile) -> bool {
        profile.is_known(&self.run(point), profiler.wanted(self.visit))
    }

    fn run(&self, point: Point) -> RunAt<'a> {
        let RowsAt { rows, cached } = point.at;
        RunAt { device: self.device, graph: &self.graph.name, rows, cached }
    }

    /// Whether any is missing.
    pub fn any(&self, profiler: &DeviceProfiler<'_>, profile: &Profile) -> bool {
        let mut fit = self.points.iter().filter(|p| self.room(profiler, **p).is_some());
        fit.any(|p| !self.is_known(profiler, *p, profile))
    }

    pub fn load(
        self,
        profiler: &mut DeviceProfiler<'_>,
        store: &WeightStore,
    ) -> Result<LoadedPoints<'a>, DeviceError> {
        let most = self.most(profiler);
        let loaded = profiler.load(self.graph, most, store)?;
        Ok(LoadedPoints { of: self, loaded, last_ns: 0.0, last_rows: 1 })
    }

    /// What a point took, as long as that can be measured. `room` is the rows it computes.
    fn sample(&self, point: Point, room: usize, ns: Spread) -> Option<RunSample> {
        let (graph, RowsAt { rows, cached }) = (self.graph, point.at);
        let one = graph.layers.first().filter(|_| ns.median > 0.0)?;
        Some(RunSample {
            device: self.device,
            graph: graph.name.clone(),
            segment: graph.kind,
            share: graph.share,
            part: graph.part,
            work: RunWork::of(one, room, cached),
            rows,
            cached,
            held_out: point.held_out || graph.held_out(),
            ns,
            visits: 1,
        })
    }
}

impl LoadedPoints<'_> {
    /// Measures a point until it is known.
    pub fn measure(
        &mut self,
        profiler: &mut DeviceProfiler<'_>,
        point: Point,
        profile: &mut Profile,
    ) -> Result<(), DeviceError> {
        let (of, rows) = (self.of, point.at.rows);
        let Some(room) = of.room(profiler, point) else { return Ok(()) };
        let expected = self.last_ns * rows as f64 / self.last_rows as f64;
        if expected > LONGEST_NS {
            return Ok(());
        }
        while !of.is_known(profiler, point, profile) {
            let same = profile.of_room(&of.run(point), room);
            // What judges the fits is measured for itself.
            let ns = match same.filter(|_| profiler.pads(rows, room) && !point.held_out) {
                Some(known) => known,
                None => Spread::of(&profiler.times_in_model(&self.loaded, point.at, expected)?),
            };
            (self.last_ns, self.last_rows) = (ns.median, rows);
            let Some(sample) = of.sample(point, room, ns) else { break };
            profile.add(sample);
        }
        Ok(())
    }
}
