//! Functions that run on a queue like other tasks: small host computations.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::error::DeviceError;
use crate::lock::lock;
use crate::memory::{ReadRows, View, WriteRows};

/// The result of a [`HostTask`], for code that decides what runs next.
pub type HostData = Box<dyn Any + Send>;

/// A host function on views that it reads, and views that it reads or writes.
type HostFn =
    dyn Fn(&[ReadRows<'_>], &mut [WriteRows<'_>]) -> Result<Option<HostData>, String> + Send + Sync;

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

    /// The same, with views whose used parts are known only at run time. The task, or what becomes
    /// known by it, claims these parts itself. Several tasks may use the same views at once, each
    /// in parts of its own.
    pub fn with_parts(self, parts: Vec<View>) -> HostTask {
        HostTask { parts, ..self }
    }

    /// The same, where it reads and writes `bytes` bytes instead of all bytes of its views.
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

    /// The views whose used parts are known only at run time.
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
    /// [`DeviceError::Busy`] for views in use or in a device's memory; the function's error or panic.
    pub fn run(&self, device: &str) -> Result<(), DeviceError> {
        *lock(&self.result) = None;
        let reads: SmallVec<[_; 4]> =
            self.reads.iter().map(View::read).collect::<Result<_, _>>()?;
        let mut writes: SmallVec<[_; 4]> =
            self.writes.iter().map(View::write).collect::<Result<_, _>>()?;
        let function = AssertUnwindSafe(|| (self.function)(&reads, &mut writes));
        let found = catch_unwind(function).map_err(|payload| {
            let why = format!("task {} panicked: {}", self.name, panic_message(&*payload));
            DeviceError::System { device: device.into(), why }
        })?;
        let task = || self.name.to_string();
        let data = found.map_err(|why| DeviceError::Submission { task: task(), why })?;
        *lock(&self.result) = data;
        Ok(())
    }

    /// Takes the result of the last run, if there is one.
    pub fn take_result(&self) -> Option<HostData> {
        lock(&self.result).take()
    }
}

impl std::fmt::Debug for HostTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTask({})", self.name)
    }
}

/// The message of a panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::HostTask;
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
        let task = HostTask::new("w", (vec![], vec![half]), |_, _| Ok(None)).unwrap();
        let reader = all.read().unwrap();
        let result = task.run("cpu");
        assert!(matches!(result, Err(DeviceError::Busy(AccessError::Busy))), "{result:?}");
        drop(reader);
        task.run("cpu").unwrap();
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
}
