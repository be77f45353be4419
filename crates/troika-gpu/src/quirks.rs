//! Adapters and drivers with known faults.

/// A known fault.
struct Quirk {
    /// A part of the adapter's name.
    name: &'static str,
    /// A part of the driver's name.
    driver: &'static str,
    /// What is wrong.
    why: &'static str,
}

/// The faults that others reported. The numeric check at first use finds further ones.
const QUIRKS: [Quirk; 1] = [Quirk {
    name: "Adreno (TM) 702",
    driver: "turnip",
    why: "its driver multiplies matrices by few rows wrongly",
}];

/// Why an adapter is not to be used, if something is known of its name and its driver's.
pub(crate) fn fault(name: &str, driver: &str) -> Option<&'static str> {
    let has =
        |text: &str, part: &str| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase());
    let found = QUIRKS.iter().find(|q| has(name, q.name) && has(driver, q.driver));
    found.map(|q| q.why)
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn a_fault_is_found_by_name_and_driver() {
        assert!(fault("Adreno (TM) 702", "turnip Mesa driver").is_some());
        assert!(fault("Adreno (TM) 740", "turnip Mesa driver").is_none());
        assert!(fault("Adreno (TM) 702", "Qualcomm Technologies Inc.").is_none());
        assert!(fault("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe").is_none());
    }
}
