"""What the test kit promises to those who test with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
import torch.nn.functional as F

from octavo import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.spec import AttentionLayerParams
from octavo.testing.dense_attention import dense_attention
from octavo.testing.naive import naive_generate
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import EOS_TOKEN_ID, VOCAB_SIZE, next_state, state_of, table_llm, table_next_logits
from octavo.testing.tiny_models import FAMILIES, write_tiny_model
from octavo.testing.workload import Job, Reference, pairwise, run_jobs

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def peaked(*best: int) -> object:
    """Logits that want `best[n]` after n tokens, and next to it the token after that one."""

    def next_logits(token_ids):
        logits = torch.zeros(10)
        wanted = best[min(len(token_ids) - 1, len(best) - 1)]
        logits[wanted], logits[wanted + 1] = 5.0, 4.0
        return logits

    return next_logits


def naive(next_logits, **options) -> tuple[list[int], str]:
    eos = options.pop("eos_token_ids", ())
    words = options.pop("bad_words", ())
    output = naive_generate(
        next_logits, [0], GREEDY.replace(**options), eos_token_ids=eos, bad_words=words, max_model_len=100
    )
    return list(output.token_ids), output.finish_reason


def test_naive_engine_by_hand() -> None:
    assert naive(peaked(3)) == ([3, 3, 3, 3], "length")
    assert naive(peaked(3, 4, 5), eos_token_ids=[4]) == ([3, 4], "stop")
    assert naive(peaked(3, 4, 5), eos_token_ids=[4], ignore_eos=True) == ([3, 4, 5, 5], "length")
    assert naive(peaked(3, 4, 5), stop_token_ids=[3], min_tokens=1) == ([4, 4, 5, 5], "length")
    assert naive(peaked(3), stop_token_ids=[3], min_tokens=2) == ([4, 4, 3], "stop")
    assert naive(peaked(3), logit_bias={7: 6.0}) == ([7] * 4, "length")
    assert naive(peaked(3), allowed_token_ids=[4, 9]) == ([4] * 4, "length")
    assert naive(peaked(3), bad_words=[[3, 3]]) == ([3, 4, 3, 4], "length")
    assert naive(peaked(3), bad_words=[[3]]) == ([4] * 4, "length")
    assert naive(peaked(3), presence_penalty=1.5) == ([3, 4, 3, 3], "length")  # 5, 4 → 3.5, 4 → 3.5, 2.5
    assert naive(peaked(3), frequency_penalty=0.8) == ([3, 3, 4, 3], "length")  # 3 falls by 0.8 each time: 5, 4.2, 3.4
    assert naive(peaked(3), repetition_penalty=1.5) == ([3, 4, 3, 3], "length")
    assert naive(peaked(3), max_tokens=2) == ([3, 3], "length")


def test_naive_engine_samples_by_seed_and_child() -> None:
    flat = SamplingParams(temperature=1.0, max_tokens=20, seed=1)

    def run(params: SamplingParams, child_index: int = 0) -> tuple[int, ...]:
        return naive_generate(
            lambda _: torch.zeros(50), [0], params, max_model_len=100, child_index=child_index
        ).token_ids

    assert run(flat) == run(flat)
    assert len({run(flat), run(flat.replace(seed=2)), run(flat, 1)}) == 3
    assert set(run(flat.replace(top_k=0, top_p=1.0), 0)) != {run(flat)[0]}


def test_table_model_reads_all_tokens_in_order() -> None:
    assert state_of([3, 4]) == next_state(next_state(0, 3), 4)
    histories = list(product(range(4), repeat=4))
    assert len({state_of(h) for h in histories}) == len(histories)
    assert len({int(table_next_logits(h).argmax()) for h in histories}) > VOCAB_SIZE // 2
    assert state_of([0]) != state_of([0, 0])


def test_table_model_draws_ends() -> None:
    """Some sequences end by EOS, so that tests meet it, and most do not at once."""
    answers = [naive_generate(table_next_logits, [i], GREEDY.replace(max_tokens=40), eos_token_ids=[EOS_TOKEN_ID],
                              max_model_len=100) for i in range(2, VOCAB_SIZE)]  # fmt: skip
    stopped = [a for a in answers if a.finish_reason == "stop"]
    assert 10 < len(stopped) < len(answers)


def test_dense_attention_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = AttentionLayerParams(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.3)
    query, key, value = (torch.randn(9, n, 8, generator=generator) for n in (4, 2, 2))
    heads_first = [t.transpose(0, 1).unsqueeze(0) for t in (query, key, value)]
    expected = F.scaled_dot_product_attention(*heads_first, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(dense_attention(layer, query, key, value), expected[0].transpose(0, 1))
    last = dense_attention(layer, query[-2:], key, value)
    torch.testing.assert_close(last, expected[0].transpose(0, 1)[-2:])
    windowed = dense_attention(replace(layer, sliding_window=1), query, key, value)
    torch.testing.assert_close(windowed, value.repeat_interleave(2, dim=1))


def test_pairwise_holds_every_pair_once_at_least() -> None:
    choices = {"a": [1, 2, 3], "b": "xyz", "c": [True, False], "d": [None, 0, 1, 2]}
    rows = list(pairwise(choices))
    for first, second in combinations(choices, 2):
        assert {(r[first], r[second]) for r in rows} == set(product(choices[first], choices[second]))
    assert len(rows) < 3 * 3 * 2 * 4 / 3


@pytest.mark.parametrize("change", ["token", "logprob", "reason", "missing"])
def test_reference_refuses_what_differs(change: str) -> None:
    engine = table_llm().engine
    job = Job(prompt=(5, 6, 7), params=GREEDY.replace(logprobs=2, ignore_eos=True))
    output = run_jobs(engine, [job])[0]
    reference = Reference(table_next_logits, engine)
    reference.check(job, output)
    good = output.outputs[0]
    first = good.logprobs[0]
    bad = {
        "token": replace(good, token_ids=(*good.token_ids[:-1], (good.token_ids[-1] + 1) % VOCAB_SIZE)),
        "logprob": replace(good, logprobs=(replace(first, logprob=first.logprob - 2e-4), *good.logprobs[1:])),
        "reason": replace(good, finish_reason=type(good.finish_reason)("stop")),
        "missing": replace(good, token_ids=good.token_ids[:-1], logprobs=good.logprobs[:-1]),
    }[change]
    with pytest.raises(AssertionError):
        reference.check(job, replace(output, outputs=(bad,)))


def test_run_jobs_adds_and_aborts_in_time() -> None:
    engine = table_llm().engine
    params = GREEDY.replace(max_tokens=30, ignore_eos=True)
    jobs = [
        Job(prompt=(5, 6), params=params, aborted=4),
        Job(prompt=(5, 6), params=params, arrives=2),
        Job(prompt=(9,), params=params, arrives=3, aborted=3),
    ]
    outputs = run_jobs(engine, jobs)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [4, 30, 0]
    with pytest.raises(AssertionError, match="not done"):
        run_jobs(engine, [replace(jobs[1], arrives=0)], max_steps=5)


def test_scripted_plugins_do_as_they_are_told() -> None:
    drafter = ScriptedDrafter(lambda sequence, most: [2] * most)
    processor = ScriptedProcessor(lambda logits, tokens: logits.fill_(0.0).index_fill_(0, torch.tensor([2]), 1.0))
    llm = table_llm(plugins=[drafter, processor], drafter="scripted", num_draft_tokens=3)
    params = GREEDY.replace(max_tokens=9, extra_args={"scripted": True})
    assert llm.generate([[5]], params)[0].outputs[0].token_ids == (2,) * 9
    assert drafter.released == [1]
    assert processor.released == [(1, [2] * 9)]
    with pytest.raises(InvalidRequestError, match="extra_args"):
        table_llm().generate([[5]], params)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_are_the_same_each_time(family, tmp_path) -> None:
    one, two, other = (write_tiny_model(tmp_path / str(i), family, seed) for i, seed in enumerate((0, 0, 1)))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (one, two, other)]
    assert weights[0] == weights[1] != weights[2]


def test_tiny_model_fixture_keeps_folders(tiny_model) -> None:
    assert tiny_model("llama") == tiny_model("llama") != tiny_model("llama", seed=1)
