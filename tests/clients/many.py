"""Many clients at once, and clients that go away."""

import concurrent.futures
import http.client
import json
import threading

from metrics import read
from support import MODEL, NIGHT, equal, eventually

WHO = [
    "The king",
    "My lady",
    "A sailor",
    "The wind",
    "Her father",
    "One man",
    "Old John",
    "The sea",
]
PLACE = ["in the castle", "upon the moor by night"]
PROMPTS = [f"{who} {place} spoke of" for who in WHO for place in PLACE]
LONG = {"ignore_eos": True}


def streamed(server, prompt, tokens=48):
    stream = server.chat(
        [{"role": "user", "content": prompt}], max_tokens=tokens, stream=True, extra_body=LONG
    )
    return "".join(c.choices[0].delta.content or "" for c in stream if c.choices)


def test_sixteen_at_once(server):
    """All end, and nobody's text depends on who else is there."""
    alone = [streamed(server, prompt) for prompt in PROMPTS]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            together = list(pool.map(lambda prompt: streamed(server, prompt), PROMPTS))
        for prompt, got, want in zip(PROMPTS, together, alone, strict=True):
            equal(got, want, f"the text after {prompt!r}")


def test_kinds_at_once(server):
    """Plain, streamed, structured and scored requests beside each other."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"enum": ["yes", "no"]}}}
    asks = [
        lambda: server.chat(max_tokens=32).choices[0].message.content,
        lambda: streamed(server, "The king", 32),
        lambda: server.chat(response_format=form).choices[0].message.content,
        lambda: server.complete(echo=True, logprobs=1, max_tokens=0).choices[0].logprobs.tokens,
        lambda: (
            server.ollama.generate(
                model=MODEL, prompt="A", raw=True, options={"temperature": 0, "num_predict": 32}
            ).response
        ),
        lambda: (
            server.anthropic.messages.create(
                model=MODEL, messages=NIGHT, max_tokens=32, extra_body={"temperature": 0}
            )
            .content[0]
            .text
        ),
    ]
    alone = [ask() for ask in asks]
    with concurrent.futures.ThreadPoolExecutor(len(asks) * 2) as pool:
        together = list(pool.map(lambda ask: ask(), asks * 2))
    equal(together, alone * 2, "the answers")


def is_idle(server):
    status = server.status()
    running = sum(m["running"] for m in status["models"] if "running" in m)
    return status["running"] == 0 and status["queued"] == 0 and running == 0


def made(server):
    """Tokens that the server has generated."""
    return sum(
        sample.value for family in read(server) if "generated_tokens" in family.name
        for sample in family.samples if sample.name.endswith("_total")
    )  # fmt: skip


def long_prompt(server, number):
    """A text of three quarters of the context that no other request begins with."""
    return f"Number {number}: " + "the night was dark and " * (server.context() // 7)


def read_of(server, prompt, **fields):
    """How far a prompt was read, as a stream tells it."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "stream": True, **fields}
    _, _, data = server.http("POST", "/v1/completions", {"return_progress": True, **body})
    chunks = [json.loads(line[6:]) for line in data.decode().split("\n") if line[:7] == "data: {"]
    return [c["prompt_progress"] for c in chunks if "prompt_progress" in c]


def test_progress_of_a_prompt(server):
    """As llama.cpp tells it: first what is cached, at last all."""
    prompt = long_prompt(server, 1)
    tokens = len(server.tokens(prompt))
    for fields, least, most in [({}, 0, 0), ({}, tokens * 0.9, tokens), ({"cache_prompt": False}, 0, 0)]:
        told = read_of(server, prompt, **fields)
        assert len(told) >= 2 and all(t["total"] == tokens for t in told), told
        assert all(t["cache"] == told[0]["processed"] for t in told), told
        assert least <= told[0]["cache"] <= most, told
        read = [t["processed"] for t in told]
        equal((sorted(set(read)), read[-1]), (read, tokens), "what is read")
    stream = server.chat(stream=True, extra_body={"return_progress": True})
    told = [c.prompt_progress for c in stream if getattr(c, "prompt_progress", None)]
    equal(told[-1]["processed"], told[-1]["total"], "what is read of a conversation")


def test_status_while_prompts_are_read(server):
    """Who looks sees prompts grow, with the pages that they take."""
    seen = []
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(read_of, server, long_prompt(server, 2 + i)) for i in range(6)]
        while not all(a.done() for a in asked):
            seen.append(server.model_status())
    prompts = [prompt for model in seen for prompt in model["prompts"]]
    assert any(0 < p["read"] < p["tokens"] for p in prompts), prompts
    assert any(m["prompts"] and m["pages_used"] and m["sequences"] for m in seen), seen[-1]
    assert any(m["prefill_tok_s"] > 0 for m in seen), seen[-1]
    equal(server.model_status()["prompts"], [], "what is read at the end")


