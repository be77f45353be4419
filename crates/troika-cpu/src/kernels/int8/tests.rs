//! The kernels of every instruction set in plain Rust, also of those this machine has: a sum that
//! does not fit shows here with the instruction's own way of not fitting.

use troika_graph::{DType, blocks};

use super::Int8Part;
use super::quantize::{Quantization, QuantizedGroup, floats, group};
use super::run::{emulate, emulate_seven_bits};
use super::{DTYPES, INT7, Layout, PackedView, Product, format, kinds, scalar};
use crate::kernels::linear::{OutView, RowsView, WeightView, worker_floats};
use crate::kernels::simd::{Lanes, Portable};
use crate::{Isa, SharedMut};

/// Rows of `blocks` blocks whose values are at the ends of their range, some rows all at one end,
/// with scales near 1.
fn weight(dtype: DType, rows: usize, blocks: usize, seed: &mut u32) -> Vec<u8> {
    let (low, high) = if dtype == DType::Q8_0 { (0x80, 0x7f) } else { (0, 0xff) };
    let mut random = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *seed
    };
    let mut out = Vec::new();
    for i in 0..rows * blocks {
        let mut block = vec![0; dtype.block_bytes()];
        for byte in &mut block {
            let (end, value) = (random() >> 30, (random() >> 16) as u8);
            *byte = match i / blocks % 4 {
                0 => low,
                1 => high,
                _ => [high, low, value, value][end as usize],
            };
        }
        blocks::set_scale(dtype, &mut block, 0.7);
        out.extend(block);
    }
    out
}

/// Activations quantized in plain Rust; a float more in front, so that rows are not aligned.
fn quantized(quantization: Quantization, x: &[f32]) -> Vec<f32> {
    let mut q = vec![0.0];
    for x in x.as_chunks::<32>().0 {
        let mut out: QuantizedGroup = bytemuck::Zeroable::zeroed();
        group::<Portable>(x, Portable::largest_magnitude(x), quantization, &mut out);
        q.extend_from_slice(bytemuck::cast_slice(&[out]));
    }
    q
}

#[test]
fn emulated_kernels_are_the_reference_to_the_bit() {
    let mut seed = 5;
    for (dtype, activations) in kinds() {
        let quantization = Quantization::of(dtype, activations);
        let shapes = [(1, 17, 3), (2, 16, 1), (3, 5, 2), (4, 17, 2), (5, 32, 1), (6, 33, 3)];
        let more = [(7, 16, 2), (8, 47, 1), (15, 33, 2), (16, 32, 5), (17, 47, 3), (33, 49, 2)];
        // Several panels at a time, and those that are left over.
        let several =
            [(1, 81, 2), (2, 49, 2), (3, 49, 2), (6, 65, 2), (10, 48, 1), (12, 49, 1), (32, 49, 1)];
        for (rows, n, blocks) in shapes.into_iter().chain(more).chain(several) {
            // Wider than a block of columns for some types.
            let k = dtype.block_len() * blocks;
            let raw = weight(dtype, n, blocks, &mut seed);
            // Rows of small and large values, and rows of the largest alone.
            let x: Vec<f32> = (0..rows * k)
                .map(|i| match i / k % 3 {
                    0 => 1.0,
                    1 => -1.0,
                    _ if i % 5 < 4 => 1.0,
                    _ => (i % 41) as f32 - 20.5,
                })
                .collect();
            let view = WeightView { dtype, bytes: &raw, rows: n, cols: k };
            let mut want = vec![0.0; rows * n];
            scalar::linear(view, None, &x, activations, &mut want);
            let layout = Layout::new(dtype, n, k).expect("whole blocks");
            let packed = [vec![0], layout.pack(&raw)].concat();
            let q = quantized(quantization, &x);
            // Rows through an index, as experts have them, and rows as they lie.
            let order: Vec<u32> = (0..rows as u32).collect();
            for (isa, index) in Isa::all().into_iter().flat_map(|i| [(i, None), (i, Some(&order))])
            {
                if isa == Isa::Scalar {
                    continue;
                }
                let mut y = vec![f32::NAN; rows * n];
                let mut scratch = vec![f32::NAN; worker_floats()];
                let product = Product {
                    weight: PackedView { layout, bytes: &packed[1..] },
                    bias: None,
                    x: RowsView {
                        index: index.map(|i| &i[..]),
                        ..RowsView::dense(&q[1..], floats(k))
                    },
                    quantization,
                    y: OutView::dense(SharedMut::new(&mut y), n),
                };
                // SAFETY: nobody else has the results.
                let part = unsafe { Int8Part::new(product, 0..n, 0..rows, 0, &mut scratch) };
                // SAFETY: plain Rust needs no features; the format is the weight's.
                unsafe {
                    if isa == Isa::Avx2 && activations == INT7 {
                        emulate_seven_bits(part);
                    } else {
                        format::with_format!(dtype, F => emulate::<F>(isa, part));
                    }
                }
                let isa = isa.name();
                assert!(y == want, "{dtype} {activations:?}, {rows} rows, {n} x {k}, {isa}");
            }
        }
    }
}

