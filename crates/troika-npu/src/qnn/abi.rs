//! Qualcomm's declarations, as far as they are used: of QNN's interface 2 from 2.21 on, and of its
//! system interface 1. Later versions of these only add to the ends of tables.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

pub type Handle = *mut c_void;
pub type Text = *const c_char;
/// 0, or an error's number.
pub type Status = u64;
/// A function that is not used, or a list of options, of which there are none.
type Unused = *const c_void;

/// Gives a library's interfaces, each of which begins with a head.
pub type GetProviders<H> = unsafe extern "C" fn(*mut *const *const H, *mut u32) -> Status;

/// The head of an interface. Its functions follow.
#[repr(C)]
pub struct Head<const VERSIONS: usize> {
    backend: u32,
    name: Text,
    /// Its own, and perhaps the backend's.
    pub versions: [[u32; 3]; VERSIONS],
}

type Create = unsafe extern "C" fn(Handle, Unused, *mut Handle) -> Status;
type Free = unsafe extern "C" fn(Handle) -> Status;
type LoadContext =
    unsafe extern "C" fn(Handle, Handle, Unused, *const c_void, u64, *mut Handle, Handle) -> Status;
type Execute =
    unsafe extern "C" fn(Handle, *const Tensor, u32, *mut Tensor, u32, Handle, Handle) -> Status;
type Configure = unsafe extern "C" fn(Handle, *const *const ProfileOption) -> Status;
type GetIds<A> = unsafe extern "C" fn(A, *mut *const u64, *mut u32) -> Status;
type GetData<D> = unsafe extern "C" fn(u64, *mut D) -> Status;
type Describe =
    unsafe extern "C" fn(Handle, *mut c_void, u64, *mut *const BinaryInfo, *mut u64) -> Status;

/// The functions of an interface, with their places in its table.
#[repr(C)]
pub struct Functions {
    _0: Unused,
    pub backend_create: Option<Create>,
    _2: [Unused; 6],
    pub backend_free: Option<Free>,
    _9: [Unused; 4],
    pub context_create_from_binary: Option<LoadContext>,
    pub context_free: Option<unsafe extern "C" fn(Handle, Handle) -> Status>,
    _15: [Unused; 5],
    pub graph_retrieve: Option<unsafe extern "C" fn(Handle, Text, *mut Handle) -> Status>,
    pub graph_execute: Option<Execute>,
    _22: [Unused; 6],
    pub profile_create: Option<unsafe extern "C" fn(Handle, u32, *mut Handle) -> Status>,
    pub profile_set_config: Option<Configure>,
    pub profile_get_events: Option<GetIds<Handle>>,
    pub profile_get_sub_events: Option<GetIds<u64>>,
    pub profile_get_event_data: Option<GetData<EventData>>,
    pub profile_get_extended_event_data: Option<GetData<ExtendedEventData>>,
    pub profile_free: Option<Free>,
    _35: [Unused; 5],
    pub device_create: Option<Create>,
    _41: [Unused; 2],
    pub device_free: Option<Free>,
}

/// The functions of the system interface.
#[repr(C)]
pub struct SystemFunctions {
    pub context_create: Option<unsafe extern "C" fn(*mut Handle) -> Status>,
    pub context_get_binary_info: Option<Describe>,
    _2: Unused,
    pub context_free: Option<Free>,
}

/// What a compiled form holds, in version 3 of its description.
#[repr(C)]
pub struct BinaryInfo {
    pub version: u32,
    _others: [u64; 11],
    pub graph_count: u32,
    pub graphs: *const GraphInfo,
}

/// A graph, in any version.
#[repr(C)]
pub struct GraphInfo {
    version: u32,
    pub name: Text,
    pub input_count: u32,
    pub inputs: *const Tensor,
    pub output_count: u32,
    pub outputs: *const Tensor,
}

/// An input or output, in version 1 or 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    pub version: u32,
    _id: [u64; 3],
    pub data_type: u32,
    _quantization: [u64; 5],
    pub rank: u32,
    pub dims: *const u32,
    /// 0 if `data` is memory of the caller's.
    pub memory: u32,
    pub data: *mut c_void,
    pub size: u32,
    _others: [u64; 3],
}

#[repr(C)]
pub struct EventData {
    pub kind: u32,
    pub unit: u32,
    pub value: u64,
    pub name: Text,
}

/// Version 1 of it.
#[repr(C)]
#[derive(Default)]
pub struct ExtendedEventData {
    pub version: u32,
    pub data: [u64; 4],
    pub timestamp_us: u64,
    pub name: u64,
}

#[repr(C)]
pub struct ProfileOption {
    pub option: u32,
    pub value: u64,
}

// As C lays them out where pointers have 8 bytes.
const _: () = {
    assert!(size_of::<Head<2>>() == 40 && size_of::<Head<1>>() == 32);
    assert!(size_of::<Functions>() == 44 * 8 && offset_of!(Functions, profile_create) == 28 * 8);
    assert!(offset_of!(Functions, graph_retrieve) == 20 * 8);
    assert!(offset_of!(BinaryInfo, graphs) == 104 && offset_of!(Tensor, data_type) == 32);
    assert!(offset_of!(Tensor, memory) == 96 && size_of::<Tensor>() == 144);
    assert!(offset_of!(ExtendedEventData, timestamp_us) == 40);
};
