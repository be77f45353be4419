//! Measures a model's segments on devices for the solver: `troika profile`. The contents of a
//! profile and its fits belong to `troika-solve`; the devices and the clock are here.

mod bench;
mod inputs;
mod pairs;
mod points;
mod soc_file;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use troika::{
    BoundModel, Error, OpenOptions, ProfileAt, can_write, subject_of, virtual_clock, write_file,
};
use troika_device::{Clock, Device, RealClock, read_text};
use troika_model::lower::{Lowered, ModelPart, SegmentKind};
use troika_plan::leave_attention;
use troika_solve::{
    Apart, CHUNK_ROWS, Profile, ProfileSubject, ProfiledGraph, SegmentPart, profiled_graphs,
};

use bench::{DeviceProfiler, VISITS};
use inputs::RowsAt;
use points::{Point, PointsOf};
use soc_file::soc_file;

use crate::error::{LabError, Result};
use crate::subject::Subject;

/// Receives (measurements done, all measurements).
pub type OnProfiled<'a> = &'a mut dyn FnMut(usize, usize);

/// How to make a profile.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// The model's types, and the devices.
    pub open: OpenOptions,
    /// Where the profile is stored and continued from; `None`: it is only returned.
    pub file: Option<ProfileAt>,
    /// Whether to describe the devices as a virtual SoC, too.
    pub soc: bool,
    /// Stops measuring; results so far are kept.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// A profile, and notes on how it was made.
#[derive(Debug)]
pub struct ProfileOutcome {
    /// The profile; incomplete if measuring was stopped.
    pub profile: Profile,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
    /// Where it is stored.
    pub file: Option<PathBuf>,
    /// The text of a virtual SoC's file by it, if that was asked for and the profile is complete.
    pub soc: Option<String>,
}

/// Numbers of rows measured for the fits, and others to judge the fits.
const FITTED_ROWS: [usize; 7] = [1, 2, 4, 16, 64, 256, 512];
/// The same of what runs beside groups of experts.
const PART_ROWS: [usize; 6] = [1, 16, 64, 256, 1024, 4096];
/// Most rows of graphs that are measured for the length of chunks only.
const MOST_CHUNK: usize = 1024;
const HELD_OUT_ROWS: [usize; 4] = [3, 24, 100, 384];
/// Numbers of cached positions for runs that use them, split in the same way.
const FITTED_CACHED: [usize; 3] = [0, 256, 1024];
const HELD_OUT_CACHED: [usize; 1] = [600];

/// Measures a model on the devices of the options.
///
/// # Errors
/// An unusable model or device, or a full disk.
pub fn profile(
    subject: &Subject,
    options: &ProfileOptions,
    progress: OnProfiled<'_>,
) -> Result<ProfileOutcome> {
    let model = subject.bind(&options.open, true)?;
    if let Some(device) = model.devices.iter().find(|d| options.soc && d.clock().is_some()) {
        let (name, why) = (device.name(), "its file describes it; name real devices");
        return Err(LabError::Impossible(format!("device {name} is virtual already: {why}")));
    }
    let mut plan = model.one_device_plan(&options.open)?;
    let longest = plan.prefill.chunk;
    plan.prefill.chunk = longest.max(MOST_CHUNK.min(plan.context));
    let here = subject_of(&model, &plan);
    let file = options.file.as_ref().map(|at| at.file(&here));
    if let Some(folder) =
        file.as_deref().and_then(Path::parent).filter(|f| !f.as_os_str().is_empty())
        && matches!(options.file, Some(ProfileAt::Folder(_) | ProfileAt::IfIn(_)))
    {
        std::fs::create_dir_all(folder).map_err(|e| Error::profile_file(folder, e))?;
    }
    let Begun { mut profile, mut notes, kept: keep, .. } = begin(&here, file.as_deref())?;
    for place in file.iter().chain(&keep) {
        can_write(place).map_err(|e| Error::profile_file(place, e))?;
    }
    let clock = virtual_clock(&model.devices).unwrap_or_else(|| Arc::new(RealClock::new()));
    let (model, lowered) = (&model, &model.lowered(&plan)?);
    let mut soc = None;
    let file_now = keep.clone();
    let mut measuring =
        Measuring { model, lowered, longest, options, file: file_now, clock, progress };
    if measuring.all(&mut profile)? {
        profile.fit();
        profile.complete = true;
        measuring.file.clone_from(&file);
        measuring.keep(&profile)?;
        if let Some(partial) = keep.filter(|k| Some(k) != file.as_ref()) {
            // A leftover does no harm: it is continued next time.
            let _ = std::fs::remove_file(partial);
        }
        notes.extend(left_out(&profile));
        soc = options.soc.then(|| soc_file(&profile, model, lowered)).transpose()?;
    }
    Ok(ProfileOutcome { profile, notes, file, soc })
}

