//! The built-in SoCs, and the sources of their figures.

use std::path::Path;

use toml::{Table, Value};

use crate::error::SocError;
use crate::fields::plain;
use crate::soc::Soc;

/// Names and texts of the files.
const LIBRARY: [(&str, &str); 2] = [
    ("sd8gen3-fp16", include_str!("../../../socs/sd8gen3-fp16.toml")),
    ("sd8elite-fp16", include_str!("../../../socs/sd8elite-fp16.toml")),
];

impl Soc {
    /// Names of the built-in SoCs.
    pub fn names() -> impl Iterator<Item = &'static str> {
        LIBRARY.iter().map(|(name, _)| *name)
    }

    /// A built-in SoC by name, or a SoC from a file that ends in `.toml`.
    ///
    /// # Errors
    /// An unknown name, or those of [`Soc::read`].
    pub fn find(name: &str) -> Result<Soc, SocError> {
        if let Some((name, text)) = LIBRARY.iter().find(|(known, _)| *known == name) {
            return Soc::parse(name, text);
        }
        if name.ends_with(".toml") {
            return Soc::read(Path::new(name));
        }
        let known = Soc::names().collect::<Vec<_>>().join(", ");
        let must = format!("name a file that ends in .toml, or one of {known}");
        Err(SocError::Unknown(format!("there is no SoC {name:?}; {must}")))
    }
}

/// A figure of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcedFigure {
    /// Its path in the file, such as `processor.npu.launch_us`.
    pub place: String,
    /// Its value.
    pub value: Value,
    /// Its source, if the file gives one.
    pub from: Option<String>,
}

/// All figures in a file's text: numbers and lists of numbers.
///
/// # Errors
/// The text is not TOML.
pub fn figures(text: &str) -> Result<Vec<SourcedFigure>, toml::de::Error> {
    let mut all = Vec::new();
    walk(&Value::Table(text.parse::<Table>()?), "", &mut all);
    Ok(all)
}

fn walk(value: &Value, place: &str, all: &mut Vec<SourcedFigure>) {
    let inside =
        |name: &str| if place.is_empty() { name.into() } else { format!("{place}.{name}") };
    let is_figure = |v: &Value| v.is_integer() || v.is_float();
    let known = plain(value);
    match known {
        Value::Array(list) if list.iter().any(Value::is_table) => {
            for (i, item) in list.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                walk(item, &inside(&name.map_or(i.to_string(), String::from)), all);
            }
        }
        Value::Table(table) => table.iter().for_each(|(key, v)| walk(v, &inside(key), all)),
        Value::Array(list) if !list.iter().all(is_figure) => {}
        figure if is_figure(figure) || figure.is_array() => {
            let from = (!std::ptr::eq(known, value)).then(|| value.get("from")?.as_str());
            let from = from.flatten().map(String::from);
            all.push(SourcedFigure { place: place.into(), value: known.clone(), from });
        }
        _ => {}
    }
}