def test_short_prompt_beside_long_ones(server):
    """It waits for a part of a long one, not for all; and all have the tokens they have alone."""
    prompts = [long_prompt(server, 8 + i) for i in range(4)]
    ask = lambda prompt, **more: server.complete(prompt, max_tokens=4, **more).choices[0].text
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(ask, prompt) for prompt in prompts]
        eventually(lambda: server.model_status()["prompts"] or asked[-1].done(), 5, "they begin")
        ask("Hello")
        still = sum(not a.done() for a in asked)
        together = [a.result() for a in asked]
    assert still, "the long ones were through before the short one"
    whole = {"extra_body": {"cache_prompt": False}}
    equal([ask(prompt, **whole) for prompt in prompts], together, "the texts")


def test_cached_tokens(server):
    """Every interface says how much of a prompt was cached, and counts it once."""
    text = "Who counts? " + "the night was dark and " * (server.context() // 12)
    ask = [{"role": "user", "content": text}]
    few = {"temperature": 0, "max_tokens": 2}
    openai = lambda **more: server.chat(ask, **few, **more)
    equal(openai(extra_body={"cache_prompt": False}).usage.prompt_tokens_details.cached_tokens, 0, "cached")
    first = openai().usage
    most = first.prompt_tokens - 1
    for more in ({}, {"n": 3}):
        usage = openai(**more)
        cached = usage.usage.prompt_tokens_details.cached_tokens
        assert most * 0.9 < cached <= most, usage.usage
        equal(usage.usage.prompt_tokens, first.prompt_tokens, "tokens of the prompt")
        timings = usage.timings
        equal(timings["cache_n"] + timings["prompt_n"], first.prompt_tokens, "llama.cpp's count")
    used = server.openai.responses.create(
        model=MODEL, input=text, temperature=0, max_output_tokens=2
    ).usage
    equal((used.input_tokens_details.cached_tokens, used.input_tokens), (cached, most + 1), "usage")
    body = {"model": MODEL, "messages": ask, **few}
    whole = server.post("/v1/messages", body)["usage"]
    _, _, data = server.http("POST", "/v1/messages", {**body, "stream": True})
    events = [json.loads(x[6:]) for x in data.decode().split("\n") if x[:7] == "data: {"]
    begun = next(e["message"]["usage"] for e in events if e["type"] == "message_start")
    ended = next(e["usage"] for e in events if e["type"] == "message_delta")
    for usage in (whole, begun, ended):
        equal(usage["cache_read_input_tokens"], cached, "what was read from the cache")
        equal(usage["input_tokens"] + cached, most + 1, "tokens of the prompt")
    told = server.ollama.chat(model=MODEL, messages=ask, options={"num_predict": 2})
    equal(told.prompt_eval_count, most + 1, "Ollama's count, which is of all tokens")


def test_client_goes_while_it_streams(server):
    """Within a second, nothing runs for it any more, and most was never computed."""
    eventually(lambda: is_idle(server), 5, "idle before the test")
    before = made(server)
    stream = server.chat(max_tokens=1000, n=8, temperature=1, stream=True, extra_body=LONG)
    for _ in range(4):
        next(stream)
    assert server.status()["running"] > 0, server.status()
    stream.close()
    eventually(lambda: is_idle(server), 1, "no request runs after its client went")
    assert made(server) - before < 4000, "half of an answer was computed for nobody"


def test_client_goes_while_it_waits(server):
    """Without a stream, too: the answer would reach nobody."""
    connection = server.connect()
    before = made(server)
    body = {"model": MODEL, "messages": NIGHT, "max_tokens": 1000, "n": 8, "temperature": 1, **LONG}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    eventually(lambda: server.status()["running"] > 0, 5, "the request runs")
    connection.sock.close()
    connection.close()
    eventually(lambda: is_idle(server), 1, "no request runs after its client went")
    assert made(server) - before < 4000, "half of an answer was computed for nobody"


def test_pages_come_back(server):
    """Clients that go leave no pages behind that grow with their number."""
    used = []
    for _ in range(3):
        streams = [
            server.chat(
                [{"role": "user", "content": p}], max_tokens=900, stream=True, extra_body=LONG
            )
            for p in PROMPTS[:6]
        ]
        for stream in streams:
            next(stream)
        for stream in streams:
            stream.close()
        eventually(lambda: is_idle(server), 2, "no request runs after its client went")
        used.append(server.model_status()["pages_used"])
    assert used[-1] <= server.model_status()["pages"], used
    assert streamed(server, "The king"), "no text after them"


def test_slow_reader_holds_nobody(server):
    """One client reads nothing of a long stream; another is served meanwhile."""
    slow = server.connect()
    body = {"model": MODEL, "messages": NIGHT, "max_tokens": 900, "stream": True, **LONG}
    slow.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    want = streamed(server, "The king")
    answers = []
    other = threading.Thread(target=lambda: answers.append(streamed(server, "The king")))
    other.start()
    other.join(20)
    equal(answers, [want], "the answer beside a client that does not read")
    slow.close()
    eventually(lambda: is_idle(server), 2, "no request runs after its client went")


def test_connection_is_kept(server):
    """Ten requests over one connection."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    try:
        connection.connect()
        socket = connection.sock
        for _ in range(10):
            body = json.dumps({"model": MODEL, "prompt": "The", "max_tokens": 2, "temperature": 0})
            connection.request(
                "POST", "/v1/completions", body, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            equal(answer.status, 200, f"status {answer.read()!r}")
            assert connection.sock is socket, "the server closed the connection"
    finally:
        connection.close()
