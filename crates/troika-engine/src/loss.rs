//! Losses of devices, and what goes on in their place.

use troika_device::DeviceError;

use crate::error::EngineError;

/// Makes what goes on without the device of an error; why not, if that is not possible.
pub type Elsewhere<T> = Box<dyn FnMut(&DeviceError) -> Result<T, String> + Send>;

/// What happens when a device is lost.
pub(crate) struct Losses<T> {
    /// `None`: sequences fail.
    pub elsewhere: Option<Elsewhere<T>>,
    /// The loss of a device that is to be left as soon as nothing is in flight.
    pub leaving: Option<DeviceError>,
}

impl<T> Losses<T> {
    /// Notes an error; whether a device is being left, so that no sequence is to fail by it.
    pub fn note(&mut self, error: &EngineError) -> bool {
        // What else fails while a device is being left fails because of that.
        if self.leaving.is_none()
            && self.elsewhere.is_some()
            && let EngineError::Device(error) = error
            && let DeviceError::Lost { .. } | DeviceError::Gone(_) = error
        {
            self.leaving = Some(error.clone());
        }
        self.leaving.is_some()
    }
}
