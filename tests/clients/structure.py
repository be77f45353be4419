"""Structured output: what is promised is kept, and what cannot be kept is refused."""

import json
import re
from typing import Literal

import jsonschema
import openai
from pydantic import BaseModel, Field

from support import MODEL, NIGHT, equal, raises

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "rank": {"enum": ["squire", "knight", "lord"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        "horse": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/horse"}]},
    },
    "required": ["name", "age", "rank", "tags", "horse"],
    "additionalProperties": False,
    "$defs": {
        "horse": {
            "type": "object",
            "properties": {"swift": {"type": "boolean"}},
            "required": ["swift"],
            "additionalProperties": False,
        }
    },
}


def by_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


def test_schema(server):
    for options in ({}, {"temperature": 1, "seed": 3}, {"temperature": 1.5, "seed": 4}):
        answer = server.chat(
            response_format=by_schema(PERSON, strict=True), max_tokens=300, **options
        )
        choice = answer.choices[0]
        equal(choice.finish_reason, "stop", f"finish_reason of {choice.message.content!r}")
        jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_schema_streamed(server):
    form = by_schema(PERSON)
    plain = server.chat(response_format=form, max_tokens=300).choices[0].message.content
    chunks = server.chat(response_format=form, max_tokens=300, stream=True)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    equal(streamed, plain, "the streamed text")
    jsonschema.validate(json.loads(streamed), PERSON)


def test_schema_with_several_choices(server):
    answer = server.chat(
        response_format=by_schema(PERSON), max_tokens=300, n=3, temperature=1, seed=5
    )
    texts = [c.message.content for c in answer.choices]
    for each in texts:
        jsonschema.validate(json.loads(each), PERSON)
    assert len(set(texts)) > 1, "three choices are the same"


def test_pydantic(server):
    """The package makes the schema, and reads the answer."""

    class Step(BaseModel):
        place: Literal["moor", "castle", "inn"]
        miles: int = Field(ge=1, le=40)

    class Journey(BaseModel):
        steps: list[Step] = Field(min_length=1, max_length=2)

    answer = server.openai.chat.completions.parse(
        model=MODEL, messages=NIGHT, response_format=Journey, temperature=0, max_tokens=200
    )
    journey = answer.choices[0].message.parsed
    assert isinstance(journey, Journey) and 1 <= len(journey.steps) <= 2, journey


def test_json_object(server):
    answer = server.chat(response_format={"type": "json_object"}, max_tokens=400)
    choice = answer.choices[0]
    assert choice.message.content.lstrip().startswith("{"), choice
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_text_is_the_default(server):
    free = server.chat().choices[0].message.content
    equal(
        server.chat(response_format={"type": "text"}).choices[0].message.content, free, "the text"
    )


def test_too_few_tokens(server):
    choice = server.chat(response_format=by_schema(PERSON), max_tokens=5).choices[0]
    equal(choice.finish_reason, "length", "finish_reason")
    assert choice.message.content.lstrip().startswith("{"), choice


def test_schemas_that_cannot_be_kept(server):
    text = {"type": "string"}
    for name, schema in {
        "unknown type": {"type": "strin"},
        "no such reference": {"$ref": "#/$defs/none"},
        "a keyword that is not known to grammars": {
            "type": "object",
            "properties": {"a": text},
            "if": {"properties": {"a": {"const": "x"}}},
            "then": {"required": ["a"]},
        },
        "no value fits": {"type": "string", "minLength": 5, "maxLength": 2},
        "enum of another type": {"type": "string", "enum": [1]},
        "not an object": 5,
        "a bad pattern": {"type": "string", "pattern": "(("},
        "reference to another site": {"$ref": "https://example.com/a.json"},
    }.items():
        try:
            answer = server.chat(response_format=by_schema(schema), max_tokens=30)
        except openai.BadRequestError as error:
            said = str(error)
            assert "schema" in said or "response_format" in said, f"{name}: {said}"
            assert len(said) > 40, f"{name} is refused without words: {said}"
        else:
            raise AssertionError(f"{name} is not refused: {answer.choices[0].message.content!r}")


def test_schema_without_limits(server):
    """Other keys and numbers without an end would not let the model stop."""
    schema = {
        "title": "Dog",
        "type": "object",
        "properties": {"age": {"type": "integer"}, "weight": {"type": "number"}},
        "required": ["age", "weight"],
    }
    bias = {str(server.tokens(digit)[-1]): 50 for digit in "0123456789"}
    choice = server.chat(response_format=by_schema(schema), max_tokens=200, logit_bias=bias)
    choice = choice.choices[0]
    equal(choice.finish_reason, "stop", f"finish_reason of {choice.message.content!r}")
    assert re.fullmatch(r'\{"age": ?-?\d{1,18}, ?"weight": ?.*\}', choice.message.content), choice
    assert not re.search(r"\d{19}", choice.message.content), choice


def test_schema_is_missing(server):
    with raises(openai.BadRequestError, "schema"):
        server.chat(response_format={"type": "json_schema"})


def test_completions_too(server):
    """The older endpoint takes it as well."""
    body = {"response_format": by_schema(PERSON)}
    answer = server.complete(max_tokens=300, extra_body=body)
    jsonschema.validate(json.loads(answer.choices[0].text), PERSON)


def test_regex_and_choice(server):
    """Grammars as vLLM's clients ask for them, by the old names and the new."""
    for name, value, want in [
        ("guided_regex", "[0-9]{3}-[a-f]{2}", "[0-9]{3}-[a-f]{2}"),
        ("guided_choice", ["moor", "castle"], "moor|castle"),
        ("guided_json", {"enum": ["x", 5]}, '"x"|5'),
        ("structured_outputs", {"regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ("structured_outputs", {"choice": ["moor", "castle"]}, "moor|castle"),
        ("structured_outputs", {"json": {"enum": ["x", 5]}}, '"x"|5'),
    ]:
        for temperature in (0, 1.5):
            answer = server.chat(temperature=temperature, extra_body={name: value})
            text = answer.choices[0].message.content
            assert re.fullmatch(want, text), f"{text!r} in spite of {name}={value!r}"


def test_grammars_that_cannot_be_kept(server):
    for name, value in [
        ("guided_regex", "(("),
        ("guided_choice", []),
        ("guided_grammar", "start: nothing"),
        ("grammar", 'root ::= "yes"'),
    ]:
        with raises(openai.BadRequestError):
            server.chat(extra_body={name: value})
