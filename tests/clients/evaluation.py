"""lm-eval with tasks of our own: what it says must be what the server's scores say."""

import contextlib
import logging
import math
import os
import pathlib
import tempfile

from support import MODEL, equal

TASKS = pathlib.Path(__file__).parent / "tasks"


@contextlib.contextmanager
def offline():
    """Nothing is asked of a hub, and nothing is left in the caches of whoever runs it."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": cache}
        # The tasks name their file beside them.
        os.chdir(TASKS)
        try:
            yield
        finally:
            os.chdir(here)


def evaluate(server, tasks, **arguments):
    """The results of an evaluation, and its samples: as `lm_eval --model local-completions`."""
    with offline():
        # Imported late, since it reads the environment, and takes seconds.
        import lm_eval
        from lm_eval.tasks import TaskManager

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        model = {
            "base_url": f"{server.url}/v1/completions",
            "model": MODEL,
            "tokenizer_backend": "remote",
            "tokenized_requests": True,
            "max_length": server.context(),
            "max_retries": 1,
            **arguments,
        }
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            found = lm_eval.simple_evaluate(
                model="local-completions",
                model_args=",".join(f"{key}={value}" for key, value in model.items()),
                tasks=tasks,
                task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
                bootstrap_iters=0,
            )
    return found["results"], found["samples"]


def score(server, context, ending):
    """What the server says of an ending, asked for without lm-eval."""
    before = server.tokens(context)
    scores = (
        server.complete(server.tokens(context + ending), echo=True, logprobs=1, max_tokens=0)
        .choices[0]
        .logprobs
    )
    return sum(scores.token_logprobs[len(before) :])


def test_all_tasks(server):
    tasks = ["troika_story", "troika_story_next", "troika_story_perplexity"]
    results, samples = evaluate(server, tasks, num_concurrent=8)
    accuracy = results["troika_story"]["acc,none"]
    assert 0.6 <= accuracy <= 1, f"an accuracy of {accuracy}, where chance has 0.33"
    for sample in samples["troika_story"][:3]:
        doc = sample["doc"]
        for ending, given in zip(doc["endings"], sample["filtered_resps"], strict=True):
            want = score(server, doc["beginning"], " " + ending)
            assert abs(float(given[0]) - want) < 1e-2, (given, want, ending)
    perplexity = results["troika_story_perplexity"]["word_perplexity,none"]
    assert 10 < perplexity < 20_000 and math.isfinite(perplexity), perplexity
    for sample in samples["troika_story_next"]:
        text = sample["resps"][0][0]
        assert "." not in text, f"the text goes on after its stop: {text!r}"
        want = (
            server.complete(sample["doc"]["beginning"], max_tokens=24, stop=["."]).choices[0].text
        )
        equal(text, want, "the text")


def test_text_requests(server):
    """Prompts as text, one at a time, or several in a request: the same results."""
    texts = evaluate(server, ["troika_story"], tokenized_requests=False)[0]
    tokens = evaluate(server, ["troika_story"], num_concurrent=4, batch_size=4)[0]
    for measure in ("acc,none", "acc_norm,none"):
        equal(texts["troika_story"][measure], tokens["troika_story"][measure], measure)
