//! Profile files: the subject of a profile for the current model and devices, and reading files.

use std::path::{Path, PathBuf};

use troika_device::read_text;
use troika_model::spec::ModelSpec;
use troika_plan::{ModelId, Plan, PlanDevice};
use troika_solve::{Profile, ProfileSubject, ProfiledDevice};
use troika_weights::WeightStore;

use crate::describe::BoundModel;
use crate::devices::usable_cores;
use crate::error::Error;

/// Where a profile is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileAt {
    /// In a file.
    File(PathBuf),
    /// In a folder of profiles, in a file named after the model and the devices.
    Folder(PathBuf),
    /// In such a folder; without the file, no solver is used.
    IfIn(PathBuf),
}

/// The subject of a profile for this model on these devices.
pub fn subject_of(model: &BoundModel, plan: &Plan) -> ProfileSubject {
    let mut types = kinds(&model.store);
    types.push(format!("cache {}", plan.kv_dtype.name()));
    types.extend(plan.activations().iter().map(|f| format!("activations {f}")));
    let devices = model.devices.iter().map(|d| ProfiledDevice::of(&PlanDevice::of(d)));
    ProfileSubject {
        program: env!("CARGO_PKG_VERSION").to_string(),
        machine: machine(),
        model: ModelId::of(&model.spec),
        types,
        devices: devices.collect(),
    }
}

/// The classes of weights with their types.
fn kinds(store: &WeightStore) -> Vec<String> {
    store.classes().iter().map(|c| format!("{} {}", c.class, c.dtype.name())).collect()
}

/// The devices of a complete profile of a model with such weights, as they are named to be opened, if
/// an NPU is among them.
pub fn npu_devices(file: &Path, spec: &ModelSpec, store: &WeightStore) -> Option<Vec<String>> {
    let Profile { subject, complete, .. } = Profile::from_json(&read_text(file).ok()?).ok()?;
    let is_of_it = complete && subject.model == ModelId::of(spec);
    let is_of_it = is_of_it && kinds(store).iter().all(|kind| subject.types.contains(kind));
    let name = |device: &ProfiledDevice| {
        // The provider, the hardware and the numbers that it computes with.
        let (place, _) = device.numerics.rsplit_once('-').unwrap_or_default();
        let is_npu = device.name == "npu";
        if is_npu { format!("npu:{}", place.replacen('-', ":", 1)) } else { device.name.clone() }
    };
    let names: Vec<String> = subject.devices.iter().map(name).collect();
    (is_of_it && names.iter().any(|name| name.starts_with("npu:"))).then_some(names)
}

/// The processor and the system, as the system reports them.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = info.lines().find_map(|line| line.strip_prefix("model name"));
    let name = named.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim().to_string());
    let cores = usable_cores().len();
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{}, {cores} cores, {arch} {os}", name.unwrap_or_else(|| "processor".into()))
}

impl ProfileAt {
    /// The path of a profile's file.
    ///
    /// In a folder, the name does not depend on the machine or version. So a profile of another
    /// machine is found and refused.
    pub fn file(&self, here: &ProfileSubject) -> PathBuf {
        let folder = match self {
            ProfileAt::File(file) => return file.clone(),
            ProfileAt::Folder(folder) | ProfileAt::IfIn(folder) => folder,
        };
        let ModelId { family, layers, hidden, vocab } = &here.model;
        let devices: Vec<&str> = here.devices.iter().map(|d| d.name.as_str()).collect();
        let devices = devices.join("+");
        // FNV-1a, so that names are the same in all builds.
        let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let hash = here.types.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        folder.join(format!("{family}-{layers}x{hidden}-{vocab}-{devices}-{hash:016x}.json"))
    }
    /// Reads the profile, which must be complete and of this subject. `None` where one that is
    /// optional cannot be used; `notes` then says why, unless there is none.
    ///
    /// # Errors
    /// The file is missing, is not a profile, or has another subject.
    pub(crate) fn read(
        &self,
        here: &ProfileSubject,
        notes: &mut Vec<String>,
    ) -> Result<Option<Profile>, Error> {
        let file = &self.file(here);
        let name = || file.display().to_string();
        match self {
            ProfileAt::IfIn(_) if !file.exists() => return Ok(None),
            ProfileAt::Folder(_) if !file.exists() => {
                return Err(Error::NoKeptProfile { file: name() });
            }
            _ => {}
        }
        let text = read_text(file).map_err(|e| Error::profile_file(file, e));
        let profile = text.and_then(|text| {
            let read = Profile::from_json(&text).and_then(|p| p.check(here).map(|()| p));
            read.map_err(|error| Error::Profile { file: name(), error })
        });
        match (profile, self) {
            (Err(e), ProfileAt::IfIn(_)) => {
                notes.push(format!("no profile is used: {e}"));
                Ok(None)
            }
            (profile, _) => profile.map(Some),
        }
    }
}
