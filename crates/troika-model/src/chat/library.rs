//! The functions available to templates: minijinja's filters, tests and functions, and methods of
//! Python's types. Each is charged and limited by [`Budget`]. `include`, `extends` and `import` do
//! not exist (there is one template), nor do filters that published templates do not use and that
//! could make large results from small inputs (`batch`, `slice`, `chain`, `zip`, `pprint`).

use std::borrow::Cow;
use std::sync::Arc;

use minijinja::value::{ObjectRepr, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::compile::hook;
use super::date::strftime;
use super::json::{INDENT, tojson};
use super::limits::{Budget, ITEM, is_namespace, refuse};

type Res<T> = Result<T, Error>;

/// The cost and result size of a filter or method, relative to its input.
#[derive(Clone, Copy)]
enum Growth {
    /// No new data, and looks only at the outer value.
    Free,
    /// No new data, and reads a text or the items of a list, but not into them.
    Flat,
    /// Calls something for each item of a list, or for each character of a text.
    Each,
    /// No growth: its result is at most a few times as large.
    None,
    /// Cuts a text into a list.
    Pieces,
    /// Compares items with each other.
    Order,
    Indent,
    Replace,
    Join,
    Format,
    Sum,
    /// Looks for each of its characters at each place.
    Strip,
    Json,
}

/// All functions for templates, with the account that they are charged to.
pub(super) fn environment<'a>(
    budget: &Arc<Budget>,
    today: Option<(i32, u32, u32)>,
) -> Environment<'a> {
    let mut env = Environment::empty();
    env.set_fuel(Some(budget.fuel));
    let b = Arc::clone(budget);
    env.set_unknown_method_callback(move |state, value, name, args| {
        call_method(&b, state, value, name, args)
    });
    let b = Arc::clone(budget);
    env.set_formatter(move |out, state, value| {
        let size = match value.as_str() {
            Some(text) => text.len() as u64,
            None => printed(b.measure(value)?),
        };
        b.emit(size)?;
        minijinja::escape_formatter(out, state, value)
    });
    add_filters(&mut env, budget);
    add_tests(&mut env, budget);
    add_hooks(&mut env, budget);
    env.add_global("range", Value::from_function(functions::range));
    env.add_global("dict", Value::from_function(functions::dict));
    env.add_global("namespace", Value::from_function(functions::namespace));
    env.add_function("raise_exception", |message: String| -> Res<Value> { Err(refuse(message)) });
    if let Some((year, month, day)) = today {
        let b = Arc::clone(budget);
        env.add_function("strftime_now", move |format: String| -> Res<String> {
            b.fits(8 * format.len() as u64)?;
            Ok(strftime(&format, year, month, day))
        });
    }
    env
}

/// Arguments as passed, with keyword arguments as a value of their own.
type Arguments = Rest<ValueOrKwargs>;

