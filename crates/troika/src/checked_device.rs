//! Devices whose kernels are compared with the CPU's before they are first used. What was found is
//! kept for the next start.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use troika_check::{Check, CheckedKernel, Kernel, Watch, Watched};
use troika_device::{CompileRequest, CompileResults, Device, DeviceError, lock};
use troika_graph::Subgraph;

use crate::kept_of_devices::{GpuSettings, KeptOfDevices};

/// For each kernel that was compared why it is not used, or `None`.
type Verdicts = BTreeMap<String, Option<String>>;

/// Opens the CPU that kernels are compared with.
type OpenReference = fn() -> Result<Arc<dyn Device>, DeviceError>;

/// Compares kernels with the CPU's before they are first used.
pub(crate) struct CheckFirst {
    /// What names the verdicts.
    key: String,
    reference: OpenReference,
    settings: GpuSettings,
    kept: Option<KeptOfDevices>,
    verdicts: Mutex<Verdicts>,
}

/// What names the verdicts on a device's kernels: the adapter, its driver, and this version.
fn name_of(device: &dyn Device) -> String {
    format!("kernels of {} by {}", device.caps().numerics, env!("CARGO_PKG_VERSION"))
}

fn parsed(bytes: &[u8]) -> Option<Verdicts> {
    serde_json::from_slice(bytes).ok()
}

fn keep(kept: &KeptOfDevices, key: &str, verdicts: &Verdicts) {
    kept.keep(key, &serde_json::to_vec(verdicts).unwrap_or_default());
}

/// Keeps what comparing all kernels of a device found, in place of what was kept before.
pub fn keep_checked(settings: &GpuSettings, device: &dyn Device, checked: &[CheckedKernel]) {
    let verdicts = checked.iter().map(|k| (k.name.clone(), k.fault.clone())).collect();
    settings.kept().iter().for_each(|kept| keep(kept, &name_of(device), &verdicts));
}

/// A device whose kernels are compared with the CPU's before they are first used.
pub(crate) fn checked_device(
    device: Arc<dyn Device>,
    reference: OpenReference,
    settings: GpuSettings,
) -> Watched<CheckFirst> {
    let (key, kept) = (name_of(&*device), settings.kept());
    let known = kept.as_ref().and_then(|kept| kept.read(&key));
    let verdicts = known.and_then(|bytes| parsed(&bytes)).unwrap_or_default().into();
    let mut made = Watched::new(device, CheckFirst { key, reference, settings, kept, verdicts });
    check_top_k(&mut made);
    made
}

/// Has whole rows copied where the device would pick their largest numbers, and that is wrong.
fn check_top_k(made: &mut Watched<CheckFirst>) {
    if made.caps.top_k == 0 {
        return;
    }
    let faults = made.watch.faults(Some(&*made.device), &[Some(Kernel::TopK)]);
    if let Some(why) = faults.into_iter().flatten().next() {
        made.caps.top_k = 0;
        let name = made.device.name();
        made.watch.settings.notes.add(format!("{name} copies whole rows of logits: {why}"));
    }
}

impl CheckFirst {
    /// For each kernel why it is not used. Unknown ones are compared first, if a device is given.
    /// What could not be compared stays unknown.
    fn faults(
        &self,
        device: Option<&dyn Device>,
        kernels: &[Option<Kernel>],
    ) -> Vec<Option<String>> {
        let (mut verdicts, mut uncompared) = (lock(&self.verdicts), BTreeMap::new());
        let all = kernels.iter().flatten().map(|kernel| (kernel.name(), *kernel));
        let mut unknown: BTreeMap<String, Kernel> = all.collect();
        unknown.retain(|name, _| !verdicts.contains_key(name));
        if let Some(device) = device.filter(|_| !unknown.is_empty()) {
            let check = (self.reference)().map(|reference| Check { device, reference });
            for (name, kernel) in unknown {
                self.tell(Some(&name));
                match check.as_ref().map_err(Clone::clone).and_then(|c| c.kernel(kernel)) {
                    Ok(checked) => drop(verdicts.insert(name, checked.fault)),
                    Err(e) => drop(uncompared.insert(name, e)),
                }
            }
            self.tell(None);
            self.kept.iter().for_each(|kept| keep(kept, &self.key, &verdicts));
        }
        let fault = |kernel: &Option<Kernel>| {
            let name = kernel.as_ref()?.name();
            if let Some(why) = uncompared.get(&name) {
                return Some(format!("its kernel {name} was not compared with the CPU's: {why}"));
            }
            let why = verdicts.get(&name)?.as_ref()?;
            Some(format!("its kernel {name} is wrong on this adapter and driver: {why}"))
        };
        kernels.iter().map(fault).collect()
    }

