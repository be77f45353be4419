//! Functions that run on a queue like other tasks: small host computations, and loads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use crate::error::DeviceError;
use crate::executable::WeightsId;
use crate::memory::{AccessError, ReadRows, View, WriteRows};

/// The result of a [`HostTask`], for code that decides what runs next.
pub type HostData = Box<dyn Any + Send>;

/// What a [`LoadTask`] made or read.
pub type LoadedData = Arc<dyn Any + Send + Sync>;

/// A host function on views that it reads, and views that it reads or writes.
type HostFn =
    dyn Fn(&[ReadRows<'_>], &mut [WriteRows<'_>]) -> Result<Option<HostData>, String> + Send + Sync;

/// A load function, which writes the views.
type LoadFn = dyn Fn(&mut [WriteRows<'_>]) -> Result<LoadedData, String> + Send + Sync;

/// A small function, such as routing or gathering, on host memory.
pub struct HostTask {
    name: Arc<str>,
    reads: Vec<View>,
    writes: Vec<View>,
    parts: Vec<View>,
    moved: Option<u64>,
    function: Box<HostFn>,
    result: Mutex<Option<HostData>>,
}

impl HostTask {
    /// A function that gets `reads` and `writes` in this order; it may also read the latter. Its
    /// error is a reason. It must not block.
    ///
    /// # Errors
    /// Written views overlap each other or the read ones.
    pub fn new(
        name: &str,
        (reads, writes): (Vec<View>, Vec<View>),
        function: impl Fn(&[ReadRows<'_>], &mut [WriteRows<'_>]) -> Result<Option<HostData>, String>
        + Send
        + Sync
        + 'static,
    ) -> Result<HostTask, DeviceError> {
        for (i, w) in writes.iter().enumerate() {
            if reads.iter().chain(&writes[..i]).any(|other| other.overlaps(w)) {
                let why = "it is given a part of a buffer twice, once to write; name that once, \
                           among what is written";
                return Err(DeviceError::Submission { task: name.into(), why: why.into() });
            }
        }
        let (function, result) = (Box::new(function), Mutex::default());
        let (name, parts, moved) = (name.into(), Vec::new(), None);
        Ok(HostTask { name, reads, writes, parts, moved, function, result })
    }

    /// The same, with views of which it, or what becomes known by it, uses parts that only run time
    /// knows. Several tasks may do so at once, each with parts of its own, which it claims itself.
    pub fn with_parts(self, parts: Vec<View>) -> HostTask {
        HostTask { parts, ..self }
    }

    /// The same, where it reads and writes so many bytes, in place of all that its views have.
    pub fn moving(self, bytes: u64) -> HostTask {
        HostTask { moved: Some(bytes), ..self }
    }

    /// Its name, for errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The views that it reads.
    pub fn reads(&self) -> &[View] {
        &self.reads
    }

    /// The views that it writes.
    pub fn writes(&self) -> &[View] {
        &self.writes
    }

    /// The views of which it uses parts.
    pub fn parts(&self) -> &[View] {
        &self.parts
    }

    /// Bytes that it reads and writes.
    pub fn bytes(&self) -> u64 {
        let of = |view: &View| {
            let rect = view.rect();
            (rect.rows() as u64).saturating_mul(rect.row_bytes() as u64)
        };
        let all = || self.reads.iter().chain(&self.writes).map(of);
        self.moved.unwrap_or_else(|| all().fold(0, u64::saturating_add))
    }

    /// Claims the views that it reads and writes, and runs the function on the calling thread. For
    /// the queue that has reached this task.
    ///
    /// # Errors
    /// [`AccessError`] for views in use or in a device's memory; the function's error or panic.
    pub fn run(&self, device: &str) -> Result<(), DeviceError> {
        *self.locked() = None;
        let reads = self.reads.iter().map(View::read);
        let reads = reads.collect::<Result<SmallVec<[ReadRows<'_>; 4]>, AccessError>>()?;
        let mut writes = claim(&self.writes)?;
        let data = guarded(device, &self.name, || (self.function)(&reads, &mut writes))?;
        *self.locked() = data;
        Ok(())
    }

    /// Takes the result of the last run, if there is one.
    pub fn take_result(&self) -> Option<HostData> {
        self.locked().take()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Option<HostData>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something to make or read before it is used: weights, an executable. It takes time like any
/// task, is done once, and conflicts with nothing; only later tasks depend on it.
pub struct LoadTask {
    name: Arc<str>,
    bytes: u64,
    writes: Vec<View>,
    weights: Vec<WeightsId>,
    function: Box<LoadFn>,
    loaded: OnceLock<LoadedData>,
}

impl LoadTask {
    /// A function that makes or reads `bytes` bytes, as far as known. Its error is a reason.
    pub fn new(
        name: &str,
        bytes: u64,
        function: impl Fn(&mut [WriteRows<'_>]) -> Result<LoadedData, String> + Send + Sync + 'static,
    ) -> LoadTask {
        LoadTask {
            name: name.into(),
            bytes,
            writes: Vec::new(),
            weights: Vec::new(),
            function: Box::new(function),
            loaded: OnceLock::new(),
        }
    }

    /// The same, with views to write.
    pub fn writing(self, writes: Vec<View>) -> LoadTask {
        LoadTask { writes, ..self }
    }

    /// The same, needed by later runs of these weights.
    pub fn needed_by(self, weights: Vec<WeightsId>) -> LoadTask {
        LoadTask { weights, ..self }
    }

    /// Its name, for errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it makes or reads.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The views that it writes.
    pub fn writes(&self) -> &[View] {
        &self.writes
    }

    /// The weights whose later runs need it.
    pub fn weights(&self) -> &[WeightsId] {
        &self.weights
    }

    /// The loaded data, if it is done.
    pub fn loaded(&self) -> Option<&LoadedData> {
        self.loaded.get()
    }

    /// Claims the views and loads on the calling thread, unless it is done already. For the queue
    /// that has reached this task.
    ///
    /// # Errors
    /// Those of [`HostTask::run`].
    pub fn run(&self, device: &str) -> Result<(), DeviceError> {
        if self.loaded.get().is_some() {
            return Ok(());
        }
        let mut writes = claim(&self.writes)?;
        let data = guarded(device, &self.name, || (self.function)(&mut writes))?;
        // Two queues may load it at once only if it writes no views, since writers wait for each
        // other. Either result will do.
        let _ = self.loaded.set(data);
        Ok(())
    }
}

impl std::fmt::Debug for HostTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTask({})", self.name)
    }
}

impl std::fmt::Debug for LoadTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadTask({})", self.name)
    }
}

fn claim(views: &[View]) -> Result<SmallVec<[WriteRows<'_>; 4]>, AccessError> {
    views.iter().map(View::write).collect()
}

/// Runs a function; its errors and panics become errors of the task.
fn guarded<T>(
    device: &str,
    task: &str,
    function: impl FnOnce() -> Result<T, String>,
) -> Result<T, DeviceError> {
    let found = catch_unwind(AssertUnwindSafe(function)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let why = format!("task {task} panicked: {}", text.unwrap_or_else(|| "?".into()));
        DeviceError::System { device: device.into(), why }
    })?;
    found.map_err(|why| DeviceError::Submission { task: task.into(), why })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{HostTask, LoadTask};
    use crate::error::DeviceError;
    use crate::memory::{AccessError, Buffer, SpaceId, View};

    fn rows() -> View {
        View::dense(&Buffer::zeroed(16).unwrap(), 0, (4, 4)).unwrap()
    }

    #[test]
    fn a_function_gets_its_views_and_returns_what_it_found() {
        let all = rows();
        all.write().unwrap().as_mut_slice::<u8>().unwrap().fill(3);
        let (read, written) = (all.rows(0..1).unwrap(), all.rows(2..4).unwrap());
        let task = HostTask::new("sum", (vec![read], vec![written]), |reads, writes| {
            let sum: u8 = reads[0].row::<u8>(0).unwrap().iter().sum();
            writes[0].row_mut::<u8>(1).unwrap()[0] = sum;
            Ok(Some(Box::new(sum)))
        });
        let task = task.unwrap();
        assert!(task.take_result().is_none());
        task.run("cpu").unwrap();
        assert_eq!(task.take_result().unwrap().downcast_ref::<u8>(), Some(&12));
        assert!(task.take_result().is_none());
        assert_eq!(all.read().unwrap().row::<u8>(3).unwrap(), [12, 3, 3, 3]);
    }

    #[test]
    fn conflicting_claims_are_errors() {
        let all = rows();
        let half = all.rows(0..2).unwrap();
        for (reads, writes) in
            [(vec![half.clone()], vec![all.clone()]), (vec![], vec![half.clone(), all.clone()])]
        {
            let error = HostTask::new("both", (reads, writes), |_, _| Ok(None)).unwrap_err();
            assert!(error.to_string().starts_with("task both: "), "{error}");
        }
        let task = HostTask::new("w", (vec![], vec![half.clone()]), |_, _| Ok(None)).unwrap();
        let load = LoadTask::new("l", 0, |_| Ok(Arc::new(()))).writing(vec![half]);
        let reader = all.read().unwrap();
        for result in [task.run("cpu"), load.run("cpu")] {
            assert!(matches!(result, Err(DeviceError::Busy(AccessError::Busy))), "{result:?}");
        }
        drop(reader);
        task.run("cpu").unwrap();
        load.run("cpu").unwrap();
        let theirs = Buffer::in_space(SpaceId::unique(), 8, 0).unwrap();
        let task = HostTask::new("r", (vec![View::whole(&theirs)], vec![]), |_, _| Ok(None));
        let result = task.unwrap().run("cpu");
        assert!(matches!(result, Err(DeviceError::Busy(AccessError::Foreign))), "{result:?}");
    }

    #[test]
    fn failures_and_panics_name_the_task_and_give_back_its_claims() {
        let all = rows();
        let mood = Arc::new(AtomicU32::new(0));
        let theirs = mood.clone();
        let task = HostTask::new("router", (vec![], vec![all.clone()]), move |_, _| {
            match theirs.load(Ordering::Relaxed) {
                0 => Ok(Some(Box::new(()))),
                1 => Err("no experts".into()),
                _ => std::panic::panic_any("out of range".to_string()),
            }
        });
        let task = task.unwrap();
        let told = ["task router: no experts", "device cpu: task router panicked: out of range"];
        for (i, told) in told.into_iter().enumerate() {
            mood.store(0, Ordering::Relaxed);
            task.run("cpu").unwrap();
            mood.store(i as u32 + 1, Ordering::Relaxed);
            assert_eq!(task.run("cpu").unwrap_err().to_string(), told);
            assert!(task.take_result().is_none(), "a former run's");
            drop(all.write().unwrap());
        }
    }

    #[test]
    fn a_load_is_done_once() {
        let runs = Arc::new(AtomicU32::new(0));
        let theirs = runs.clone();
        let load = LoadTask::new("expert 3", 16, move |writes| {
            if theirs.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err("the disk is away".into());
            }
            writes[0].as_mut_slice::<u8>().unwrap().fill(7);
            Ok(Arc::new(5_u64))
        });
        let all = rows();
        let load = load.writing(vec![all.clone()]);
        assert_eq!(load.run("cpu").unwrap_err().to_string(), "task expert 3: the disk is away");
        assert!(load.loaded().is_none());
        load.run("cpu").unwrap();
        load.run("cpu").unwrap();
        assert_eq!(load.loaded().unwrap().downcast_ref::<u64>(), Some(&5));
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        assert_eq!(all.read().unwrap().as_slice::<u8>().unwrap(), [7; 16]);
    }
}
