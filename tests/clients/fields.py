"""Fields that are read, refused or named; how bodies and numbers may be written; words of errors."""

import gzip
import json
import re
import zlib

import openai

from support import MODEL, NIGHT, equal, raises

CHAT = "/v1/chat/completions"
BASE = {"model": MODEL, "max_tokens": 2, "temperature": 0}
BODIES = {
    CHAT: {**BASE, "messages": NIGHT},
    "/v1/completions": {**BASE, "prompt": "It was"},
    "/v1/responses": {"model": MODEL, "max_output_tokens": 2, "input": "It was"},
    "/v1/messages": {**BASE, "messages": NIGHT},
    "/v1/embeddings": {"model": MODEL, "input": "It was"},
    "/api/chat": {"model": MODEL, "messages": NIGHT, "options": {"num_predict": 2}},
    "/api/generate": {"model": MODEL, "prompt": "It was", "options": {"num_predict": 2}},
    "/api/embed": {"model": MODEL, "input": "It was"},
    "/api/show": {"model": MODEL},
    "/tokenize": {"content": "It was"},
    "/detokenize": {"tokens": [40, 41]},
    "/apply-template": {"messages": NIGHT},
}


def test_unknown_fields_are_named(server):
    for path, body in BODIES.items():
        status, headers, data = server.http("POST", path, body)
        equal((status, headers["X-Troika-Ignored"]), (200, None), f"{path} ({str(data)[:200]})")
        status, headers, _ = server.http("POST", path, {**body, "made_up": 1, "a\nb,é": [], "x": None})
        equal((status, headers["X-Troika-Ignored"]), (200, "made_up, a?b??"), path)
    body = {**BODIES["/api/chat"], "options": {"num_predict": 2, "temprature": 1}}
    equal(server.http("POST", "/api/chat", body)[1]["X-Troika-Ignored"], "options.temprature", "it")
    body = {**BODIES[CHAT], "stream": True, **{f"{'x' * 100}{i}": 0 for i in range(40)}}
    names = server.http("POST", CHAT, body)[1]["X-Troika-Ignored"].split(", ")
    equal((len(names), {len(name) for name in names}), (16, {64}), "many long names")


def test_what_changes_nothing_is_taken(server):
    idle = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
            "safety_identifier": "x", "prompt_cache_key": "k", "prompt_cache_retention": "24h"}  # fmt: skip
    for path in (CHAT, "/v1/responses"):
        status, headers, data = server.http("POST", path, {**BODIES[path], **idle})
        equal((status, headers["X-Troika-Ignored"]), (200, None), f"{path}: {data}")
    neutral = {"min_tokens": 0, "tfs_z": 1.0, "stop_token_ids": [], "length_penalty": 1.0,
               "modalities": ["text"], "functions": [], "skip_special_tokens": True,
               "use_beam_search": False, "n_probs": 0, "suffix": ""}  # fmt: skip
    status, headers, data = server.http("POST", CHAT, {**BODIES[CHAT], **neutral})
    equal((status, headers["X-Troika-Ignored"]), (200, None), str(data))
    body = {**BODIES["/v1/responses"], "truncation": "disabled", "max_tool_calls": 3,
            "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"},
            "text": {"verbosity": "low"}, "top_logprobs": 0, "background": False}  # fmt: skip
    status, headers, data = server.http("POST", "/v1/responses", body)
    equal((status, headers["X-Troika-Ignored"]), (200, None), str(data))


def test_what_is_not_honoured_is_refused(server):
    for path, field, value in [
        (CHAT, "min_tokens", 4),
        (CHAT, "modalities", ["text", "audio"]),
        (CHAT, "prompt_logprobs", 2),
        (CHAT, "grammar", 'root ::= "a"'),
        (CHAT, "function_call", {"name": "f"}),
        (CHAT, "web_search_options", {}),
        (CHAT, "priority", 3),
        ("/v1/completions", "truncate_prompt_tokens", 10),
        ("/v1/responses", "truncation", "auto"),
        ("/v1/responses", "truncation", "nope"),
        ("/v1/responses", "top_logprobs", 3),
        ("/v1/responses", "include", ["message.output_text.logprobs"]),
        ("/v1/responses", "previous_response_id", "resp_1"),
        ("/v1/responses", "conversation", {"id": "c"}),
        ("/v1/responses", "background", True),
        ("/v1/messages", "mcp_servers", [{}]),
        ("/v1/messages", "container", "x"),
        ("/api/generate", "context", [1]),
        ("/api/chat", "options", {"tfs_z": 0.5}),
    ]:
        status, _, data = server.http("POST", path, {**BODIES[path], field: value})
        equal(status, 400, f"the status of {path} with {field} ({data})")
        words = data["error"] if path.startswith("/api/") else data["error"]["message"]
        assert field in words or "tfs_z" in words, data
        if path.startswith("/v1/") and "messages" not in path:
            equal(data["error"]["param"], field, "param")


