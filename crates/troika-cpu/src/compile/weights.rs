//! A graph's weights in the forms that its code reads, shared through the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use troika_device::{
    DeviceError, DeviceId, ExpertsOnDisk, PackLayout, Packed, WeightBytes, WeightData,
    WeightSource, calibrated,
};
use troika_graph::{
    ActivationFormat, CalibrationTensor, DType, InputRange, IntFormat, Rounding, Subgraph,
    WeightDecl, WeightRef, blocks, quantize,
};

use crate::compile::Executable;
use crate::kernels::int8::{CalibratedInput, Layout, PackedView, ROWS};
use crate::kernels::linear::{self, WeightView};
use crate::kernels::outliers::{self, OutlierWeights};
use crate::machine::Isa;

/// The form in which code reads a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// As stored.
    Stored,
    /// In panels ([`linear::panels`]).
    Panels,
    /// As a vector of floats.
    Vector,
    /// Packed for the integer kernels.
    Packed(Layout),
    /// For outliers in a format.
    Outliers(ActivationFormat),
    /// In bytes with a scale for each row, packed for the integer kernels: for inputs in a format of
    /// a calibration.
    RowBytes(Layout, IntFormat),
}

/// Index of a matrix in [`Loaded`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MatrixAt(usize);

/// Index of a vector in [`Loaded`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct VectorAt(usize);

/// Index of a packed matrix in [`Loaded`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PackedAt(usize);

/// Index of a matrix for outliers in [`Loaded`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutliersAt(usize);

/// The weights that code reads, without duplicates, in loading order.
#[derive(Debug, Default)]
pub(crate) struct Needs(Vec<(WeightRef, Form)>);

impl Needs {
    /// The weights with their forms.
    pub fn all(&self) -> impl Iterator<Item = (WeightRef, Form)> {
        self.0.iter().copied()
    }

    /// The form in which code reads a weight, the first if there are several.
    pub fn form(&self, weight: WeightRef) -> Option<Form> {
        self.0.iter().find(|(known, _)| *known == weight).map(|(_, form)| *form)
    }

    /// The index of a weight's form among the forms of its kind.
    fn at(&mut self, weight: WeightRef, form: Form, kind: fn(&Form) -> bool) -> usize {
        let known = self.0.iter().position(|need| *need == (weight, form));
        let at = known.unwrap_or_else(|| {
            self.0.push((weight, form));
            self.0.len() - 1
        });
        self.0[..at].iter().filter(|(_, form)| kind(form)).count()
    }

    pub fn matrix(&mut self, weight: WeightRef, panels: bool) -> MatrixAt {
        let form = if panels { Form::Panels } else { Form::Stored };
        MatrixAt(self.at(weight, form, |f| matches!(f, Form::Stored | Form::Panels)))
    }

    pub fn vector(&mut self, weight: WeightRef) -> VectorAt {
        VectorAt(self.at(weight, Form::Vector, |f| matches!(f, Form::Vector)))
    }

    pub fn packed(&mut self, weight: WeightRef, form: Form) -> PackedAt {
        PackedAt(self.at(weight, form, |f| matches!(f, Form::Packed(_) | Form::RowBytes(..))))
    }

    pub fn outliers(&mut self, weight: WeightRef, format: ActivationFormat) -> OutliersAt {
        OutliersAt(self.at(weight, Form::Outliers(format), |f| matches!(f, Form::Outliers(_))))
    }
}

/// A weight as stored, or in panels.
#[derive(Debug)]
pub(crate) struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: WeightBytes,
    /// Whether the bytes are [`linear::panels`].
    pub panels: bool,
}

impl Matrix {
    pub fn view(&self) -> WeightView<'_> {
        WeightView { dtype: self.dtype, bytes: &self.bytes, rows: self.rows, cols: self.cols }
    }
}

/// A packed weight.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    layout: Layout,
    bytes: WeightBytes,
    /// What a calibration says of its input.
    input: Option<CalibratedInput>,
}

impl PackedMatrix {
    pub fn view(&self) -> PackedView<'_> {
        PackedView { layout: self.layout, bytes: &self.bytes }
    }
}

/// A weight with some of its columns in memory.
#[derive(Debug)]
struct OutlierMatrix {
    input: CalibratedInput,
    hot: Vec<u32>,
    columns: Vec<f32>,
    stored: Matrix,
    packed: Option<PackedMatrix>,
}

