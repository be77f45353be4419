//! A function as it runs: steps that take values from places and put them there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use troika::npu::mil::proto::{Argument, Function, Operation};
use troika::npu::mil::{CoreMlFunction, CoreMlState};

use super::call::{Call, Kernel, Known};
use super::data::{Data, Kind, Scaled, Typed};
use super::ops;
use super::package::{Features, Package};

/// An input, or an output.
struct Port {
    name: String,
    typed: Typed,
    slot: usize,
}

/// An argument of a step.
struct Taken {
    slot: usize,
    /// No later step has it, so this one may have it for itself.
    last: bool,
}

enum Step {
    Compute {
        name: String,
        typed: Typed,
        args: Vec<Taken>,
        to: usize,
        run: Kernel,
    },
    /// The state gives its value away if the next that happens to it is a write.
    Read {
        state: String,
        to: usize,
        away: bool,
    },
    Write {
        state: String,
        from: Taken,
    },
}

/// What a sequence keeps: each state's type and value. A value is missing after a run that failed
/// before it wrote.
type States = BTreeMap<String, (Typed, Option<Data>)>;

/// A function that is ready to run.
pub struct Program {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    states: Features,
    /// The constants, each in its place.
    constants: Vec<Option<Data>>,
    steps: Vec<Step>,
}

/// A program, and what its names stand for so far.
struct Builder<'a> {
    package: &'a Package,
    opset: &'a str,
    names: HashMap<String, Known>,
    program: Program,
}

/// Operations that came with the newest opset.
const NEW: [&str; 4] =
    ["read_state", "write_state", "slice_update", "constexpr_blockwise_shift_scale"];

impl Program {
    /// Resolves a function of a package.
    pub fn new(package: &Package, name: &str) -> Result<Program, String> {
        let function = package.function(name)?;
        let states = Features::new();
        let (inputs, outputs) = (Vec::new(), Vec::new());
        let program = Program { inputs, outputs, states, constants: Vec::new(), steps: Vec::new() };
        let (opset, names) = (&*function.opset, HashMap::new());
        let mut builder = Builder { package, opset, names, program };
        builder.inputs(function)?;
        let block = function.block_specializations.get(opset);
        let block = block.ok_or(format!("it has no block for opset `{opset}`"))?;
        for op in &block.operations {
            let name = op.outputs.first().map_or("", |output| &output.name);
            builder.operation(op).map_err(|e| format!("{} `{name}`: {e}", op.kind))?;
        }
        builder.outputs(&block.outputs)?;
        let mut program = builder.program;
        program.agree(package.features(name)?)?;
        program.find_last();
        Ok(program)
    }

    /// The description says the same of inputs, outputs and states as the program.
    fn agree(&self, [inputs, outputs, states]: [Features; 3]) -> Result<(), String> {
        let of = |ports: &[Port]| -> Features {
            ports.iter().map(|p| (p.name.clone(), p.typed.clone())).collect()
        };
        let all = [
            ("input", inputs, of(&self.inputs)),
            ("output", outputs, of(&self.outputs)),
            ("state", states, self.states.clone()),
        ];
        for (what, described, found) in all {
            for (name, typed) in found.iter().chain(&described) {
                let [described, found] = [&described, &found].map(|features| features.get(name));
                if described != found {
                    return Err(format!("{what} `{name}` ({typed}) is described as another"));
                }
            }
        }
        Ok(())
    }

    /// Finds where values are needed for the last time.
    fn find_last(&mut self) {
        let mut needed: HashSet<usize> = self.outputs.iter().map(|port| port.slot).collect();
        let mut written = HashSet::new();
        for step in self.steps.iter_mut().rev() {
            match step {
                Step::Compute { args, .. } => {
                    args.iter_mut().rev().for_each(|arg| arg.last = needed.insert(arg.slot));
                }
                Step::Read { state, away, .. } => *away = written.remove(state),
                Step::Write { state, from } => {
                    from.last = needed.insert(from.slot);
                    written.insert(state.clone());
                }
            }
        }
    }

    fn run(&self, slots: &mut [Option<Data>], states: &mut States) -> Result<(), String> {
        for step in &self.steps {
            match step {
                Step::Compute { name, typed, args, to, run } => {
                    let args: Result<_, String> = args.iter().map(|arg| arg.take(slots)).collect();
                    let data = run(args?).map_err(|e| format!("`{name}`: {e}"))?;
                    if data.len() != typed.len() {
                        return Err(format!("`{name}`: {} elements for {typed}", data.len()));
                    }
                    slots[*to] = Some(data);
                }
                Step::Read { state, to, away } => {
                    let value = states.get_mut(state).map(|(_, value)| value);
                    let value = value.and_then(|v| if *away { v.take() } else { v.clone() });
                    let lost = || format!("state `{state}` was lost in a run that failed");
                    slots[*to] = Some(value.ok_or_else(lost)?);
                }
                Step::Write { state, from } => {
                    let value = from.take(slots)?.held();
                    states.entry(state.clone()).and_modify(|(_, old)| *old = Some(value));
                }
            }
        }
        Ok(())
    }
}

