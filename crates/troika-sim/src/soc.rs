//! The file of a system on a chip: its processors, and what they share.

use std::path::Path;
use std::time::Duration;

use toml::{Table, Value};
use troika_graph::{ActivationFormat, Op, ProductForm};
use troika_time::Usage;

use crate::error::SocError;
use crate::fields::Fields;
use crate::measured::MeasuredRuns;

/// Processors that share memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Soc {
    /// The name, for people.
    pub name: String,
    /// The file that describes it.
    pub file: String,
    /// Whether values are computed.
    pub numerics: bool,
    /// The memory's bandwidth, shared by the processors.
    pub bandwidth_gb_s: Option<f64>,
    /// The power of memory and the rest of the SoC.
    pub memory_power: MemoryPower,
    /// At least one processor.
    pub processors: Vec<Processor>,
}

/// The kind of a processor. Only CPUs run host functions; otherwise the kind makes no difference to
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorKind {
    /// Central processor.
    Cpu,
    /// Graphics processor.
    Gpu,
    /// Neural processor.
    Npu,
}

impl ProcessorKind {
    const NAMES: [&str; 3] = ["cpu", "gpu", "npu"];

    /// The name in files.
    pub fn name(self) -> &'static str {
        ProcessorKind::NAMES[self as usize]
    }
}

/// Peak rates in 10^9 operations per second, by activation format; a multiply-add counts as two
/// operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakRates {
    /// For f32, and for formats without their own rate.
    pub f32: f64,
    /// For eight-bit activations.
    pub int8: Option<f64>,
    /// For bf16 activations.
    pub bf16: Option<f64>,
}

impl PeakRates {
    /// The rate of a format that has one of its own.
    pub(crate) fn own(&self, format: ActivationFormat) -> Option<f64> {
        match format {
            ActivationFormat::F32 => None,
            ActivationFormat::Int(_) => self.int8,
            ActivationFormat::Bf16 | ActivationFormat::F16 | ActivationFormat::F16Int4 => self.bf16,
        }
    }
}

/// The power of memory and the rest of a SoC.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryPower {
    /// Whether the file gives power figures; without them energy is unknown.
    pub known: bool,
    /// Constant power in watts.
    pub rest_w: f64,
    /// Picojoules per byte read or written.
    pub pj_per_byte: f64,
}

/// The power of a processor in watts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Power {
    /// While idle.
    pub idle_w: f64,
    /// While it computes.
    pub busy_w: f64,
    /// While it mostly waits for memory or weights.
    pub stream_w: f64,
}

/// The delay until others know that a list is done, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandOver {
    /// If they sleep until woken.
    pub blocking_ns: u64,
    /// If they poll after the predicted time.
    pub predicted_ns: u64,
    /// Whether sleeping hand-overs also copy the results, since the memory is not shared.
    pub blocking_copies: bool,
}

/// Costs of products besides their operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductTraits {
    /// Quantized weights are expanded before products with many rows, at this rate in 10^9 weights
    /// per second. Products with few rows use the faster of both ways.
    pub expand_gweights_s: Option<f64>,
    /// Rate of products with a decoded row, in 10^9 weights per second.
    pub decode_gweights_s: Option<f64>,
    /// How many rows are multiplied at once without expansion: weights are read once for all of
    /// them.
    pub rows_at_once: usize,
    /// Loading a tile of the stationary (second) operand takes as long as this many rows of the
    /// first one: of `[M, N] x [N, K]`, `M`; of `([K, N] x [N, M])^T`, `K`. Where it is not 0, a plan
    /// may exchange operands.
    pub tile_load_rows: f64,
    /// Longer sums slow down in proportion.
    pub long_sum: Option<usize>,
    /// How many times as long a product takes with its rows in one column as with as many groups as
    /// each has rows; between them by the logarithm of groups by rows. Above 1, a plan may group
    /// rows.
    pub square_gain: f64,
}

impl Default for ProductTraits {
    fn default() -> Self {
        ProductTraits {
            expand_gweights_s: None,
            decode_gweights_s: None,
            rows_at_once: 1,
            tile_load_rows: 0.0,
            long_sum: None,
            square_gain: 1.0,
        }
    }
}

impl ProductTraits {
    /// Whether products cost more than their operations.
    pub fn matter(&self) -> bool {
        let rates = [self.expand_gweights_s, self.decode_gweights_s];
        let costly = rates.iter().any(Option::is_some) || self.long_sum.is_some();
        costly || self.forms().next().is_some()
    }

