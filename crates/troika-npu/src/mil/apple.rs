//! Core ML itself. Nothing of this file has run yet: it is checked for macOS and iOS only by its types.

#![allow(unsafe_code, reason = "Core ML's interface is Objective-C's")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, mpsc};

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::{AnyClass, AnyObject, NSObjectProtocol, ProtocolObject};
use objc2::{AnyThread, ClassType};
use objc2_core_ml::{
    MLComputePlan, MLComputeUnits, MLDictionaryFeatureProvider, MLFeatureProvider, MLFeatureValue,
    MLGPUComputeDevice, MLModel, MLModelConfiguration, MLMultiArray, MLMultiArrayDataType,
    MLNeuralEngineComputeDevice, MLPredictionOptions, MLState,
};
use objc2_foundation::{NSArray, NSDictionary, NSError, NSNumber, NSString, NSURL};
use prost::Message;
use troika_device::lock;

use super::delegation::Delegation;
use super::proto::{FeatureDescription, MlModel};
use super::runtime::{CoreMlFunction, CoreMlRuntime, CoreMlState, ROOT};

/// Core ML on the Neural Engine, and on the CPU what that does not take. A package is compiled when its
/// first function is opened.
#[derive(Debug, Default)]
pub struct AppleCoreMl {
    /// Whether compiled forms stay beside their packages, for folders that are Troika's own; else they
    /// are where Core ML puts them.
    keeps_beside: bool,
    /// Where the compiled form of each package is.
    compiled: Mutex<HashMap<PathBuf, PathBuf>>,
}

/// An open function.
struct AppleFunction {
    model: Retained<MLModel>,
    features: HashMap<String, Shape>,
}

/// A feature's dimensions, and its type of elements.
struct Shape {
    dims: Vec<usize>,
    element: MLMultiArrayDataType,
}

/// A sequence's state.
struct AppleState(Retained<MLState>);

// SAFETY: Core ML's models and states may be used by any thread; `&mut self` lets one at a time.
unsafe impl Send for AppleFunction {}
// SAFETY: as above.
unsafe impl Send for AppleState {}

