//! Values of programs, and their types.

use std::fmt;
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use troika::npu::mil::proto::TensorType;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Text,
    F16,
    F32,
    I8,
    I16,
    I32,
    I4,
    U8,
    U16,
    U4,
}

/// What files call a type of elements; zero where they have no number for it.
pub struct KindFacts {
    pub kind: Kind,
    pub name: &'static str,
    /// In programs.
    pub mil: i32,
    /// In files of weights.
    pub blob: u32,
    /// In descriptions.
    pub feature: i32,
    pub bits: usize,
}

const fn row(
    kind: Kind,
    name: &'static str,
    mil: i32,
    blob: u32,
    feature: i32,
    bits: usize,
) -> KindFacts {
    KindFacts { kind, name, mil, blob, feature, bits }
}

/// In the order of [`Kind`].
static KINDS: [KindFacts; 11] = [
    row(Kind::Bool, "bool", 1, 0, 0, 8),
    row(Kind::Text, "string", 2, 0, 0, 8),
    row(Kind::F16, "fp16", 10, 1, 65552, 16),
    row(Kind::F32, "fp32", 11, 2, 65568, 32),
    row(Kind::I8, "int8", 21, 4, 0, 8),
    row(Kind::I16, "int16", 22, 6, 0, 16),
    row(Kind::I32, "int32", 23, 14, 131_104, 32),
    row(Kind::I4, "int4", 25, 8, 0, 4),
    row(Kind::U8, "uint8", 31, 3, 0, 8),
    row(Kind::U16, "uint16", 32, 7, 0, 16),
    row(Kind::U4, "uint4", 35, 11, 0, 4),
];

impl Kind {
    /// The kind of which something holds.
    pub fn find(of: impl Fn(&KindFacts) -> bool) -> Option<Kind> {
        KINDS.iter().find(|row| of(row)).map(|row| row.kind)
    }

    /// What files call it.
    pub fn facts(self) -> &'static KindFacts {
        &KINDS[self as usize]
    }

    /// Whether operations compute in it.
    pub fn is_float(self) -> bool {
        matches!(self, Kind::F16 | Kind::F32)
    }
}

/// A tensor's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    pub kind: Kind,
    pub shape: Vec<usize>,
}

/// Larger tensors are taken for mistakes: sizes in bytes do not overflow below.
const MOST_ELEMENTS: usize = 1 << 36;

impl Typed {
    /// A type of a size that can be.
    pub fn new(kind: Kind, shape: Vec<usize>) -> Result<Typed, String> {
        let len = shape.iter().try_fold(1_usize, |len, d| len.checked_mul(*d));
        match len {
            Some(1..=MOST_ELEMENTS) => Ok(Typed { kind, shape }),
            _ => Err(format!("a tensor of {shape:?} is empty or too large")),
        }
    }

    /// A program's type.
    pub fn parse(of: &TensorType) -> Result<Typed, String> {
        let kind = Kind::find(|row| row.mil == of.data_type);
        let kind = kind.ok_or(format!("there is no type of elements {}", of.data_type))?;
        let size = |d: &troika::npu::mil::proto::Dimension| {
            d.constant.as_ref().and_then(|c| usize::try_from(c.size).ok())
        };
        let shape: Option<Vec<usize>> = of.dimensions.iter().map(size).collect();
        let shape = shape.ok_or("a dimension has no size")?;
        if usize::try_from(of.rank) != Ok(shape.len()) {
            return Err(format!("a type of rank {} has {} dimensions", of.rank, shape.len()));
        }
        Typed::new(kind, shape)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of its elements in files and for callers.
    pub fn bytes(&self) -> usize {
        (self.len() * self.kind.facts().bits).div_ceil(8)
    }
}

impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.kind.facts().name, self.shape)
    }
}

/// A file's bytes, aligned for each type of elements.
pub struct FileBytes {
    pub words: Vec<u64>,
    pub len: usize,
}

