"""Ollama's /api/chat and /api/generate."""

import json

import jsonschema
import ollama

from calls import SCHEMAS
from structure import PERSON
from support import MODEL, NIGHT, equal, raises, word_within

GREEDY = {"temperature": 0, "num_predict": 24}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def chat(server, messages=None, options=None, **more):
    messages = NIGHT if messages is None else messages
    options = GREEDY | (options or {})
    return server.ollama.chat(model=MODEL, messages=messages, options=options, **more)


def generate(server, prompt="It was a dark night", options=None, **more):
    options = GREEDY | (options or {})
    return server.ollama.generate(model=MODEL, prompt=prompt, options=options, **more)


def check_end(answer):
    """The counts and times of the last object."""
    assert answer.done and answer.done_reason in ("stop", "length"), answer
    assert answer.created_at and answer.model == MODEL, answer
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0, answer
    # Nanoseconds: a token takes more than a microsecond, and all less than a minute.
    for name in ("total_duration", "prompt_eval_duration", "eval_duration"):
        assert 1_000 < getattr(answer, name) < 60_000_000_000, f"{name} of {answer}"
    assert 0 <= answer.load_duration <= answer.total_duration, answer
    assert answer.eval_duration <= answer.total_duration, answer


def test_chat(server):
    answer = chat(server)
    equal(answer.message.role, "assistant", "the role")
    equal(answer.message.content, server.chat().choices[0].message.content, "the text")
    check_end(answer)


def test_chat_streamed(server):
    plain = chat(server)
    parts = list(chat(server, stream=True))
    equal("".join(p.message.content or "" for p in parts), plain.message.content, "the text")
    equal([p.done for p in parts], [False] * (len(parts) - 1) + [True], "done")
    assert len(parts) > 5, "too few pieces"
    check_end(parts[-1])
    equal(parts[-1].eval_count, plain.eval_count, "eval_count")


def test_stream_is_lines_of_json(server):
    """Without `stream`, it is a stream: Ollama's default."""
    body = {"model": MODEL, "messages": NIGHT, "options": {"num_predict": 3}}
    status, headers, data = server.http("POST", "/api/chat", body)
    equal(status, 200, "status")
    assert headers["Content-Type"].startswith("application/x-ndjson"), headers["Content-Type"]
    lines = [json.loads(line) for line in data.decode().splitlines()]
    assert len(lines) > 1 and lines[-1]["done"], lines


def test_num_predict(server):
    answer = chat(server, options={"num_predict": 5, "ignore_eos": True})
    equal((answer.eval_count, answer.done_reason), (5, "length"), "the end")


def test_seed(server):
    def drawn(seed):
        return generate(server, options={"temperature": 1, "seed": seed}).response

    equal(drawn(1), drawn(1), "the text of a seed")
    assert len({drawn(seed) for seed in range(4)}) > 1, "four seeds give the same text"


def test_stop(server):
    whole = generate(server, options={"num_predict": 60}).response
    word, before = word_within(whole)
    answer = generate(server, options={"num_predict": 60, "stop": [word]})
    equal((answer.response, answer.done_reason), (before, "stop"), "the answer")


def test_generate(server):
    """With the template: as a chat of one message."""
    answer = generate(server, NIGHT[0]["content"])
    equal(answer.response, chat(server).message.content, "the text")
    check_end(answer)
    parts = list(generate(server, NIGHT[0]["content"], stream=True))
    equal("".join(p.response or "" for p in parts), answer.response, "the streamed text")
    check_end(parts[-1])


def test_generate_raw(server):
    """Without the template: as a completion."""
    want = server.complete("It was a dark night").choices[0].text
    equal(generate(server, raw=True).response, want, "the text")


def test_generate_with_system(server):
    system = {"role": "system", "content": "You write in verse."}
    answer = generate(server, NIGHT[0]["content"], system=system["content"])
    equal(answer.response, chat(server, [system, *NIGHT]).message.content, "the text")


def test_load(server):
    """A request without a prompt loads the model."""
    answer = server.ollama.generate(model=MODEL)
    assert answer.done and not answer.response, answer
    assert server.ollama.chat(model=MODEL, messages=[]).done


