//! The functions available to templates: minijinja's, methods of Python's types, and those that
//! published templates expect of the transformers library. There are no other templates to include,
//! extend or import.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, escape_formatter, filters, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::date::{LocalTime, strftime};
use super::json::tojson;
use super::limits::{BYTES, refuse};
use super::mask::Mask;
use super::namespace::{namespace, settle};

/// Trims blocks like the transformers library.
pub(super) fn environment<'a>() -> Result<Environment<'a>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    Ok(env)
}

/// Adds what a rendering needs.
pub(super) fn add_functions(env: &mut Environment<'_>, mask: &Arc<Mask>, now: Option<LocalTime>) {
    env.set_formatter(|out, state, value| {
        if value.as_object().is_some() {
            settle(state, value.clone())?;
        }
        escape_formatter(out, state, value)
    });
    add_masked(env, mask);
    env.add_test("iterable", |value: &Value| !value.is_none() && tests::is_iterable(value));
    // To Python, texts and mappings are sequences, too.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    env.remove_global("debug");
    env.add_filter("tojson", tojson);
    env.add_function("namespace", namespace);
    env.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(refuse(message))
    });
    if let Some(now) = now {
        env.add_function("strftime_now", move |format: String| strftime(&format, now));
    }
}

/// What compares texts, and so masks what it looks for in masked texts.
fn add_masked(env: &mut Environment<'_>, mask: &Arc<Mask>) {
    let own = Arc::clone(mask);
    env.set_unknown_method_callback(move |state, value, name, args| {
        method(&own, state, value, name, args)
    });
    for (name, filter) in [
        ("replace", Value::from_function(filters::replace)),
        ("split", Value::from_function(filters::split)),
        ("trim", Value::from_function(filters::trim)),
    ] {
        let own = Arc::clone(mask);
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = own.alike(args);
            if let ("trim", [text, chars @ ..]) = (name, &args[..]) {
                pay_for_strip(state, text, chars)?;
            }
            filter.call(state, &args)
        });
    }
    for (name, test) in [
        ("startingwith", Value::from_function(tests::is_startingwith)),
        ("endingwith", Value::from_function(tests::is_endingwith)),
    ] {
        let own = Arc::clone(mask);
        env.add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            test.call(state, &own.alike(args)).map(|found| found.is_true())
        });
    }
    let own = Arc::clone(mask);
    env.add_test("in", move |state: &State, value: &Value, other: &Value| {
        tests::is_in(state, &own.like(value, other), other)
    });
}

/// A method of one of Python's types.
fn method(
    mask: &Mask,
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if name.ends_with("strip") {
        pay_for_strip(state, value, args)?;
    }
    let spent = |state: &State| state.fuel_levels().map_or(0, |(spent, _)| spent);
    let before = spent(state);
    let args = args.iter().map(|a| settle(state, mask.like(a, value)));
    let mut args = args.collect::<Result<Vec<_>, Error>>()?;
    if name == "split"
        && let Some(named) = args.pop_if(|last| last.is_kwargs())
    {
        args.extend((args.is_empty()).then(|| named.get_attr("sep")).transpose()?);
        args.push(named.get_attr("maxsplit")?);
    }
    if name == "format" {
        state.consume_fuel(fields(value, spent(state) - before))?;
    }
    match value.as_str().and_then(|text| text_method(text, name, &args).transpose()) {
        Some(done) => done,
        None => unknown_method_callback(state, value, name, &args),
    }
}

/// Methods of Python's texts that minijinja lacks; `None` for others.
fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let [one] = args else { return Ok(None) };
    let Some(one) = one.as_str() else { return Ok(None) };
    let three = |parts: [&str; 3]| Value::from(Tuple::from(parts.map(Value::from)));
    Ok(Some(match name {
        "removeprefix" => text.strip_prefix(one).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(one).unwrap_or(text).into(),
        "partition" => three(text.split_once(one).map_or([text, "", ""], |(a, b)| [a, one, b])),
        "rpartition" => three(text.rsplit_once(one).map_or(["", "", text], |(a, b)| [a, one, b])),
        "index" => {
            let at = text.find(one).ok_or_else(|| refuse("index does not find its text"))?;
            text[..at].chars().count().into()
        }
        _ => return Ok(None),
    }))
}

/// Each character at the ends of a text is looked for among the characters to strip.
fn pay_for_strip(state: &State, text: &Value, args: &[Value]) -> Result<(), Error> {
    let len = |v: &Value| v.as_str().map_or(0, str::len) as u64;
    let chars = args.iter().map(len).max().unwrap_or(0);
    state.consume_fuel(len(text).saturating_mul(chars) / BYTES)
}

/// Fuel for the fields of a format: each may print all arguments, which cost `args`, and be as wide
/// as the largest number in it.
fn fields(format: &Value, args: u64) -> u64 {
    let text = format.as_str().unwrap_or_default();
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|d| !d.is_empty());
    let width = digits.map(|d| d.parse().unwrap_or(u64::MAX)).max().unwrap_or(0);
    // A float has up to 325 digits before or after the point.
    let field = (width / BYTES).saturating_add(args).saturating_add(650 / BYTES);
    field.saturating_mul(text.matches('{').count() as u64)
}
