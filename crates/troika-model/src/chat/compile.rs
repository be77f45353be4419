//! Compiles templates to minijinja's instructions, with checks between them that account for all
//! work.
//!
//! minijinja's fuel bounds the number of instructions. That ends loops, recursion and macros that
//! call each other, and needs nothing of ours. It does not bound what one instruction costs, and a
//! cap on the output does not see what is captured in a block or macro. So these are between the
//! instructions:
//! - Texts and lists that double: `~`, `+` and `*`.
//! - Text of the template in a captured block: [`Instruction::EmitRaw`] may hold all of the source.
//! - Comparisons of lists that hold themselves many times over: sixty levels take for ever. They
//!   also mask what is compared with a message.
//! - Slices, characters and loops, which go through all of a text each time.
//! - Lists, maps and arguments of others: their depth becomes a depth of the stack.
//! - Results of calls, which may be computed anew whenever they are looked at.
//! - Values put into a namespace, so that none comes to hold itself.
//! - What is refused: other templates, arguments unpacked with `*`, `loop.changed`.

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Span, Token, parse, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::limits::{FOLDED, SOURCE, TAG_TOKENS, TAGS, refuse};

/// Names of our functions. Templates cannot use them, since names cannot contain spaces.
pub(super) mod hook {
    /// Checks the operands of `+`, passed and returned as a list; so do the next three.
    pub const ADD: &str = "troika add";
    pub const CONCAT: &str = "troika concat";
    pub const MULTIPLY: &str = "troika multiply";
    pub const COMPARE: &str = "troika compare";
    /// Takes part of a text or list.
    pub const SLICE: &str = "troika slice";
    /// Charges for a text's length.
    pub const FLAT: &str = "troika flat";
    /// Checks a new list or map.
    pub const BUILT: &str = "troika built";
    /// Checks the arguments of a call, which may include a namespace.
    pub const ARGUMENTS: &str = "troika arguments";
    /// Checks the result of a call.
    pub const RESULT: &str = "troika result";
}

/// Trims blocks like the transformers library.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// A template's instructions.
pub(super) fn compile(source: &str) -> Result<Instructions<'_>, Error> {
    if source.len() > SOURCE {
        return Err(refuse(format!("it is longer than {} KiB", SOURCE >> 10)));
    }
    let syntax = syntax()?;
    check_tags(source, &syntax)?;
    let ast = parse(source, "chat", syntax)?;
    let mut generator = CodeGenerator::new("chat", source);
    generator.compile_stmt(&ast);
    let (instructions, _) = generator.finish();
    guard(&instructions)
}

/// Totals of one tag.
#[derive(Default)]
struct Tag {
    tokens: usize,
    /// Whether it multiplies; only then can literals produce more than their length.
    multiplies: bool,
    factor: u64,
    start: u32,
}

/// Refuses tags for which the compiler would need a deep stack or much memory.
fn check_tags(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let (mut tags, mut folded) = (0, 0u64);
    let mut tag = Tag::default();
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span): (Token<'_>, Span) = token?;
        match token {
            Token::VariableStart | Token::BlockStart => {
                tags += 1;
                tag = Tag { factor: 1, start: span.start_offset, ..Tag::default() };
            }
            Token::VariableEnd | Token::BlockEnd => {
                let length = u64::from(span.end_offset.saturating_sub(tag.start));
                let made = if tag.multiplies { length.saturating_mul(tag.factor) } else { 0 };
                folded = folded.saturating_add(made);
            }
            Token::Int(n) => tag.factor = tag.factor.saturating_mul(n.max(2)),
            Token::Int128(_) | Token::Pow => tag.factor = u64::MAX,
            Token::Mul => tag.multiplies = true,
            _ => {}
        }
        tag.tokens += 1;
        if tag.tokens > TAG_TOKENS {
            return Err(refuse(format!("a tag has more than {TAG_TOKENS} parts")));
        }
    }
    if tags > TAGS {
        return Err(refuse(format!("it has more than {TAGS} tags")));
    }
    if folded > FOLDED {
        return Err(refuse("it multiplies by too large a number"));
    }
    Ok(())
}

