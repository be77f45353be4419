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
