"""The drafter: each live sequence's own tokens and the outputs of earlier ones, asked in turn; the best draft wins.

Owns: `SuffixDrafter`. Must never know: how places are found, how outputs are kept, who verifies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.spec import DraftRow, SequenceView, TargetView
from octavo_suffix.drafts import NOTHING, Walk, likeliest
from octavo_suffix.index import ContextIndex, to_token_ids, to_words
from octavo_suffix.outputs import OutputStore
from octavo_suffix.plugin import SuffixOptions

_SURELY_MORE = 1e-9
"""Scores that differ by less are equal but for rounding."""
_MAX_LOAD = 4
"""Positions for each bucket at which a sequence's index is made anew, with more buckets."""


class LiveSequence:
    """A sequence that is not over, indexed as far as it was seen."""

    __slots__ = ("_last", "_num_tokens", "index", "view")

    def __init__(self, view: SequenceView, match_lens: Sequence[int]) -> None:
        self.view = view
        self._start(match_lens, view.num_tokens)

    def _start(self, match_lens: Sequence[int], num_tokens: int) -> None:
        self.index = ContextIndex(match_lens, 1 << max(6, num_tokens.bit_length()))
        self._num_tokens, self._last = 0, -1

    def follow(self, view: SequenceView) -> np.ndarray:
        """Index what came since the last call. Returns all tokens, int32 [num_tokens]."""
        self.view = view
        token_ids = view.token_ids
        num_tokens = len(token_ids)
        known = self._num_tokens
        rewritten = known > num_tokens or (known and token_ids[known - 1] != self._last)
        if rewritten or num_tokens > _MAX_LOAD * self.index.num_buckets:
            self._start(self.index.match_lens, num_tokens)
            known = 0
        if num_tokens > known:
            self.index.append(to_words(token_ids[known:]))
            self.index.link(1, max(1, known), num_tokens)  # the last token has nothing behind it yet
            self._num_tokens, self._last = num_tokens, int(token_ids[-1])
        return token_ids


class SuffixDrafter:
    """Suffix decoding (SuffixDecoding, arXiv 2411.04975) over bounded votes; implements `octavo.spec.Drafter`.

    For each length in `match_lens`, the latest `max_occurrences` places where the sequence's last tokens stood before
    vote on what follows, once among its own tokens and once among earlier outputs of its salt. Of the drafts that come
    of it, the one with the highest score wins; between equals the longest match, then the sequence's own.
    """

    wants_hidden = False
    num_lookahead_tokens = 0
    model = None

    def __init__(self, target: TargetView) -> None:
        options: SuffixOptions = target.options
        self._options = options
        self._match_lens = tuple(sorted(set(options.match_lens), reverse=True))
        self._live: dict[int, LiveSequence] = {}
        self._outputs = OutputStore(self._match_lens, options.max_cached_tokens)

    @property
    def num_bytes(self) -> int:
        """Memory of all indexes, in bytes."""
        return self._outputs.num_bytes + sum(live.index.num_bytes for live in self._live.values())

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        return [self._draft(row.sequence, row.max_drafts) for row in rows]

    def release(self, sequence_id: int) -> None:
        """Move the output of the sequence to the shared store. Aborted ones too: what was said was said."""
        live = self._live.pop(sequence_id, None)
        if live is not None:  # its view knows the tokens of the last step, after which nothing was to be drafted
            salt, prompt = live.view.request.cache_salt, live.view.prompt_token_ids
            self._outputs.add(salt, prompt[-self._match_lens[0] :], live.view.output_token_ids)

    def _draft(self, view: SequenceView, max_drafts: int) -> list[int]:
        live = self._live.get(view.sequence_id)
        if live is None:
            live = self._live[view.sequence_id] = LiveSequence(view, self._match_lens)
        token_ids = live.follow(view)
        longest = self._match_lens[0]
        sources: list[tuple[ContextIndex | OutputStore, bytes]] = [(live.index, live.index.tail(longest))]
        shared_context = self._outputs.context(view.request.cache_salt, token_ids[-longest:])
        if shared_context is not None:
            sources.append((self._outputs, shared_context))
        return to_token_ids(self._best_walk(sources, max_drafts).words)

    def _best_walk(self, sources: Sequence[tuple[ContextIndex | OutputStore, bytes]], max_drafts: int) -> Walk:
        options, best = self._options, NOTHING
        for match_len in self._match_lens:
            max_len = int(min(max_drafts, options.factor * match_len + options.offset))
            if max_len <= best.score:  # no word counts for more than 1, and shorter matches are allowed fewer words
                break
            for source, context in sources:
                found = source.continuations(context, match_len, options.max_occurrences, max_len)
                walk = likeliest(found, options.min_probability) if found else NOTHING
                if walk.score > best.score + _SURELY_MORE:
                    best = walk
        return best