fn values(args: Arguments) -> Vec<Value> {
    args.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

/// The most bytes in which a value of this size is printed: `\u{10ffff}` uses ten for four.
fn printed(size: u64) -> u64 {
    size.saturating_mul(4)
}

fn add_filters(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    use Growth as G;
    let list: [(&[&'static str], Value, Growth); 40] = [
        (&["safe"], Value::from_function(filters::safe), G::None),
        (&["escape", "e"], Value::from_function(filters::escape), G::None),
        (&["lower"], Value::from_function(filters::lower), G::None),
        (&["upper"], Value::from_function(filters::upper), G::None),
        (&["title"], Value::from_function(filters::title), G::None),
        (&["capitalize"], Value::from_function(filters::capitalize), G::None),
        (&["replace"], Value::from_function(filters::replace), G::Replace),
        (&["length", "count"], Value::from_function(length), G::Flat),
        (&["dictsort"], Value::from_function(filters::dictsort), G::Order),
        (&["items"], Value::from_function(filters::items), G::Flat),
        (&["reverse"], Value::from_function(filters::reverse), G::Pieces),
        (&["trim"], Value::from_function(filters::trim), G::Strip),
        (&["join"], Value::from_function(filters::join), G::Join),
        (&["split"], Value::from_function(filters::split), G::Pieces),
        (&["lines"], Value::from_function(filters::lines), G::Pieces),
        (&["default", "d"], Value::from_function(filters::default), G::Flat),
        (&["round"], Value::from_function(filters::round), G::None),
        (&["abs"], Value::from_function(filters::abs), G::None),
        (&["int"], Value::from_function(filters::int), G::None),
        (&["float"], Value::from_function(filters::float), G::None),
        (&["attr"], Value::from_function(filters::attr), G::Flat),
        (&["first"], Value::from_function(filters::first), G::Flat),
        (&["last"], Value::from_function(filters::last), G::Flat),
        (&["min"], Value::from_function(filters::min), G::Order),
        (&["max"], Value::from_function(filters::max), G::Order),
        (&["sort"], Value::from_function(filters::sort), G::Order),
        (&["list"], Value::from_function(filters::list), G::Pieces),
        (&["string"], Value::from_function(filters::string), G::None),
        (&["bool"], Value::from_function(filters::bool), G::None),
        (&["sum"], Value::from_function(filters::sum), G::Sum),
        (&["indent"], Value::from_function(filters::indent), G::Indent),
        (&["select"], Value::from_function(filters::select), G::Each),
        (&["reject"], Value::from_function(filters::reject), G::Each),
        (&["selectattr"], Value::from_function(filters::selectattr), G::Each),
        (&["rejectattr"], Value::from_function(filters::rejectattr), G::Each),
        (&["map"], Value::from_function(filters::map), G::Each),
        (&["groupby"], Value::from_function(filters::groupby), G::Order),
        (&["unique"], Value::from_function(filters::unique), G::Order),
        (&["format"], Value::from_function(filters::format), G::Format),
        (&["tojson"], Value::from_function(tojson), G::Json),
    ];
    for (names, filter, growth) in list {
        for name in names {
            let (budget, filter) = (Arc::clone(budget), filter.clone());
            env.add_filter(*name, move |state: &mut State, args: Arguments| -> Res<Value> {
                let args = budget.pay(&values(args), growth)?;
                let made = filter.call(state, &args)?;
                budget.checked(made)
            });
        }
    }
}

fn add_tests(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    use Growth as G;
    let list: [(&[&'static str], Value, Growth); 30] = [
        (&["undefined"], Value::from_function(tests::is_undefined), G::Free),
        (&["defined"], Value::from_function(tests::is_defined), G::Free),
        (&["none"], Value::from_function(tests::is_none), G::Free),
        (&["safe", "escaped"], Value::from_function(tests::is_safe), G::Free),
        (&["boolean"], Value::from_function(tests::is_boolean), G::Free),
        (&["odd"], Value::from_function(tests::is_odd), G::Free),
        (&["even"], Value::from_function(tests::is_even), G::Free),
        (&["divisibleby"], Value::from_function(tests::is_divisibleby), G::Free),
        (&["number"], Value::from_function(tests::is_number), G::Free),
        (&["integer", "int"], Value::from_function(tests::is_integer), G::Free),
        (&["float"], Value::from_function(tests::is_float), G::Free),
        (&["string"], Value::from_function(tests::is_string), G::Free),
        (&["sequence"], Value::from_function(tests::is_sequence), G::Free),
        (&["iterable"], Value::from_function(tests::is_iterable), G::Free),
        (&["mapping"], Value::from_function(tests::is_mapping), G::Free),
        (&["startingwith"], Value::from_function(tests::is_startingwith), G::None),
        (&["endingwith"], Value::from_function(tests::is_endingwith), G::None),
        (&["lower"], Value::from_function(tests::is_lower), G::None),
        (&["upper"], Value::from_function(tests::is_upper), G::None),
        (&["sameas"], Value::from_function(tests::is_sameas), G::None),
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq), G::None),
        (&["ne", "!="], Value::from_function(tests::is_ne), G::None),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt), G::None),
        (&["le", "<="], Value::from_function(tests::is_le), G::None),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt), G::None),
        (&["ge", ">="], Value::from_function(tests::is_ge), G::None),
        (&["in"], Value::from_function(tests::is_in), G::None),
        (&["true"], Value::from_function(tests::is_true), G::Free),
        (&["false"], Value::from_function(tests::is_false), G::Free),
        (&["filter"], Value::from_function(tests::is_filter), G::Free),
    ];
    for (names, test, growth) in list {
        for name in names {
            let (budget, test) = (Arc::clone(budget), test.clone());
            env.add_test(*name, move |state: &mut State, args: Arguments| -> Res<bool> {
                let args = budget.pay(&values(args), growth)?;
                Ok(test.call(state, &args)?.is_true())
            });
        }
    }
}

