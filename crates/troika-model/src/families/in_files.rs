//! Numbers of a description that files hold as tensors of one element.

use troika_graph::{Activation, blocks};

use super::dense::{XIELU, xielu};
use super::fields::{Result, bad, missing};
use super::names::TensorNames;
use crate::spec::{Checkpoint, Layer, ModelSpec};

/// Reads them into a description: factors of layers (Gemma 4), the activations of Apertus.
///
/// # Errors
/// One that is not finite or not supported; an activation without its numbers.
pub fn numbers_in_files(
    spec: &mut ModelSpec,
    names: &dyn TensorNames,
    files: &dyn Checkpoint,
) -> Result<()> {
    let ModelSpec { family, layers, .. } = spec;
    let ends: &[&str] = match &**family {
        "gemma4_text" => &["layer_scalar", "layer_output_scale.weight"],
        "apertus" => &XIELU,
        _ => return Ok(()),
    };
    for tensor in files.names() {
        let Some(end) = ends.iter().find(|end| tensor.ends_with(**end)) else { continue };
        let layer = names.layer(tensor).and_then(|i| layers.get_mut(i));
        let Some((layer, value)) = layer.zip(number(files, tensor)) else { continue };
        if !value.is_finite() {
            return Err(bad(tensor, value, "not a finite number"));
        }
        match family == "apertus" {
            true => xielu(layer, end, f64::from(value))?,
            false => layer.out_scale = value,
        }
    }
    let lacks = |l: &Layer| match l.dense().map(|mlp| mlp.act) {
        Some(Activation::Xielu { alpha_p, alpha_n }) => !(alpha_p + alpha_n).is_finite(),
        _ => family == "apertus",
    };
    if let Some(i) = layers.iter().position(lacks) {
        return Err(missing(format!("mlp.act_fn.alpha_p and alpha_n of layer {i}")));
    }
    Ok(())
}

/// The only element of a tensor; `None` if it has more, or if its bytes are not at hand.
fn number(files: &dyn Checkpoint, tensor: &str) -> Option<f32> {
    let t = files.tensor(tensor)?;
    let mut out = [0.0];
    let has_one = t.dtype.row_bytes(1) == Some(t.bytes.len());
    has_one.then(|| blocks::dequantize(t.dtype, &t.bytes, &mut out))?;
    Some(out[0])
}
