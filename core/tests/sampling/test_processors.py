"""Each built-in logits processor against a loop over one row, with drafts as history."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from octavo import SamplingParams
from octavo.request import Request
from octavo.runner.input_batch import RunnerSequence
from octavo.sampling.processors import AllowedTokens, BadWords, LogitBias, MinTokens, Penalties
from octavo.spec import LogitRow, ProcessorContext

VOCAB = 30
EOS = frozenset({1, 2})


class Letters:
    """A tokenizer that spells a text letter by letter: `a` is 3, `b` 4, …; a space is 29."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([0] if add_special_tokens else []), *(29 if c == " " else ord(c) - ord("a") + 3 for c in text)]


def context(tokenizer: object = None) -> ProcessorContext:
    return ProcessorContext(
        options=None,
        tokenizer=tokenizer,  # type: ignore[arg-type]
        vocab_size=VOCAB,
        device=torch.device("cpu"),
        max_num_seqs=8,
        max_num_draft_tokens=4,
    )


def sequence_of(sequence_id: int, prompt: Sequence[int], params: SamplingParams) -> RunnerSequence:
    eos = frozenset() if params.ignore_eos else EOS
    request = Request(
        request_id=str(sequence_id),
        prompt_token_ids=tuple(prompt),
        sampling_params=params,
        seed=0,
        eos_token_ids=eos,
        max_tokens=50,
        arrival_time=0.0,
    )
    return RunnerSequence(sequence_id, request, 0)


def naive_penalties(row: list[float], prompt, output, p: SamplingParams) -> list[float]:
    for token in range(VOCAB):
        if token in prompt or token in output:
            row[token] = row[token] / p.repetition_penalty if row[token] > 0 else row[token] * p.repetition_penalty
        row[token] -= p.frequency_penalty * list(output).count(token)
        row[token] -= p.presence_penalty if token in output else 0
    return row


def naive_bias(row, prompt, output, p: SamplingParams) -> list[float]:
    return [x + p.logit_bias.get(token, 0) for token, x in enumerate(row)]


def naive_allowed(row, prompt, output, p: SamplingParams) -> list[float]:
    return [x if token in p.allowed_token_ids else -float("inf") for token, x in enumerate(row)]


def naive_min_tokens(row, prompt, output, p: SamplingParams) -> list[float]:
    ends = {*p.stop_token_ids, *(() if p.ignore_eos else EOS)}
    return [-float("inf") if len(output) < p.min_tokens and token in ends else x for token, x in enumerate(row)]


def naive_bad_words(row, prompt, output, p: SamplingParams) -> list[float]:
    for word in p.bad_words:
        for spelling in (word, " " + word.lstrip()):
            ids = Letters().encode(spelling, add_special_tokens=False)
            for token in range(VOCAB):
                if [*output, token][-len(ids) :] == ids:
                    row[token] = -float("inf")
    return row


def some(rng: random.Random, low: int = 1) -> list[int]:
    return rng.sample(range(VOCAB), rng.randint(low, 6))