impl Taken {
    fn take(&self, slots: &mut [Option<Data>]) -> Result<Data, String> {
        let slot = &mut slots[self.slot];
        let value = if self.last { slot.take() } else { slot.clone() };
        value.ok_or("a value is missing".into())
    }
}

impl Builder<'_> {
    fn define(&mut self, name: &str, typed: Typed, value: Option<Data>) -> Result<usize, String> {
        let slot = self.program.constants.len();
        self.program.constants.push(value.clone());
        let known = Known { slot, typed, value };
        let is_new = !self.program.states.contains_key(name);
        match is_new && self.names.insert(name.into(), known).is_none() {
            true => Ok(slot),
            false => Err(format!("`{name}` is defined twice")),
        }
    }

    fn inputs(&mut self, function: &Function) -> Result<(), String> {
        for input in &function.inputs {
            let (name, of) = (&input.name, input.value_type.as_ref());
            let state =
                of.and_then(|t| t.state_type.as_ref()).and_then(|s| s.wrapped_type.as_ref());
            let tensor = state.or(of).and_then(|t| t.tensor_type.as_ref());
            let typed = Typed::parse(tensor.ok_or(format!("input `{name}` is no tensor"))?)?;
            if state.is_none() {
                let slot = self.define(name, typed.clone(), None)?;
                self.program.inputs.push(Port { name: name.clone(), typed, slot });
            } else if self.names.contains_key(name)
                || self.program.states.insert(name.clone(), typed).is_some()
            {
                return Err(format!("`{name}` is defined twice"));
            }
        }
        Ok(())
    }

    fn outputs(&mut self, names: &[String]) -> Result<(), String> {
        for name in names {
            let known = self.names.get(name).ok_or(format!("output `{name}` is not defined"))?;
            let (name, typed) = (name.clone(), known.typed.clone());
            self.program.outputs.push(Port { name, typed, slot: known.slot });
        }
        Ok(())
    }

    /// What an argument is bound to.
    fn bound(&mut self, argument: &Argument) -> Result<Vec<Known>, String> {
        let mut all = Vec::new();
        for binding in &argument.arguments {
            all.push(match (&binding.name, &binding.value) {
                (Some(name), _) => {
                    let known = self.names.get(name).cloned();
                    known.ok_or(format!("`{name}` is not defined"))?
                }
                (None, Some(value)) => {
                    let (typed, data) = self.package.value(value)?;
                    let slot = self.program.constants.len();
                    self.program.constants.push(Some(data.clone()));
                    Known { slot, typed, value: Some(data) }
                }
                (None, None) => return Err("an input is bound to nothing".into()),
            });
        }
        Ok(all)
    }

    fn operation(&mut self, op: &Operation) -> Result<(), String> {
        if NEW.contains(&&*op.kind) && self.opset != "CoreML8" {
            return Err(format!("opset `{}` does not have it", self.opset));
        }
        if op.kind == "write_state" {
            return self.write_state(op);
        }
        let [output] = &op.outputs[..] else {
            return Err(format!("it has {} outputs", op.outputs.len()));
        };
        let tensor = output.value_type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let declared = Typed::parse(tensor.ok_or("its output is no tensor")?)?;
        let differs = |typed: &Typed| match *typed == declared {
            true => Ok(()),
            false => Err(format!("it gives {typed}, but declares {declared}")),
        };
        if op.kind == "const" {
            let value = op.attributes.get("val").ok_or("it has no value")?;
            let (typed, data) = self.package.value(value)?;
            differs(&typed)?;
            return self.define(&output.name, typed, Some(data)).map(|_| ());
        }
        if op.kind == "read_state" {
            let (state, typed) = self.state(op)?;
            differs(&typed)?;
            let to = self.define(&output.name, typed, None)?;
            self.program.steps.push(Step::Read { state, to, away: false });
            return Ok(());
        }
        let mut inputs = BTreeMap::new();
        for (name, argument) in &op.inputs {
            inputs.insert(name.clone(), self.bound(argument)?);
        }
        let call = Call { inputs, declared: declared.clone() };
        if op.kind == "constexpr_blockwise_shift_scale" {
            let scaled = scaled(&call)?;
            differs(&scaled.typed)?;
            let data = Data::Scaled(Arc::new(scaled));
            return self.define(&output.name, declared, Some(data)).map(|_| ());
        }
        let made = ops::make(&op.kind, &call)?;
        differs(&made.typed)?;
        let to = self.define(&output.name, declared.clone(), None)?;
        let args = made.args.into_iter().map(|slot| Taken { slot, last: false }).collect();
        let (name, run) = (output.name.clone(), made.run);
        self.program.steps.push(Step::Compute { name, typed: declared, args, to, run });
        Ok(())
    }

    /// The state that an operation names.
    fn state(&self, op: &Operation) -> Result<(String, Typed), String> {
        let argument = op.inputs.get("input").and_then(|a| a.arguments.first());
        let name = argument.and_then(|binding| binding.name.as_ref()).ok_or("it names no state")?;
        let typed = self.program.states.get(name).ok_or(format!("`{name}` is no state"))?;
        Ok((name.clone(), typed.clone()))
    }

    fn write_state(&mut self, op: &Operation) -> Result<(), String> {
        let (state, typed) = self.state(op)?;
        let data = self.bound(op.inputs.get("data").ok_or("its input `data` is missing")?)?;
        match &data[..] {
            [known] if known.typed == typed && op.outputs.is_empty() => {
                let from = Taken { slot: known.slot, last: false };
                self.program.steps.push(Step::Write { state, from });
                Ok(())
            }
            _ => Err(format!("it does not write {typed}")),
        }
    }
}

