//! Fits a plan to the memory that is free: its context and KV cache, and weights that are too large.

use std::path::Path;

use troika_device::{Device, SpaceId, size, size_needed};
use troika_engine::KvLayout;
use troika_plan::own_space;
use troika_weights::{Quant, read_rate};

use crate::budget::HostMemory;
use crate::devices::virtual_clock;
use crate::error::Error;
use crate::options::OpenOptions;
use crate::planning::Planned;

/// Tokens of a sequence for which the cache has room, however little is free.
const LEAST_TOKENS: usize = 512;

impl Planned {
    /// Shares out what is free: sets how much the KV cache may take, and plans for a shorter context
    /// where the options leave it open and the model's does not fit.
    pub(crate) fn share_memory(mut self, options: &OpenOptions) -> Result<Planned, Error> {
        self.kv_bytes = options.sharing.kv_bytes;
        let Some(host) = self.host_memory(options) else { return Ok(self) };
        let (weights, context) = (self.model.store.bytes(), self.plan.context);
        let lowered = self.model.lowered(&self.plan)?;
        let needs = KvLayout::new(&lowered, &self.plan, options.sharing.sequences, None);
        let room = host.cache(weights).max(needs.needed_bytes(context.min(LEAST_TOKENS)));
        let is_given = options.context.is_some() || options.plan.given().is_some();
        let (what, asked) = match self.kv_bytes {
            Some(asked) => ("the KV cache may take".into(), asked.min(needs.all_bytes())),
            None => {
                let what = format!("the KV cache of a context of {context} tokens takes");
                (what, needs.needed_bytes(context))
            }
        };
        if is_given || self.kv_bytes.is_some() {
            self.changes.extend(too_much(&what, asked, host, weights));
        } else if needs.longest(room) < context {
            let fits = needs.longest(room);
            self = self.model.planned(&OpenOptions { context: Some(fits), ..options.clone() })?;
            self.changes.push(format!(
                "the context is {fits} of the model's {context} tokens, since the KV cache gets {} of \
                 the memory that is free (another one: -c N; fewer bytes a token: --cache-type)",
                size(room)
            ));
        }
        let room = if is_given { room.max(asked) } else { room }.min(needs.all_bytes());
        self.kv_bytes = self.kv_bytes.or(Some(room));
        Ok(self)
    }

    /// Compares the weights with what is free, before they are packed. A GGUF file that does not fit
    /// is left in its mapped file.
    ///
    /// # Errors
    /// Weights that do not fit and cannot be left there.
    pub(crate) fn fit_weights(&mut self, options: &OpenOptions) -> Result<(), Error> {
        let host = self.host_memory(options);
        host.map_or(Ok(()), |host| self.fit_code(host))?;
        let all = self.model.store.bytes();
        // Experts have a budget of their own.
        if self.model.store.expert_bytes() > 0 || self.model.store.file().is_none() {
            return Ok(());
        }
        let Some(host) = host.filter(|host| all > host.weights()) else {
            return Ok(());
        };
        let held = self.held()?;
        // The embedding of a tied head is held once: its rows are looked up in the file.
        let on_host = held.iter().zip(&self.model.devices).filter(|(_, device)| {
            own_space(device.caps()) == SpaceId::HOST && device.caps().computes()
        });
        let needed = on_host.map(|(held, _)| held.held).sum::<u64>().min(all);
        if needed <= host.weights() {
            return Ok(());
        }
        let store = &mut self.model.store;
        let file = store.file().map(Path::to_path_buf).unwrap_or_default();
        // Norms and the like are not compared with what is free.
        if is_gguf(&file) && store.leave_in_file() <= host.weights().max(all / 64) {
            self.changes.push(in_file(needed, host.free, read_rate(&file)));
            return Ok(());
        }
        let fits = |quant: &Quant| {
            *quant != options.quant && store.bytes_with(&self.model.spec, *quant) <= host.weights()
        };
        let advice = match [Quant::Q8, Quant::Q4].into_iter().find(fits) {
            Some(quant) => format!("--quant {} makes them fit", quant.name()),
            None => "take a GGUF file, which may be larger than memory".into(),
        };
        Err(Error::TooLarge { needed, free: host.free, advice })
    }

    /// Compares the weights with what is free where some are held in compiled graphs, before
    /// anything is compiled.
    fn fit_code(&self, host: HostMemory) -> Result<(), Error> {
        let of_code = |d: &dyn Device| {
            d.caps().code_weights.is_some() && own_space(d.caps()) == SpaceId::HOST
        };
        if !self.model.devices.iter().any(|d| of_code(&**d)) {
            return Ok(());
        }
        let held = self.held()?;
        // Experts have a budget of their own, and a GGUF file may stay where it is.
        let store = &self.model.store;
        let others = store.expert_bytes() == 0 && !store.file().is_some_and(is_gguf);
        let counts =
            |d: &dyn Device| of_code(d) || (others && own_space(d.caps()) == SpaceId::HOST);
        let counted = held.iter().zip(&self.model.devices).filter(|(_, d)| counts(&***d));
        let needed = counted.map(|(held, _)| held.held).sum();
        let in_code = held.iter().zip(&self.model.devices).filter(|(_, d)| of_code(&***d));
        let most = in_code.map(|(held, _)| held).max_by_key(|held| held.held);
        let Some(most) = most.filter(|most| most.held > 0 && needed > host.weights()) else {
            return Ok(());
        };
        let (name, held) = (&most.device, size_needed(most.held));
        let fewer =
            if most.rows.len() > 1 { "fewer --row-buckets hold fewer copies, and " } else { "" };
        let advice = format!(
            "{held} are in graphs for device {name}: {fewer}--device-memory {name}=MIB lets another \
             device have the rest"
        );
        Err(Error::TooLarge { needed, free: host.free, advice })
    }

    /// What is free where the plan uses the host's memory. Devices whose time is modelled take
    /// none that counts.
    fn host_memory(&self, options: &OpenOptions) -> Option<HostMemory> {
        let used =
            self.model.devices.iter().filter(|d| self.plan.devices.iter().any(|n| n == d.name()));
        let on_host = used.clone().any(|d| own_space(d.caps()) == SpaceId::HOST);
        if !on_host || virtual_clock(used).is_some() {
            return None;
        }
        HostMemory::now(options.memory)
    }
}

/// Whether weights may stay in a file: they do not in those of other formats.
fn is_gguf(file: &Path) -> bool {
    file.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// The sentence for weights that are left in their file, which is read with `rate` bytes a second.
fn in_file(needed: u64, free: u64, rate: Option<f64>) -> String {
    let speed = rate.map_or(String::new(), |rate| {
        let (seconds, gb) = (needed as f64 / rate, rate / 1e9);
        format!(", at {gb:.1} GB/s up to {seconds:.1} s a token")
    });
    format!(
        "the weights take {}, and {} of memory are free: they are read from the file whenever they \
         are used{speed}; a file of fewer bits that fits is faster",
        size_needed(needed),
        size(free)
    )
}

/// The sentence for a cache that is larger than what the weights leave.
fn too_much(what: &str, asked: u64, host: HostMemory, weights: u64) -> Option<String> {
    let left = host.free.saturating_sub(weights);
    let (asks, leaves) = (size_needed(asked), size(left));
    let says = format!("{what} {asks}, and the weights leave {leaves} of memory free");
    (asked > left).then_some(says)
}