/// Code with the weights and names of one graph. Code refers to weights by their indices here. They
/// always fit the code, since only `load` makes this.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The device that loaded it.
    pub device: DeviceId,
    pub code: Arc<Executable>,
    /// The graph's name.
    pub name: String,
    /// The names of its values.
    values: Vec<String>,
    matrices: Vec<Matrix>,
    /// Of f32.
    vectors: Vec<WeightBytes>,
    packed: Vec<PackedMatrix>,
    outliers: Vec<OutlierMatrix>,
    /// The names of its weights.
    weights: Vec<Arc<str>>,
    /// For each of these ops, its experts if they are read from disk.
    pub on_disk: Vec<Option<Arc<dyn ExpertsOnDisk>>>,
}

impl Loaded {
    /// Code for a graph, without weights yet.
    pub fn new(device: DeviceId, code: &Arc<Executable>, graph: &Subgraph) -> Loaded {
        Loaded {
            device,
            code: code.clone(),
            name: graph.name.clone(),
            values: graph.values.iter().map(|v| v.name.clone()).collect(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            packed: Vec::new(),
            outliers: Vec::new(),
            weights: graph.weights.iter().map(|w| w.name.clone()).collect(),
            on_disk: Vec::new(),
        }
    }

    /// Adds a weight; those that code reads are added in their order.
    pub(super) fn add(&mut self, loader: &Loader<'_>, form: Form) -> Result<(), DeviceError> {
        match form {
            Form::Stored => self.matrices.push(loader.matrix()?),
            Form::Panels => self.matrices.push(loader.panels()?),
            Form::Vector => self.vectors.push(loader.vector()?),
            Form::Packed(layout) => self.packed.push(loader.packed(layout)?),
            Form::Outliers(format) => self.outliers.push(loader.outliers(format)?),
            Form::RowBytes(layout, format) => self.packed.push(loader.row_bytes(layout, format)?),
        }
        Ok(())
    }

    /// Adds a weight of an expert whose bytes come when rows choose it.
    pub fn add_absent(&mut self, decl: &WeightDecl, form: Form) {
        let WeightDecl { rows, cols, dtype, .. } = *decl;
        let bytes = WeightBytes::owned(Vec::new());
        match form {
            Form::Packed(layout) => self.packed.push(PackedMatrix { layout, bytes, input: None }),
            _ => self.matrices.push(Matrix { dtype, rows, cols, bytes, panels: false }),
        }
    }

    /// The name of a value.
    pub fn value_name(&self, slot: usize) -> &str {
        &self.values[slot]
    }

    pub fn matrix(&self, at: MatrixAt) -> &Matrix {
        &self.matrices[at.0]
    }

    pub fn packed(&self, at: PackedAt) -> PackedView<'_> {
        self.packed[at.0].view()
    }

    /// The experts of an op of experts, by its number, if they are read from disk.
    pub fn experts_on_disk(&self, number: usize) -> Option<&dyn ExpertsOnDisk> {
        self.on_disk.get(number)?.as_deref()
    }

    pub fn outliers(&self, at: OutliersAt) -> OutlierWeights<'_> {
        let OutlierMatrix { input, hot, columns, stored, packed } = &self.outliers[at.0];
        let packed = packed.as_ref().map(PackedMatrix::view);
        OutlierWeights { input, hot, columns, stored: stored.view(), packed }
    }

    /// What a calibration says of the input of a packed weight.
    pub fn input(&self, at: PackedAt) -> Option<&CalibratedInput> {
        self.packed[at.0].input.as_ref()
    }

    /// The name of a weight as stored or in panels.
    pub fn matrix_name(&self, at: MatrixAt) -> &str {
        let is_matrix = |(_, f): &&(WeightRef, Form)| matches!(f, Form::Stored | Form::Panels);
        let need = self.code.weights.0.iter().filter(is_matrix).nth(at.0);
        need.map_or("", |(weight, _)| &self.weights[weight.0 as usize])
    }

    pub fn vector(&self, at: VectorAt) -> &[f32] {
        // Checked when made.
        bytemuck::try_cast_slice(&self.vectors[at.0]).unwrap_or(&[])
    }

    pub fn vector_if(&self, at: Option<VectorAt>) -> Option<&[f32]> {
        at.map(|at| self.vector(at))
    }
}

/// The sentence for a weight that differs from the graph's declaration.
pub(super) fn mismatch(data: &WeightData, decl: &WeightDecl) -> String {
    let WeightData { rows: has_rows, cols: has_cols, dtype, bytes } = data;
    let ((rows, cols), bytes, of) = (decl.stored(), bytes.len(), decl.dtype);
    format!("is {has_rows}x{has_cols} {dtype} of {bytes} bytes, the graph says {rows}x{cols} {of}")
}

/// Loads one weight.
pub(super) struct Loader<'a> {
    pub isa: Isa,
    pub source: &'a dyn WeightSource,
    pub decl: &'a WeightDecl,
}