/// The functions that [`super::compile`] inserts between a template's instructions.
fn add_hooks(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let mut hook = |name: &'static str, f: fn(&Budget, Vec<Value>) -> Res<Value>| {
        let budget = Arc::clone(budget);
        env.add_function(name, move |args: Arguments| f(&budget, values(args)));
    };
    hook(hook::ADD, |b, pair| {
        operands(b, pair, |b, x, y| {
            let sum = b.measure(x)? + b.measure(y)?;
            if x.as_str().is_some() { b.fits(sum) } else { b.allows(sum) }
        })
    });
    hook(hook::CONCAT, |b, pair| {
        operands(b, pair, |b, x, y| {
            let size = |v: &Value| match v.as_str() {
                Some(text) => Ok(text.len() as u64),
                None => b.measure(v).map(printed),
            };
            b.fits(size(x)? + size(y)?)
        })
    });
    hook(hook::MULTIPLY, |b, pair| {
        operands(b, pair, |b, x, y| match (x.is_number(), y.is_number()) {
            (true, true) => Ok(()),
            _ => {
                let times = x.as_usize().or(y.as_usize()).unwrap_or(0) as u64;
                b.fits(times.saturating_mul(b.measure(x)?.max(b.measure(y)?)))
            }
        })
    });
    hook(hook::COMPARE, |b, pair| {
        let (x, y) = two(pair)?;
        b.whole(&x)?;
        b.whole(&y)?;
        Ok(Value::from(vec![b.mask.like(&x, &y), b.mask.like(&y, &x)]))
    });
    hook(hook::SLICE, |b, args| slice(b, &args));
    hook(hook::FLAT, |b, args| one(args, |v| b.spend(v.as_str().map_or(0, str::len) as u64)));
    hook(hook::BUILT, |b, args| {
        one(args, |v| match is_namespace(v) {
            true => Err(namespace_inside()),
            false => b.measure(v).and_then(|_| no_namespace(v)),
        })
    });
    hook(hook::ARGUMENTS, |b, args| one(args, |v| b.measure(v).map(|_| ())));
    hook(hook::RESULT, |b, mut args| b.checked(args.pop().unwrap_or_default()));
}

fn one(mut args: Vec<Value>, check: impl Fn(&Value) -> Res<()>) -> Res<Value> {
    let value = args.pop().unwrap_or_default();
    check(&value)?;
    Ok(value)
}

fn two(mut args: Vec<Value>) -> Res<(Value, Value)> {
    let pair = args.pop().unwrap_or_default();
    Ok((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?))
}

/// Checks a list of two operands and returns it.
fn operands(
    b: &Budget,
    args: Vec<Value>,
    check: fn(&Budget, &Value, &Value) -> Res<()>,
) -> Res<Value> {
    let pair = args.first().cloned().unwrap_or_default();
    let (x, y) = two(args)?;
    check(b, &x, &y)?;
    Ok(pair)
}

fn namespace_inside() -> Error {
    refuse("it puts a namespace into another value")
}

fn no_namespace(value: &Value) -> Res<()> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    let found = match object.repr() {
        ObjectRepr::Map => {
            object.try_iter_pairs().is_some_and(|mut p| p.any(|(_, v)| is_namespace(&v)))
        }
        _ => object.try_iter().is_some_and(|mut items| items.any(|v| is_namespace(&v))),
    };
    if found { Err(namespace_inside()) } else { Ok(()) }
}

/// As in Jinja, an undefined value has length 0.
fn length(value: &Value) -> Res<usize> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

impl Budget {
    /// Charges for a call in advance. Returns the arguments; those that are compared with masked
    /// text are masked too.
    fn pay(&self, args: &[Value], growth: Growth) -> Res<Vec<Value>> {
        let Some((first, others)) = args.split_first() else { return Ok(Vec::new()) };
        let whole = match growth {
            Growth::Free => 0,
            Growth::Flat | Growth::Each | Growth::Pieces => self.flat(first)?,
            _ => self.whole(first)?,
        };
        let mut rest = 0;
        for v in others {
            rest += self.whole(v)?;
        }
        // Lists are processed item by item, each time with all other arguments.
        let by_character =
            matches!(growth, Growth::Each | Growth::Join | Growth::Sum | Growth::Order);
        let items = match first.as_str() {
            Some(text) if by_character => text.len(),
            Some(_) => 0,
            None => first.len().unwrap_or(0),
        } as u64;
        self.spend(items.saturating_mul(rest))?;
        let number = |name: &str, at: usize| argument(others, name, at);
        match growth {
            Growth::Free | Growth::Flat | Growth::Each | Growth::None => {}
            Growth::Pieces => self.spend(pieces(first, others))?,
            Growth::Order => self.spend(whole.saturating_mul(16))?,
            Growth::Strip => self.spend(whole.saturating_mul(rest))?,
            Growth::Sum => self.fits(whole.saturating_mul(items))?,
            Growth::Join => self.fits(printed(whole.saturating_add(items.saturating_mul(rest))))?,
            Growth::Indent => {
                let lines = self.text(first)?.matches('\n').count() as u64 + 1;
                self.fits(lines.saturating_mul(number("width", 0).unwrap_or(4)))?;
            }
            Growth::Replace => {
                if let [from, to, ..] = others {
                    let found = self.text(first)?.matches(&*self.text(from)?).count() as u64;
                    self.fits(found.saturating_mul(self.text(to)?.len() as u64))?;
                }
            }
            Growth::Format => self.fits(format_size(first, others, rest))?,
            Growth::Json => {
                let indent = number("indent", 0).unwrap_or(0).min(INDENT as u64);
                // Each item on its own line, at most 128 levels deep.
                self.fits(printed(whole).saturating_add(whole / 16 * indent * 128))?;
            }
        }
        let mut args = args.to_vec();
        for v in &mut args[1..] {
            *v = self.mask.like(v, first);
        }
        Ok(args)
    }

