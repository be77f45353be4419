//! What this machine can do with a model of the Hub, said before its weights are fetched.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use troika::model::families::from_config;
use troika::model::files::parse_json;
use troika::model::spec::ModelSpec;
use troika::{DeviceOptions, HostMemory, MemoryLimits, OpenOptions, outline};
use troika_hub::{Glimpse, Offer, Verdict};

use crate::gpu;
use crate::output::bytes;

/// The host's memory.
pub fn host() -> Option<HostMemory> {
    HostMemory::now(MemoryLimits::default())
}

/// Whether an offer fits, in words for a table; empty if that is not known.
pub fn of_offer(offer: &Offer, host: Option<HostMemory>) -> &'static str {
    let fit = offer.bytes.zip(host).map(|(size, host)| size <= host.weights());
    fit.map_or("", |fit| if fit { "fits" } else { "larger than what is free" })
}

/// The best offer that fits: the largest of those that are quantized, whose answers are the best
/// while each token reads few bytes; else the smallest of the others.
pub fn best(offers: &[Offer], host: Option<HostMemory>) -> Option<&Offer> {
    let fits = |size: u64| host.is_none_or(|host| size <= host.weights());
    let sized = offers.iter().filter_map(|offer| Some((offer.bytes?, offer)));
    let fitting = sized.filter(|(size, _)| fits(*size));
    let is_float = |offer: &Offer| {
        let name = offer.quantization.as_deref();
        name.is_none_or(|name| name.contains("F16") || name.contains("F32"))
    };
    let quantized =
        fitting.clone().filter(|(_, offer)| !is_float(offer)).max_by_key(|(size, _)| *size);
    Some(quantized.or_else(|| fitting.min_by_key(|(size, _)| *size))?.1)
}

/// Looks at what is there of a model before its weights are.
pub fn look(seen: &Glimpse<'_>) -> Verdict {
    let what = match seen.gguf {
        Some(len) => in_header(seen.place, len).map_err(|e| e.to_string())?,
        None => in_config(seen.place)
            .map_err(|e| format!("its config.json cannot be used: {e}"))
            .map(Some)?,
    };
    Ok(what.map(|(spec, types)| {
        let place = seen.bytes.map_or(String::new(), |size| {
            let auto = Some(gpu::auto(None));
            let devices = DeviceOptions { auto, ..DeviceOptions::default() };
            let place = OpenOptions { devices, ..OpenOptions::default() }.outlook(&spec, size);
            format!(", {}{}; it runs {place}", bytes(size), fit(size))
        });
        format!("{}: {} in {types}{place}", seen.model, spec.family)
    }))
}

/// Family and types of a model in safetensors.
fn in_config(folder: &Path) -> Result<(ModelSpec, String), Box<dyn Error>> {
    let config = parse_json(&std::fs::read(folder.join("config.json"))?)?;
    let spec = from_config(&config)?.spec;
    let quantized = config.pointer("/quantization_config/quant_method");
    let types = quantized.or(config.get("torch_dtype")).or(config.get("dtype"));
    let types = types.and_then(|text| text.as_str()).unwrap_or("the types of its files");
    Ok((spec, types.to_string()))
}

/// Family and types of a GGUF file, by its first bytes; `None` if its header is longer.
fn in_header(start: &Path, len: u64) -> Result<Option<(ModelSpec, String)>, Box<dyn Error>> {
    let mut bytes = Vec::new();
    // Behind them may lie a part of the weights.
    File::open(start)?.take(128 << 20).read_to_end(&mut bytes)?;
    Ok(outline("its GGUF file", &bytes, len)?)
}

/// Whether weights fit into free memory, in words.
fn fit(size: u64) -> String {
    let Some(host) = host() else { return String::new() };
    let free = bytes(host.free);
    match size <= host.weights() {
        true => format!(", fits into the {free} of free memory"),
        false => format!(", more than the {free} of free memory"),
    }
}

#[cfg(test)]
mod tests {
    use troika::HostMemory;
    use troika_hub::Offer;

    use super::{best, of_offer};

    const GIB: u64 = 1 << 30;

    fn host(gib: u64) -> Option<HostMemory> {
        Some(HostMemory { free: gib * GIB })
    }

    fn offer(name: &str, gib: u64) -> Offer {
        let quantization = Some(name.to_string()).filter(|name| !name.is_empty());
        Offer { name: format!("o/n:{name}"), quantization, bytes: Some(gib * GIB) }
    }

    #[test]
    fn the_best_offer_is_the_largest_quantized_one_that_fits() {
        let all = [
            offer("Q4_K_M", 5),
            offer("Q6_K", 7),
            offer("Q8_0", 9),
            offer("", 15),
            offer("BF16", 16),
            offer("F32", 32),
        ];
        let best =
            |offers: &[Offer], free: u64| best(offers, host(free)).map(|offer| offer.name.clone());
        for (free, want) in [(64, Some("Q8_0")), (8, Some("Q6_K")), (6, Some("Q4_K_M")), (5, None)]
        {
            assert_eq!(best(&all, free), want.map(|w| format!("o/n:{w}")), "{free} GiB");
        }
        assert_eq!(best(&all[3..], 64), Some("o/n:".to_string()));
        // A size that nobody tells is no promise.
        let unknown = Offer { bytes: None, ..offer("Q2_K", 1) };
        assert_eq!(best(std::slice::from_ref(&unknown), 64), None);
        assert_eq!(of_offer(&unknown, host(64)), "");
        assert_eq!(of_offer(&all[0], host(6)), "fits");
        assert_eq!(of_offer(&all[0], host(5)), "larger than what is free");
        assert_eq!(of_offer(&all[0], None), "");
    }
}
