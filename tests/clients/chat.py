"""OpenAI's /v1/chat/completions: plain, streamed, and refusals in words."""

import json

import openai

from support import MODEL, NIGHT, equal, raises, word_within


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_plain(server):
    answer = server.chat(max_tokens=12)
    choice = answer.choices[0]
    equal(answer.object, "chat.completion", "object")
    equal(answer.model, MODEL, "model")
    assert answer.id and answer.created > 1_600_000_000, answer
    equal((choice.index, choice.message.role), (0, "assistant"), "the choice")
    assert choice.message.content.strip() and not choice.message.tool_calls, choice
    assert choice.finish_reason in ("length", "stop"), choice
    usage = answer.usage
    assert 0 < usage.completion_tokens <= 12 and usage.prompt_tokens > 5, usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")
    equal(
        server.chat(max_tokens=12).choices[0].message.content, choice.message.content, "greedy text"
    )


def test_length_is_said(server):
    choice = server.chat(max_tokens=5, extra_body={"ignore_eos": True})
    equal(choice.choices[0].finish_reason, "length", "finish_reason")
    equal(choice.usage.completion_tokens, 5, "completion_tokens")


def test_max_completion_tokens(server):
    body = {"ignore_eos": True}
    answer = server.chat(max_tokens=openai.omit, max_completion_tokens=7, extra_body=body)
    equal(answer.usage.completion_tokens, 7, "completion_tokens")


def test_prefix_is_reused(server):
    messages = [{"role": "user", "content": "The moor lay silent. " * 30}]
    first = server.chat(messages, max_tokens=4)
    again = server.chat(messages, max_tokens=4)
    equal(again.choices[0].message.content, first.choices[0].message.content, "text")
    equal(again.usage.prompt_tokens, first.usage.prompt_tokens, "prompt_tokens")
    assert again.usage.prompt_tokens_details.cached_tokens > 0, again.usage


def test_conversation(server):
    messages = [
        {"role": "system", "content": "You write prose."},
        {"role": "user", "name": "Anne", "content": "Good day."},
        {"role": "assistant", "content": "Good day, said he."},
        {"role": "developer", "content": "Go on."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "then?"}],
        },
    ]
    answer = server.chat(messages)
    assert answer.choices[0].message.content is not None
    assert answer.usage.prompt_tokens > server.chat(messages[4:]).usage.prompt_tokens


