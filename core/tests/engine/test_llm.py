"""The offline interface: what prompts may look like, order, streams, seeds, and that nothing is left behind."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, InvalidRequestError, ModelLoadError
from octavo.request import FinishReason
from octavo.testing.table_model import VOCAB_SIZE, TableSource

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
TEXT, IDS = "3456", [5, 6, 7, 8]


@pytest.mark.parametrize(
    "prompt",
    [
        TEXT,
        IDS,
        tuple(IDS),
        range(5, 9),
        np.array(IDS),
        np.array(IDS, dtype=np.uint8),
        torch.tensor(IDS),
        [np.int64(i) for i in IDS],
        {"prompt": TEXT},
        {"prompt_token_ids": IDS},
        {"prompt_token_ids": np.array(IDS)},
        {"prompt": "shown", "prompt_token_ids": IDS},
        {"prompt": TEXT, "cache_salt": "me"},
    ],
    ids=lambda p: type(p).__name__,
)
def test_every_shape_of_prompt_means_the_same(llm: LLM, greedy, prompt) -> None:
    for asked in (prompt, [prompt]):
        (output,) = llm.generate(asked, GREEDY)
        assert output.prompt_token_ids == tuple(IDS)
        assert list(output.outputs[0].token_ids) == greedy(IDS, 5)
        assert all(type(i) is int for i in output.prompt_token_ids)


def test_the_prompts_text_is_kept_where_there_is_one(llm: LLM) -> None:
    outputs = llm.generate([TEXT, IDS, {"prompt": "shown", "prompt_token_ids": IDS}], GREEDY)
    assert [o.prompt for o in outputs] == [TEXT, None, "shown"]


def test_prompts_of_all_shapes_in_one_list_keep_their_order(llm: LLM, greedy) -> None:
    prompts = [TEXT, [9, 9], np.array([3]), {"prompt": "ab"}, torch.tensor([4, 4, 4]), (7,)]
    outputs = llm.generate(prompts, GREEDY)
    assert [o.prompt_token_ids for o in outputs[:3]] == [tuple(IDS), (9, 9), (3,)]
    for output in outputs:
        assert list(output.outputs[0].token_ids) == greedy(list(output.prompt_token_ids), 5)


@pytest.mark.parametrize("prompts", [[np.array([5, 6]), np.array([7])], np.array([[5, 6], [7, 8]]), [[5, 6], [7]]])
def test_lists_of_id_lists_are_several_prompts(llm: LLM, prompts) -> None:
    assert len(llm.generate(prompts, GREEDY)) == 2


def test_params_may_be_one_for_each_prompt(llm: LLM) -> None:
    lengths = [7, 1, 4, 2]
    params = [GREEDY.replace(max_tokens=n) for n in lengths]
    assert [len(o.outputs[0].token_ids) for o in llm.generate([IDS] * 4, params)] == lengths
    with pytest.raises(InvalidRequestError, match=r"^sampling_params: 3 given for 4 prompts"):
        llm.generate([IDS] * 4, params[:3])


@pytest.mark.parametrize("params", [{"temperature": 0}, [{"temperature": 0}], 5, "x", [None]])
def test_params_of_another_type_are_refused(llm: LLM, params) -> None:
    with pytest.raises(InvalidRequestError, match=r"^sampling_params: "):
        llm.generate([IDS], params)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_long_and_short_outputs_come_in_the_order_of_the_prompts(make_llm, greedy) -> None:
    llm = make_llm(block_size=4, max_num_seqs=3, max_num_batched_tokens=16)
    prompts = [[i + 2, i + 3] for i in range(20)]
    params = [GREEDY.replace(max_tokens=1 + (7 * i) % 13) for i in range(20)]
    for prompt, p, output in zip(prompts, params, llm.generate(prompts, params), strict=True):
        assert output.prompt_token_ids == tuple(prompt)
        assert list(output.outputs[0].token_ids) == greedy(prompt, p.max_tokens)


def test_the_progress_bar_stays_out_of_pipes(llm: LLM, capfd, monkeypatch) -> None:
    monkeypatch.setattr("octavo.engine.llm._PROGRESS_DELAY", 0.0)
    llm.generate([IDS] * 3, GREEDY)
    llm.generate([IDS] * 3, GREEDY, use_tqdm=False)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_chat_is_the_template_and_then_generate(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "34"}, {"role": "assistant", "content": "56"}]
    (single,) = llm.chat(conversation, GREEDY)
    (plain,) = llm.generate(TEXT, GREEDY)
    assert single.prompt == TEXT
    assert single.outputs[0].token_ids == plain.outputs[0].token_ids
    several = llm.chat([conversation, [{"role": "user", "content": "9"}]], [GREEDY, GREEDY.replace(max_tokens=2)])
    assert [o.prompt for o in several] == [TEXT, "9"]
    assert [len(o.outputs[0].token_ids) for o in several] == [5, 2]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [[]],
        "hello",
        {"role": "user", "content": "x"},
        5,
        None,
        [{"content": "x"}],
        [{"role": "user"}],
        ["x"],
        [[{"role": "user", "content": "x"}], []],
    ],
)
def test_messages_of_another_shape_are_refused(llm: LLM, messages) -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages: "):
        llm.chat(messages)


def test_a_template_that_renders_nothing_is_an_empty_prompt(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt: is empty"):
        llm.chat([{"role": "user", "content": ""}])


def test_a_stream_shows_the_text_so_far_after_each_step(llm: LLM, greedy) -> None:
    outputs = list(llm.stream(IDS, GREEDY))
    wanted = greedy(IDS, 5)
    assert [list(o.outputs[0].token_ids) for o in outputs] == [wanted[: i + 1] for i in range(5)]
    assert [o.finished for o in outputs] == [False] * 4 + [True]
    for before, after in itertools.pairwise(outputs):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
    (whole,) = llm.generate([IDS], GREEDY)
    assert outputs[-1].outputs == whole.outputs


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_abandoned_stream_leaves_nothing(llm: LLM, assert_clean, after: int) -> None:
    stream = llm.stream(IDS, GREEDY.replace(max_tokens=100))
    for _ in range(after):
        next(stream)
    stream.close()
    assert_clean(llm)


def test_streams_and_lists_may_be_under_way_together(llm: LLM, greedy) -> None:
    first, second = llm.stream(IDS, GREEDY.replace(max_tokens=6)), llm.stream([9], GREEDY)
    seen = [next(first), next(second), next(first)]
    assert len(llm.generate([[4, 4]] * 2, GREEDY.replace(max_tokens=20))) == 2, "both streams end in the meantime"
    *_, last_of_first = first
    *_, last_of_second = second
    assert list(last_of_first.outputs[0].token_ids) == greedy(IDS, 6)
    assert list(last_of_second.outputs[0].token_ids) == greedy([9], 5)
    assert [o.prompt_token_ids for o in seen] == [tuple(IDS), (9,), tuple(IDS)]


def test_two_streams_in_turn_both_end(llm: LLM) -> None:
    pairs = list(itertools.zip_longest(llm.stream(IDS, GREEDY), llm.stream([9], GREEDY.replace(max_tokens=12))))
    ends = [
        max((o for o in column if o is not None), key=lambda o: len(o.outputs[0].token_ids))
        for column in zip(*pairs, strict=True)
    ]
    assert [len(o.outputs[0].token_ids) for o in ends] == [5, 12]
    assert all(o.finished for o in ends)


def test_unseeded_requests_differ(llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    outputs = llm.generate([IDS] * 4, params) + llm.generate([IDS] * 4, params)
    assert len({o.outputs[0].token_ids for o in outputs}) == 8


def test_the_engines_seed_makes_unseeded_requests_repeatable(make_llm) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    runs = []
    for seed in (7, 7, 8):
        llm = make_llm(sampling={"seed": seed})
        runs.append([o.outputs[0].token_ids for o in llm.generate([IDS] * 3, params)])
    assert runs[0] == runs[1]
    assert len({*runs[0], *runs[2]}) == 6


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1])
def test_a_seeded_request_is_the_same_in_any_company(llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, seed=seed, temperature=1.5)
    alone = llm.generate([IDS], params)[0].outputs
    mates = [SamplingParams(max_tokens=9), GREEDY, SamplingParams(seed=seed + 1 if seed < 5 else 3, max_tokens=3)]
    for place in range(4):
        prompts, all_params = [[3, 4]] * 3, list(mates)
        prompts.insert(place, IDS)
        all_params.insert(place, params)
        assert llm.generate(prompts, all_params)[place].outputs == alone


def test_children_of_one_request_differ_and_repeat(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=5, max_tokens=10, ignore_eos=True)
    (first,), (second,) = llm.generate([IDS], params), llm.generate([IDS], params)
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert len({c.token_ids for c in first.outputs}) == 4
    assert first.outputs == second.outputs
    (single,) = llm.generate([IDS], params.replace(n=1))
    assert single.outputs[0] == first.outputs[0]


def test_defaults_come_from_the_generation_config(tiny_model, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05, "top_p": None, "eos_token_id": [2, 9]}
    (folder / "generation_config.json").write_text(json.dumps(config))
    llm = LLM(str(folder), dtype="float32", num_threads=1, num_blocks=16)
    params = llm.default_sampling_params(max_tokens=3)
    assert (params.temperature, params.top_k, params.repetition_penalty, params.top_p) == (0.7, 20, 1.05, 1.0)
    assert llm.default_sampling_params(temperature=0.1).temperature == 0.1
    forced = SamplingParams(temperature=0, logit_bias={9: 100}, max_tokens=4)
    assert llm.generate("x", forced)[0].outputs[0].token_ids == (9,)
    plain = LLM(str(folder), dtype="float32", num_threads=1, num_blocks=16, use_generation_config=False)
    assert plain.default_sampling_params() == SamplingParams()
    assert plain.generate("x", forced)[0].outputs[0].token_ids == (9, 9, 9, 9)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.7}))
    assert LLM(str(folder), dtype="float32", num_threads=1, num_blocks=16).default_sampling_params().is_greedy
    (folder / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    with pytest.raises(ModelLoadError, match=r"generation config: temperature: must be.*use_generation_config"):
        LLM(str(folder), dtype="float32", num_threads=1, num_blocks=16)


def test_a_chat_template_that_is_given_is_used_instead_of_the_models(make_llm, tmp_path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content * 2 }}{{ eos_token }}")
    for given in (str(file), file.read_text()):
        llm = make_llm(chat_template=given)
        assert llm.get_tokenizer().chat_template == file.read_text()
        (output,) = llm.chat([{"role": "user", "content": TEXT}], GREEDY)
        assert output.prompt == TEXT * 2 + "<eos>"


def test_a_chat_template_that_cannot_be_used_is_an_error_at_start(make_llm, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jinja.*cannot be read"):
        make_llm(chat_template="nowhere.jinja")
    monkeypatch.setattr(TableSource, "tokenizer", lambda source: object())
    with pytest.raises(ConfigError, match=r"model\.chat_template: .* leave the option out"):
        make_llm(chat_template="{{ 1 }}")

    def find_none(source: TableSource) -> None:
        raise ModelLoadError("there is no tokenizer")

    monkeypatch.setattr(TableSource, "tokenizer", find_none)
    with pytest.raises(ModelLoadError, match="no tokenizer"):
        make_llm(chat_template="{{ 1 }}")


def test_ids_beyond_the_tokenizer_are_never_drawn(tiny_model) -> None:
    llm = LLM(str(tiny_model()), dtype="float32", num_threads=1, num_blocks=256)
    assert llm.get_tokenizer() is not None
    hot = SamplingParams(temperature=100.0, max_tokens=40, n=8, ignore_eos=True, seed=1)
    (output,) = llm.generate("x", hot)
    drawn = {i for c in output.outputs for i in c.token_ids}
    assert len(drawn) > 120
    assert max(drawn) < llm.get_tokenizer().vocab_size
    again = llm.generate([list(c.token_ids) for c in output.outputs], GREEDY)
    assert all(o.outputs[0].finish_reason is FinishReason.LENGTH for o in again)
    pushed = SamplingParams(
        temperature=0, max_tokens=2, logit_bias={llm.get_tokenizer().vocab_size + 1: 100}, ignore_eos=True
    )
    assert max(llm.generate("x", pushed)[0].outputs[0].token_ids) < llm.get_tokenizer().vocab_size


@pytest.mark.parametrize(
    "prompt",
    [
        "", [""], [[]], [()], [np.array([], dtype=int)], {"prompt": ""}, {"prompt_token_ids": []}, {}, {"prompt": None},
        None, 5, 1.5,
        b"ab", [1.5], ["hi", ""], [[5], []], [VOCAB_SIZE], [-1], [5, 10**9], [10**30], [True], [[5], [VOCAB_SIZE]],
        {"prompt": 5}, {"prompt": ["a"]}, {"prompt_token_ids": "abc"}, {"prompt_token_ids": 5}, {"text": "x"},
        np.array(5), {"prompt_token_ids": np.array(5)},
        {"prompt": "x", "cache_salt": 5}, [[5], ["a"]], [[5], None], np.array([1.0]), [b"ab"], [...],
        "\ud800", [5] * 10_000,
    ],
    ids=lambda p: repr(p)[:30].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_bad_prompts_are_refused_and_none_of_the_batch_runs(llm: LLM, assert_clean, prompt) -> None:
    before = llm.generate([IDS], GREEDY)[0].outputs
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt, GREEDY)
    assert caught.value.field == "prompt"
    assert len(str(caught.value)) < 300
    assert_clean(llm)
    with pytest.raises(InvalidRequestError):
        list(llm.stream(prompt, GREEDY))
    assert_clean(llm)
    assert llm.generate([IDS], GREEDY)[0].outputs == before


def test_options_of_plugins_are_no_plugins() -> None:
    with pytest.raises(ConfigError, match="plugin_options="):
        LLM(plugins={"cpu": {"quantization": "int8"}})  # type: ignore[arg-type]
