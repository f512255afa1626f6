"""The parts that the conformance suites are made of."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import octavo.testing
from octavo import SamplingParams
from octavo.testing import suites
from octavo.testing.suites.circumstances import CIRCUMSTANCES, MAX_MODEL_LEN, OPTIONS, PlainAnswers, draw_jobs
from octavo.testing.suites.drafter import DrafterSuite, _chi_square_limit, draw_histories
from octavo.testing.suites.grammar_samples import CONSTRAINTS
from octavo.testing.suites.subject import PluginSuite, footprint, no_errors_logged, sequence
from octavo.testing.table_model import BYTES_VOCAB_SIZE, LEANING, VOCAB_SIZE, table_llm
from octavo.testing.workload import run_jobs


def test_the_kit_imports_no_torch_until_a_suite_is_used() -> None:
    code = "import sys, octavo.testing, octavo.testing.suites; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert octavo.testing.__all__ == suites.__all__
    assert all(getattr(octavo.testing, name) is getattr(suites, name) for name in suites.__all__)
    with pytest.raises(AttributeError, match="NoSuite"):
        octavo.testing.NoSuite  # noqa: B018


def test_every_suite_is_described_and_has_laws() -> None:
    for name in suites.__all__:
        if name.endswith("Suite"):
            assert f"({name})" in (suites.__doc__ or "")
            laws = [law for law in dir(getattr(suites, name)) if law.startswith("test_")]
            assert len(laws) >= 6, name


def test_a_footprint_counts_what_is_held_and_no_code() -> None:
    empty = footprint(SimpleNamespace(held=None, code=footprint, module=random))
    assert empty < 2000
    for held, size in ((torch.zeros(1000), 4000), (np.zeros(1000), 8000), (bytes(5000), 5000), ([1.5] * 1000, 8000)):
        assert size <= footprint(SimpleNamespace(held=held, code=footprint, module=random)) - empty < size + 1000
    both = [[0.5] * 1000]
    assert footprint(both * 9) < footprint(both) + 200, "what is reached twice is held once"


def test_errors_in_the_log_are_noticed() -> None:
    with pytest.raises(AssertionError, match="it broke"), no_errors_logged():
        logging.getLogger("octavo.runner").error("it %s", "broke")
    with no_errors_logged():
        logging.getLogger("octavo.runner").warning("never mind")


def test_an_entry_must_be_named_if_there_are_several() -> None:
    suite = PluginSuite()
    suite.registry = "logits_processors"  # type: ignore[misc]
    with pytest.raises(AssertionError, match="set `name` to one of"):
        suite.offer  # noqa: B018
    named = PluginSuite()
    named.registry, named.name = "logits_processors", "penalties"  # type: ignore[misc]
    assert named.offer.entry.name == "penalties"


def test_the_leaning_model_repeats_itself_and_the_plain_one_does_not() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    share = {}
    for architecture in (LEANING, None):
        tokens = table_llm(architecture=architecture).generate([[5, 6]], params)[0].outputs[0].token_ids
        share[architecture] = len(set(pairwise(tokens))) / len(tokens)
    assert share[LEANING] < 0.5 < 0.9 < share[None]


def test_the_byte_level_vocabulary_spells_json_in_several_ways() -> None:
    llm = table_llm(vocabulary="bytes")
    tokenizer = llm.get_tokenizer()
    assert tokenizer.vocab_size < BYTES_VOCAB_SIZE == llm.engine.inputs._vocab_size
    text = '{"the":[true,12,"é"],"a b":{}}'
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(token_ids) < len(text.encode()) * 0.7
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode() == text
    assert {bytes([byte]) for byte in range(256)} <= {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    assert llm.generate([text], SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_the_samples_say_the_truth_about_themselves(constraint) -> None:
    assert constraint.check is not None
    assert all(constraint.check(text) for text in constraint.valid)
    assert not any(constraint.check(text) for text in constraint.invalid)


def test_the_jobs_hold_every_option_and_kind_of_prompt() -> None:
    jobs = draw_jobs(random.Random(0), VOCAB_SIZE)
    given = [SamplingParams(**({"max_tokens": 24, "ignore_eos": True} | dict(option))) for option in OPTIONS]
    assert [job.params.replace(seed=None) for job in jobs[: len(OPTIONS)]] == given
    assert {1, MAX_MODEL_LEN - 2} <= {len(job.prompt) for job in jobs}
    assert any(job.aborted is not None for job in jobs)
    assert {0, 5} == {job.arrives for job in jobs}
    assert draw_jobs(random.Random(0), VOCAB_SIZE) == jobs


@pytest.mark.parametrize("change", ["token", "text", "logprob"])
def test_plain_answers_notice_what_differs(change: str) -> None:
    from dataclasses import replace

    engine = table_llm(max_model_len=MAX_MODEL_LEN).engine
    jobs = draw_jobs(random.Random(0), VOCAB_SIZE)[:2]
    answers = PlainAnswers(engine, jobs)
    output = run_jobs(engine, jobs)[1]
    answers.check(jobs[1], output)
    good = output.outputs[0]
    assert good.logprobs
    first = replace(good.logprobs[0], logprob=good.logprobs[0].logprob - 1e-3)
    bad = {
        "token": replace(good, token_ids=(*good.token_ids[:-1], (good.token_ids[-1] + 1) % VOCAB_SIZE)),
        "text": replace(good, text=good.text + "x"),
        "logprob": replace(good, logprobs=(first, *good.logprobs[1:])),
    }[change]
    with pytest.raises(AssertionError):
        answers.check(jobs[1], replace(output, outputs=(bad,)))


def test_preemption_is_certain_where_it_is_meant_to_happen() -> None:
    engine = table_llm(max_model_len=MAX_MODEL_LEN, **CIRCUMSTANCES["preempted"]).engine
    assert engine.max_model_len == MAX_MODEL_LEN, "the cache must hold one sequence of any length"
    outputs = run_jobs(engine, draw_jobs(random.Random(1), VOCAB_SIZE))
    assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_a_drafter_is_led_through_histories_as_verification_would() -> None:
    """A drafter that is right for two tokens and then wrong gets on by three with each step."""
    prompt, output = [5, 6], list(range(10, 30))

    class Drafter:
        wants_hidden = False
        accepted: list[int] = []  # noqa: RUF012

        def propose(self, rows):
            self.accepted += [row.num_accepted for row in rows]
            said = [len(row.sequence.output_token_ids) for row in rows]
            return [[*output[n : n + 2], 3] for n in said]

        def release(self, sequence_id):
            self.released = sequence_id

    drafter = Drafter()
    said = DrafterSuite().proposals(drafter, [(prompt, output)])
    assert drafter.accepted == [0, 2, 2, 2, 2, 2, 2, 0]
    assert [drafts[:1] for drafts in said[0][:3]] == [[11], [14], [17]]
    assert drafter.released == 1
    assert len(draw_histories(3)) == 3


@pytest.mark.parametrize("degrees", [10, 20, 100])
def test_chi_square_exceeds_its_limit_once_in_a_million(degrees: int) -> None:
    half = torch.tensor([degrees / 2, _chi_square_limit(degrees) / 2], dtype=torch.float64)
    assert 0.3e-6 < torch.special.gammaincc(half[0], half[1]) < 3e-6


def test_sequences_look_as_plugins_expect() -> None:
    view = sequence(7, [5, 6], [8, 9], cache_salt="a")
    assert (view.sequence_id, view.token_ids.tolist(), view.output_token_ids.tolist()) == (7, [5, 6, 8, 9], [8, 9])
    assert view.request.cache_salt == "a"


def test_a_plain_call_has_headers_and_ids_as_a_server_has_them() -> None:
    calls = [suites.PlainCall(None, headers={"X-Reader": "you"}) for _ in range(2)]
    assert calls[0].headers["x-reader"] == calls[0].headers["X-READER"] == "you"
    assert calls[0].headers.get("x-writer") is None
    assert len({call.new_request_id() for call in (*calls, *calls)}) == 4
