"""Token embedding and output head, cut by vocabulary.

Owns: which rows of the vocabulary a rank holds. Must never know: tokenizers, sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from octavo.errors import ModelLoadError
from octavo.nn.linear import Projection
from octavo.nn.weights import check_shape, fill_parameter, new_parameter
from octavo.spec import ModelContext


class VocabEmbedding(nn.Module):
    """Token ids to vectors. Each rank holds an equal range of ids; the last one's is filled up with zeros.

    A model transform may set `lookup`, which then finds the rows of the weight that this rank holds.
    """

    lookup: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(self, vocab_size: int, size: int, context: ModelContext) -> None:
        super().__init__()
        self._communicator = context.communicator
        self.vocab_size, self.size = vocab_size, size
        self.num_rows = -(-vocab_size // context.communicator.world_size)
        self.first_row = context.communicator.rank * self.num_rows
        self.weight = new_parameter(context, self.num_rows, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens] int64 -> [num_tokens, size]
        if self._communicator.world_size == 1:
            return self._rows(x)
        rows = x - self.first_row
        elsewhere = (rows < 0) | (rows >= self.num_rows)
        out = self._rows(rows.masked_fill(elsewhere, 0))
        return self._communicator.all_reduce(out.masked_fill(elsewhere[:, None], 0))

    def _rows(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.embedding(rows, self.weight) if self.lookup is None else self.lookup(rows)

    def load_weight(self, parameter: str, tensor: torch.Tensor, shard: int | None = None) -> None:
        """Keep this rank's rows of the whole `[vocab_size, size]` tensor."""
        if shard is not None or parameter != "weight":
            raise ModelLoadError("is not a part of an embedding")
        check_shape(tensor, (self.vocab_size, self.size))
        mine = tensor[self.first_row : self.first_row + self.num_rows]
        fill_parameter(self.weight[: len(mine)], mine)
        self.weight[len(mine) :].zero_()


class LMHead(Projection, VocabEmbedding):
    """Hidden states to logits. `tied_to` an embedding, it shares that one's weight and loads none."""

    def __init__(
        self, vocab_size: int, size: int, context: ModelContext, *, tied_to: VocabEmbedding | None = None
    ) -> None:
        if tied_to is None:
            VocabEmbedding.__init__(self, vocab_size, size, context)
            return
        nn.Module.__init__(self)
        self._communicator = context.communicator
        self.vocab_size, self.size = tied_to.vocab_size, tied_to.size
        self.num_rows, self.first_row = tied_to.num_rows, tied_to.first_row
        self.weight = tied_to.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_rows, size] -> [num_rows, vocab_size]
        logits = self.multiply(x, None)
        if self._communicator.world_size == 1:
            return logits
        return self._communicator.all_gather(logits)[:, : self.vocab_size]
