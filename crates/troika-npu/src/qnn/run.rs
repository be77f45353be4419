//! A run of a compiled graph, and its profile.

#![allow(unsafe_code, reason = "functions and memory of Qualcomm's libraries")]

use std::ffi::{CStr, CString, c_void};
use std::fmt::Write;
use std::path::Path;
use std::ptr::{null, null_mut};

use super::abi::{
    BinaryInfo, EventData, ExtendedEventData, Functions, GetProviders, GraphInfo, Handle, Head,
    ProfileOption, Status, SystemFunctions, Tensor,
};
use crate::onnx::compiled_context;
use crate::profiling::ProfilingLevel;

/// Runs. The last one is profiled: the first one lays memory out.
const RUNS: usize = 2;
/// The most levels of parts.
const DEEPEST: usize = 16;
/// Levels of QNN's profiler: of nodes, and of the parts of nodes.
const DETAILED: u32 = 2;
const LINTING: u32 = 7001;
/// The option that has a device trace its steps.
static TRACE: ProfileOption = ProfileOption { option: 2, value: 1 };

/// Calls a function of an interface, and names it where it is missing or fails.
macro_rules! call {
    ($functions:expr, $name:ident $(, $arg:expr)*) => {
        match $functions.$name {
            // SAFETY: the library is of a version with these declarations, handles are those that it
            // gave and has not freed, and pointers are to what lives through the call.
            Some(function) => checked(stringify!($name), unsafe { function($($arg),*) }),
            None => checked(stringify!($name), 1),
        }
    };
}

fn checked(what: &str, status: Status) -> Result<(), String> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("QNN's {what} fails with {:#x}", status & 0xffff))
    }
}

/// A list of a library's.
///
/// # Safety
/// There are so many values behind the pointer, unless it is null, for as long as the result lives.
unsafe fn slice<'a, T>(at: *const T, count: u32) -> &'a [T] {
    // SAFETY: the caller says so.
    if at.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(at, count as usize) } }
}

/// Loads a library for good, and gives the functions `F` of its interface, which has to be of a
/// version.
///
/// # Safety
/// In this version and later ones of the same first number, such functions follow the head.
unsafe fn functions<F, const VERSIONS: usize>(
    library: &Path,
    name: &CStr,
    known: [u32; 2],
) -> Result<&'static F, String> {
    let failed = |what: &str| format!("{} {what}", library.display());
    let path = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: both are texts with an end. The vendor's library may run code when it is loaded.
    let found = unsafe {
        let loaded = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if loaded.is_null() { loaded } else { libc::dlsym(loaded, name.as_ptr()) }
    };
    if found.is_null() {
        return Err(failed("cannot be loaded, or has no interface of QNN"));
    }
    let (mut heads, mut count) = (null(), 0);
    // SAFETY: it is the function of that name. It gives heads that live as long as the library.
    let head: *const Head<VERSIONS> = unsafe {
        let get = std::mem::transmute::<*mut c_void, GetProviders<Head<VERSIONS>>>(found);
        checked("list of interfaces", get(&raw mut heads, &raw mut count))?;
        slice(heads, count).first().copied().unwrap_or(null())
    };
    // SAFETY: it is null, or a head, which interfaces of all versions have.
    let [major, minor, _] = unsafe { head.as_ref() }.map_or([0; 3], |head| head.versions[0]);
    let [same, least] = known;
    if major != same || minor < least {
        return Err(failed(&format!(
            "has version {major}.{minor} of QNN's interface, and {same} from {same}.{least} on is \
             known"
        )));
    }
    // SAFETY: the head is of this version, and the caller says what follows.
    Ok(unsafe { &*head.add(1).cast() })
}

/// Tensors with memory of zeros, which is added to `memory`.
///
/// # Safety
/// The tensors are of a library's description that lives.
unsafe fn with_memory(of: &[Tensor], memory: &mut Vec<Vec<u64>>) -> Result<Vec<Tensor>, String> {
    let each = of.iter().map(|tensor| {
        let mut tensor = *tensor;
        let bytes = [(0x08, 1), (0x16, 2), (0x32, 4), (0x64, 8)];
        let bytes = bytes.into_iter().find(|(bits, _)| *bits == tensor.data_type & 0xff);
        // SAFETY: the caller says that it is described, with so many dimensions.
        let dims = unsafe { slice(tensor.dims, tensor.rank) };
        let size = bytes
            .filter(|_| matches!(tensor.version, 1 | 2))
            .and_then(|(_, bytes)| dims.iter().try_fold(bytes, |n: u32, dim| n.checked_mul(*dim)));
        let size = size.ok_or("an input or output is of an unknown type or size")?;
        let mut zeros = vec![0; (size as usize).div_ceil(8)];
        (tensor.memory, tensor.data, tensor.size) = (0, zeros.as_mut_ptr().cast(), size);
        memory.push(zeros);
        Ok(tensor)
    });
    each.collect()
}