    /// The forms in which products take another time.
    pub fn forms(&self) -> impl Iterator<Item = ProductForm> {
        let exchanged = (self.tile_load_rows > 0.0).then_some(ProductForm::Exchanged);
        let grouped = if self.square_gain > 1.0 { &ProductForm::GROUPS[..] } else { &[] };
        exchanged.into_iter().chain(grouped.iter().copied())
    }
}

/// What it costs to load the weights of a compiled graph, beside what the processor does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadRates {
    /// The extra cost of each graph, in nanoseconds.
    pub ns: u64,
    /// 10^9 bytes in a second; `None`: what the processor reads.
    pub gb_s: Option<f64>,
}

/// A processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// Its name in the file.
    pub name: String,
    /// Its kind.
    pub kind: ProcessorKind,
    /// Its peak rates.
    pub peak_gops: PeakRates,
    /// Its bandwidth to memory.
    pub bandwidth_gb_s: f64,
    /// The extra cost of each run and copy, in nanoseconds.
    pub launch_ns: u64,
    /// The cost of submitting a list to an empty queue, in nanoseconds.
    pub submit_ns: u64,
    /// The delay until others continue.
    pub hand_over: HandOver,
    /// How weights are loaded while it works.
    pub load: LoadRates,
    /// Whether its queue waits for others by itself, so that work can be enqueued early.
    pub queue_waits: bool,
    /// Whether each run of a list is waited for separately.
    pub waits_each_run: bool,
    /// Costs of products besides their operations.
    pub products: ProductTraits,
    /// Times of runs that were measured on a real device. Peak, bandwidth and launch price others.
    pub measured: Vec<MeasuredRuns>,
    /// Its power; `None` if unknown.
    pub power: Option<Power>,
    /// The time to compile a subgraph, in nanoseconds.
    pub compile_ns: u64,
    /// Added compile time per element of a static graph's inputs and outputs, in nanoseconds.
    pub compile_ns_per_element: f64,
    /// Rows and columns of products are rounded up to multiples of these.
    pub tile: Tile,
    /// Whether it takes only graphs of fixed shape.
    pub static_shapes: bool,
    /// The numbers of rows that graphs are compiled for.
    pub row_buckets: Vec<usize>,
    /// Whether it has its own memory and reaches no other.
    pub own_memory: bool,
    /// The names of ops that it refuses.
    pub refused: Vec<&'static str>,
    /// The most bytes of a value.
    pub max_binding_bytes: Option<u64>,
    /// The most bytes of a graph's weights.
    pub max_graph_bytes: Option<u64>,
    /// The most loaded graphs.
    pub max_graphs: Option<usize>,
    /// The most bytes of weights of all graphs together.
    pub max_resident_bytes: Option<u64>,
    /// The most lists in flight.
    pub queue_depth: usize,
    /// Whether weights become part of the code, so that graphs do not share code.
    pub bakes_weights: bool,
    /// Whether values may be bound to rows with gaps.
    pub strided_rows: bool,
    /// What the offset of a bound value must be a multiple of.
    pub offset_alignment: usize,
}

/// The default number of lists in flight.
const QUEUE_DEPTH: u64 = 64;

impl Soc {
    /// Joules between two states of a machine of its processors; `None` if the file has no power
    /// figures.
    pub fn energy_j(&self, from: &Usage, to: &Usage) -> Option<f64> {
        Some(self.energy_parts(from, to)?.into_iter().map(|(_, joules)| joules).sum())
    }

    /// The same by what uses it: each processor by its name, then what moves data, and the rest.
    pub fn energy_parts(&self, from: &Usage, to: &Usage) -> Option<Vec<(String, f64)>> {
        let memory = self.memory_power;
        let powers: Option<Vec<Power>> = self.processors.iter().map(|p| p.power).collect();
        let powers = powers.filter(|_| memory.known)?;
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let time = seconds(to.now_ns - from.now_ns);
        let work = powers.iter().enumerate().map(|(i, p)| {
            let busy = seconds(to.busy_ns[i] - from.busy_ns[i]);
            let stream = seconds(to.stream_ns[i] - from.stream_ns[i]);
            let work = (busy - stream) * (p.busy_w - p.idle_w) + stream * (p.stream_w - p.idle_w);
            (self.processors[i].name.clone(), work + p.idle_w * time)
        });
        let bytes = (to.bytes - from.bytes) as f64 * memory.pj_per_byte * 1e-12;
        let others = [("data moved".into(), bytes), ("the rest".into(), memory.rest_w * time)];
        Some(work.chain(others).collect())
    }