impl Loader<'_> {
    pub fn wrong<T>(&self, why: impl Into<String>) -> Result<T, DeviceError> {
        Err(DeviceError::Weight { name: self.decl.name.to_string(), why: why.into() })
    }

    fn matrix(&self) -> Result<Matrix, DeviceError> {
        let decl = self.decl;
        let data = self.source.weight(&decl.name)?;
        if ((data.rows, data.cols), data.dtype) != (decl.stored(), decl.dtype) {
            return self.wrong(mismatch(&data, decl));
        }
        let need = data.dtype.row_bytes(data.cols).and_then(|r| r.checked_mul(data.rows));
        if need != Some(data.bytes.len()) {
            return self.wrong(format!("{} bytes do not hold it", data.bytes.len()));
        }
        let Some(data) = data.rows(decl.stored_rows()).filter(|d| d.cols == decl.cols) else {
            return self.wrong("is a vector, of which only all columns can be taken here");
        };
        let aligned = match data.dtype {
            DType::F32 => bytemuck::try_cast_slice::<u8, f32>(&data.bytes).is_ok(),
            DType::F16 | DType::BF16 => bytemuck::try_cast_slice::<u8, u16>(&data.bytes).is_ok(),
            _ => true,
        };
        if !aligned {
            return self.wrong("is not aligned to its element size");
        }
        let WeightData { dtype, rows, cols, bytes } = data;
        Ok(Matrix { dtype, rows, cols, bytes, panels: false })
    }

    /// A float weight in panels, packed once for all users.
    fn panels(&self) -> Result<Matrix, DeviceError> {
        let (rows, cols, dtype) = (self.decl.rows, self.decl.cols, self.decl.dtype);
        let layout = Layout::new(dtype, rows, cols).map(|layout| layout.name());
        let name = match (dtype, &layout) {
            (_, Some(name)) => name,
            (DType::BF16, _) => "bf16 pairs",
            (DType::F16, _) => "f16 panels",
            _ => "f32 panels",
        };
        let panel = linear::panels::panel_bytes(dtype, cols);
        let form = PackLayout { name, rows: linear::panels::ROWS, panel, keep: true };
        let Packed { bytes, stored } = self.pack(form, &|bytes, out| {
            let rows = bytes.len() / dtype.row_bytes(cols).unwrap_or(0).max(1);
            let weight = WeightView { dtype, bytes, rows, cols };
            linear::panels::pack_panels(self.isa, weight, out);
        })?;
        Ok(Matrix { dtype, rows, cols, bytes, panels: !stored })
    }

    /// A vector converted once to f32, or the columns of a matrix one after another. If the graph
    /// reads some columns only, just these.
    fn vector(&self) -> Result<WeightBytes, DeviceError> {
        let decl = self.decl;
        let (rows, all_cols) = decl.stored();
        let name = if rows == 1 { "f32" } else { "f32 columns" };
        let column = rows.saturating_mul(4);
        let panel = column.saturating_mul(all_cols);
        let form = PackLayout { name, rows, panel, keep: true };
        let Packed { bytes, .. } = self.pack(form, &|raw, out| {
            let out: &mut [f32] = bytemuck::cast_slice_mut(out);
            if rows == 1 {
                return blocks::dequantize(decl.dtype, raw, out);
            }
            let mut values = vec![0.0; all_cols];
            let stored = raw.chunks_exact(decl.dtype.row_size(all_cols).max(1));
            for (i, raw) in stored.enumerate() {
                blocks::dequantize(decl.dtype, raw, &mut values);
                for (value, column) in values.iter().zip(out.chunks_exact_mut(rows)) {
                    column[i] = *value;
                }
            }
        })?;
        let cols = decl.stored_cols();
        let Some(bytes) = bytes.slice(column * cols.start..column * cols.end) else {
            return self.wrong("does not have the columns");
        };
        match bytemuck::try_cast_slice::<u8, f32>(&bytes) {
            Ok(_) => Ok(bytes),
            Err(e) => self.wrong(e.to_string()),
        }
    }

    /// How inputs in a format are rounded.
    fn input(&self, format: IntFormat) -> Result<CalibratedInput, DeviceError> {
        let read = |tensor, n| calibrated(self.source, &self.decl.name, (tensor, n));
        let InputRange { factors, limit, .. } =
            InputRange::of(format.scales, self.decl.cols, read)?;
        match Rounding::of(ActivationFormat::Int(format), limit) {
            Some(rounding) => Ok(CalibratedInput { rounding, factors }),
            None => self.wrong("its calibration has no limit above zero"),
        }
    }

    /// A weight whose columns of many outliers are read now, the others when they are needed: from
    /// panels, which decoding shares.
    fn outliers(&self, format: ActivationFormat) -> Result<OutlierMatrix, DeviceError> {
        let stored = self.matrix()?;
        let Some(format) = format.converted_numbers() else {
            return self.wrong("has no outliers in this format");
        };
        let input = self.input(format)?;
        let counts = (CalibrationTensor::outliers(format.scales), stored.cols);
        let counts = calibrated(self.source, &self.decl.name, counts)?;
        let hot = outliers::hot_columns(&counts);
        let mut columns = vec![0.0; hot.len() * stored.rows];
        for (c, to) in hot.iter().zip(columns.chunks_exact_mut(stored.rows.max(1))) {
            outliers::column(stored.view(), *c as usize, to);
        }
        let layout = Layout::new(stored.dtype, stored.rows, stored.cols);
        let packed = layout.map(|layout| self.packed(layout)).transpose()?;
        let packed = packed.filter(|packed| !packed.layout.stored);
        Ok(OutlierMatrix { input, hot, columns, stored, packed })
    }

    /// A weight in bytes with a scale for each row, after its columns were multiplied. It is made
    /// for this graph alone, since it depends on the calibration.
    fn row_bytes(&self, layout: Layout, format: IntFormat) -> Result<PackedMatrix, DeviceError> {
        let (stored, input) = (self.matrix()?, self.input(format)?);
        let (weight, row) = (stored.view(), layout.dtype().row_size(layout.cols()));
        let mut rows = vec![0; layout.rows() * row];
        let mut values = vec![0.0; layout.cols()];
        let stored = weight.bytes.chunks_exact(weight.row_bytes());
        for (stored, out) in stored.zip(rows.chunks_exact_mut(row)) {
            blocks::dequantize(weight.dtype, stored, &mut values);
            values.iter_mut().zip(&input.factors).for_each(|(v, f)| *v *= f);
            quantize::row_bytes(&values, out);
        }
        let mut bytes = vec![0; layout.bytes()];
        layout.pack_panels(&rows, &mut bytes);
        Ok(PackedMatrix { layout, bytes: WeightBytes::owned(bytes), input: Some(input) })
    }

    /// A weight packed once for all users; its raw bytes are not kept.
    fn packed(&self, layout: Layout) -> Result<PackedMatrix, DeviceError> {
        let name = layout.name();
        let form = PackLayout { name: &name, rows: ROWS, panel: layout.panel, keep: true };
        let Packed { bytes, stored } = self.pack(form, &|raw, out| layout.pack_panels(raw, out))?;
        let layout = Layout { stored, ..layout };
        Ok(PackedMatrix { layout, bytes, input: None })
    }

    /// A form of the weight, made by `pack` from the bytes of some rows. If the graph reads some
    /// rows only, just these: as a part of the whole weight's form if the panels allow it.
    fn pack(
        &self,
        form: PackLayout<'_>,
        pack: &(dyn Fn(&[u8], &mut [u8]) + Sync),
    ) -> Result<Packed, DeviceError> {
        let decl = self.decl;
        let rows = AtomicUsize::new(0);
        let (all_rows, cols) = decl.stored();
        let pack_rows = |data: &WeightData, out: &mut [u8]| {
            let need = decl.dtype.row_bytes(cols).and_then(|r| r.checked_mul(data.rows));
            let is = (data.cols, data.dtype, Some(data.bytes.len()), form.bytes(data.rows));
            if is != (cols, decl.dtype, need, Some(out.len())) || data.rows > all_rows {
                return self.wrong(mismatch(data, decl));
            }
            if !(out.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
                return self.wrong("is to be packed into memory that is not aligned");
            }
            rows.fetch_add(data.rows, Ordering::Relaxed);
            pack(&data.bytes, out);
            Ok(())
        };
        let packed = if all_rows == decl.rows {
            self.source.packed(&decl.name, form, &pack_rows)
        } else {
            self.source.packed_rows(&decl.name, decl.stored_rows(), form, &pack_rows)
        }?;
        // An existing form needed no packing.
        let rows = rows.into_inner();
        if rows != 0 && rows != decl.rows && rows != all_rows {
            return self.wrong(format!("has {rows} rows, the graph says {all_rows}"));
        }
        let stored = || decl.dtype.row_bytes(cols)?.checked_mul(decl.rows);
        let need = if packed.stored { stored() } else { form.bytes(decl.rows) };
        if Some(packed.bytes.len()) != need {
            return self.wrong(format!("{} packed bytes do not hold it", packed.bytes.len()));
        }
        Ok(packed)
    }
}
