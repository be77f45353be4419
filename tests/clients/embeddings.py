"""Embeddings by openai and ollama: where the model gives them, and refused in words elsewhere."""

import base64
import math
import struct

import ollama
import openai

from support import MODEL, equal, raises

TEXTS = ["The king rode out.", "The king rode forth.", "Three pounds of butter"]


def cosine(a, b):
    return (
        sum(x * y for x, y in zip(a, b, strict=True))
        / math.dist(a, [0] * len(a))
        / math.dist(b, [0] * len(b))
    )


def embed(server, texts, form="float", **options):
    return server.openai.embeddings.create(
        model=MODEL, input=texts, encoding_format=form, **options
    )


def test_floats(server):
    answer = embed(server, TEXTS)
    equal([d.index for d in answer.data], [0, 1, 2], "the indices")
    vectors = [d.embedding for d in answer.data]
    for vector in vectors:
        assert abs(math.dist(vector, [0] * len(vector)) - 1) < 1e-3, "a vector is not of length 1"
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2]), "they mean nothing"
    equal(answer.usage.prompt_tokens, sum(len(server.tokens(t)) for t in TEXTS), "prompt_tokens")
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert math.dist(embed(server, text).data[0].embedding, vector) < 1e-3, (
            "alone it is another"
        )


def test_base64(server):
    """The form that the package asks for by itself."""
    want = embed(server, TEXTS[0]).data[0].embedding
    body = {"model": MODEL, "input": TEXTS[0], "encoding_format": "base64"}
    data = base64.b64decode(server.post("/v1/embeddings", body)["data"][0]["embedding"])
    got = struct.unpack(f"<{len(want)}f", data)
    assert math.dist(got, want) < 1e-5, "base64 holds another vector"


def test_tokens(server):
    want = embed(server, TEXTS[0]).data[0].embedding
    got = embed(server, server.tokens(TEXTS[0])).data[0].embedding
    assert math.dist(got, want) < 1e-5, "token ids give another vector"


def test_refusals(server):
    for word, options in [
        ("dimensions", {"dimensions": 100_000}),
        ("embd_normalize", {"extra_body": {"embd_normalize": 1}}),
        ("input", {"texts": []}),
        ("input", {"texts": ""}),
        ("encoding_format", {"form": "roman"}),
    ]:
        with raises(openai.BadRequestError, word):
            embed(server, **{"texts": "a", **options})
    equal(server.openai.embeddings.create(model="gpt-9", input="a").model, MODEL, "the model")


def test_ollama(server):
    answer = server.ollama.embed(model=MODEL, input=TEXTS)
    equal(len(answer.embeddings), 3, "the number of vectors")
    assert answer.total_duration > 0 and answer.prompt_eval_count > 0, answer
    old = server.ollama.embeddings(model=MODEL, prompt=TEXTS[0]).embedding
    assert cosine(old, answer.embeddings[0]) > 0.999, "the old endpoint gives another vector"
    want = embed(server, TEXTS[0]).data[0].embedding
    assert math.dist(answer.embeddings[0], want) < 1e-3, "OpenAI's endpoint gives another vector"


def test_shapes(server):
    """The first numbers, the length, and the cut to the context."""
    raw = embed(server, TEXTS[0], extra_body={"embd_normalize": -1}).data[0].embedding
    whole = embed(server, TEXTS[0]).data[0].embedding
    length = math.dist(raw, [0] * len(raw))
    assert length > 1.1 or length < 0.9, f"the length is {length} without being made one"
    assert math.dist([x / length for x in raw], whole) < 1e-5, "it is another vector"
    short = embed(server, TEXTS[0], dimensions=8).data[0].embedding
    length = math.dist(raw[:8], [0] * 8)
    assert math.dist([x / length for x in raw[:8]], short) < 1e-5, "these are other numbers"
    again = server.ollama.embed(model=MODEL, input=TEXTS[0], dimensions=8).embeddings[0]
    assert math.dist(again, short) < 1e-5, "Ollama's are other numbers"
    long = "word " * server.context()
    for options in ({}, {"truncate": True}):
        answer = server.ollama.embed(model=MODEL, input=[long, TEXTS[0]], **options)
        assert math.dist(answer.embeddings[1], whole) < 1e-3, "it is another vector beside it"
    ids = server.tokens(long)[: server.context()]
    want = embed(server, ids).data[0].embedding
    assert math.dist(answer.embeddings[0], want) < 1e-3, "it is not cut to the context"
    with raises(ollama.ResponseError, "context"):
        server.ollama.embed(model=MODEL, input=long, truncate=False)


def test_many(server):
    """Short and long texts together are each what they are alone."""
    texts = [" ".join(TEXTS[: 1 + i % 3] * (1 + i % 30)) for i in range(100)]
    together = embed(server, texts).data
    for i in (0, 1, 29, 57, 98, 99):
        alone = embed(server, texts[i]).data[0].embedding
        assert math.dist(together[i].embedding, alone) < 1e-3, f"text {i} is another one alone"