    /// For how long its CPUs worked between two states, all together.
    pub fn cpu_time(&self, from: &Usage, to: &Usage) -> Duration {
        let busy = self.processors.iter().zip(from.busy_ns.iter().zip(&to.busy_ns));
        let cpus = busy.filter(|(p, _)| p.kind == ProcessorKind::Cpu);
        cpus.map(|(_, (from, to))| Duration::from_nanos(to.saturating_sub(*from))).sum()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`SocError`], which names the file, the processor and the field.
    pub fn read(path: &Path) -> Result<Soc, SocError> {
        let file = path.display().to_string();
        match troika_device::read_text(path) {
            Ok(text) => Soc::parse(&file, &text),
            Err(e) => Err(SocError::Read { file, why: e.to_string() }),
        }
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Those of [`Soc::read`].
    pub fn parse(file: &str, text: &str) -> Result<Soc, SocError> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or_default();
            let why = e.message().lines().collect::<Vec<_>>().join("; ");
            SocError::Invalid(format!("{file}, line {}: {why}", before.lines().count().max(1)))
        })?;
        let mut f = Fields::new(file, String::new(), &table);
        let name = f.text("name", "the name of the SoC")?.to_string();
        let numerics = f.word("numerics", &["on", "off"])? != Some(1);
        let (mut bandwidth_gb_s, mut memory_power) = (None, MemoryPower::default());
        if let Some(mut m) = f.table("memory")? {
            bandwidth_gb_s = Some(m.rate("bandwidth_gb_s", "10^9 bytes in a second")?);
            memory_power = read_memory_power(&mut m)?;
            m.finish()?;
        }
        let processors = match f.get("processor") {
            Some(Value::Array(all)) if !all.is_empty() => all,
            Some(_) => return Err(f.wrong("processor", "must be a list of tables, [[processor]]")),
            None => return Err(f.wrong("processor", "is missing; add a [[processor]]")),
        };
        f.finish()?;
        let read = |(i, v)| processor(file, i, v);
        let processors: Vec<Processor> =
            processors.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let wrong = |processor: &Processor, field: &str, why: &str| {
            SocError::Invalid(format!("{file}, processor {}: {field} {why}", processor.name))
        };
        for (i, p) in processors.iter().enumerate() {
            if processors[..i].iter().any(|other| other.name == p.name) {
                let why = "is that of another processor; give each one of its own";
                return Err(wrong(p, "name", why));
            }
            let why = match (p.power.is_some(), memory_power.known) {
                (true, false) => "is given, though the memory has no pj_per_byte",
                (false, true) => "is missing, though the memory has pj_per_byte",
                (true, true) | (false, false) => continue,
            };
            return Err(wrong(p, "power", &format!("{why}; give both or neither")));
        }
        let file = file.into();
        Ok(Soc { name, file, numerics, bandwidth_gb_s, memory_power, processors })
    }

    /// A processor by name; without a name, the only one.
    ///
    /// # Errors
    /// [`SocError::Unknown`].
    pub fn processor(&self, name: Option<&str>) -> Result<&Processor, SocError> {
        let names: Vec<&str> = self.processors.iter().map(|p| p.name.as_str()).collect();
        let refuse = |why: String| {
            let (file, known) = (&self.file, names.join(", "));
            Err(SocError::Unknown(format!("{file} describes the processors {known}; {why}")))
        };
        match (name, &self.processors[..]) {
            (None, [only]) => Ok(only),
            (None, _) => {
                refuse(format!("say which one is meant, as in {}:{}", self.file, names[0]))
            }
            (Some(name), all) => match all.iter().find(|p| p.name == name) {
                Some(found) => Ok(found),
                None => refuse(format!("none of them is named {name:?}")),
            },
        }
    }
}

