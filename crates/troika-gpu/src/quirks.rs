//! Adapters and drivers with known faults.

/// The faults that others reported: a part of the adapter's name, one of the driver's, and what is
/// wrong. The numeric check at first use finds further ones.
const QUIRKS: [(&str, &str, &str); 1] =
    [("Adreno (TM) 702", "turnip", "its driver multiplies matrices by few rows wrongly")];

/// Why an adapter is not to be used, if something is known of its name and its driver's.
pub(crate) fn fault(name: &str, driver: &str) -> Option<&'static str> {
    let has =
        |text: &str, part: &str| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase());
    let found = QUIRKS.iter().find(|(of, by, _)| has(name, of) && has(driver, by));
    found.map(|(.., why)| *why)
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