def test_whole_numbers_may_have_a_point(server):
    for path, field, value in [
        (CHAT, "max_tokens", 3.0),
        (CHAT, "top_k", 40.0),
        (CHAT, "n", 1.0),
        (CHAT, "seed", 7.0),
        ("/v1/completions", "max_tokens", 3.0),
        ("/v1/completions", "logprobs", 2.0),
        ("/v1/completions", "prompt", [40.0, 41.0]),
        ("/v1/responses", "max_output_tokens", 3.0),
        ("/v1/messages", "max_tokens", 3.0),
        ("/api/chat", "options", {"num_predict": 3.0, "top_k": 40.0}),
    ]:
        status, _, data = server.http("POST", path, {**BODIES[path], field: value})
        equal(status, 200, f"the status of {path} with {field} ({data})")
        if field == "max_tokens":
            used = data["usage"]
            equal(used.get("completion_tokens", used.get("output_tokens")), 3, path)
    body = {**BODIES[CHAT], "logprobs": True, "top_logprobs": 2.0}
    equal(server.http("POST", CHAT, body)[0], 200, "the status with top_logprobs")
    for path, field, value in [
        (CHAT, "max_tokens", 16.5),
        (CHAT, "n", 1.5),
        (CHAT, "max_tokens", 1e300),
        ("/v1/messages", "max_tokens", 2.5),
    ]:
        status, _, data = server.http("POST", path, {**BODIES[path], field: value})
        equal(status, 400, f"the status of {path} with {field} ({data})")
        assert field in data["error"]["message"], data


