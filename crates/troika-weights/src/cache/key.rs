//! The name of a file of packed weights: a hash of everything that its bytes depend on.
//!
//! It covers the bytes of the model's files and, for each derived weight, its source and its type.
//! They are encoded field by field, so that renaming types or variants in the program does not
//! change the hash. The device's layout is not included: the file stores its name beside each
//! weight.

use std::ops::Range;

use troika_model::spec::Recipe;

use crate::bind::bound::Bound;
use crate::bind::packed::codes::{Steps, Zeros};
use crate::bind::packed::{PackedWeight, Parts, Rounding};
use crate::bind::source::ValueSource;

/// Must change whenever reading or cutting weights (`cut`, `packed`, `source`, or dequantizing
/// blocks) gives other bytes for the same files.
const READ_VERSION: u64 = 2;

/// The key of weights derived from files with these hashes.
pub(crate) fn key(bound: &[Bound], files: &[blake3::Hash]) -> blake3::Hash {
    let mut to = Encoder(blake3::Hasher::new_derive_key("troika 2026 key of packed weights"));
    to.number(READ_VERSION);
    to.number(u64::from(troika_graph::quantize::VERSION));
    to.size(files.len());
    files.iter().for_each(|f| to.bytes(f.as_bytes()));
    for b in bound.iter().filter(|b| b.source.is_made()) {
        to.text(&b.key.to_string());
        to.size(b.shape.rows);
        to.size(b.shape.cols);
        to.text(b.shape.dtype.name());
        to.text(&b.tensor);
        to.source(&b.source);
    }
    to.0.finalize()
}

/// Encodes values so that different lists never give the same bytes.
struct Encoder(blake3::Hasher);

impl Encoder {
    fn number(&mut self, n: u64) {
        self.0.update(&n.to_le_bytes());
    }

    fn size(&mut self, n: usize) {
        self.number(n as u64);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.size(bytes.len());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn ranges(&mut self, ranges: &[Range<usize>]) {
        self.size(ranges.len());
        ranges.iter().for_each(|r| [r.start, r.end].into_iter().for_each(|n| self.size(n)));
    }

    fn source(&mut self, source: &ValueSource) {
        match source {
            ValueSource::Ready { .. } => self.number(0),
            ValueSource::Cut { tensor, recipe } => {
                self.number(1);
                self.text(tensor.dtype.name());
                self.size(tensor.shape.len());
                tensor.shape.iter().for_each(|&d| self.size(d));
                self.recipe(recipe);
            }
            ValueSource::Random { need, dtype, seed } => {
                self.number(2);
                self.size(need.rows);
                self.size(need.cols);
                self.text(dtype.name());
                self.number(*seed);
            }
            ValueSource::Scaled(weight) => {
                self.number(4);
                self.number(u64::from(weight.factor.to_bits()));
            }
            ValueSource::Packed(weight) => {
                self.number(3);
                self.packed(weight);
            }
        }
    }

    fn recipe(&mut self, recipe: &Recipe) {
        self.text(&recipe.tensor);
        recipe.below.iter().for_each(|name| self.text(name));
        self.ranges(&recipe.rows);
        match recipe.cols {
            None => self.number(0),
            Some(cols) => {
                self.number(1);
                [cols.start, cols.len, cols.step].into_iter().for_each(|n| self.size(n));
            }
        }
        self.number(u64::from(recipe.transpose));
    }

    fn steps(&mut self, steps: Steps) {
        [steps.share, steps.row, steps.group].into_iter().for_each(|n| self.size(n));
    }

    fn packed(&mut self, weight: &PackedWeight) {
        let Parts { codes, number, scales, zeros, group, index } = &weight.parts;
        self.number(codes.order as u64);
        self.number(*number as u64);
        self.number(scales.kind as u64);
        [codes.bits, codes.n, codes.k].into_iter().for_each(|n| self.size(n));
        self.steps(scales.steps);
        match zeros {
            Zeros::Fixed(zero) => self.number(u64::from(*zero)),
            Zeros::Biases(grid) => {
                self.number(256 + grid.kind as u64);
                self.steps(grid.steps);
            }
            Zeros::Codes(zeros) => {
                self.number(512 + 2 * u64::from(zeros.awq) + u64::from(zeros.less_one));
                self.size(zeros.bits);
                self.steps(zeros.steps);
            }
        }
        self.size(*group);
        self.number(u64::from(index.is_some()));
        self.ranges(&weight.taken);
        self.number(u64::from(weight.transpose));
        self.number(u64::from(matches!(weight.rounding, Rounding::Values(_))));
    }
}

#[cfg(test)]
mod tests {
    use troika_device::WeightBytes;
    use troika_graph::DType;

    use super::*;
    use crate::bind::packed::codes::{Codes, Grid, Number, Order, ScaleKind, ZeroCodes};
    use crate::bind::source::Opened;
    use troika_model::lower::WeightShape;
    use troika_model::spec::Cols;
    use troika_model::spec::StoredTensor;
    use troika_model::spec::{Key, WeightRole};

