"""What steers sampling: seeds, penalties, biases, and log-probabilities."""

import math
from collections import Counter

import openai

from support import MODEL, NIGHT, equal, raises


def text(answer):
    return answer.choices[0].message.content


def test_seed(server):
    def drawn(seed):
        return text(server.chat(temperature=1, seed=seed))

    equal(drawn(1), drawn(1), "the text of a seed")
    assert len({drawn(seed) for seed in range(4)}) > 1, "four seeds give the same text"


def test_no_seed(server):
    texts = {text(server.chat(temperature=1.2)) for _ in range(4)}
    assert len(texts) > 1, "without a seed, four texts are the same"


def test_top_p_and_top_k(server):
    greedy = text(server.chat())
    equal(text(server.chat(temperature=1, top_p=1e-6)), greedy, "the text of a tiny top_p")
    equal(text(server.chat(temperature=1, extra_body={"top_k": 1})), greedy, "the text of top_k 1")
    equal(
        text(server.chat(temperature=1, extra_body={"min_p": 1.0})), greedy, "the text of min_p 1"
    )


def test_logprobs(server):
    answer = server.chat(logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    equal(len(entries), answer.usage.completion_tokens, "the number of entries")
    equal(b"".join(bytes(e.bytes) for e in entries).decode(), text(answer), "the bytes")
    for entry in entries:
        top = [t.logprob for t in entry.top_logprobs]
        equal(len(top), 3, "the number of tops")
        equal(top, sorted(top, reverse=True), "the order of tops")
        assert sum(map(math.exp, top)) <= 1.0001 and top[0] <= 0, top
        # Greedy: the best one was taken.
        equal((entry.token, entry.logprob), (entry.top_logprobs[0].token, top[0]), "the token")


def test_logprobs_without_tops(server):
    entries = server.chat(logprobs=True, max_tokens=3).choices[0].logprobs.content
    assert entries and all(e.top_logprobs == [] for e in entries), entries
    assert server.chat(max_tokens=3).choices[0].logprobs is None


def test_logprobs_streamed(server):
    plain = server.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    streamed = []
    for chunk in server.chat(logprobs=True, top_logprobs=2, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    equal([e.token for e in streamed], [e.token for e in plain], "the tokens")
    for got, want in zip(streamed, plain, strict=True):
        assert abs(got.logprob - want.logprob) < 1e-4, (got, want)


def test_logprobs_are_before_temperature(server):
    """As OpenAI has it: temperature changes what is drawn, not what is reported."""
    cold = server.chat(logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    options = {"temperature": 2, "top_p": 1e-6, "logprobs": True, "max_tokens": 1}
    warm = server.chat(**options).choices[0].logprobs.content[0]
    equal(warm.token, cold.token, "the token")
    assert abs(warm.logprob - cold.logprob) < 1e-3, (warm, cold)


def test_logprobs_limits(server):
    for options in ({"top_logprobs": 50, "logprobs": True}, {"top_logprobs": 2}):
        with raises(openai.BadRequestError, "logprobs"):
            server.chat(**options)


def test_logit_bias(server):
    token = server.tokens(" night")
    equal(len(token), 1, "the number of tokens of ' night'")
    forced = text(server.chat(logit_bias={str(token[0]): 100}, max_tokens=4))
    equal(forced, " night" * 4, "the text of a bias of 100")
    first = server.chat(logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    banned = server.tokens(first.token)
    other = text(server.chat(logit_bias={str(t): -100 for t in banned}, max_tokens=1))
    assert other != first.token, f"{other!r} in spite of a bias of -100"


def test_penalties(server):
    """Greedy text of a small model repeats itself: penalties must make that less."""

    def most(**options):
        words = text(
            server.chat(max_tokens=120, extra_body={"ignore_eos": True}, **options)
        ).split()
        return max(Counter(words).values())

    free = most()
    for options in ({"frequency_penalty": 2}, {"presence_penalty": 2}):
        assert most(**options) < free, f"a word occurs {free} times in spite of {options}"


def test_ignore_eos(server):
    end = server.post("/tokenize", {"content": "<|endoftext|>"})["tokens"]
    equal(end, [0], "the token of <|endoftext|>")
    ended = server.chat(logit_bias={"0": 100})
    equal((ended.choices[0].finish_reason, text(ended) or ""), ("stop", ""), "the end")
    answer = server.chat(max_tokens=300, extra_body={"ignore_eos": True})
    equal(answer.usage.completion_tokens, 300, "completion_tokens")


def test_whole_characters(server):
    """No half of a character is streamed, even at a temperature where bytes come in any order."""
    for seed in range(6):
        chunks = server.chat(NIGHT, temperature=2, seed=seed, max_tokens=80, stream=True)
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        whole = text(server.chat(NIGHT, temperature=2, seed=seed, max_tokens=80))
        equal(streamed, whole, "the streamed text")


def test_samplers(server):
    """Each of llama.cpp's other samplers, where what it gives is known."""

    def drawn(**options):
        return text(server.chat(temperature=2, extra_body={"top_k": 0, "min_p": 0, **options}))

    greedy = text(server.chat())
    for seed in range(3):
        equal(drawn(top_n_sigma=1e-6, seed=seed), greedy, "the text of a tiny top_n_sigma")
        few = {"samplers": ["top-k", "temperature"], "top_k": 1, "seed": seed}
        equal(drawn(**few), greedy, "the text of two samplers by name")
        equal(drawn(**{**few, "samplers": "kt"}), greedy, "the text of two samplers by letter")
        other = drawn(**{**few, "samplers": ["temperature", "infill"]})
        assert other != greedy, "top_k works though it is not among the samplers"
        lively = {"xtc_probability": 1, "xtc_threshold": 0.001, "seed": seed}
        assert drawn(**lively, top_p=0.5) != greedy, "the likeliest token in spite of XTC"
        equal(drawn(**lively), drawn(**lively), "the text of a seed with XTC")
        neutral = {"typical_p": 1, "mirostat": 0, "dynatemp_range": 0, "dry_multiplier": 0}
        neutral |= {"xtc_probability": 0, "top_n_sigma": -1, "seed": seed}
        equal(drawn(**neutral), drawn(seed=seed), "the text of values that say nothing")
        small = {"mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 1, "seed": seed}
        assert drawn(**small) != drawn(seed=seed), "mirostat changes nothing"


def test_dry(server):
    """Greedy text of a small model repeats itself: DRY must make that less."""

    def most(**options):
        words = text(server.chat(max_tokens=120, extra_body={"ignore_eos": True, **options}))
        words = words.split()
        return max(Counter(zip(words, words[1:], words[2:])).values())

    free = most()
    assert free > 2, f"the same three words occur {free} times at most"
    dry = {"dry_multiplier": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": []}
    assert most(**dry) < free, f"three words occur {free} times in spite of DRY"


def test_samplers_refused(server):
    for word, options in [
        ("samplers", {"samplers": ["top_k", "top_q"]}),
        ("samplers", {"samplers": "kk"}),
        ("mirostat", {"mirostat": 1}),
        ("xtc_probability", {"xtc_probability": 1.5}),
        ("dry_base", {"dry_multiplier": 1, "dry_base": 0.5}),
        ("typical_p", {"typical_p": "much"}),
        ("dry_sequence_breakers", {"dry_sequence_breakers": ["x"] * 65}),
    ]:
        with raises(openai.BadRequestError, word):
            server.chat(extra_body=options)
    options = {"temperature": 2, "top_k": 0, "typical_p": 0, "num_predict": 8}
    said = {"model": MODEL, "messages": NIGHT, "stream": False}
    texts = {
        server.post("/api/chat", {**said, "options": {**options, "seed": seed}})["message"]["content"]
        for seed in range(3)
    }
    equal(len(texts), 1, "the texts of Ollama's typical_p 0")