/// Constants as numbers with a scale for each block.
fn scaled(call: &Call) -> Result<Scaled, String> {
    ops::check_inputs(call, "data scale offset?")?;
    let (data, scale, offset) = (call.need("data")?, call.floats("scale")?, call.given("offset"));
    let shapes = data.typed.shape.iter().zip(&scale.typed.shape);
    let fits = |known: &Known| known.typed.shape == scale.typed.shape;
    if data.typed.shape.len() != scale.typed.shape.len()
        || shapes.into_iter().any(|(size, blocks)| size % blocks != 0)
        || matches!(data.typed.kind, Kind::Bool | Kind::Text | Kind::I16 | Kind::I32 | Kind::U16)
        || offset.is_some_and(|o| {
            !fits(o) || !o.typed.kind.is_float() && o.typed.kind != data.typed.kind
        })
    {
        return Err(format!("{} does not scale {}", scale.typed, data.typed));
    }
    let constant = |known: &Known| known.value.clone().ok_or("an input is not constant");
    let offsets = offset.map(|o| constant(o).map(|data| data.floats())).transpose()?;
    let typed = Typed::new(scale.typed.kind, data.typed.shape.clone())?;
    let (numbers, scales) = (constant(data)?, constant(scale)?.floats());
    Ok(Scaled { numbers, scales, offsets, typed, blocks: scale.typed.shape.clone() })
}

impl CoreMlFunction for Program {
    fn state(&self) -> Result<CoreMlState, String> {
        let zeros = |(name, typed): (&String, &Typed)| {
            (name.clone(), (typed.clone(), Some(Data::zeros(typed))))
        };
        let states: States = self.states.iter().map(zeros).collect();
        Ok(CoreMlState(Box::new(states)))
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &[u8])],
        state: Option<&mut CoreMlState>,
        outputs: &mut [(&str, &mut [u8])],
    ) -> Result<(), String> {
        let mut slots = self.constants.clone();
        for (name, bytes) in inputs {
            let port = find(&self.inputs, name, bytes.len())?;
            slots[port.slot] = Some(Data::from_bytes(port.typed.kind, bytes));
        }
        if let Some(port) = self.inputs.iter().find(|port| slots[port.slot].is_none()) {
            return Err(format!("input `{}` is missing", port.name));
        }
        for (name, bytes) in outputs.iter() {
            find(&self.outputs, name, bytes.len())?;
        }
        let mut none = States::new();
        let states = match state {
            Some(state) => state.0.downcast_mut::<States>().ok_or("the state is not this one's")?,
            None => &mut none,
        };
        let kept = states.iter().map(|(name, (typed, _))| (name, typed));
        if !kept.eq(&self.states) {
            return Err("the state does not have the function's states".into());
        }
        self.run(&mut slots, states)?;
        for (name, bytes) in outputs.iter_mut() {
            let port = find(&self.outputs, name, bytes.len())?;
            let data = slots[port.slot].clone().ok_or("a value is missing")?;
            data.held().write(bytes);
        }
        Ok(())
    }
}

/// The input or output of a name, whose bytes are as many as its type has.
fn find<'a>(ports: &'a [Port], name: &str, bytes: usize) -> Result<&'a Port, String> {
    let port = ports.iter().find(|port| port.name == name);
    let port = port.ok_or(format!("there is no `{name}` among its inputs or outputs"))?;
    match port.typed.bytes() == bytes {
        true => Ok(port),
        false => Err(format!("`{name}` is {}, not {bytes} bytes", port.typed)),
    }
}
