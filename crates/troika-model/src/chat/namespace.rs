//! `namespace`: the only values that a template can change, and so the only ones that can grow from
//! round to round of a loop. minijinja's own would take lists of any depth, and itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use minijinja::value::{Enumerator, Object, ObjectRepr, Serde, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use serde::{Serialize, Serializer};
use troika_device::lock;

use super::limits::{BYTES, DEPTH, refuse};

/// The method that `{% set ns.name = value %}` is turned into.
pub(super) const SET: &str = "__setattr__";

/// Values by name.
#[derive(Debug, Default)]
pub(super) struct Namespace(Mutex<BTreeMap<String, Value>>);

impl Namespace {
    fn set(&self, state: &State, name: String, value: Value) -> Result<(), Error> {
        let value = settle(state, value)?;
        lock(&self.0).insert(name, value);
        Ok(())
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        lock(&self.0).get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(lock(&self.0).keys().map(|k| Value::from(k.as_str())).collect())
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        if method != SET {
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        let (name, value) = from_args(args)?;
        self.set(state, name, value)?;
        Ok(Value::UNDEFINED)
    }
}

/// The function `namespace`.
pub(super) fn namespace(state: &State, first: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = Namespace::default();
    let first = first.map(ValueOrKwargs::into_value);
    let pairs = first.as_ref().and_then(Value::as_object).and_then(|o| o.try_iter_pairs());
    for (name, value) in pairs.into_iter().flatten() {
        namespace.set(state, name.to_string(), value)?;
    }
    Ok(Value::from_object(namespace))
}

/// Charges for a value with all that it holds, and refuses deep nesting and namespaces. Lazily
/// computed lists in it become lists, so that they cannot hide depth or cost.
pub(super) fn settle(state: &State, value: Value) -> Result<Value, Error> {
    Ok(changed(state, &value, DEPTH)?.unwrap_or(value))
}

/// A value without lazily computed lists; `None` if it holds none.
fn changed(state: &State, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
    state.consume_fuel(1 + value.as_str().map_or(0, str::len) as u64 / BYTES)?;
    let Some(object) = value.as_object().filter(|o| o.repr() != ObjectRepr::Plain) else {
        return Ok(None);
    };
    if object.is::<Namespace>() {
        return Err(refuse("it puts a namespace into another value"));
    }
    if depth == 0 {
        return Err(refuse(format!("it nests lists and maps deeper than {DEPTH} levels")));
    }
    let mut is_new = object.repr() == ObjectRepr::Iterable;
    let mut settled = |item: Value| -> Result<Value, Error> {
        let new = changed(state, &item, depth - 1)?;
        is_new |= new.is_some();
        Ok(new.unwrap_or(item))
    };
    if object.repr() == ObjectRepr::Map {
        let pairs = object.try_iter_pairs().into_iter().flatten();
        let pairs = pairs.map(|(key, item)| Ok((settled(key)?, settled(item)?)));
        let pairs = pairs.collect::<Result<_, Error>>()?;
        return Ok(is_new.then(|| Value::from(Serde(Pairs(pairs)))));
    }
    let items = value.try_iter()?.checked().map(|item| settled(item?));
    let items = items.collect::<Result<Vec<_>, Error>>()?;
    Ok(is_new.then(|| Value::from(items)))
}

/// A map in its order.
struct Pairs(Vec<(Value, Value)>);

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, item)| (key, item)))
    }
}
