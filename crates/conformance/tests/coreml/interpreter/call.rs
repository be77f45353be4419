//! An operation as a program names it: its inputs, of known types, and what it becomes.

use std::collections::BTreeMap;

use super::data::{Data, Typed};

/// What a name stands for.
#[derive(Clone)]
pub struct Known {
    /// Where a run keeps it.
    pub slot: usize,
    pub typed: Typed,
    /// What it is in each run, if it is constant.
    pub value: Option<Data>,
}

/// An operation's inputs, and the type that it declares.
pub struct Call {
    pub inputs: BTreeMap<String, Vec<Known>>,
    pub declared: Typed,
}

/// Computes a result. Arguments that nobody else holds may become it.
pub type Kernel = Box<dyn Fn(Vec<Data>) -> Result<Data, String> + Send + Sync>;

/// What an operation becomes.
pub struct Made {
    pub typed: Typed,
    /// Where its arguments are.
    pub args: Vec<usize>,
    pub run: Kernel,
}

/// An operation whose arguments are these.
pub fn made(
    typed: Typed,
    args: &[&Known],
    run: impl Fn(Vec<Data>) -> Result<Data, String> + Send + Sync + 'static,
) -> Result<Made, String> {
    let args = args.iter().map(|known| known.slot).collect();
    Ok(Made { typed, args, run: Box::new(run) })
}

impl Call {
    /// The only value of an input.
    pub fn given(&self, name: &str) -> Option<&Known> {
        self.inputs.get(name).and_then(|known| known.first())
    }

    /// An input that must be there.
    pub fn need(&self, name: &str) -> Result<&Known, String> {
        self.given(name).ok_or(format!("there is no input `{name}`"))
    }

    /// An input that must be there, of floats.
    pub fn floats(&self, name: &str) -> Result<&Known, String> {
        let known = self.need(name)?;
        match known.typed.kind.is_float() {
            true => Ok(known),
            false => Err(format!("`{name}` is {}, not floats", known.typed)),
        }
    }

    /// A constant input.
    fn constant(&self, name: &str) -> Result<Option<&Data>, String> {
        let constant =
            |k: &'_ Known| k.value.is_none().then(|| format!("`{name}` is not constant"));
        match self.given(name) {
            Some(known) => constant(known).map_or(Ok(known.value.as_ref()), Err),
            None => Ok(None),
        }
    }

    /// The numbers of a constant input.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i32>>, String> {
        let ints = |data: &Data| Ok::<_, String>(data.ints()?.to_vec());
        self.constant(name)?.map(ints).transpose()
    }

    /// The number of a constant input.
    pub fn int(&self, name: &str, default: i32) -> Result<i32, String> {
        Ok(self.ints(name)?.and_then(|v| v.first().copied()).unwrap_or(default))
    }

    /// Whether a constant input is there and true.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.int(name, 0)? != 0)
    }

    /// The float of a constant input.
    pub fn float(&self, name: &str, default: f32) -> Result<f32, String> {
        let first = |data: &Data| data.floats().first().copied();
        Ok(self.constant(name)?.and_then(first).unwrap_or(default))
    }

    /// The text of a constant input.
    pub fn text(&self, name: &str, default: &str) -> Result<String, String> {
        match self.constant(name)? {
            Some(Data::Text(text)) => Ok(text.to_string()),
            Some(_) => Err(format!("`{name}` is no text")),
            None => Ok(default.into()),
        }
    }

    /// The axes that an input names, in their order; all if there is none.
    pub fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, String> {
        let Some(axes) = self.ints(name)? else { return Ok((0..rank).collect()) };
        let axes: Result<Vec<_>, _> = axes.iter().map(|a| axis(*a, rank)).collect();
        let axes = axes?;
        match axes.iter().enumerate().all(|(i, a)| !axes[..i].contains(a)) {
            true => Ok(axes),
            false => Err(format!("`{name}` has an axis twice")),
        }
    }
}

/// An axis; from the end if it is negative.
pub fn axis(axis: i32, rank: usize) -> Result<usize, String> {
    let from_end = if axis < 0 { rank as i64 } else { 0 };
    let found = usize::try_from(i64::from(axis) + from_end).ok().filter(|a| *a < rank);
    found.ok_or(format!("there is no axis {axis} of {rank}"))
}
