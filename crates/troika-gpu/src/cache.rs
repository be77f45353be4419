//! Where compiled kernels are kept for the next start.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::error::locked;

/// Keeps what drivers compiled.
pub trait PipelineStore: fmt::Debug + Send + Sync {
    /// What is kept under a name, if it is there and whole.
    fn get(&self, name: &str) -> Option<Vec<u8>>;

    /// Keeps bytes under a name. Failing costs the next start some time.
    fn put(&self, name: &str, bytes: &[u8]);
}

/// The driver's cache of compiled kernels, and where it is kept.
pub(crate) struct DriverCache {
    pub inner: wgpu::PipelineCache,
    name: String,
    store: Arc<dyn PipelineStore>,
    /// What is in the store.
    kept: Mutex<Option<Vec<u8>>>,
}

impl DriverCache {
    /// The driver's cache with what the store has for it.
    #[expect(unsafe_code, reason = "the driver reads bytes that it wrote before")]
    pub fn open(
        device: &wgpu::Device,
        name: Option<String>,
        store: Option<Arc<dyn PipelineStore>>,
    ) -> Option<DriverCache> {
        let (name, store) = name.zip(store)?;
        let kept = store.get(&name);
        let (label, data) = (Some("kernels"), kept.as_deref());
        let description = wgpu::PipelineCacheDescriptor { label, data, fallback: true };
        // SAFETY: the bytes are those that this function's cache gave out for the same adapter,
        // driver and version: the store returns only what it took under this name, and checks it by
        // a hash. What the driver finds unfit it leaves.
        let inner = unsafe { device.create_pipeline_cache(&description) };
        Some(DriverCache { inner, name, store, kept: Mutex::new(kept) })
    }

    /// Keeps what the driver compiled since it was kept last.
    pub fn keep(&self) {
        let Some(bytes) = self.inner.get_data() else { return };
        let mut kept = locked(&self.kept);
        if kept.as_ref() != Some(&bytes) {
            self.store.put(&self.name, &bytes);
            *kept = Some(bytes);
        }
    }
}
