//! Adapters and drivers with known faults.

/// What an adapter says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its driver's name.
    pub driver: &'a str,
    /// Its driver's version, in the driver's own words.
    pub version: &'a str,
}

/// A known fault.
struct Quirk {
    /// A part of the adapter's name.
    name: &'static str,
    /// A part of the driver's name; empty: all drivers.
    driver: &'static str,
    /// Parts of the driver's version; empty: all versions.
    versions: &'static [&'static str],
    /// What is wrong.
    why: &'static str,
}

/// The faults that others reported. The numeric check at first use finds further ones.
const QUIRKS: [Quirk; 1] = [Quirk {
    name: "Adreno (TM) 702",
    driver: "turnip",
    versions: &[],
    why: "its driver multiplies matrices by few rows wrongly",
}];

/// Why an adapter is not to be used, if something is known.
pub(crate) fn fault(of: Identity<'_>) -> Option<&'static str> {
    let has =
        |text: &str, part: &str| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase());
    let of_version = |q: &Quirk| {
        q.versions.is_empty() || q.versions.iter().any(|version| has(of.version, version))
    };
    let found =
        QUIRKS.iter().find(|q| has(of.name, q.name) && has(of.driver, q.driver) && of_version(q));
    found.map(|q| q.why)
}

#[cfg(test)]
mod tests {
    use super::{Identity, fault};

    #[test]
    fn a_fault_is_found_by_name_and_driver() {
        let of = |name, driver| fault(Identity { name, driver, version: "Mesa 25.1" });
        assert!(of("Adreno (TM) 702", "turnip Mesa driver").is_some());
        assert!(of("Adreno (TM) 740", "turnip Mesa driver").is_none());
        assert!(of("Adreno (TM) 702", "Qualcomm Technologies Inc.").is_none());
        assert!(of("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe").is_none());
    }
}