fn processor(file: &str, index: usize, value: &Value) -> Result<Processor, SocError> {
    let place = |name: &str| format!(", processor {name}");
    let empty = Table::new();
    let table = value.as_table().unwrap_or(&empty);
    let mut f = Fields::new(file, place(&(index + 1).to_string()), table);
    let name = f.text("name", "the processor's name")?.to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(plain) {
        let why = format!("is {name:?}; names are made of letters, digits, '-', '_' and '.'");
        return Err(f.wrong("name", why));
    }
    let mut f = Fields::new(file, place(&name), table);
    f.get("name");
    let Some(kind) = f.word("kind", &ProcessorKind::NAMES)? else {
        return Err(f.wrong("kind", "is missing; it is \"cpu\", \"gpu\" or \"npu\""));
    };
    let kind = [ProcessorKind::Cpu, ProcessorKind::Gpu, ProcessorKind::Npu][kind];
    let peak_gops = peaks(&mut f)?;
    let static_shapes = f.flag("static_shapes")?.unwrap_or(false);
    let measured = f.tables("measured")?.into_iter();
    let measured = measured.map(|m| MeasuredRuns::read(m, static_shapes));
    let processor = Processor {
        kind,
        peak_gops,
        measured: measured.collect::<Result<_, _>>()?,
        bandwidth_gb_s: f.rate("bandwidth_gb_s", "10^9 bytes in a second")?,
        launch_ns: f.micros("launch_us", "microseconds that each run costs besides")?,
        submit_ns: f.maybe_micros("submit_us")?,
        hand_over: hand_over(&mut f)?,
        load: load_rates(&mut f)?,
        queue_waits: f.flag("queue_waits")?.unwrap_or(false),
        waits_each_run: f.flag("waits_each_run")?.unwrap_or(false),
        products: product_traits(&mut f)?,
        power: power(&mut f)?,
        compile_ns: f.maybe_micros("compile_us")?,
        compile_ns_per_element: f.maybe_figure("compile_ns_per_element")?,
        tile: tile(&mut f)?,
        static_shapes,
        row_buckets: row_buckets(&mut f, static_shapes)?,
        own_memory: f.flag("own_memory")?.unwrap_or(false),
        refused: refused(&mut f)?,
        max_binding_bytes: f.maybe_count("max_binding_bytes")?,
        max_graph_bytes: f.maybe_count("max_graph_bytes")?,
        max_graphs: f.maybe_count("max_graphs")?.map(|n| n as usize),
        max_resident_bytes: f.maybe_count("max_resident_bytes")?,
        queue_depth: f.maybe_count("queue_depth")?.unwrap_or(QUEUE_DEPTH) as usize,
        bakes_weights: f.flag("bakes_weights")?.unwrap_or(false),
        strided_rows: f.flag("strided_rows")?.unwrap_or(true),
        offset_alignment: f.maybe_count("offset_alignment")?.unwrap_or(1) as usize,
        name,
    };
    f.finish()?;
    Ok(processor)
}

fn read_memory_power(m: &mut Fields<'_>) -> Result<MemoryPower, SocError> {
    let known = m.get("pj_per_byte").is_some();
    let (rest_w, pj_per_byte) = (m.maybe_figure("rest_w")?, m.maybe_figure("pj_per_byte")?);
    if !known && rest_w > 0.0 {
        return Err(m.wrong("pj_per_byte", "is missing, though there is rest_w"));
    }
    Ok(MemoryPower { known, rest_w, pj_per_byte })
}

fn hand_over(f: &mut Fields<'_>) -> Result<HandOver, SocError> {
    let Some(mut h) = f.table("hand_over")? else { return Ok(HandOver::default()) };
    let what = "microseconds until others go on";
    let blocking_ns = h.micros("blocking_us", what)?;
    let predicted_ns = h.micros("predicted_us", what)?;
    let blocking_copies = h.flag("blocking_copies")?.unwrap_or(false);
    h.finish()?;
    Ok(HandOver { blocking_ns, predicted_ns, blocking_copies })
}

fn load_rates(f: &mut Fields<'_>) -> Result<LoadRates, SocError> {
    let Some(mut l) = f.table("load")? else { return Ok(LoadRates::default()) };
    let rates = LoadRates { ns: l.maybe_micros("us")?, gb_s: l.maybe_rate("gb_s")? };
    l.finish()?;
    Ok(rates)
}

fn power(f: &mut Fields<'_>) -> Result<Option<Power>, SocError> {
    let Some(mut p) = f.table("power")? else { return Ok(None) };
    let busy_w = p.rate("busy_w", "watts while it works")?;
    let stream_w = p.maybe_rate("stream_w")?.unwrap_or(busy_w);
    let power = Power { idle_w: p.maybe_figure("idle_w")?, busy_w, stream_w };
    p.finish()?;
    if power.idle_w > busy_w.min(stream_w) {
        let why = "is more than busy_w or stream_w; nothing takes more at rest";
        return Err(f.wrong("power.idle_w", why));
    }
    Ok(Some(power))
}