    fn tell(&self, kernel: Option<&str>) {
        self.settings.notes.observer.iter().for_each(|observer| observer.checked(kernel));
    }

    /// The refusal of a graph with a wrong kernel.
    fn refusal(&self, device: &dyn Device, graph: &Subgraph) -> Option<DeviceError> {
        let kernels: Vec<_> = graph.nodes.iter().map(|node| Kernel::of(graph, node)).collect();
        let wrong = self.faults(None, &kernels).into_iter().zip(&graph.nodes);
        let (why, op) = wrong.into_iter().find_map(|(why, node)| Some((why?, node.op.name())))?;
        let (device, graph) = (device.name().to_string(), graph.name.clone());
        Some(DeviceError::Unsupported { device, op: op.into(), graph, why })
    }
}

impl Watch for CheckFirst {
    fn examine(&self, device: &dyn Device, graph: &Subgraph) -> Vec<Option<String>> {
        let mut verdicts = device.examine(graph);
        let nodes = graph.nodes.iter().zip(&verdicts);
        let taken =
            |(node, why): (_, &Option<_>)| Kernel::of(graph, node).filter(|_| why.is_none());
        let kernels: Vec<Option<Kernel>> = nodes.map(taken).collect();
        for (verdict, fault) in verdicts.iter_mut().zip(self.faults(Some(device), &kernels)) {
            *verdict = verdict.take().or(fault);
        }
        verdicts
    }

