//! Compares the weights in compiled graphs with the memory that is free, before anything is compiled.

use troika_device::SpaceId;
use troika_plan::own_space;

use crate::budget::HostMemory;
use crate::error::Error;
use crate::options::OpenOptions;
use crate::planning::Planned;

impl Planned {
    /// Compares what devices hold in compiled graphs with what is free.
    ///
    /// # Errors
    /// More than is free.
    pub(crate) fn fit_code(&self, options: &OpenOptions) -> Result<(), Error> {
        let compiles = |name: &str| {
            let device = self.model.devices.iter().find(|d| d.name() == name)?;
            let caps = device.caps();
            let counts = own_space(caps) == SpaceId::HOST && device.clock().is_none();
            caps.code_weights.filter(|_| counts)
        };
        let mut used = self.plan.devices.iter().filter_map(|name| compiles(name));
        let Some(host) = used.next().and_then(|_| HostMemory::now(options.memory)) else {
            return Ok(());
        };
        let held = self.held()?;
        let needed: u64 = held.iter().map(|h| h.held).sum();
        let most = held.iter().filter(|h| compiles(&h.device).is_some()).max_by_key(|h| h.held);
        match most {
            Some(most) if needed > host.weights() => Err(Error::CodeTooLarge {
                device: most.device.clone(),
                held: most.held,
                needed,
                free: host.free,
                fewer: most.rows.len() > 1,
            }),
            _ => Ok(()),
        }
    }
}