    fn numbers(n: usize) -> Vec<u8> {
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn cut(dtype: DType, target: DType, recipe: Recipe, shape: (usize, usize)) -> Bound {
        let bytes = match dtype {
            // No NaN and no extreme exponents.
            DType::BF16 => numbers(64 * 64).iter().flat_map(|b| [*b, 0x3f]).collect(),
            _ => numbers(64 * dtype.row_bytes(64).unwrap()),
        };
        let tensor = StoredTensor { dtype, shape: vec![64, 64], bytes: WeightBytes::owned(bytes) };
        let shape = WeightShape { rows: shape.0, cols: shape.1, dtype: target };
        let name = recipe.tensor.clone();
        let source = ValueSource::Cut { tensor, recipe };
        Bound::new(Key::layer(1, WeightRole::Up), shape, source, name)
    }

    /// GPTQ, stored less one or not, or AWQ.
    fn int4(order: Order, less_one: bool, group: usize) -> Bound {
        let words = |n: usize| WeightBytes::owned(numbers(4 * n));
        let scales: Vec<u8> = numbers(256).iter().flat_map(|b| [*b, 0x20]).collect();
        let bytes = WeightBytes::owned(scales);
        let steps = Steps { share: 1, row: 1, group: 16 };
        let awq = order == Order::Awq;
        let eight = Steps { share: 8, row: 8, group: 16 };
        let of_zeros = if awq { eight } else { steps };
        let zeros = ZeroCodes { bytes: words(4), bits: 4, steps: of_zeros, awq, less_one };
        let parts = Parts {
            codes: Codes { bytes: words(128), bits: 4, order, n: 16, k: 64 },
            number: Number::Unsigned,
            scales: Grid { kind: ScaleKind::F16, bytes, steps },
            zeros: Zeros::Codes(zeros),
            group,
            index: None,
        };
        let weight = PackedWeight {
            parts,
            taken: std::iter::once(0..16).collect(),
            transpose: false,
            rounding: Rounding::None,
            values: 16 * 64,
        };
        let shape = WeightShape { rows: 16, cols: 64, dtype: DType::Q4_G32 };
        let source = ValueSource::Packed(Box::new(weight));
        Bound::new(Key::layer(0, WeightRole::Q), shape, source, "q".into())
    }

    fn all() -> Vec<Bound> {
        let some = Recipe::rows("t", 8..40);
        let columns = Recipe { cols: Some(Cols { start: 1, len: 32, step: 2 }), ..some.clone() };
        let turned = Recipe { transpose: true, ..columns.clone() };
        vec![
            cut(DType::BF16, DType::Q4_G32, Recipe::whole("t"), (64, 64)),
            cut(DType::BF16, DType::Q8_0, some, (32, 64)),
            cut(DType::BF16, DType::Q8_0, columns, (32, 32)),
            cut(DType::BF16, DType::Q8_0, turned, (32, 32)),
            int4(Order::Inputs, true, 32),
            int4(Order::Inputs, false, 32),
            int4(Order::Inputs, true, 64),
            int4(Order::Awq, false, 32),
        ]
    }

    fn made(b: &Bound) -> Vec<u8> {
        let opened: Opened<'_> = b.source.open(b.shape).unwrap();
        opened.rows(b.shape, 0..b.shape.rows).unwrap().data.bytes.to_vec()
    }

    /// Every difference that changes the bytes changes the key.
    #[test]
    fn other_bytes_have_other_keys() {
        let all = all();
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                assert_ne!(made(a), made(b), "the case shows nothing");
                let keys = [a, b].map(|b| key(std::slice::from_ref(b), &[]));
                assert_ne!(keys[0], keys[1]);
            }
        }
        let one = || cut(DType::BF16, DType::Q8_0, Recipe::whole("t"), (64, 64));
        let of = |b: Bound, files: &[blake3::Hash]| key(&[b], files);
        let hashes = [blake3::hash(b"a"), blake3::hash(b"b")];
        let plain = of(one(), &hashes);
        assert_eq!(plain, of(one(), &hashes));
        assert_ne!(plain, of(one(), &hashes[..1]));
        assert_ne!(plain, of(one(), &[hashes[1], hashes[0]]));
        assert_ne!(plain, of(Bound { tensor: "u".into(), ..one() }, &hashes));
        assert_ne!(plain, of(Bound { key: Key::layer(1, WeightRole::Gate), ..one() }, &hashes));
    }

    /// Cached files of earlier builds stay valid. If the first number changes, weights have other
    /// bytes: raise `READ_VERSION` (or the version of `quantize`). The second number changes with
    /// every version.
    #[test]
    fn bytes_and_keys_are_those_of_earlier_builds() {
        let all = all();
        let bytes: Vec<u8> = all.iter().flat_map(made).collect();
        let first = blake3::hash(&bytes).to_hex();
        let second = key(&all, &[blake3::hash(b"file")]).to_hex();
        assert_eq!((&first[..16], &second[..16]), ("e02b107561358902", "f6c290c42621984f"));
    }
}