impl FileBytes {
    /// The bytes.
    pub fn all(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

/// Elements that stay in their file: floats, or whole numbers of at most 8 bits.
#[derive(Clone)]
pub struct Stored {
    pub file: Arc<FileBytes>,
    /// The first byte; a multiple of the size of an element.
    pub begin: usize,
    pub typed: Typed,
}

/// Pairs of numbers by their byte: the lower half is the first.
const fn nibbles(signed: bool) -> [[f32; 2]; 256] {
    let mut table = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let halves = [byte & 15, byte >> 4];
        let less = if signed { 16 } else { 0 };
        let mut i = 0;
        while i < 2 {
            table[byte][i] = (if halves[i] < 8 { halves[i] } else { halves[i].wrapping_sub(less) })
                as isize as f32;
            i += 1;
        }
        byte += 1;
    }
    table
}

static SIGNED: [[f32; 2]; 256] = nibbles(true);
static UNSIGNED: [[f32; 2]; 256] = nibbles(false);

impl Stored {
    fn read(&self, at: usize, out: &mut [f32]) {
        let bytes = &self.file.all()[self.begin..self.begin + self.typed.bytes()];
        let range = at..at + out.len();
        match self.typed.kind {
            Kind::F16 => bytemuck::cast_slice::<u8, f16>(bytes)[range].convert_to_f32_slice(out),
            Kind::F32 => out.copy_from_slice(&bytemuck::cast_slice(bytes)[range]),
            Kind::I4 => read_nibbles(&SIGNED, bytes, at, out),
            Kind::U4 => read_nibbles(&UNSIGNED, bytes, at, out),
            Kind::I8 => out.iter_mut().zip(&bytes[range]).for_each(|(o, b)| *o = *b as i8 as f32),
            _ => out.iter_mut().zip(&bytes[range]).for_each(|(o, b)| *o = f32::from(*b)),
        }
    }
}

fn read_nibbles(table: &[[f32; 2]; 256], bytes: &[u8], mut at: usize, mut out: &mut [f32]) {
    if at % 2 == 1 && !out.is_empty() {
        out[0] = table[usize::from(bytes[at / 2])][1];
        (at, out) = (at + 1, &mut out[1..]);
    }
    let bytes = &bytes[at / 2..];
    let (pairs, rest) = out.as_chunks_mut::<2>();
    pairs.iter_mut().zip(bytes).for_each(|(pair, byte)| *pair = table[usize::from(*byte)]);
    if let [last] = rest {
        *last = table[usize::from(bytes[pairs.len()])][0];
    }
}

/// Numbers with a scale, and perhaps an offset, for each block of them.
pub struct Scaled {
    pub numbers: Data,
    pub scales: Vec<f32>,
    pub offsets: Option<Vec<f32>>,
    /// The numbers' shape, and the type of what they stand for.
    pub typed: Typed,
    /// How many blocks there are along each axis; they divide the shape.
    pub blocks: Vec<usize>,
}

impl Scaled {
    /// The first scale of a row along the last axis.
    fn scales_of(&self, mut row: usize) -> usize {
        let (mut scale, mut stride) = (0, 1);
        for (size, blocks) in self.typed.shape.iter().zip(&self.blocks).rev().skip(1) {
            scale += row % size / (size / blocks) * stride;
            (row, stride) = (row / size, stride * blocks);
        }
        scale * self.blocks.last().unwrap_or(&1)
    }

    fn read(&self, mut at: usize, out: &mut [f32]) {
        self.numbers.read(at, out);
        let size = *self.typed.shape.last().unwrap_or(&1);
        let block = size / self.blocks.last().unwrap_or(&1);
        let mut rest = &mut *out;
        while !rest.is_empty() {
            let (first, within) = (self.scales_of(at / size), at % size);
            let (row, next) = rest.split_at_mut((size - within).min(rest.len()));
            (at, rest) = (at + row.len(), next);
            let cut = (within.next_multiple_of(block) - within).min(row.len());
            let (begun, blocks) = row.split_at_mut(cut);
            self.scale(begun, first + within / block);
            let whole = first + within.div_ceil(block);
            (whole..).zip(blocks.chunks_mut(block)).for_each(|(i, run)| self.scale(run, i));
        }
        if self.typed.kind == Kind::F16 {
            round(out);
        }
    }

    /// Scales numbers of one block.
    fn scale(&self, numbers: &mut [f32], block: usize) {
        let scale = self.scales[block];
        match self.offsets.as_ref().map(|offsets| offsets[block]) {
            Some(offset) => numbers.iter_mut().for_each(|v| *v = (*v - offset) * scale),
            None => numbers.iter_mut().for_each(|v| *v *= scale),
        }
    }
}

/// Rounds floats to halves, some at a time.
fn round(values: &mut [f32]) {
    let mut halves = [f16::ZERO; 256];
    for some in values.chunks_mut(256) {
        let halves = &mut halves[..some.len()];
        halves.convert_from_f32_slice(some);
        halves.convert_to_f32_slice(some);
    }
}

/// A tensor's elements, row by row. Whole numbers and truths in memory have 32 bits.
#[derive(Clone)]
pub enum Data {
    F16(Arc<Vec<f16>>),
    F32(Arc<Vec<f32>>),
    I32(Arc<Vec<i32>>),
    Stored(Stored),
    Scaled(Arc<Scaled>),
    Text(Arc<str>),
}

impl Data {
    /// Rounds to a kind.
    pub fn from_floats(kind: Kind, values: Vec<f32>) -> Data {
        match kind {
            Kind::F32 => Data::F32(Arc::new(values)),
            Kind::F16 => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(&values);
                Data::F16(Arc::new(halves))
            }
            Kind::Bool => {
                Data::I32(Arc::new(values.iter().map(|v| i32::from(*v != 0.0)).collect()))
            }
            _ => Data::from_ints(kind, values.iter().map(|v| *v as i32).collect()),
        }
    }