def test_stream(server):
    plain = server.chat()
    stream = server.chat(stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    equal(text_of(chunks), plain.choices[0].message.content, "the streamed text")
    equal({c.object for c in chunks}, {"chat.completion.chunk"}, "object")
    equal(len({c.id for c in chunks}), 1, "the number of ids")
    equal(chunks[0].choices[0].delta.role, "assistant", "the first role")
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    equal(ends, [plain.choices[0].finish_reason], "finish_reason")
    equal(chunks[-1].choices, [], "choices of the last chunk")
    assert all(c.usage is None for c in chunks[:-1]), "usage before the last chunk"
    equal(chunks[-1].usage.completion_tokens, plain.usage.completion_tokens, "completion_tokens")
    equal(chunks[-1].usage.prompt_tokens, plain.usage.prompt_tokens, "prompt_tokens")
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 5, "too few pieces"


def test_stream_without_usage(server):
    chunks = list(server.chat(stream=True))
    assert all(c.usage is None for c in chunks) and chunks[-1].choices[0].finish_reason, chunks[-1]


def test_stream_bytes(server):
    """What goes over the wire: events of one data line, and [DONE] at the end."""
    body = {"model": MODEL, "messages": NIGHT, "max_tokens": 4, "temperature": 0, "stream": True}
    status, headers, data = server.http("POST", "/v1/chat/completions", body)
    equal(status, 200, "status")
    assert headers["Content-Type"].startswith("text/event-stream"), headers["Content-Type"]
    events = [e for e in data.decode().split("\n\n") if e and not e.startswith(":")]
    assert all(e.startswith("data: ") and "\n" not in e for e in events), events
    equal(events[-1], "data: [DONE]", "the last event")
    for event in events[:-1]:
        json.loads(event.removeprefix("data: "))


def test_stream_helper(server):
    """The package's own accumulator, which checks what it puts together."""
    with server.openai.chat.completions.stream(
        model=MODEL, messages=NIGHT, temperature=0, max_tokens=200, stop=["."]
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds, set(kinds)
    want = server.chat(max_tokens=200, stop=["."]).choices[0].message.content
    equal(final.choices[0].message.content, want, "text")


def test_several_choices(server):
    options = {"n": 2, "temperature": 1, "seed": 7}
    answer = server.chat(**options)
    equal([c.index for c in answer.choices], [0, 1], "the indices")
    texts = [c.message.content for c in answer.choices]
    assert texts[0] != texts[1], "both choices are the same"
    assert 24 < answer.usage.completion_tokens <= 48, answer.usage
    streamed = ["", ""]
    ends = []
    for chunk in server.chat(stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    equal(streamed, texts, "the streamed texts")
    equal(sorted(ends), [0, 1], "the choices that ended")


def test_stop(server):
    whole = server.chat(max_tokens=60).choices[0].message.content
    word, before = word_within(whole)
    for stop in (word, [word], ["\x00never", word]):
        choice = server.chat(max_tokens=60, stop=stop).choices[0]
        equal(choice.message.content, before, f"the text before {stop!r}")
        equal(choice.finish_reason, "stop", "finish_reason")
    streamed = text_of(server.chat(max_tokens=60, stop=[word], stream=True))
    equal(streamed, before, "the streamed text")


def test_stop_over_tokens(server):
    """A stop string that begins and ends within tokens: nothing of it may be streamed before."""
    whole = server.chat(max_tokens=60).choices[0].message.content
    at = len(whole) // 2
    stop = whole[at : at + 9]
    want = whole[: whole.find(stop)]
    equal(server.chat(max_tokens=60, stop=stop).choices[0].message.content, want, "the text")
    equal(text_of(server.chat(max_tokens=60, stop=stop, stream=True)), want, "the streamed text")


def test_models(server):
    models = server.openai.models.list().data
    assert MODEL in [m.id for m in models], models
    model = server.openai.models.retrieve(MODEL)
    equal((model.id, model.object), (MODEL, "model"), "the model")
    equal(server.openai.models.retrieve("gpt-9").id, MODEL, "the model that has any name")


def test_unknown_model(server):
    """A single model is asked by any name, and says its own."""
    answer = server.openai.chat.completions.create(model="gpt-9", messages=NIGHT, max_tokens=2)
    equal(answer.model, MODEL, "the model")
    answer = server.openai.completions.create(model="gpt-9", prompt="a", max_tokens=2)
    equal(answer.model, MODEL, "the model")


def test_bad_values(server):
    """Each is refused with its field's name."""
    for name, value in [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("n", 0),
        ("n", 100_000),
        ("max_tokens", -5),
        ("max_tokens", "many"),
        ("presence_penalty", "much"),
        ("frequency_penalty", []),
        ("logit_bias", {"99999999": 1}),
        ("logit_bias", {"night": 1}),
        ("top_logprobs", 3),
        ("seed", "x"),
        ("stop", [5]),
        ("stream", "yes"),
        ("response_format", {"type": "poem"}),
        ("messages", []),
        ("messages", "Hello"),
        ("messages", [{"role": "king", "content": "a"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": 5}]),
    ]:
        body = {"model": MODEL, "messages": NIGHT, "max_tokens": 2, name: value}
        status, _, data = server.http("POST", "/v1/chat/completions", body)
        what = f"{name} = {value!r}: {status} {data}"
        assert status == 400, what
        error = data["error"]
        equal(error["type"], "invalid_request_error", f"type of {what}")
        assert "param" in error and "code" in error, what
        said = error["message"] + " " + (error["param"] or "")
        assert name in said or name.rstrip("s") in said, f"the field has no name in {what}"


def test_client_sees_bad_values(server):
    with raises(openai.BadRequestError, "temperature", param="temperature"):
        server.chat(temperature=-1)
    with raises(openai.BadRequestError, "temperature"):
        server.chat(temperature=-1, stream=True)


def test_images_are_refused(server):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with raises(openai.BadRequestError, "image"):
        server.chat([{"role": "user", "content": [image]}])


def test_too_long(server):
    long = [{"role": "user", "content": server.too_long()}]
    for options in ({}, {"stream": True}):
        context = str(server.context())
        with raises(openai.BadRequestError, context, code="context_length_exceeded"):
            server.chat(long, **options)


def test_control_tokens_are_text(server):
    """A marker inside a message must not become the marker."""
    plain = server.chat([{"role": "user", "content": "a<|im_end|>b<|endoftext|>"}], max_tokens=1)
    bare = server.chat([{"role": "user", "content": "ab"}], max_tokens=1)
    more = plain.usage.prompt_tokens - bare.usage.prompt_tokens
    assert more > 6, f"two markers cost {more} tokens: they were read as such"
