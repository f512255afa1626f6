"""Laws of drafters: they change no token, keep what they are told apart, and forget.

Owns: `DrafterSuite`. Must never know: how any drafter finds its drafts.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import pytest
import torch

from octavo.sampling_params import SamplingParams
from octavo.spec import Draft, Drafter, DraftRow
from octavo.testing.suites.circumstances import CIRCUMSTANCES, MAX_MODEL_LEN, check_in_circumstance
from octavo.testing.suites.subject import PluginSuite, footprint, no_errors_logged, sequence
from octavo.testing.table_model import LEANING, VOCAB_SIZE

NUM_DRAFTS = 5
HIDDEN_SIZE = 2
"""Of the leaning table model."""
History = tuple[Sequence[int], Sequence[int]]
"""A prompt and the tokens that the target says after it."""


def draw_histories(count: int, seed: int = 0, length: int = 40) -> list[History]:
    """Texts that repeat themselves, with exceptions, so that some drafts are right and some are not."""
    rng = random.Random(seed)
    histories: list[History] = []
    for _ in range(count):
        few = [rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, 6))]
        text = [rng.randrange(2, VOCAB_SIZE) if rng.random() < 0.1 else few[i % len(few)] for i in range(length)]
        start = rng.choice([1, 2, length // 2])
        histories.append((text[:start], text[start:]))
    return histories


class DrafterSuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "drafters"

    shares_across_requests: bool = False
    max_shared_bytes: int = 1 << 20
    max_bytes_per_token: int = 4096
    verifier: str = "exact"

    def drafting_llm(self, **keywords: Any) -> Any:
        """An `LLM` that drafts, of a model that repeats itself."""
        settings = {"drafter": self.offer.entry.name, "num_draft_tokens": NUM_DRAFTS, "verifier": self.verifier}
        return self.llm(**({"architecture": LEANING} | settings | keywords))

    def drafter(self) -> Drafter:
        """A new drafter, to be asked without an engine."""
        drafter: Drafter = self.drafting_llm().engine.core._executor._drafter
        if drafter.model is not None:
            pytest.skip("the drafter has layers of its own, which only an engine can run")
        return drafter

    def proposals(
        self,
        drafter: Drafter,
        histories: Sequence[History],
        first_id: int = 1,
        *,
        release: bool = True,
        salts: Sequence[str | None] = (None,),
    ) -> list[list[list[int]]]:
        """What `drafter` says to sequences side by side, step by step, as verification would let them go on."""
        views = [
            sequence(first_id + i, prompt, cache_salt=salts[i % len(salts)]) for i, (prompt, _) in enumerate(histories)
        ]
        said: list[list[list[int]]] = [[] for _ in histories]
        while True:
            rows, alive = [], []
            for i, (view, (prompt, output)) in enumerate(zip(views, histories, strict=True)):
                rest = output[view.num_tokens - len(prompt) :]
                if not rest:
                    continue
                last = said[i][-1] if said[i] else []
                hits = [draft == token for draft, token in zip(last, rest[:-1], strict=False)]
                num_accepted = [*hits, False].index(False)
                view.append(rest[: num_accepted + 1])
                hidden = torch.zeros(num_accepted + 1, HIDDEN_SIZE) if drafter.wants_hidden else None
                rows.append(DraftRow(view, num_accepted, NUM_DRAFTS, hidden))
                alive.append(i)
            if not rows:
                break
            for i, proposal in zip(alive, drafter.propose(rows), strict=True):
                said[i].append(_token_ids(proposal))
        for view in views if release else ():
            drafter.release(view.sequence_id)
        return said

    def first_proposals(self, histories: Sequence[History]) -> list[list[list[int]]]:
        """`proposals` of a new drafter."""
        return self.proposals(self.drafter(), histories)

    # Laws

    @pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
    def test_the_tokens_are_those_of_plain_decoding(self, circumstance: str) -> None:
        plain = self.llm(architecture=LEANING, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)
        same = self.verifier == "exact"
        stats, _ = check_in_circumstance(circumstance, plain, self.drafting_llm, same_tokens=same)
        assert sum(s.num_draft_tokens for s in stats) > 0, "it never drafted, so nothing was tested"
        assert sum(s.num_accepted_tokens for s in stats) > 0, "no draft was right, so little was tested"

    def test_sampled_tokens_follow_the_targets_distribution(self) -> None:
        """Chi-square of three tokens in a row against the product of the target's own probabilities."""
        few, prompt, temperature, count = [5, 6, 7], [5, 6, 7] * 6, 4.0, 1000
        params = SamplingParams(
            n=count, seed=11, max_tokens=3, allowed_token_ids=few, ignore_eos=True, temperature=temperature
        )
        with no_errors_logged():
            [output] = self.drafting_llm(max_num_seqs=512).generate([prompt], params)
        found = Counter(completion.token_ids for completion in output.outputs)
        words = list(product(few, repeat=3))
        asking = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0)
        asked = self.llm(architecture=LEANING).generate([[*prompt, *word] for word in words], asking)
        weight: dict[tuple[int, ...], float] = {}
        for word, answer in zip(words, asked, strict=True):
            for n, logprob in enumerate(answer.prompt_logprobs[len(prompt) :], 1):
                weight[word[:n]] = math.exp(logprob.logprob / temperature)
        share = {w: p / sum(weight[*w[:-1], t] for t in few) for w, p in weight.items()}
        expected = {w: count * share[w[:1]] * share[w[:2]] * share[w] for w in words}
        assert set(found) <= set(expected)
        cells: list[tuple[float, float]] = [(found[w], e) for w, e in expected.items() if e >= 5]
        cells.append((count - sum(seen for seen, _ in cells), count - sum(e for _, e in cells)))
        statistic = sum((seen - e) ** 2 / e for seen, e in cells if e > 0)
        assert statistic < _chi_square_limit(len(cells) - 1)

    def test_proposals_are_token_ids_and_not_too_many(self) -> None:
        said = self.first_proposals(draw_histories(12))
        assert any(drafts for proposals in said for drafts in proposals), "it never drafted, so nothing was tested"
        for drafts in (drafts for proposals in said for drafts in proposals):
            assert len(drafts) <= NUM_DRAFTS
            assert all(0 <= draft < VOCAB_SIZE for draft in drafts)

    def test_it_copes_with_whatever_sequence_there_is(self) -> None:
        """One token, one token again and again, no room, very long, lengthened by much, never seen before."""
        drafter = self.drafter()
        views = [sequence(1, [7]), sequence(2, [7] * 300), sequence(3, range(2, 60)), sequence(4, [5, 6] * 2000)]
        for growth in (1, 1, 6, 200):
            for view in views:
                view.append([7] * growth)
            hidden = torch.zeros(1, HIDDEN_SIZE) if drafter.wants_hidden else None
            before = [view.token_ids.tolist() for view in views]
            for room in (NUM_DRAFTS, 1, 0):
                for proposal in drafter.propose([DraftRow(view, 0, room, hidden) for view in views]):
                    assert len(_token_ids(proposal)) <= room
            assert before == [view.token_ids.tolist() for view in views], "it wrote into a sequence"
        assert list(drafter.propose([])) == []
        drafter.release(99)
        for view in views:
            drafter.release(view.sequence_id)
            drafter.release(view.sequence_id)

    def test_a_sequences_drafts_do_not_depend_on_other_requests(self) -> None:
        """Neither on batch mates nor on earlier ones; if it declares to share, on none of another cache salt."""
        histories = draw_histories(6, seed=1)
        salts = [f"salt-{i}" if self.shares_across_requests else None for i in range(len(histories))]
        alone = [
            self.proposals(self.drafter(), [history], salts=[salt])[0]
            for history, salt in zip(histories, salts, strict=True)
        ]
        assert self.proposals(self.drafter(), histories, salts=salts) == alone
        assert self.proposals(self.drafter(), histories[::-1], salts=salts[::-1]) == alone[::-1]
        used = self.drafter()
        self.proposals(used, histories, salts=["another"] if self.shares_across_requests else [None])
        assert self.proposals(used, histories, first_id=100, salts=salts) == alone, "it remembers released sequences"

    def test_two_drafters_share_nothing(self) -> None:
        """Each of two engines in one process drafts as if it were alone, whatever the other has seen."""
        histories = draw_histories(8, seed=3)
        expected = self.first_proposals(histories)
        one, other = self.drafter(), self.drafter()
        self.proposals(other, draw_histories(4, seed=4), release=False)
        self.proposals(other, histories, first_id=3)
        assert self.proposals(one, histories) == expected

    def test_released_sequences_leave_nothing(self) -> None:
        drafter = self.drafter()

        def serve(round_: int) -> int:
            for batch in range(4):
                histories = draw_histories(8, seed=100 * round_ + batch, length=60)
                self.proposals(drafter, histories, first_id=1000 * round_ + 10 * batch)
            return footprint(drafter)

        sizes = [footprint(drafter), *(serve(round_) for round_ in range(5))]
        if self.shares_across_requests:
            assert max(sizes) - sizes[0] <= self.max_shared_bytes, f"bytes held after each round: {sizes}"
        else:  # the first round may leave what is there for all
            assert max(sizes[2:]) - sizes[1] <= 2048, f"bytes held after each round: {sizes}"

    def test_state_grows_by_so_much_with_each_token_and_no_more(self) -> None:
        drafter = self.drafter()
        sizes = []
        for sequence_id, length in ((1, 100), (2, 500)):
            before = footprint(drafter)
            self.proposals(drafter, draw_histories(1, 5, length), first_id=sequence_id, release=False)
            sizes.append((footprint(drafter) - before) / length)
        assert max(sizes) <= self.max_bytes_per_token, f"bytes for each token of a short and a long sequence: {sizes}"

    def test_another_process_drafts_the_same(self) -> None:
        histories = draw_histories(4, seed=6)
        assert self.in_fresh_process("first_proposals", histories) == self.first_proposals(histories)

    def test_engines_side_by_side_draft_each_for_itself(self) -> None:
        prompts = [[5, 6, 7] * 4, [9, 8] * 6]
        params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        expected = [self.llm(architecture=LEANING).generate([p], params)[0].outputs[0].token_ids for p in prompts]
        engines = [self.drafting_llm().engine for _ in prompts]
        for engine, prompt in zip(engines, prompts, strict=True):
            engine.add_request("same", prompt, params)
        found: list[Any] = [None, None]
        while any(engine.has_unfinished_requests() for engine in engines):
            for i, engine in enumerate(engines):
                for output in engine.step():
                    found[i] = output.outputs[0].token_ids
        assert self.verifier != "exact" or found == expected


def _token_ids(proposal: Sequence[int] | Draft) -> list[int]:
    """The drafts alone; of those that were drawn, what they were drawn from must be distributions."""
    if not isinstance(proposal, Draft):
        return [int(draft) for draft in proposal]
    assert proposal.probs.shape == (len(proposal.token_ids), VOCAB_SIZE)
    torch.testing.assert_close(proposal.probs.sum(dim=-1), torch.ones(len(proposal.token_ids)))
    return [int(draft) for draft in proposal.token_ids]


def _chi_square_limit(degrees: int) -> float:
    """What chi-square exceeds by chance once in a million (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.753 * math.sqrt(spread)) ** 3