    /// Converts to a kind; whole numbers that do not fit it lose their upper bits.
    pub fn from_ints(kind: Kind, mut values: Vec<i32>) -> Data {
        let cut: fn(i32) -> i32 = match kind {
            Kind::F16 | Kind::F32 => {
                return Data::from_floats(kind, values.iter().map(|v| *v as f32).collect());
            }
            Kind::Bool => |v| i32::from(v != 0),
            Kind::I4 => |v| v << 28 >> 28,
            Kind::U4 => |v| v & 15,
            Kind::I8 => |v| i32::from(v as i8),
            Kind::U8 => |v| i32::from(v as u8),
            Kind::I16 => |v| i32::from(v as i16),
            Kind::U16 => |v| i32::from(v as u16),
            Kind::I32 | Kind::Text => |v| v,
        };
        values.iter_mut().for_each(|v| *v = cut(*v));
        Data::I32(Arc::new(values))
    }

    /// Elements from a caller's bytes; of halves, floats, or whole numbers of 32 bits.
    pub fn from_bytes(kind: Kind, bytes: &[u8]) -> Data {
        match kind {
            Kind::F16 => Data::F16(Arc::new(bytemuck::pod_collect_to_vec(bytes))),
            Kind::F32 => Data::F32(Arc::new(bytemuck::pod_collect_to_vec(bytes))),
            _ => Data::I32(Arc::new(bytemuck::pod_collect_to_vec(bytes))),
        }
    }

    /// Zeros of a type.
    pub fn zeros(typed: &Typed) -> Data {
        match typed.kind {
            Kind::F16 => Data::F16(Arc::new(vec![f16::ZERO; typed.len()])),
            Kind::F32 => Data::F32(Arc::new(vec![0.0; typed.len()])),
            _ => Data::I32(Arc::new(vec![0; typed.len()])),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F16(values) => values.len(),
            Data::F32(values) => values.len(),
            Data::I32(values) => values.len(),
            Data::Stored(stored) => stored.typed.len(),
            Data::Scaled(scaled) => scaled.typed.len(),
            Data::Text(_) => 1,
        }
    }

    /// Writes to a caller's bytes, of the size of all elements.
    pub fn write(&self, out: &mut [u8]) {
        match self {
            Data::F16(values) => out.copy_from_slice(bytemuck::cast_slice(values)),
            Data::F32(values) => out.copy_from_slice(bytemuck::cast_slice(values)),
            Data::I32(values) => out.copy_from_slice(bytemuck::cast_slice(values)),
            _ => {}
        }
    }

    /// The elements from one on, as floats.
    pub fn read(&self, at: usize, out: &mut [f32]) {
        let range = at..at + out.len();
        match self {
            Data::F16(values) => values[range].convert_to_f32_slice(out),
            Data::F32(values) => out.copy_from_slice(&values[range]),
            Data::I32(values) => {
                out.iter_mut().zip(&values[range]).for_each(|(o, v)| *o = *v as f32);
            }
            Data::Stored(stored) => stored.read(at, out),
            Data::Scaled(scaled) => scaled.read(at, out),
            Data::Text(_) => {}
        }
    }

    /// All elements as floats.
    pub fn floats(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.read(0, &mut out);
        out
    }

    /// All elements, if they are whole numbers or truths in memory.
    pub fn ints(&self) -> Result<&[i32], String> {
        match self {
            Data::I32(values) => Ok(values),
            _ => Err("whole numbers are expected".into()),
        }
    }

    /// The same elements in memory.
    pub fn held(self) -> Data {
        match &self {
            Data::Stored(stored) => Data::from_floats(stored.typed.kind, self.floats()),
            Data::Scaled(scaled) => Data::from_floats(scaled.typed.kind, self.floats()),
            _ => self,
        }
    }
}
