"""What comes out of an engine: kinds of output, stop conditions, text, log probabilities, metrics.

The table model's tokenizer has one character for each token: token i is `chr(46 + i)`; 0 and 1 are special.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from octavo import SamplingParams
from octavo.engine.output_processor import OutputKind
from octavo.errors import InvalidRequestError
from octavo.request import FinishReason, RequestOutput
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import EOS_TOKEN_ID

IDS = [8, 6, 7, 8]
"""The likeliest 24 tokens after these are all printable."""
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(chr(46 + i) for i in token_ids if i > 1)


def run(engine, kind: OutputKind, params: SamplingParams, prompt=IDS) -> list[RequestOutput]:
    engine.add_request("x", prompt, params, kind)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def forcing(*token_ids: int) -> ScriptedProcessor:
    """Makes the output begin with these tokens, whatever the model thinks."""

    def change(logits, tokens) -> None:
        place = len(tokens) - len(IDS)
        if place < len(token_ids):
            logits.fill_(-100)
            logits[token_ids[place]] = 100

    return ScriptedProcessor(change, always=True)


KINDS = {
    "plain": SamplingParams(temperature=0, max_tokens=10, ignore_eos=True),
    "children": SamplingParams(n=3, seed=4, max_tokens=10, logprobs=2),
    "stop": SamplingParams(n=3, seed=9, max_tokens=40, stop=["A", "bc", "9"], logprobs=0, ignore_eos=True),
    "ids": SamplingParams(n=2, seed=1, max_tokens=10, detokenize=False),
}


@pytest.mark.parametrize("name", KINDS)
def test_deltas_join_to_the_final_output_and_cumulative_ones_grow_to_it(llm, name: str) -> None:
    params = KINDS[name]
    (final,) = run(llm.engine, OutputKind.FINAL, params)
    cumulative, delta = (run(llm.engine, kind, params) for kind in (OutputKind.CUMULATIVE, OutputKind.DELTA))
    assert final.finished
    assert [c.index for c in final.outputs] == list(range(params.n))
    assert cumulative[-1].outputs == final.outputs
    assert [o.finished for o in delta] == [False] * (len(delta) - 1) + [True]
    for index, whole in enumerate(final.outputs):
        pieces = [o.outputs[index] for o in delta]
        assert "".join(p.text for p in pieces) == whole.text
        assert tuple(i for p in pieces for i in p.token_ids) == whole.token_ids
        if params.logprobs is not None:
            assert tuple(x for p in pieces for x in p.logprobs) == whole.logprobs
            assert len(whole.logprobs) == len(whole.token_ids)
            assert whole.cumulative_logprob == pytest.approx(sum(x.logprob for x in whole.logprobs))
        else:
            assert whole.logprobs is whole.cumulative_logprob is None
        for before, after in itertools.pairwise(o.outputs[index] for o in cumulative):
            assert after.text.startswith(before.text)
            assert after.token_ids[: len(before.token_ids)] == before.token_ids


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("first", range(0, 16, 3))
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_stop_string_ends_the_text_wherever_tokens_are_cut(
    make_llm, greedy, include: bool, drafts: bool, first: int, length: int
) -> None:
    if (first + length) % 2 == drafts:  # half of the grid is enough
        return
    text = text_of(greedy(IDS, 24))
    stop = text[first : first + length]
    whole = IDS + greedy(IDS, 24)
    right = ScriptedDrafter(lambda sequence, most: whole[sequence.num_tokens :][:most])
    llm = make_llm(plugins=[right], drafter="scripted") if drafts else make_llm()
    (output,) = llm.generate(
        [IDS], GREEDY.replace(stop=["never", stop], include_stop_str_in_output=include, logprobs=1)
    )
    (completion,) = output.outputs
    end = text.index(stop)
    assert completion.text == text[: end + (length if include else 0)]
    assert completion.finish_reason is FinishReason.STOP
    assert completion.stop_reason == stop
    assert len(completion.token_ids) == len(completion.logprobs) == end + length
    assert list(completion.token_ids) == greedy(IDS, end + length)


def test_text_that_may_begin_a_stop_string_is_held_back_and_comes_out_at_the_end(llm, greedy) -> None:
    text = text_of(greedy(IDS, 10))
    params = GREEDY.replace(max_tokens=10, stop=[text[-3:] + "?"])
    shown = [o.outputs[0].text for o in llm.stream(IDS, params)]
    assert shown[-2] == text[:7]
    assert shown[-1] == text


def test_the_first_stop_string_to_be_complete_counts(llm, greedy) -> None:
    text = text_of(greedy(IDS, 10))
    params = GREEDY.replace(stop=[text[2:7], text[3:5], text[6:8]])
    assert llm.generate([IDS], params)[0].outputs[0].stop_reason == text[3:5]


@pytest.mark.parametrize("n", [2, 4])
def test_children_stop_one_by_one(llm, n: int) -> None:
    params = SamplingParams(n=n, seed=3, max_tokens=60, stop=["A"], ignore_eos=True)
    plain = llm.generate([IDS], params.replace(stop=[]))[0].outputs
    stopped = llm.generate([IDS], params)[0].outputs
    lengths = set()
    for whole, cut in zip(plain, stopped, strict=True):
        assert cut.text == whole.text.split("A")[0]
        assert cut.finish_reason is (FinishReason.STOP if "A" in whole.text else FinishReason.LENGTH)
        lengths.add(len(cut.token_ids))
    assert len(lengths) > 1


@pytest.mark.parametrize("skip", [True, False])
def test_a_stop_string_that_is_a_special_token_stops_at_that_token(make_llm, skip: bool) -> None:
    llm = make_llm(plugins=[forcing(9, 9, 0, 9)])
    params = GREEDY.replace(stop=["<unk>"], skip_special_tokens=skip, max_tokens=8)
    (completion,) = llm.generate([IDS], params)[0].outputs
    assert completion.finish_reason is FinishReason.STOP
    assert completion.text == "77"
    assert completion.token_ids == (9, 9, 0)


@pytest.mark.parametrize("drafter", ["none", "scripted"])
@pytest.mark.parametrize("min_tokens", [0, 1, 4])
@pytest.mark.parametrize("kind", ["eos", "second_eos", "stop_id", "special"])
def test_exactly_so_many_tokens_come_before_a_token_that_stops(
    make_llm, min_tokens: int, kind: str, drafter: str
) -> None:
    end = {"eos": EOS_TOKEN_ID, "second_eos": EOS_TOKEN_ID, "stop_id": 30, "special": 0}[kind]
    llm = make_llm(plugins=[ScriptedDrafter(lambda tokens, most: [end] * most)], drafter=drafter)
    more = {"stop_id": {"stop_token_ids": [30]}, "special": {"stop": ["<unk>"]}}.get(kind, {})
    params = SamplingParams(temperature=0, logit_bias={end: 100}, min_tokens=min_tokens, max_tokens=32, **more)
    (completion,) = llm.generate([IDS], params)[0].outputs
    assert completion.finish_reason is FinishReason.STOP
    assert len(completion.token_ids) == min_tokens + 1
    assert completion.token_ids[-1] == end
    assert end not in completion.token_ids[:-1]
    assert completion.stop_reason == (None if end == EOS_TOKEN_ID else end)
    assert completion.text == text_of(completion.token_ids[:-1])


def test_no_stop_string_ends_the_text_before_the_minimum(llm, greedy) -> None:
    text = text_of(greedy(IDS, 24))
    for min_tokens in (0, 1, 5, 20):
        params = GREEDY.replace(stop=list(dict.fromkeys(text)), min_tokens=min_tokens)
        (completion,) = llm.generate([IDS], params)[0].outputs
        assert len(completion.token_ids) == min_tokens + 1
        assert completion.text == text[:min_tokens]


def test_ignoring_the_end_token_runs_to_the_limit(make_llm) -> None:
    llm = make_llm(plugins=[forcing(9, EOS_TOKEN_ID, 9, EOS_TOKEN_ID, 9)])
    params = SamplingParams(temperature=0, max_tokens=5)
    (completion,) = llm.generate([IDS], params)[0].outputs
    assert (completion.token_ids, completion.text) == ((9, EOS_TOKEN_ID), "7")
    assert completion.finish_reason is FinishReason.STOP
    (completion,) = llm.generate([IDS], params.replace(ignore_eos=True))[0].outputs
    assert completion.token_ids == (9, EOS_TOKEN_ID, 9, EOS_TOKEN_ID, 9)
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.text == "777"
    (completion,) = llm.generate([IDS], params.replace(ignore_eos=True, skip_special_tokens=False))[0].outputs
    assert completion.text == "7<eos>7<eos>7"


@pytest.mark.parametrize(("include", "text"), [(False, "77"), (True, "777")])
def test_the_text_of_a_stop_token_is_shown_on_demand(make_llm, include: bool, text: str) -> None:
    llm = make_llm(plugins=[forcing(9, 8, 9)])
    llm.generate([IDS], GREEDY)
    params = GREEDY.replace(stop_token_ids=[8], include_stop_str_in_output=include)
    (completion,) = llm.generate([IDS], params)[0].outputs
    assert completion.token_ids == (9, 8)
    assert completion.text == ("76" if include else "7")
    assert completion.stop_reason == 8


def test_without_text_there_are_only_ids(llm, greedy) -> None:
    (completion,) = llm.generate([IDS], GREEDY.replace(detokenize=False))[0].outputs
    assert completion.text == ""
    assert list(completion.token_ids) == greedy(IDS, 24)


@pytest.mark.parametrize("room", [1, 3])
def test_the_models_length_ends_a_sequence(make_llm, greedy, room: int) -> None:
    llm = make_llm(max_model_len=20)
    prompt = [5] * (20 - room)
    for max_tokens in (None, 100):
        (completion,) = llm.generate([prompt], GREEDY.replace(max_tokens=max_tokens))[0].outputs
        assert list(completion.token_ids) == greedy(prompt, room)
        assert completion.finish_reason is FinishReason.LENGTH
    with pytest.raises(InvalidRequestError, match=r"^prompt: has 20 tokens; at most 19 fit, since model.max_model_len"):
        llm.generate([[5] * 20], GREEDY)


@pytest.mark.parametrize("max_tokens", [1, 2, 15, 16, 17, 105])
def test_as_many_tokens_as_were_asked_for(llm, max_tokens: int) -> None:
    for output in llm.generate([IDS, [9]], GREEDY.replace(max_tokens=max_tokens)):
        assert len(output.outputs[0].token_ids) == max_tokens


def test_prompt_log_probabilities_cover_all_but_the_first_token(make_llm) -> None:
    for chunk in (1, 3, 100):
        llm = make_llm(max_num_batched_tokens=chunk)
        params = GREEDY.replace(max_tokens=2, prompt_logprobs=2, n=1)
        (output,) = llm.generate([IDS * 3], params)
        assert output.prompt_logprobs[0] is None
        assert [p.token_id for p in output.prompt_logprobs[1:]] == (IDS * 3)[1:]
        assert all(len(p.top) == 2 for p in output.prompt_logprobs[1:])
        if chunk == 1:
            first = output.prompt_logprobs
        assert output.prompt_logprobs == first
    assert llm.generate([IDS], GREEDY)[0].prompt_logprobs is None


def test_metrics_are_plausible(llm) -> None:
    prompt = IDS * 6
    (cold,) = llm.generate([prompt], GREEDY.replace(n=2, temperature=1.0))
    (warm,) = llm.generate([prompt], GREEDY)
    for output in (cold, warm):
        m = output.metrics
        assert 0 <= m.queue_time <= m.time_to_first_token
        assert m.prefill_time > 0
        assert m.decode_time > 0
        assert m.time_to_first_token == pytest.approx(m.queue_time + m.prefill_time)
        assert m.num_preemptions == 0
    assert cold.metrics.num_cached_tokens == 0
    assert warm.metrics.num_cached_tokens == 20, "whole blocks of 4, and one token at least is computed"
    llm.engine.reset_prefix_cache()
    assert llm.generate([prompt], GREEDY)[0].metrics.num_cached_tokens == 0


def test_preemptions_are_counted_once_each(make_llm) -> None:
    llm = make_llm(block_size=4, num_blocks=15, max_model_len=48)
    outputs = llm.generate([[i] * 8 for i in range(5, 9)], GREEDY.replace(max_tokens=32))
    counts = [o.metrics.num_preemptions for o in outputs]
    assert sum(counts) > 0
    assert max(counts) < 10, "32 outputs after a preemption are no 32 preemptions"


def test_a_request_without_anything_special_costs_no_processor(llm) -> None:
    llm.engine.add_request("x", IDS, GREEDY)
    llm.engine.step()
    chain = llm.engine.core._executor._processors
    assert list(chain._attached.values()) == [[]]
    llm.engine.abort_request("x")
    llm.engine.step()