/// The model and devices of a stored profile as a sentence, and whether it is complete.
///
/// # Errors
/// The reason why this program cannot use it.
pub fn kept_profile(file: &Path) -> Result<(String, bool), String> {
    let text = read_text(file).map_err(|e| e.to_string())?;
    let profile = Profile::from_json(&text).map_err(|e| e.to_string())?;
    let of = &profile.subject;
    if of.program != env!("CARGO_PKG_VERSION") {
        return Err(format!("it was measured by version {}", of.program));
    }
    let devices: Vec<&str> = of.devices.iter().map(|d| d.name.as_str()).collect();
    Ok((format!("{} on {}", of.model, devices.join(", ")), profile.complete))
}

/// Devices where nothing could be measured, so that no plan by the profile uses them.
fn left_out(profile: &Profile) -> Option<String> {
    let measured = |device: usize| profile.runs.iter().any(|r| r.device == device);
    let devices = profile.subject.devices.iter().enumerate();
    let names: Vec<&str> =
        devices.filter(|(i, _)| !measured(*i)).map(|(_, d)| d.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "no segment runs as a whole on {}: plans by this profile do without",
            names.join(" and ")
        )
    })
}

/// The state in which measuring starts.
struct Begun {
    profile: Profile,
    /// Notes on existing files.
    notes: Vec<String>,
    /// Where it is stored until it is complete: beside a complete one, which stays until then.
    kept: Option<PathBuf>,
    /// Whether a complete profile is there.
    complete: bool,
}

/// An existing profile that can be continued, or a new one.
fn begin(here: &ProfileSubject, file: Option<&Path>) -> Result<Begun> {
    // A pipe or device has nothing to read.
    let Some(path) = file.filter(|f| std::fs::metadata(f).map_or(true, |m| m.is_file())) else {
        let (profile, kept) = (Profile::new(here.clone()), file.map(Path::to_path_buf));
        return Ok(Begun { profile, notes: Vec::new(), kept, complete: false });
    };
    let found = begin_at(here, path)?;
    if !found.complete {
        return Ok(found);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let begun = begin_at(here, Path::new(&partial))?;
    Ok(Begun { notes: found.notes.into_iter().chain(begun.notes).collect(), ..begun })
}

fn begin_at(here: &ProfileSubject, file: &Path) -> Result<Begun> {
    let found = |profile: Profile, note: Option<String>, complete: bool| {
        let (notes, kept) = (Vec::from_iter(note), Some(file.to_path_buf()));
        Ok(Begun { profile, notes, kept, complete })
    };
    let new =
        |note: Option<String>, complete: bool| found(Profile::new(here.clone()), note, complete);
    let text = match read_text(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return new(None, false),
        Err(error) => return Err(Error::profile_file(file, error).into()),
    };
    let read = Profile::from_json(&text);
    let complete = read.as_ref().is_ok_and(|p| p.complete);
    match read.and_then(|p| p.check_subject(here).map(|()| p)) {
        Ok(p) if p.complete => new(Some(format!("{} is made again", file.display())), true),
        Ok(p) => {
            let note =
                format!("{} is gone on with: {} runs are there", file.display(), p.runs.len());
            found(p, Some(note), false)
        }
        // A damaged profile is replaced, but not a text of another kind.
        Err(_) if !Profile::begins(&text) && !text.trim().is_empty() => {
            let why = "is there and is no profile; name another file, or remove this one";
            Err(LabError::Impossible(format!("{} {why}", file.display())))
        }
        Err(e) => new(Some(format!("{} is made again: {e}", file.display())), complete),
    }
}

struct Measuring<'a> {
    model: &'a BoundModel,
    lowered: &'a Lowered,
    /// The most rows of a chunk.
    longest: usize,
    options: &'a ProfileOptions,
    file: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    progress: OnProfiled<'a>,
}