/// What is open, and closed again in the order that the library asks for.
struct Open {
    functions: &'static Functions,
    system: &'static SystemFunctions,
    /// The compiled form, and a copy that the library may write to while it describes it.
    blob: [Vec<u8>; 2],
    backend: Handle,
    device: Handle,
    profile: Handle,
    context: Handle,
    description: Handle,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.context.is_null() {
            let _ = call!(self.functions, context_free, self.context, null_mut());
        }
        if !self.profile.is_null() {
            let _ = call!(self.functions, profile_free, self.profile);
        }
        if !self.device.is_null() {
            let _ = call!(self.functions, device_free, self.device);
        }
        if !self.backend.is_null() {
            let _ = call!(self.functions, backend_free, self.backend);
        }
        if !self.description.is_null() {
            let _ = call!(self.system, context_free, self.description);
        }
    }
}

impl Open {
    /// The description of the only graph of the compiled form.
    fn describe(&mut self) -> Result<&GraphInfo, String> {
        call!(self.system, context_create, &raw mut self.description)?;
        let (mut info, mut size): (*const BinaryInfo, u64) = (null(), 0);
        let (of, copy) = (self.description, &mut self.blob[1]);
        let (at, length, to) = (copy.as_mut_ptr().cast(), copy.len() as u64, &raw mut size);
        call!(self.system, context_get_binary_info, of, at, length, &raw mut info, to)?;
        // SAFETY: it is null or a description, all versions of which begin with their number; of
        // version 3, it has so many graphs.
        let graphs = unsafe {
            let info = info.as_ref().filter(|info| info.version == 3);
            info.map_or(&[][..], |info| slice(info.graphs, info.graph_count))
        };
        match graphs {
            [graph] => Ok(graph),
            _ => Err("the compiled form is described otherwise, or has not one graph".into()),
        }
    }

    /// Opens the profile: of the steps of the device, or of parts of nodes.
    fn open_profile(&mut self, traces: bool) -> Result<(), String> {
        let (functions, backend, to) = (self.functions, self.backend, &raw mut self.profile);
        if traces {
            call!(functions, profile_create, backend, DETAILED, to)?;
            let options: [*const ProfileOption; 2] = [&raw const TRACE, null()];
            return call!(functions, profile_set_config, self.profile, options.as_ptr());
        }
        call!(functions, profile_create, backend, LINTING, to)
            .or_else(|_| call!(functions, profile_create, backend, DETAILED, to))
    }

    /// Runs the graph on zeros.
    fn run(&mut self, traces: bool) -> Result<(), String> {
        let (functions, none) = (self.functions, null_mut());
        let graph = self.describe()?;
        let (name, ins, outs) = (graph.name, graph.input_count, graph.output_count);
        let mut memory = Vec::new();
        // SAFETY: the description has so many of them, and lives on.
        let (inputs, mut outputs) = unsafe {
            let (inputs, outputs) = (slice(graph.inputs, ins), slice(graph.outputs, outs));
            (with_memory(inputs, &mut memory)?, with_memory(outputs, &mut memory)?)
        };
        call!(functions, backend_create, none, null(), &raw mut self.backend)?;
        call!(functions, device_create, none, null(), &raw mut self.device)?;
        let (on, by, blob) = (self.backend, self.device, &self.blob[0]);
        let (at, length, to) = (blob.as_ptr().cast(), blob.len() as u64, &raw mut self.context);
        call!(functions, context_create_from_binary, on, by, null(), at, length, to, none)?;
        self.open_profile(traces)?;
        let mut graph = null_mut();
        call!(functions, graph_retrieve, self.context, name, &raw mut graph)?;
        let (from, to, profile) = (inputs.as_ptr(), outputs.as_mut_ptr(), self.profile);
        (0..RUNS).try_for_each(|_| {
            call!(functions, graph_execute, graph, from, ins, to, outs, profile, none)
        })
    }