fn guard<'s>(old: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut list = Vec::new();
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(instruction) = old.get(at) {
        starts.push(list.len() as u32);
        let line = old.get_line(at).unwrap_or(1).min(usize::from(u16::MAX)) as u16;
        let mut push = |i| list.push((i, line));
        expand(instruction, &mut push)?;
        at += 1;
    }
    starts.push(list.len() as u32);
    let mut new = Instructions::new(old.name(), old.source());
    for (mut instruction, line) in list {
        if let Some(target) = target(&mut instruction) {
            let moved = starts.get(*target as usize).copied();
            *target = moved.ok_or_else(|| Error::from(ErrorKind::BadSerialization))?;
        }
        new.add_with_line(instruction, line);
    }
    Ok(new)
}

/// The target of a jump.
fn target<'a>(i: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    use Instruction as I;
    match i {
        I::Jump(t)
        | I::JumpIfFalse(t)
        | I::JumpIfFalseOrPop(t)
        | I::JumpIfTrueOrPop(t)
        | I::Iterate(t)
        | I::BuildMacro(_, t, _) => Some(t),
        _ => None,
    }
}

/// Adds the charges and checks before and after an instruction.
fn expand<'s>(
    instruction: &Instruction<'s>,
    push: &mut dyn FnMut(Instruction<'s>),
) -> Result<(), Error> {
    use Instruction as I;
    let call = |name: &'static str, n: u16| I::CallFunction(name, Some(n));
    // The value below the top of the stack.
    let second = |push: &mut dyn FnMut(I<'s>), name| {
        push(I::Swap);
        push(call(name, 1));
        push(I::Swap);
    };
    // Both operands of an operator.
    let pair = |push: &mut dyn FnMut(I<'s>), name| {
        push(I::BuildList(Some(2)));
        push(call(name, 1));
        push(I::UnpackList(2));
        push(I::Swap);
        push(instruction.clone());
    };
    match instruction {
        // Text goes through the formatter, which counts it.
        I::EmitRaw(text) => {
            push(I::LoadConst(Value::from(*text)));
            push(I::Emit);
        }
        I::StringConcat => pair(push, hook::CONCAT),
        I::Add | I::Mul => {
            pair(push, if matches!(instruction, I::Add) { hook::ADD } else { hook::MULTIPLY });
            push(call(hook::RESULT, 1));
        }
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
            pair(push, hook::COMPARE);
        }
        I::Slice => push(call(hook::SLICE, 4)),
        I::GetItem => {
            second(push, hook::FLAT);
            push(I::GetItem);
        }
        // Below it is a namespace's new value.
        I::SetAttr(_) => {
            second(push, hook::BUILT);
            push(instruction.clone());
        }
        I::PushLoop(_) => {
            push(call(hook::FLAT, 1));
            push(instruction.clone());
        }
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => {
            push(instruction.clone());
            push(call(hook::BUILT, 1));
        }
        I::BuildKwargs(_) | I::MergeKwargs(_) => {
            push(instruction.clone());
            push(call(hook::ARGUMENTS, 1));
        }
        I::Include(_) | I::LoadBlocks | I::ExportLocals | I::CallBlock(_) | I::FastSuper => {
            return Err(refuse("there are no other templates to include, import or extend"));
        }
        // `f(*text)` would make an argument of each character without a charge.
        I::UnpackLists(_) => return Err(refuse("unpacking arguments with * is not supported")),
        // It compares values without a charge, and no template uses it.
        I::CallMethod("changed", _) => return Err(refuse("loop.changed is not supported")),
        I::CallFunction(..) | I::CallMethod(..) | I::CallObject(_) | I::EndCapture => {
            push(instruction.clone());
            push(call(hook::RESULT, 1));
        }
        other => push(other.clone()),
    }
    Ok(())
}