fn said(error: Retained<NSError>) -> String {
    error.localizedDescription().to_string()
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

fn program(package: &Path) -> PathBuf {
    package.join(ROOT).join("model.mlmodel")
}

/// Compiles a package into a temporary folder of Core ML's.
fn compile(package: &Path) -> Result<PathBuf, String> {
    // SAFETY: the URL is one of a file.
    #[allow(deprecated, reason = "the other one returns to a block")]
    let made = unsafe { MLModel::compileModelAtURL_error(&url(package)) }.map_err(said)?;
    let path = made.path().ok_or("Core ML names no compiled package")?;
    Ok(PathBuf::from(path.to_string()))
}

fn configuration(function: &str, units: MLComputeUnits) -> Retained<MLModelConfiguration> {
    // SAFETY: setters of a configuration of our own.
    unsafe {
        let configuration = MLModelConfiguration::new();
        configuration.setComputeUnits(units);
        configuration.setFunctionName(Some(&NSString::from_str(function)));
        configuration
    }
}

impl AppleCoreMl {
    /// Keeps compiled forms beside their packages, as `NAME.mlmodelc`, and takes those that are there
    /// and not older.
    pub fn beside_packages() -> AppleCoreMl {
        AppleCoreMl { keeps_beside: true, ..AppleCoreMl::default() }
    }

    /// Asks Core ML on which of all units it would run the operations of a package's functions.
    ///
    /// # Errors
    /// The system is older than such packages, or what it says.
    pub fn delegate(
        package: &Path,
        functions: &mut [(String, Vec<Delegation>)],
    ) -> Result<(), String> {
        // Packages with functions came with states.
        if AnyClass::get(c"MLState").is_none() {
            return Err("Core ML reads such packages from macOS 15 and iOS 18 on".into());
        }
        let compiled = compile(package)?;
        let asked = functions.iter_mut().try_for_each(|(function, ops)| {
            let all = planned(&compiled, function)?;
            for op in ops {
                op.in_fact_on = all.get(&op.op).cloned().unwrap_or_default();
            }
            Ok(())
        });
        let _ = std::fs::remove_dir_all(compiled);
        asked
    }

    fn compiled(&self, package: &Path) -> Result<PathBuf, String> {
        let mut all = lock(&self.compiled);
        if let Some(known) = all.get(package).filter(|path| path.exists()) {
            return Ok(known.clone());
        }
        let mut path = package.with_extension("mlmodelc");
        let written = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
        if !self.keeps_beside || written(&path) < written(&program(package)) {
            let made = compile(package)?;
            let moved = self.keeps_beside && {
                let _ = std::fs::remove_dir_all(&path);
                std::fs::rename(&made, &path).is_ok()
            };
            if !moved {
                path = made;
            }
        }
        all.insert(package.into(), path.clone());
        Ok(path)
    }
}

/// How many operations of each name Core ML would run on each unit.
type Units = HashMap<String, BTreeMap<&'static str, usize>>;

/// Core ML's plan for a function.
fn planned(compiled: &Path, function: &str) -> Result<Units, String> {
    let (sender, receiver) = mpsc::channel();
    let done = RcBlock::new(move |plan: *mut MLComputePlan, error: *mut NSError| {
        // SAFETY: each is null or an object, which stays as long as it is retained.
        let (plan, error) = unsafe { (Retained::retain(plan), Retained::retain(error)) };
        let _ = sender.send(plan.ok_or(error));
    });
    let of = configuration(function, MLComputeUnits::All);
    // SAFETY: a URL of a compiled package. The block owns what it uses, and may run on any thread: it
    // sends what is not used there any more.
    unsafe {
        MLComputePlan::loadContentsOfURL_configuration_completionHandler(&url(compiled), &of, &done)
    };
    // Core ML has the block still. If it drops it without an answer, the wait ends.
    drop(done);
    let absent = || format!("Core ML has no plan for the function {function}");
    let plan = receiver.recv().map_err(|_| absent())?;
    let plan = plan.map_err(|error| error.map_or_else(absent, said))?;
    // SAFETY: this thread alone reads the plan and its program.
    let ops = unsafe {
        let program = plan.modelStructure().program();
        let all = program.map(|program| program.functions());
        let own = all.and_then(|all| all.objectForKey(&NSString::from_str(function)));
        own.ok_or_else(absent)?.block().operations()
    };
    let units =
        [("ane", MLNeuralEngineComputeDevice::class()), ("gpu", MLGPUComputeDevice::class())];
    let mut all = Units::new();
    for op in ops.to_vec() {
        // SAFETY: as above, of an operation of this plan.
        let (name, device) = unsafe {
            let usage = plan.computeDeviceUsageForMLProgramOperation(&op);
            // Constants have none.
            let Some(usage) = usage else { continue };
            (op.operatorName().to_string(), usage.preferredComputeDevice())
        };
        let unit = units.iter().find(|(_, class)| device.isKindOfClass(class));
        let unit = unit.map_or("cpu", |(unit, _)| *unit);
        // They are named as in `ios18.linear`.
        let name = name.rsplit('.').next().unwrap_or(&name).to_string();
        *all.entry(name).or_default().entry(unit).or_default() += 1;
    }
    Ok(all)
}

impl CoreMlRuntime for AppleCoreMl {
    fn open(&self, package: &Path, function: &str) -> Result<Box<dyn CoreMlFunction>, String> {
        let file = program(package);
        let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let model = MlModel::decode(&*bytes).map_err(|e| format!("{}: {e}", file.display()))?;
        let of = model.description.into_iter().flat_map(|d| d.functions);
        let of = of.into_iter().find(|f| f.name == function);
        let of = of.ok_or_else(|| format!("the package has no function {function}"))?;
        let all = of.input.iter().chain(&of.output);
        let features = all.filter_map(|f| Some((f.name.clone(), Shape::of(f)?))).collect();
        let compiled = self.compiled(package)?;
        let of = configuration(function, MLComputeUnits::CPUAndNeuralEngine);
        // SAFETY: a URL of a compiled package.
        let model =
            unsafe { MLModel::modelWithContentsOfURL_configuration_error(&url(&compiled), &of) };
        Ok(Box::new(AppleFunction { model: model.map_err(said)?, features }))
    }
}

impl Shape {
    fn of(feature: &FeatureDescription) -> Option<Shape> {
        let array = feature.feature_type.as_ref()?.multi_array_type.as_ref()?;
        let dims = array.shape.iter().map(|d| *d as usize).collect();
        // Both interfaces number types alike.
        Some(Shape { dims, element: MLMultiArrayDataType(array.data_type as isize) })
    }

    fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * (self.element.0 as usize & 0xffff) / 8
    }

    /// An array over memory that outlives it.
    ///
    /// # Safety
    /// `data` points to as many bytes as the shape has, until the array is dropped.
    unsafe fn array(&self, data: NonNull<c_void>) -> Result<Retained<MLMultiArray>, String> {
        let mut strides = vec![1; self.dims.len()];
        for i in (1..self.dims.len()).rev() {
            strides[i - 1] = strides[i] * self.dims[i];
        }
        let numbers = |list: &[usize]| {
            let all: Vec<_> = list.iter().map(|n| NSNumber::new_usize(*n)).collect();
            NSArray::from_retained_slice(&all)
        };
        // SAFETY: the caller's promise; without a deallocator the memory stays the caller's.
        let array = unsafe {
            MLMultiArray::initWithDataPointer_shape_dataType_strides_deallocator_error(
                MLMultiArray::alloc(),
                data,
                &numbers(&self.dims),
                self.element,
                &numbers(&strides),
                None,
            )
        };
        array.map_err(said)
    }
}