def test_format(server):
    answer = chat(server, format="json", options={"num_predict": 400})
    assert answer.message.content.lstrip().startswith("{"), answer.message
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    for text in (
        chat(server, format=PERSON, options={"num_predict": 300}).message.content,
        generate(server, format=PERSON, options={"num_predict": 300}).response,
    ):
        jsonschema.validate(json.loads(text), PERSON)
    with raises(ollama.ResponseError, "schema"):
        generate(server, format={"type": "strin"})


def test_tools(server):
    """Ollama cannot force a call: the built-in model answers in text, and all forms are taken."""
    messages = [
        *NIGHT,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
        },
        {"role": "tool", "tool_name": "add", "content": "3"},
    ]
    answer = chat(server, messages, tools=TOOLS)
    assert answer.message.content or answer.message.tool_calls, answer
    more = answer.prompt_eval_count - chat(server, tools=TOOLS).prompt_eval_count
    assert more > 6, f"a call and its result are {more} tokens of the prompt"

    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    assert chat(server, tools=[add]).done


def test_options_that_are_wrong(server):
    for word, options in [
        ("temperature", {"temperature": -1}),
        ("num_predict", {"num_predict": "many"}),
        ("stop", {"stop": 5}),
        ("seed", {"seed": "x"}),
    ]:
        body = {"model": MODEL, "prompt": "a", "stream": False, "options": options}
        status, _, data = server.http("POST", "/api/generate", body)
        equal(status, 400, f"the status for {options}")
        assert isinstance(data["error"], str) and word in data["error"], data


def test_unknown_model(server):
    for name in ("gpt-9", "llama3:8b"):
        options = {"model": name, "options": {"num_predict": 2}}
        equal(server.ollama.chat(messages=NIGHT, **options).model, MODEL, "the model")
        stream = server.ollama.chat(messages=NIGHT, stream=True, **options)
        equal({part.model for part in stream}, {MODEL}, "the model")
        equal(server.ollama.generate(prompt="a", **options).model, MODEL, "the model")


def test_logprobs(server):
    answer = chat(server, logprobs=True, top_logprobs=2)
    equal("".join(entry.token for entry in answer.logprobs), answer.message.content, "the tokens")
    assert all(len(entry.top_logprobs) == 2 for entry in answer.logprobs), answer.logprobs
    # As many in a stream, also of tokens whose text comes later; and for a prompt as it is.
    tokens = [entry.token for entry in answer.logprobs]
    stream = list(chat(server, logprobs=True, stream=True))
    told = [entry.token for part in stream for entry in part.logprobs or []]
    equal(told, tokens, "the tokens of a stream")
    answer = generate(server, raw=True, logprobs=True)
    equal("".join(entry.token for entry in answer.logprobs), answer.response, "the raw tokens")


def test_images(server):
    """The model reads text only, and says so wherever a picture is."""
    picture = "iVBORw0KGgo="
    words = ("missing data required for image input", "text only")
    with raises(ollama.ResponseError, *words):
        chat(server, [NIGHT[0] | {"images": [picture]}])
    with raises(ollama.ResponseError, *words):
        generate(server, images=[picture])
    assert chat(server, [NIGHT[0] | {"images": []}]).done


def left_out(server, **more):
    body = {"model": MODEL, "messages": NIGHT, "stream": False, "options": GREEDY} | more
    status, headers, data = server.http("POST", "/api/chat", body)
    equal(status, 200, f"the status ({data})")
    equal(data["message"]["content"], chat(server).message.content, "the text")
    return headers.get("X-Troika-Left-Out")


def test_num_ctx(server):
    """The context is the one that the model was opened with: what it cannot be is told."""
    for size, want in ((512, None), (server.context(), None), (10**6, "told"), (4, "told")):
        told = left_out(server, options=GREEDY | {"num_ctx": size})
        equal(told, want and "options.num_ctx", f"what is told of {size}")


def test_think(server):
    """A model without thoughts has none, and says so."""
    equal(left_out(server, think=False), None, "what is told of no thoughts")
    for think in (True, "low", "medium", "high"):
        equal(left_out(server, think=think), "think", f"what is told of {think!r}")
    for bad in ("some", 1, [], {}):
        status, _, data = server.http(
            "POST", "/api/chat", {"model": MODEL, "messages": NIGHT, "think": bad}
        )
        assert status == 400 and "think" in data["error"], (bad, status, data)
