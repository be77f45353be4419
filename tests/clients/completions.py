"""OpenAI's /v1/completions, as lm-eval and editors use it."""

import openai

from support import MODEL, equal, raises, word_within

PROMPT = "It was a dark night"


def test_text(server):
    answer = server.complete(PROMPT)
    choice = answer.choices[0]
    equal((answer.object, answer.model, choice.index), ("text_completion", MODEL, 0), "the answer")
    assert choice.text.strip() and not choice.text.startswith(PROMPT), choice
    equal(answer.usage.prompt_tokens, len(server.tokens(PROMPT)), "prompt_tokens")
    equal(choice.finish_reason, "length" if answer.usage.completion_tokens == 24 else "stop")


def test_default_length(server):
    """OpenAI's: 16 tokens."""
    answer = server.complete(PROMPT, max_tokens=openai.omit, extra_body={"ignore_eos": True})
    equal(answer.usage.completion_tokens, 16, "completion_tokens")


def test_stream(server):
    plain = server.complete(PROMPT)
    chunks = list(server.complete(PROMPT, stream=True, stream_options={"include_usage": True}))
    equal(
        "".join(c.choices[0].text for c in chunks if c.choices), plain.choices[0].text, "the text"
    )
    equal(chunks[-1].usage.completion_tokens, plain.usage.completion_tokens, "completion_tokens")
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    equal(ends, [plain.choices[0].finish_reason], "finish_reason")


def test_tokens_as_prompt(server):
    text = server.complete(PROMPT).choices[0].text
    ids = server.tokens(PROMPT)
    equal(server.complete(ids).choices[0].text, text, "the text after token ids")
    equal(server.complete([ids]).choices[0].text, text, "the text after a list of them")
    for bad in ([99_999_999], [-1], []):
        with raises(openai.BadRequestError, param="prompt"):
            server.complete(bad)


def test_list_of_prompts(server):
    prompts = [PROMPT, "The king", "She said that"]
    alone = [server.complete(p).choices[0].text for p in prompts]
    answer = server.complete(prompts)
    equal([c.index for c in answer.choices], [0, 1, 2], "the indices")
    equal([c.text for c in answer.choices], alone, "the texts")
    ids = [server.tokens(p) for p in prompts]
    equal([c.text for c in server.complete(ids).choices], alone, "the texts after token ids")


