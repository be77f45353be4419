//! Reading parts of a file while others compute: through io_uring where the kernel has it, or on
//! threads. Direct, past the system's cache, where the file system can.

use std::fs::File;
use std::io::Result;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use troika_device::lock;

use super::io::{Done, Target};
#[cfg(target_os = "linux")]
use super::ring::Ring;
use crate::format::file_map::read_at;

/// Threads that read, where there is no io_uring: as many as keep a disk busy.
const THREADS: usize = 4;

pub(super) struct Reader {
    how: How,
    /// Reads that were begun and are not done.
    pub pending: usize,
}

enum How {
    #[cfg(target_os = "linux")]
    Ring(Box<Ring>),
    Threads(Threads),
}

impl Reader {
    /// Opens a file; `ring` allows io_uring.
    ///
    /// # Errors
    /// It cannot be opened, or no thread can be started.
    pub fn open(path: &Path, ring: bool) -> Result<Reader> {
        let file = open_direct(path)?;
        #[cfg(target_os = "linux")]
        let file = match ring.then(|| Ring::new(file)) {
            Some(Ok(ring)) => return Ok(Reader { how: How::Ring(Box::new(ring)), pending: 0 }),
            Some(Err(file)) => file,
            None => open_direct(path)?,
        };
        #[cfg(not(target_os = "linux"))]
        let _ = ring;
        Ok(Reader { how: How::Threads(Threads::new(file)?), pending: 0 })
    }

    /// How it reads, for people.
    pub fn name(&self) -> &'static str {
        match self.how {
            #[cfg(target_os = "linux")]
            How::Ring(_) => "io_uring",
            How::Threads(_) => "threads",
        }
    }

    /// Begins a read. It may wait for [`Reader::submit`].
    ///
    /// # Safety
    /// The target's memory is not used otherwise, or freed, until the read is done.
    ///
    /// # Errors
    /// It cannot begin; then the memory is free again.
    pub unsafe fn read(&mut self, number: u64, offset: u64, to: Target) -> Result<()> {
        match &mut self.how {
            #[cfg(target_os = "linux")]
            // SAFETY: by the caller.
            How::Ring(ring) => unsafe { ring.read(number, offset, to) }?,
            How::Threads(threads) => threads.read(ReadJob { number, offset, to })?,
        }
        self.pending += 1;
        Ok(())
    }

    /// Sees to it that all reads have begun.
    pub fn submit(&mut self) -> Result<()> {
        match &mut self.how {
            #[cfg(target_os = "linux")]
            How::Ring(ring) => ring.submit(),
            How::Threads(_) => Ok(()),
        }
    }

    /// Adds what is done. If there is nothing and some reads are pending, waits for one.
    pub fn done(&mut self, wait: bool, into: &mut Vec<Done>) -> Result<()> {
        let (before, wait) = (into.len(), wait && self.pending > 0);
        let told = match &mut self.how {
            #[cfg(target_os = "linux")]
            How::Ring(ring) => ring.done(wait, into),
            How::Threads(threads) => threads.done(wait, into),
        };
        self.pending -= into.len() - before;
        told
    }
}

/// Opens a file for direct reads, or for any if the file system has none.
fn open_direct(path: &Path) -> Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        if direct.is_ok() {
            return direct;
        }
    }
    let file = File::open(path)?;
    #[cfg(target_os = "macos")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open. A refusal changes nothing.
        let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
    }
    Ok(file)
}

struct ReadJob {
    number: u64,
    offset: u64,
    to: Target,
}

struct Threads {
    jobs: Option<Sender<ReadJob>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn new(file: File) -> Result<Threads> {
        let (jobs, taken) = channel::<ReadJob>();
        let (tell, done) = channel();
        let (taken, file) = (Arc::new(Mutex::new(taken)), Arc::new(file));
        let mut threads = Vec::new();
        for i in 0..THREADS {
            let (taken, tell, file) = (taken.clone(), tell.clone(), file.clone());
            let work = move || {
                loop {
                    let job = lock(&taken).recv();
                    let Ok(ReadJob { number, offset, to }) = job else { return };
                    // SAFETY: the memory is this read's own until it is done.
                    let room = unsafe { std::slice::from_raw_parts_mut(to.start, to.bytes) };
                    let result = read_at(&file, offset, room);
                    if tell.send(Done { number, result }).is_err() {
                        return;
                    }
                }
            };
            threads.push(std::thread::Builder::new().name(format!("troika-read-{i}")).spawn(work)?);
        }
        Ok(Threads { jobs: Some(jobs), done, threads })
    }

    fn read(&mut self, job: ReadJob) -> Result<()> {
        let jobs = self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok());
        jobs.ok_or_else(|| std::io::Error::other("the threads that read have ended"))
    }

    fn done(&mut self, wait: bool, into: &mut Vec<Done>) -> Result<()> {
        into.extend(self.done.try_iter());
        if wait && into.is_empty() {
            into.push(self.done.recv().map_err(std::io::Error::other)?);
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // It ends by itself; a panic was its own.
            let _ = thread.join();
        }
    }
}

/// Bytes a second that a file is read with, by a few reads past the system's cache; `None` where
/// there are none, or the file is too short.
#[cfg(unix)]
pub fn read_rate(path: &Path) -> Option<f64> {
    use std::os::unix::fs::FileExt;
    const PIECE: usize = 4 << 20;
    const PIECES: u64 = 8;
    let file = open_direct(path).ok()?;
    let step = file.metadata().ok()?.len() / PIECES / PIECE as u64 * PIECE as u64;
    let mut room = troika_device::ZeroedBytes::in_pages(PIECE).ok().filter(|_| step > 0)?;
    let began = std::time::Instant::now();
    (0..PIECES).try_for_each(|i| file.read_exact_at(&mut room, i * step)).ok()?;
    Some(PIECES as f64 * PIECE as f64 / began.elapsed().as_secs_f64())
}

/// Reads past the system's cache are not timed here.
#[cfg(not(unix))]
pub fn read_rate(_: &Path) -> Option<f64> {
    None
}