    /// Writes events with their parts behind them.
    fn write(&self, ids: &[u64], depth: usize, whole: &str, to: &mut String) -> Result<(), String> {
        for id in ids {
            let mut data = EventData { kind: 0, unit: 0, value: 0, name: null() };
            call!(self.functions, profile_get_event_data, *id, &raw mut data)?;
            let mut timed = ExtendedEventData { version: 1, ..Default::default() };
            // Not every library tells times.
            let told = call!(self.functions, profile_get_extended_event_data, *id, &raw mut timed);
            let at = told.map_or(0, |()| timed.timestamp_us);
            let EventData { kind, value, .. } = data;
            // SAFETY: it is null, or a text with an end.
            let name = (!data.name.is_null()).then(|| unsafe { CStr::from_ptr(data.name) });
            let name = name.map(|name| name.to_string_lossy().replace(['\r', '\n'], " "));
            let name = name.unwrap_or_else(|| format!("event {kind}"));
            let (message, unit) = (message(kind, whole), unit(kind, data.unit));
            let level = ["ROOT".into(), format!("SUB-EVENT {depth}")];
            let level = &level[depth.min(1)];
            let _ = writeln!(to, "{at},{message},{value},{unit},BACKEND,{level},{name}");
            let (mut ids, mut count) = (null(), 0);
            call!(self.functions, profile_get_sub_events, *id, &raw mut ids, &raw mut count)?;
            // SAFETY: the profile has them until the next run.
            let parts = unsafe { slice(ids, if depth < DEEPEST { count } else { 0 }) };
            self.write(parts, depth + 1, message, to)?;
        }
        Ok(())
    }
}

/// What an event says, by its number and by what it is a part of.
fn message(kind: u32, whole: &str) -> &str {
    match kind {
        400 => "EXECUTE",
        404 => "NODE",
        600 => "TRACE",
        5001..=5006 => "PART",
        _ => whole,
    }
}

fn unit(kind: u32, unit: u32) -> &'static str {
    match (kind, unit) {
        // QNN calls them cycles. The first has a bit for each resource, the others name an op.
        (5004, _) => "BITS",
        (5005 | 5006, _) => "OP",
        _ => ["NONE", "US", "BYTES", "CYCLES", "COUNT", "OBJECT"]
            .get(unit as usize)
            .unwrap_or(&"NONE"),
    }
}

/// Runs a graph's compiled form on zeros, and gives what QNN says of the run: in the form that ONNX
/// Runtime's provider writes, with the depth of parts.
///
/// # Errors
/// What the library lacks, or refuses.
pub(crate) fn profile(
    folder: &Path,
    compiled: &[u8],
    level: ProfilingLevel,
) -> Result<String, String> {
    let blob = compiled_context(compiled).ok_or("there is no compiled form of QNN's")?;
    let [library, system] = ["libQnnHtp.so", "libQnnSystem.so"].map(|file| folder.join(file));
    let names = (c"QnnInterface_getProviders", c"QnnSystemInterface_getProviders");
    // SAFETY: these versions have these functions, by Qualcomm's declarations.
    let (functions, system) = unsafe {
        let own = functions::<Functions, 2>(&library, names.0, [2, 21])?;
        (own, functions::<SystemFunctions, 1>(&system, names.1, [1, 0])?)
    };
    let told = |traces: bool| {
        let [backend, device, profile, context, description] = [null_mut(); 5];
        let blob = [blob.clone(), blob.clone()];
        let mut open =
            Open { functions, system, blob, backend, device, profile, context, description };
        open.run(traces)?;
        let (mut ids, mut count) = (null(), 0);
        call!(functions, profile_get_events, open.profile, &raw mut ids, &raw mut count)?;
        let mut text = String::new();
        // SAFETY: the profile has them until the next run.
        open.write(unsafe { slice(ids, count) }, 0, "BACKEND", &mut text)?;
        Ok::<_, String>(text)
    };
    let mut text = told(false)?;
    if level == ProfilingLevel::Optrace {
        // Steps of the device alone: the rest was told.
        let steps = told(true)?;
        let steps = steps.split_inclusive('\n').filter(|line| line.contains(",TRACE,"));
        text.extend(steps);
    }
    Ok(text)
}