impl AppleFunction {
    fn array(
        &self,
        name: &str,
        data: *const u8,
        len: usize,
    ) -> Result<Retained<MLMultiArray>, String> {
        let shape = self.features.get(name).filter(|shape| shape.bytes() == len);
        let shape =
            shape.ok_or_else(|| format!("the function has no feature {name} of {len} bytes"))?;
        let data = NonNull::new(data.cast_mut().cast()).ok_or("a feature has no memory")?;
        // SAFETY: `predict` holds the memory until the prediction has returned.
        unsafe { shape.array(data) }
    }
}

impl CoreMlFunction for AppleFunction {
    fn state(&self) -> Result<CoreMlState, String> {
        // SAFETY: any model gives a state, an empty one if it has none.
        Ok(CoreMlState(Box::new(AppleState(unsafe { self.model.newState() }))))
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &[u8])],
        state: Option<&mut CoreMlState>,
        outputs: &mut [(&str, &mut [u8])],
    ) -> Result<(), String> {
        let mut names = Vec::new();
        let mut values: Vec<Retained<AnyObject>> = Vec::new();
        for (name, bytes) in inputs {
            let array = self.array(name, bytes.as_ptr(), bytes.len())?;
            names.push(NSString::from_str(name));
            // SAFETY: an array is a feature's value.
            values.push(unsafe { MLFeatureValue::featureValueWithMultiArray(&array) }.into());
        }
        let dictionary = |names: &[Retained<NSString>], values: &[Retained<AnyObject>]| {
            let names: Vec<&NSString> = names.iter().map(|n| &**n).collect();
            NSDictionary::from_retained_objects(&names, values)
        };
        // SAFETY: the dictionary has features' values.
        let features = unsafe {
            MLDictionaryFeatureProvider::initWithDictionary_error(
                MLDictionaryFeatureProvider::alloc(),
                &dictionary(&names, &values),
            )
        };
        let features = features.map_err(said)?;
        let (mut names, mut backings) = (Vec::new(), Vec::<Retained<AnyObject>>::new());
        for (name, bytes) in outputs.iter_mut() {
            let array = self.array(name, bytes.as_mut_ptr(), bytes.len())?;
            names.push(NSString::from_str(name));
            backings.push(array.into());
        }
        let features: &ProtocolObject<dyn MLFeatureProvider> = ProtocolObject::from_ref(&*features);
        // SAFETY: options of our own, whose backings are arrays; a state of this package's functions.
        let results = unsafe {
            let options = MLPredictionOptions::new();
            options.setOutputBackings(&dictionary(&names, &backings));
            match state.and_then(|state| state.0.downcast_mut::<AppleState>()) {
                Some(state) => {
                    let (model, state) = (&self.model, &state.0);
                    model.predictionFromFeatures_usingState_options_error(features, state, &options)
                }
                None => self.model.predictionFromFeatures_options_error(features, &options),
            }
        };
        let results = results.map_err(said)?;
        copied(&results, outputs)
    }
}

/// Copies results that Core ML did not write to their backings: then an array of its own has them.
fn copied(
    results: &ProtocolObject<dyn MLFeatureProvider>,
    outputs: &mut [(&str, &mut [u8])],
) -> Result<(), String> {
    for (name, bytes) in outputs {
        // SAFETY: results of this prediction, whose memory stays as long as the array.
        let (array, from) = unsafe {
            let value = results.featureValueForName(&NSString::from_str(name));
            let array = value.and_then(|value| value.multiArrayValue());
            let array = array.ok_or_else(|| format!("Core ML gives no {name}"))?;
            #[allow(deprecated, reason = "the other one calls a block")]
            let from = array.dataPointer().as_ptr().cast::<u8>();
            (array, from)
        };
        if from.cast_const() != bytes.as_ptr() {
            // SAFETY: a dense array of the declared shape, which was checked against `bytes`.
            bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(from, bytes.len()) });
        }
        drop(array);
    }
    Ok(())
}