def test_list_of_prompts_streamed(server):
    """Streamed by index, or refused in words: not mixed up."""
    prompts = [PROMPT, "The king"]
    streamed = ["", ""]
    try:
        for chunk in server.complete(prompts, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
    except openai.BadRequestError as error:
        assert "prompt" in str(error), error
    else:
        equal(streamed, [server.complete(p).choices[0].text for p in prompts], "the texts")


def test_several_of_each(server):
    """Choice i belongs to prompt i / n."""
    answer = server.complete([PROMPT, "The king"], n=2, temperature=1, seed=3, echo=True)
    equal([c.index for c in answer.choices], [0, 1, 2, 3], "the indices")
    starts = [c.text.startswith(PROMPT) for c in answer.choices]
    equal(starts, [True, True, False, False], "whose prompt is echoed")


def test_stop(server):
    whole = server.complete(PROMPT, max_tokens=60).choices[0].text
    word, before = word_within(whole)
    for stop in (word, [word], [word, "\x00a", "\x00b", "\x00c", "\x00d", "\x00e"]):
        choice = server.complete(PROMPT, max_tokens=60, stop=stop).choices[0]
        equal((choice.text, choice.finish_reason), (before, "stop"), f"the answer with {stop!r}")
    equal(server.complete(PROMPT, max_tokens=60, stop=[]).choices[0].text, whole, "without a stop")


def test_echo(server):
    plain = server.complete(PROMPT).choices[0].text
    equal(server.complete(PROMPT, echo=True).choices[0].text, PROMPT + plain, "the text")


def test_scores_of_prompt(server):
    """Echo, log-probabilities and no tokens: what perplexity is made of."""
    ids = server.tokens(PROMPT)
    for prompt in (PROMPT, ids):
        answer = server.complete(prompt, echo=True, logprobs=2, max_tokens=0)
        choice = answer.choices[0]
        equal(choice.text, PROMPT, "the text")
        equal(answer.usage.completion_tokens, 0, "completion_tokens")
        scores = choice.logprobs
        equal("".join(scores.tokens), PROMPT, "the tokens")
        for each in (scores.tokens, scores.token_logprobs, scores.top_logprobs, scores.text_offset):
            equal(len(each), len(ids), "the number of entries")
        assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None, scores
        equal(scores.text_offset[:2], [0, len(scores.tokens[0])], "text_offset")
        for token, score, top in zip(
            scores.tokens[1:], scores.token_logprobs[1:], scores.top_logprobs[1:], strict=True
        ):
            assert score < 0 and 2 <= len(top) <= 3 and top[token] == score, (token, score, top)


def test_scores_agree(server):
    """What a token is said to cost when it is made is what it costs in a prompt."""
    made = server.complete(PROMPT, logprobs=1, max_tokens=12).choices[0]
    equal(len(made.logprobs.tokens), 12, "the number of tokens")
    ids = server.tokens(PROMPT)
    body = {"return_token_ids": False}
    whole = (
        server.complete(PROMPT + made.text, echo=True, logprobs=1, max_tokens=0, extra_body=body)
        .choices[0]
        .logprobs
    )
    if whole.tokens[len(ids) :] != made.logprobs.tokens:
        return  # The text is cut into other tokens when it is read.
    for got, want in zip(
        whole.token_logprobs[len(ids) :], made.logprobs.token_logprobs, strict=True
    ):
        assert abs(got - want) < 2e-3, (got, want)


def test_scores_and_a_token(server):
    """As lm-eval asks: the prompt and one token more, several prompts at once."""
    prompts = [server.tokens(p) for p in (PROMPT, "The king of all the land")]
    answer = server.complete(prompts, echo=True, logprobs=1, max_tokens=1)
    for choice, ids in zip(answer.choices, prompts, strict=True):
        scores = choice.logprobs
        equal(len(scores.token_logprobs), len(ids) + 1, "the number of entries")
        equal(len(scores.top_logprobs), len(ids) + 1, "the number of tops")
        # The last one is greedy, and the same number must say so.
        equal(scores.token_logprobs[-1], max(scores.top_logprobs[-1].values()), "the last score")


def test_scores_of_end(server):
    """A token that ends the text has its entry too."""
    answer = server.complete(PROMPT, echo=True, logprobs=1, max_tokens=1, logit_bias={"0": 100})
    scores = answer.choices[0].logprobs
    equal(len(scores.token_logprobs), len(server.tokens(PROMPT)) + 1, "the number of entries")
    equal(answer.choices[0].finish_reason, "stop", "finish_reason")


def test_full_context(server):
    context = server.context()
    ids = (server.tokens(PROMPT) * context)[: context - 1]
    answer = server.complete(ids, max_tokens=1, echo=True, logprobs=1)
    equal(len(answer.choices[0].logprobs.tokens), context, "the number of tokens")
    with raises(openai.BadRequestError, str(context), code="context_length_exceeded"):
        server.complete(ids * 2, max_tokens=1)


def test_end_token_in_prompt(server):
    """lm-eval puts the end token before a text that has nothing before it."""
    ids = [0, *server.tokens(PROMPT)]
    answer = server.complete(ids, max_tokens=4)
    equal((answer.usage.prompt_tokens, answer.usage.completion_tokens), (len(ids), 4), "the tokens")


def test_refusals(server):
    for word, options in [
        ("suffix", {"suffix": "the end"}),
        ("logprobs", {"logprobs": 500}),
        ("logprobs", {"logprobs": -1}),
        ("max_tokens", {"max_tokens": -5}),
        ("n", {"n": 0}),
        ("prompt", {"prompt": {"a": 1}}),
        ("prompt", {"prompt": [1, None]}),
        ("stop", {"stop": {"a": 1}}),
    ]:
        with raises(openai.BadRequestError, word):
            server.complete(**options)