    /// A value as text filters see it: other values are printed.
    fn text<'a>(&self, value: &'a Value) -> Res<Cow<'a, str>> {
        if let Some(text) = value.as_str() {
            return Ok(Cow::Borrowed(text));
        }
        self.fits(printed(self.measure(value)?))?;
        Ok(Cow::Owned(value.to_string()))
    }

    fn checked(&self, value: Value) -> Res<Value> {
        let value = self.settle(value)?;
        no_namespace(&value)?;
        Ok(value)
    }
}

/// The cost of the list that a text is cut into.
fn pieces(value: &Value, others: &[Value]) -> u64 {
    let text = value.as_str().unwrap_or_default();
    let count = match others.first().and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.len(),
    };
    ITEM.saturating_mul(count as u64)
}

/// An argument that is a number, by name or by position.
fn argument(args: &[Value], name: &str, at: usize) -> Option<u64> {
    let named = args.last().filter(|v| v.is_kwargs()).and_then(|v| v.get_attr(name).ok());
    let named = named.filter(|v| !v.is_undefined());
    let value = named.or_else(|| args.get(at).filter(|v| !v.is_kwargs()).cloned())?;
    value.as_usize().map(|n| n as u64)
}

/// The most bytes that a format string can produce. Each field may be as wide as the largest number
/// in it (or among the arguments, if widths come from there) and print all arguments.
fn format_size(format: &Value, args: &[Value], printed_args: u64) -> u64 {
    let text = format.as_str().unwrap_or_default();
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|d| !d.is_empty());
    let width = digits.map(|d| d.parse().unwrap_or(u64::MAX)).max().unwrap_or(0);
    let given = args.iter().filter_map(Value::as_usize).max().unwrap_or(0) as u64;
    let given = if text.contains(['*', '{']) { given } else { 0 };
    let fields = text.matches(['%', '{']).count() as u64;
    // A float has up to 325 digits before or after the point.
    let field = width.max(given).saturating_add(printed(printed_args)).saturating_add(400);
    fields.saturating_mul(field.saturating_mul(4))
}

fn call_method(
    b: &Budget,
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Res<Value> {
    let growth = match name {
        "replace" => Growth::Replace,
        "format" => Growth::Format,
        "split" | "splitlines" => Growth::Pieces,
        "strip" | "lstrip" | "rstrip" => Growth::Strip,
        _ => Growth::None,
    };
    let mut all = vec![value.clone()];
    all.extend_from_slice(args);
    let mut all = b.pay(&all, growth)?;
    if let ("join", Some(items)) = (name, args.first()) {
        b.pay(&[items.clone(), value.clone()], Growth::Join)?;
    }
    let value = all.remove(0);
    unknown_method_callback(state, &value, name, &all)
}

/// Python's `value[start:stop:step]`.
fn slice(b: &Budget, args: &[Value]) -> Res<Value> {
    let [value, start, stop, step] = args else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    b.flat(value)?;
    let bound = |v: &Value| if v.is_none() { Ok(None) } else { i64::try_from(v.clone()).map(Some) };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(refuse("cannot slice by step size of 0"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let picked = picks(chars.len(), start, stop, step).map(|i| chars[i]);
        return Ok(Value::from(picked.collect::<String>()));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(refuse(format!("value of type {} cannot be sliced", value.kind())));
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Res<_>>()?;
    let picked: Vec<Value> =
        picks(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
    Ok(Value::from(picked))
}

/// The indices that a slice selects out of `len`.
fn picks(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i64;
    // Going backwards, the index before the first is -1.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |i: i64| (if i < 0 { i.saturating_add(len) } else { i }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (start.map_or(first, place), stop.map_or(last, place));
    let mut at = start;
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < stop } else { at > stop };
        let this = inside.then_some(at as usize);
        at = at.saturating_add(step);
        this
    })
}