/// Files keep packed bytes by the name of their layout. If this fails because a layout was changed,
/// change its name, too.
#[test]
fn what_is_packed_otherwise_is_named_otherwise() {
    let known = [
        "Q8_0 by 16 rows, two blocks by two: 9fdf438ca7f6564f",
        "Q4_0 by 16 rows, block by block: 69a23f1c42647ef6",
        "Q4_1 by 16 rows, block by block: 5c864a9a66503d10",
        "Q5_0 by 16 rows, block by block: de24734ee38cf1ec",
        "Q5_1 by 16 rows, block by block: 7a33e89e5e1fc125",
        "Q2_K by 16 rows, block by block: 8fc89e1908003d1b",
        "Q3_K by 16 rows, block by block: 98320c03c995df48",
        "Q4_K by 16 rows, block by block: e235aa6f52630718",
        "Q5_K by 16 rows, block by block: 91fb1e796f79e38a",
        "Q6_K by 16 rows, block by block: 7d8a8212ca18c7c0",
        "IQ2_XXS by 16 rows, block by block: 7a38c08791cf7142",
        "IQ2_XS by 16 rows, block by block: c0906491353d513b",
        "IQ2_S by 16 rows, block by block: ad0af6b6a2e76e5e",
        "IQ3_XXS by 16 rows, block by block: 1dbcb5a11ceb05c8",
        "IQ3_S by 16 rows, block by block: 6fd6e75ab946df60",
        "IQ1_S by 16 rows, block by block: 64b7cb2e8ce0f75b",
        "IQ1_M by 16 rows, block by block: faf5a96c39ac72b8",
        "IQ4_NL by 16 rows, block by block: 69a23f1c42647ef6",
        "IQ4_XS by 16 rows, block by block: 754c84efe02b8d6d",
        "TQ1_0 by 16 rows, block by block: dfbc9b65381f0356",
        "TQ2_0 by 16 rows, block by block: b52fbe3bb93ea4d7",
        "Q1_0 by 16 rows, block by block: 5197fc7858ddd12b",
        "Q2_0 by 16 rows, block by block: 1afca2e86c23ec8e",
        "MXFP4 by 16 rows, block by block: 48c953275c354616",
        "NVFP4 by 16 rows, block by block: 2b1ee0290ae0cfe3",
        "F4_G16 by 16 rows, block by block: 731c6237ec79e040",
        "Q4_G32 by 16 rows, block by block: dd913a86f7080d3f",
        "Q4_G64 by 16 rows, block by block: ad8e9b46099558c7",
        "Q4_G128 by 16 rows, block by block: 2188b11577b4275c",
    ];
    let packed = DTYPES.iter().map(|&dtype| {
        let (n, k) = (17, 3 * dtype.block_len().max(32));
        let layout = Layout::new(dtype, n, k).expect("whole blocks");
        let mut raw: Vec<u8> = (0..n * dtype.row_bytes(k).expect("whole blocks"))
            .map(|i| (i * 37 % 251) as u8)
            .collect();
        for block in raw.chunks_exact_mut(dtype.block_bytes()) {
            blocks::set_scale(dtype, block, 0.7);
        }
        let add = |sum: u64, b: &u8| (sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01B3);
        (layout.name(), layout.pack(&raw).iter().fold(0xCBF2_9CE4_8422_2325, add))
    });
    let packed: Vec<String> = packed.map(|(name, sum)| format!("{name}: {sum:016x}")).collect();
    assert_eq!(packed, known);
}