    fn compile(&self, device: &dyn Device, request: &CompileRequest<'_>) -> CompileResults {
        let refusals: Vec<_> =
            request.graphs.iter().map(|graph| self.refusal(device, graph)).collect();
        let taken = request.graphs.iter().zip(&refusals).filter(|(_, why)| why.is_none());
        let graphs: Vec<&Subgraph> = taken.map(|(graph, _)| *graph).collect();
        let mut made = device.compile(&CompileRequest { graphs: &graphs, ..*request }).into_iter();
        let next = |why: Option<DeviceError>| match why {
            Some(why) => Err(why),
            None => made.next().unwrap_or(Err(DeviceError::Cancelled)),
        };
        refusals.into_iter().map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use troika_check::CaseWeights;
    use troika_device::Executable;
    use troika_graph::{ActivationFormat, DType};
    use troika_weights::CacheFolder;

    use super::*;
    use crate::Notes;
    use crate::devices::reference_cpu;

    /// The CPU, checked with a folder.
    fn checked(dir: &Path) -> (Watched<CheckFirst>, Notes) {
        let cache = Some(CacheFolder::new(dir));
        let settings = GpuSettings { check: true, cache, ..GpuSettings::default() };
        (checked_device(reference_cpu().unwrap(), reference_cpu, settings.clone()), settings.notes)
    }

    fn product() -> Subgraph {
        Kernel::Linear(DType::Q8_0, ActivationFormat::F32).cases().unwrap().remove(0).graph
    }

    fn kept(dir: &Path) -> Option<Verdicts> {
        let bytes =
            CacheFolder::new(dir).of_device(&name_of(&*reference_cpu().unwrap())).unwrap()?;
        parsed(&bytes)
    }

    #[test]
    fn what_is_right_is_compared_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (device, notes) = checked(dir.path());
        assert_eq!(device.examine(&product()), [None]);
        assert_eq!(kept(dir.path()).unwrap(), Verdicts::from([("linear of Q8_0".into(), None)]));
        assert!(notes.take().is_empty());
        // The next start knows it.
        let (again, _) = checked(dir.path());
        assert_eq!(again.watch.verdicts.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_kept_refusal_is_one_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = Verdicts::from([("linear of Q8_0".into(), Some("2e-1 off".into()))]);
        let text = serde_json::to_vec(&wrong).unwrap();
        let folder = CacheFolder::new(dir.path());
        folder.keep_of_device(&name_of(&*reference_cpu().unwrap()), &text).unwrap();
        let (device, notes) = checked(dir.path());
        let why = device.examine(&product()).remove(0).unwrap();
        assert!(why.contains("linear of Q8_0") && why.contains("2e-1 off"), "{why}");
        let compiled = Executable::compiled(&device, &product(), &CaseWeights::default());
        assert!(matches!(compiled, Err(DeviceError::Unsupported { .. })));
        // Others are taken.
        let embed = Kernel::Embed(DType::F16).cases().unwrap().remove(0).graph;
        assert_eq!(device.examine(&embed), [None]);
        assert!(Executable::compiled(&device, &embed, &CaseWeights::default()).is_ok());
        assert!(notes.take().is_empty());
        // Comparing all again rewrites it.
        let fine = CheckedKernel { name: "linear of Q8_0".into(), error: Some(0.0), fault: None };
        keep_checked(&device.watch.settings, &*device.device, &[fine]);
        assert_eq!(checked(dir.path()).0.examine(&product()), [None]);
    }

    #[test]
    fn what_could_not_be_compared_is_refused_and_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (mut device, _) = checked(dir.path());
        Arc::get_mut(&mut device.watch).unwrap().reference =
            || Err(DeviceError::Gone("cpu".into()));
        let why = device.examine(&product()).remove(0).unwrap();
        assert!(why.contains("linear of Q8_0 was not compared"), "{why}");
        assert_eq!(kept(dir.path()), Some(Verdicts::new()));
        // Once there is something to compare with, it is.
        Arc::get_mut(&mut device.watch).unwrap().reference = reference_cpu;
        assert_eq!(device.examine(&product()), [None]);
        assert_eq!(kept(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn rows_are_copied_whole_and_a_note_says_why_where_their_largest_are_picked_wrongly() {
        let dir = tempfile::tempdir().unwrap();
        let (mut device, notes) = checked(dir.path());
        for (verdict, top_k) in [(None, 64), (Some("1e0 off"), 0)] {
            let kept = ("top_k".into(), verdict.map(String::from));
            *lock(&device.watch.verdicts) = Verdicts::from([kept]);
            device.caps.top_k = 64;
            check_top_k(&mut device);
            assert_eq!(device.caps().top_k, top_k);
            let said = notes.take().concat();
            assert_eq!(said.is_empty(), verdict.is_none(), "{said}");
            assert!(said.contains(verdict.unwrap_or_default()), "{said}");
        }
        // What this device does not pick cannot be compared.
        lock(&device.watch.verdicts).clear();
        device.caps.top_k = 64;
        check_top_k(&mut device);
        assert_eq!(device.caps().top_k, 0);
        let [note] = notes.take().try_into().unwrap();
        assert!(note.contains("copies whole rows") && note.contains("top_k was not compared"));
    }

    #[test]
    fn a_damaged_file_is_a_note_and_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        checked(dir.path()).0.examine(&product());
        let files = CacheFolder::new(dir.path()).files().unwrap();
        std::fs::write(&files[0].path, "damage").unwrap();
        let (device, notes) = checked(dir.path());
        assert_eq!(device.examine(&product()), [None]);
        let [note] = notes.take().try_into().unwrap();
        assert!(note.contains("made anew"), "{note}");
        assert!(kept(dir.path()).is_some());
    }

    #[test]
    fn a_folder_that_takes_nothing_is_a_note() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let (device, notes) = checked(&file);
        assert_eq!(device.examine(&product()), [None]);
        let [note] = notes.take().try_into().unwrap();
        assert!(note.contains("nothing is kept") && !note.contains('\n'), "{note}");
    }
}
