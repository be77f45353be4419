//! Reading the fields of a request's JSON.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::problem::Problem;

/// The fields of a JSON object, if it is there. A field that is null counts as absent, as clients
/// mean it.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(Option<&'a Map<String, Value>>);

/// Parses a body, which has to be a JSON object.
pub fn parse(body: &[u8]) -> Result<Map<String, Value>, Problem> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Problem::bad("the body has to be a JSON object")),
        Err(e) => Err(Problem::bad(format!("the body is not valid JSON: {e}"))),
    }
}

/// A number that is whole, though it may be written with a point.
pub fn whole(value: &Value) -> Option<i64> {
    // Beyond, not all whole numbers are numbers with a point.
    let near = |n: &f64| n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_992.0;
    value.as_i64().or_else(|| value.as_f64().filter(near).map(|n| n as i64))
}

impl<'a> Fields<'a> {
    pub fn of(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields(Some(map))
    }

    /// The fields of a value that has to be an object; `name` is for the error.
    pub fn within(name: &str, value: &'a Value) -> Result<Fields<'a>, Problem> {
        let wrong = || Problem::field(name, format!("{name} has to be an object"));
        value.as_object().map(Fields::of).ok_or_else(wrong)
    }

    /// The fields of an object within this one, if it is there. It has to be one.
    pub fn inner(&self, name: &str) -> Result<Fields<'a>, Problem> {
        self.value(name).map_or(Ok(Fields(None)), |value| Fields::within(name, value))
    }

    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.0?.get(name).filter(|v| !v.is_null())
    }

    /// A field that has to be of a type, if it is there.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Problem> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let read = serde_json::from_value(value.clone());
        // Some clients write whole numbers with a point.
        let read = read.or_else(|e| match whole(value) {
            Some(whole) => serde_json::from_value(whole.into()),
            None => Err(e),
        });
        read.map(Some).map_err(|e| Problem {
            private: Some(format!("{name} is of another type")),
            ..Problem::field(name, format!("{name}: {e}"))
        })
    }

    /// A field that has to be there, and of a type.
    pub fn need<T: DeserializeOwned>(&self, name: &str) -> Result<T, Problem> {
        let missing = || Problem::field(name, format!("the field {name} is missing"));
        self.get(name)?.ok_or_else(missing)
    }

    /// A field that has to be true or false; absent: false.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        Ok(self.get(name)?.unwrap_or(false))
    }

    /// A field that has to be a text or a list of texts; absent: none.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, Problem> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let text = |v: &Value| v.as_str().map(str::to_string);
        let texts = match value {
            Value::Array(list) => list.iter().map(text).collect(),
            one => text(one).map(|t| vec![t]),
        };
        let must = || Problem::field(name, format!("{name} has to be a text or a list of texts"));
        texts.ok_or_else(must)
    }
}
