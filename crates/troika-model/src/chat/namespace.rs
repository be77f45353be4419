//! `namespace`: the only values that a template can change, and so the only ones that can grow from
//! round to round of a loop. minijinja's own would take lists of any depth, and itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::limits::settle;

/// The method that `{% set ns.name = value %}` is turned into.
pub(super) const SET: &str = "__setattr__";

/// Values by name.
#[derive(Debug, Default)]
pub(super) struct Namespace(Mutex<BTreeMap<String, Value>>);

impl Namespace {
    fn set(&self, state: &State, name: String, value: Value) -> Result<(), Error> {
        let value = settle(state, value)?;
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.insert(name, value);
        Ok(())
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Values(values.keys().map(|k| Value::from(k.as_str())).collect())
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