def frame(data, run=None):
    """A frame of zstd with blocks as they are, or with one byte `run` times."""
    blocks = [(0, data[i : i + 65536]) for i in range(0, len(data), 65536)] or [(0, b"")]
    size = len(data)
    if run:
        size, blocks = run, [(1, data[:1])] * (run // 65536)
    out = b"\x28\xb5\x2f\xfd\xa0" + size.to_bytes(4, "little")
    for i, (kind, block) in enumerate(blocks):
        length = 65536 if kind else len(block)
        head = length << 3 | kind << 1 | (i + 1 == len(blocks))
        out += head.to_bytes(3, "little") + block
    return out


def test_bodies_may_be_compressed(server):
    body = json.dumps(BODIES[CHAT]).encode()
    want = server.http("POST", CHAT, body)[2]["choices"]
    half = len(body) // 2
    for coding, data in [
        ("gzip", gzip.compress(body)),
        ("x-gzip", gzip.compress(body[:half]) + gzip.compress(body[half:])),
        ("GZIP", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("zstd", frame(body)),
        ("zstd", frame(body[:half]) + frame(body[half:])),
        ("identity", body),
        ("gzip, zstd", frame(gzip.compress(body))),
        ("identity,gzip", gzip.compress(body)),
    ]:
        status, _, answer = server.http("POST", CHAT, data, {"Content-Encoding": coding})
        equal(status, 200, f"the status for {coding} ({answer})")
        equal(answer["choices"], want, f"the answer for {coding}")
    for coding, data, want in [
        ("br", body, 415),
        ("gzip, br", body, 415),
        ("gzip", body, 400),
        ("gzip", gzip.compress(body)[:-9], 400),
        ("zstd", frame(body)[:-3], 400),
        ("deflate", b"", 400),
        ("zstd", b"", 400),
        ("gzip", gzip.compress(b" " * (1 << 28)), 413),
        ("gzip, gzip", gzip.compress(gzip.compress(b" " * (1 << 28))), 413),
        ("deflate", zlib.compress(b" " * (1 << 28)), 413),
        ("zstd", frame(b" ", 1 << 28), 413),
        ("zstd", frame(b" ", 1 << 24) * 16, 413),
    ]:
        status, _, answer = server.http("POST", CHAT, data, {"Content-Encoding": coding})
        equal(status, want, f"the status for {len(data)} bytes in {coding} ({answer})")
        assert len(answer["error"]["message"]) > 20, answer
        assert want != 415 or "gzip" in answer["error"]["message"], answer


def test_ends_of_lines_within_texts_are_escaped(server):
    """Python's `splitlines`, and so some clients, take them for ends of lines."""
    text = "one\u2028two\u2029three\u0085four"
    for stream in (False, True):
        body = {**BODIES["/v1/completions"], "prompt": text, "echo": True, "stream": stream}
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(body))
        data = connection.getresponse().read().decode()
        connection.close()
        assert not re.search("[\u2028\u2029\u0085]", data), data
        assert r"one\u2028two\u2029three\u0085four" in data, data


def test_chunks_have_no_usage_but_the_last(server):
    for chunks in (
        server.chat(stream=True, stream_options={"include_usage": True}),
        server.complete(stream=True, stream_options={"include_usage": True}),
    ):
        chunks = list(chunks)
        assert all("usage" in c.model_fields_set and c.usage is None for c in chunks[:-1]), chunks
        assert chunks[-1].usage.completion_tokens and not chunks[-1].choices, chunks[-1]
    assert not any("usage" in c.model_fields_set for c in server.chat(stream=True))


def test_offsets_count_characters(server):
    text = "a \U0001f600\U0001f469 b é c"
    told = server.complete(text, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    last = [i for i, token in enumerate(told.tokens) if token.strip() in ("a", "b", "c")]
    found = {told.tokens[i].strip(): told.text_offset[i] for i in last}
    for name, at in found.items():
        assert text[at : at + 2].strip().startswith(name), (name, at, told)
    equal(sorted(found), ["a", "b", "c"], "the tokens")
    equal(told.text_offset, sorted(told.text_offset), "the offsets")


def test_models_have_a_time(server):
    for model in server.openai.models.list().data:
        assert model.created > 1_600_000_000, model


def test_prompts_that_are_too_long_are_told_in_known_words(server):
    most = server.context()
    for text in (server.too_long(), "the night was dark and " * 100_000):
        messages = [{"role": "user", "content": text}]
        openai_words = rf"This model's maximum context length is {most} tokens\. However, .*\d+ tokens"
        for path, body, words in [
            (CHAT, {"messages": messages}, openai_words),
            ("/v1/completions", {"prompt": text}, openai_words),
            ("/v1/responses", {"input": text}, openai_words),
            ("/v1/messages", {"messages": messages, "max_tokens": 9},
             rf"prompt is too long: \d+ tokens > {most} maximum"),
            ("/api/chat", {"messages": messages}, "shorten it"),
        ]:  # fmt: skip
            status, _, data = server.http("POST", path, body)
            equal(status, 400, f"the status of {path}")
            said = data["error"] if path == "/api/chat" else data["error"]["message"]
            assert re.search(words, said), (path, said)
            count = re.search(r"(\d+) tokens(?: >|:)", said)
            assert path == "/api/chat" or int(count[1]) > most, said
            if path.startswith("/v1/") and path != "/v1/messages":
                equal(data["error"]["code"], "context_length_exceeded", path)
    with raises(openai.BadRequestError, "maximum context length", code="context_length_exceeded"):
        server.chat([{"role": "user", "content": server.too_long()}])


def test_a_response_that_is_cut_off_says_so(server):
    response = server.openai.responses.create(model=MODEL, input="It was", max_output_tokens=20)
    equal((response.status, response.output[-1].status), ("incomplete", "incomplete"), "statuses")
    events = list(
        server.openai.responses.create(model=MODEL, input="It was", max_output_tokens=20, stream=True)
    )
    done = [e for e in events if e.type == "response.output_item.done"]
    equal((events[-1].type, done[-1].item.status), ("response.incomplete", "incomplete"), "it")
