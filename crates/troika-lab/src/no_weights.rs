//! A source of weights for callers that read none.

use troika_device::{DeviceError, PackFn, PackLayout, Packed, WeightData, WeightSource};

/// For graphs without weights, and for devices that compute nothing.
pub(crate) struct NoWeights;

impl WeightSource for NoWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        Err(no_weight(name))
    }

    fn packed(&self, name: &str, _: PackLayout<'_>, _: PackFn<'_>) -> Result<Packed, DeviceError> {
        Err(no_weight(name))
    }
}

fn no_weight(name: &str) -> DeviceError {
    let why = "it has no values here: nothing computes with it".into();
    DeviceError::System { device: name.into(), why }
}