CASES = {
    "presence": (Penalties, naive_penalties, lambda r: {"presence_penalty": r.choice([-2, -0.5, 1.5])}),
    "frequency": (Penalties, naive_penalties, lambda r: {"frequency_penalty": r.choice([-2, -0.5, 1.5])}),
    "repetition": (Penalties, naive_penalties, lambda r: {"repetition_penalty": r.choice([0.5, 1.3, 1e-3, 60000.0])}),
    "penalties": (
        Penalties,
        naive_penalties,
        lambda r: {"presence_penalty": 0.7, "frequency_penalty": -0.3, "repetition_penalty": 1.2},
    ),
    "bias": (LogitBias, naive_bias, lambda r: {"logit_bias": {i: r.uniform(-100, 100) for i in some(r)}}),
    "allowed": (AllowedTokens, naive_allowed, lambda r: {"allowed_token_ids": some(r)}),
    "min_tokens": (
        MinTokens,
        naive_min_tokens,
        lambda r: {"min_tokens": r.randint(1, 6), "stop_token_ids": some(r, 0), "ignore_eos": r.random() < 0.3},
    ),
    "bad_words": (
        BadWords,
        naive_bad_words,
        lambda r: {
            "bad_words": ["".join(r.choice("ab") for _ in range(r.randint(1, 4))) for _ in range(r.randint(1, 3))]
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(6))
def test_it_does_what_the_loop_does_with_and_without_drafts(name: str, seed: int) -> None:
    make, naive, options = CASES[name]
    rng = random.Random(seed)
    letters = range(3, 5) if name == "bad_words" else range(VOCAB)
    processor = make(context(Letters()))
    sequences = []
    for i in range(4):
        params = SamplingParams(**options(rng))
        sequence = sequence_of(i, [rng.choice([*letters]) for _ in range(rng.randint(1, 8))], params)
        if processor.attach(sequence):
            sequences.append(sequence)
    assert sequences
    for _ in range(6):
        rows, expected = [], []
        logits = torch.randn(41, VOCAB, generator=torch.Generator().manual_seed(rng.randrange(10**6)))
        original = logits.clone()
        for sequence in sequences:
            drafts = tuple(rng.choice([*letters]) for _ in range(rng.randint(0, 4)))
            for n in range(len(drafts) + 1):
                index = 2 * len(rows) + 1  # rows of other sequences lie between
                rows.append(LogitRow(index, sequence, drafts[:n]))
                output = [*sequence.output_token_ids.tolist(), *drafts[:n]]
                prompt = sequence.prompt_token_ids.tolist()
                params = sequence.request.sampling_params
                expected.append(naive(original[index].tolist(), prompt, output, params))
        processor.prepare(rows)
        processor.apply(logits, rows)
        for row, wanted in zip(rows, expected, strict=True):
            torch.testing.assert_close(logits[row.index], torch.tensor(wanted), rtol=1e-5, atol=1e-5)
        untouched = sorted(set(range(41)) - {row.index for row in rows})
        assert torch.equal(logits[untouched], original[untouched])
        for sequence in sequences:
            tokens = [rng.choice([*letters]) for _ in range(rng.randint(1, 3))]
            sequence.append(tokens)
            processor.accept(sequence, tokens)
    for sequence in sequences:
        processor.release(sequence.sequence_id)
    assert not processor._states


@pytest.mark.parametrize("make", [Penalties, LogitBias, AllowedTokens, MinTokens, BadWords])
def test_it_is_not_interested_in_a_request_without_its_options(make) -> None:
    assert make(context(Letters())).attach(sequence_of(1, [3], SamplingParams())) is False


def test_minimum_length_needs_something_that_could_end_the_text() -> None:
    params = SamplingParams(min_tokens=3, ignore_eos=True)
    assert MinTokens(context()).attach(sequence_of(1, [3], params)) is False


def test_penalties_start_from_what_was_generated_before() -> None:
    """A sequence that is handed over arrives with output."""
    sequence = sequence_of(1, [3], SamplingParams(frequency_penalty=1.0))
    sequence.append([5, 5])
    processor = Penalties(context())
    assert processor.attach(sequence)
    logits = torch.zeros(1, VOCAB)
    processor.apply(logits, [LogitRow(0, sequence, (5,))])
    assert logits[0, 5] == -3


def test_a_bad_word_in_the_prompt_is_no_beginning() -> None:
    """Only generated text counts: the prompt's last letters do not make a word with the output's first."""
    sequence = sequence_of(1, Letters().encode("xa", False), SamplingParams(bad_words=["ab"]))
    processor = BadWords(context(Letters()))
    assert processor.attach(sequence)
    logits = torch.zeros(1, VOCAB)
    processor.apply(logits, [LogitRow(0, sequence, ())])
    assert torch.isfinite(logits).all()
    processor.apply(logits, [LogitRow(0, sequence, (3,))])
    assert torch.isinf(logits[0]).nonzero().flatten().tolist() == [4]
