//! What the bytes of each block type mean (scalar reference; kernels are checked against it).

use crate::DType;

/// Turns a run of whole blocks (or plain floats) into f32.
///
/// # Panics
/// If `bytes` is not exactly `dtype.row_bytes(out.len())` long, or the type is I32.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let _ = (dtype, bytes, out);
    unimplemented!("filled in the next commit")
}