fn product_traits(f: &mut Fields<'_>) -> Result<ProductTraits, SocError> {
    let Some(mut p) = f.table("products")? else { return Ok(ProductTraits::default()) };
    let traits = ProductTraits {
        expand_gweights_s: p.maybe_rate("expand_gweights_s")?,
        decode_gweights_s: p.maybe_rate("decode_gweights_s")?,
        rows_at_once: p.maybe_count("rows_at_once")?.map_or(1, |n| n.min(MOST_ROWS) as usize),
        tile_load_rows: p.maybe_figure("tile_load_rows")?,
        long_sum: p.maybe_count("long_sum")?.map(|n| n.min(MOST_ROWS) as usize),
        square_gain: p.maybe_rate("square_gain")?.unwrap_or(1.0).max(1.0),
    };
    p.finish()?;
    Ok(traits)
}

fn peaks(f: &mut Fields<'_>) -> Result<PeakRates, SocError> {
    match f.get("peak_gops") {
        None => Err(f.wrong("peak_gops", "is missing; it is 10^9 operations in a second")),
        Some(Value::Table(formats)) => {
            let known = ["f32", "int8", "bf16"];
            if let Some(other) = formats.keys().find(|k| !known.contains(&k.as_str())) {
                let why = format!("has no format {other}; the formats are {}", known.join(", "));
                return Err(f.wrong("peak_gops", why));
            }
            let rate = |name: &str| {
                let field = format!("peak_gops.{name}");
                formats.get(name).map(|value| f.rate_of(&field, value)).transpose()
            };
            let missing =
                || f.wrong("peak_gops.f32", "is missing; every processor computes in f32");
            Ok(PeakRates {
                f32: rate("f32")?.ok_or_else(missing)?,
                int8: rate("int8")?,
                bf16: rate("bf16")?,
            })
        }
        Some(one) => Ok(PeakRates { f32: f.rate_of("peak_gops", one)?, int8: None, bf16: None }),
    }
}

/// Rows and columns that a processor multiplies at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of activations.
    pub rows: usize,
    /// Columns of results.
    pub cols: usize,
}

impl Tile {
    /// No rounding.
    pub const ONE: Tile = Tile { rows: 1, cols: 1 };
}

/// The largest tile and bucket, so that rounding up cannot overflow.
const MOST_ROWS: u64 = 1 << 24;

fn tile(f: &mut Fields<'_>) -> Result<Tile, SocError> {
    match f.counts("tile")?.as_deref() {
        None => Ok(Tile::ONE),
        Some(&[rows, cols]) if rows.max(cols) <= MOST_ROWS => {
            Ok(Tile { rows: rows as usize, cols: cols as usize })
        }
        Some(_) => {
            Err(f.wrong("tile", format!("must be [rows, columns], each at most {MOST_ROWS}")))
        }
    }
}

/// The most shapes of a processor, since all ways to combine them are priced.
const MOST_BUCKETS: usize = 64;

fn row_buckets(f: &mut Fields<'_>, static_shapes: bool) -> Result<Vec<usize>, SocError> {
    let Some(list) = f.counts("row_buckets")? else { return Ok(Vec::new()) };
    if !static_shapes {
        return Err(f.wrong("row_buckets", "is for processors with static_shapes = true only"));
    }
    if list.len() > MOST_BUCKETS {
        return Err(f.wrong("row_buckets", "names more than 64 shapes; name fewer"));
    }
    let ascend = list.windows(2).all(|pair| pair[0] < pair[1]);
    if list.is_empty() || !ascend || list.iter().any(|n| *n > MOST_ROWS) {
        let why = format!("must be numbers of rows up to {MOST_ROWS}, in ascending order");
        return Err(f.wrong("row_buckets", why));
    }
    Ok(list.into_iter().map(|n| n as usize).collect())
}

fn refused(f: &mut Fields<'_>) -> Result<Vec<&'static str>, SocError> {
    let (refuses, only) = (f.words("refuses", Op::NAMES)?, f.words("only", Op::NAMES)?);
    if refuses.is_some() && only.is_some() {
        return Err(f.wrong("only", "and refuses say the same thing twice; give one of them"));
    }
    let field = if only.is_some() { "only" } else { "refuses" };
    let refused: Vec<&'static str> = match only {
        Some(only) => Op::NAMES.iter().copied().filter(|op| !only.contains(op)).collect(),
        None => refuses.unwrap_or_default(),
    };
    if Op::NAMES.iter().all(|op| refused.contains(op)) {
        return Err(f.wrong(field, "leaves the processor no op that it runs"));
    }
    Ok(refused)
}