impl Measuring<'_> {
    fn cancelled(&self) -> bool {
        self.options.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed))
    }

    /// Measures what is missing. `false` if it was stopped.
    fn all(&mut self, profile: &mut Profile) -> Result<bool> {
        let devices = &self.model.devices;
        let experts = devices.len() > 1;
        let products = experts && devices.iter().any(|d| d.caps().static_shapes);
        let graphs: Vec<Vec<ProfiledGraph>> = devices
            .iter()
            .map(|d| {
                let mut offered = d.caps().activation_formats.clone();
                let open = &self.options.open;
                let has = open.converted_format().filter(|f| offered.contains(f));
                offered.retain(|f| !f.converts_weights());
                let mut formats = open.activations.clone().unwrap_or(offered);
                formats.extend(has);
                let apart = Apart { experts, products, forms: &d.caps().forms };
                profiled_graphs(self.lowered, &formats, apart)
            })
            .collect();
        let open = |(number, device)| {
            DeviceProfiler::new(number, device, self.lowered, self.clock.clone())
        };
        let mut profilers = devices.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let count = graphs.iter().map(Vec::len).max().unwrap_or(0);
        let all = count * VISITS + 1;
        for visit in 0..VISITS {
            for at in 0..count {
                if self.cancelled() {
                    return Ok(false);
                }
                // Alternates between devices at each point, so that disturbances affect all alike.
                self.graph(&mut profilers, &graphs, at, visit, profile)?;
                self.keep(profile)?;
                (self.progress)(visit * count + at + 1, all);
            }
        }
        if self.cancelled() {
            return Ok(false);
        }
        pairs::measure(&mut profilers, &self.model.store, &graphs, profile)?;
        (self.progress)(all, all);
        Ok(true)
    }

    fn graph(
        &mut self,
        profilers: &mut [DeviceProfiler<'_>],
        graphs: &[Vec<ProfiledGraph>],
        at: usize,
        visit: usize,
        profile: &mut Profile,
    ) -> Result<()> {
        let points = self.points(graphs.iter().find_map(|g| g.get(at)));
        let mut loaded = Vec::new();
        for (device, profiler) in profilers.iter_mut().enumerate() {
            let graph = graphs[device].get(at);
            let Some(graph) = graph.filter(|g| profiler.takes(g)) else { continue };
            let missing = PointsOf { device, graph, visit, points: &points };
            // Loading may mean compiling.
            if !self.leaves(&*profiler.device, graph) && missing.any(profiler, profile) {
                loaded.push(missing.load(profiler, &self.model.store)?);
            }
        }
        for point in &points {
            for on in &mut loaded {
                if self.cancelled() {
                    return Ok(());
                }
                on.measure(&mut profilers[on.of.device], *point, profile)?;
            }
        }
        Ok(())
    }

    /// Whether plans leave a graph to other devices: attention, by NPUs.
    fn leaves(&self, device: &dyn Device, graph: &ProfiledGraph) -> bool {
        let mut left = Vec::new();
        if !self.options.open.devices.npu.attention {
            leave_attention(self.model.devices.iter().map(|d| &**d), &mut left);
        }
        left.iter().any(|r| r.device == device.name() && r.segment == graph.kind)
    }

    /// The rows and cached positions at which a graph is measured, fewest rows first.
    fn points(&self, graph: Option<&ProfiledGraph>) -> Vec<Point> {
        let Some(graph) = graph else { return Vec::new() };
        let Some(one) = graph.layers.first() else { return Vec::new() };
        let alone = |rows| Point { at: RowsAt { rows, cached: 0 }, held_out: false };
        match graph.part {
            SegmentPart::Group => return graph.rows.into_iter().map(alone).collect(),
            SegmentPart::Choices | SegmentPart::Beside if graph.kind.traits().by_experts => {
                let most = PART_ROWS.into_iter().filter(|rows| *rows <= one.max_rows());
                return most.map(alone).collect();
            }
            _ => {}
        }
        let most = one.max_rows().min(self.longest);
        // Only the last row of a prompt needs logits.
        let most = if graph.kind.traits().part == ModelPart::Head { most.min(4) } else { most };
        let mut rows: Vec<(usize, bool)> = FITTED_ROWS.map(|n| (n, false)).to_vec();
        if !matches!(graph.part, SegmentPart::Form { .. }) {
            rows.extend(HELD_OUT_ROWS.map(|n| (n, true)));
        }
        rows.retain(|(n, _)| *n <= most);
        if !rows.iter().any(|(n, _)| *n == most) {
            rows.push((most, false));
        }
        let chunked = [SegmentKind::Qkv, SegmentKind::Ffn, SegmentKind::Experts];
        let parts = [SegmentPart::Whole, SegmentPart::Products];
        if graph.share == 64 && parts.contains(&graph.part) && chunked.contains(&graph.kind) {
            let more = CHUNK_ROWS.into_iter().filter(|n| *n <= one.max_rows());
            let more: Vec<usize> =
                more.filter(|n| rows.iter().all(|(known, _)| known != n)).collect();
            rows.extend(more.into_iter().map(|n| (n, false)));
        }
        rows.sort_unstable();
        let states = one.states.iter().map(|s| one.value(*s).shape.max_rows()).min();
        let mut points = Vec::new();
        let mut add = |rows, cached, held_out| {
            points.push(Point { at: RowsAt { rows, cached }, held_out });
        };
        for (rows, held_out) in rows {
            add(rows, 0, held_out);
            let Some(positions) = states else { continue };
            let fitted = FITTED_CACHED.iter().skip(1).map(|n| (*n, false));
            for (cached, held) in fitted.chain(HELD_OUT_CACHED.map(|n| (n, true))) {
                // A short context: half of it, and all of it.
                if cached + rows <= positions {
                    add(rows, cached, held_out || held);
                }
            }
            if rows == 1 && positions < FITTED_CACHED[2] && positions > 8 {
                add(rows, positions - 1, held_out);
            }
        }
        points
    }

    /// Writes the current state: first beside the place, then renamed.
    fn keep(&self, profile: &Profile) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let text = profile.to_json();
        let written = write_file(file, |out| out.write_all(text.as_bytes()));
        Ok(written.map_err(|e| Error::profile_file(file, e))?)
    }
}
