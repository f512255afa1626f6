"""Steps that leave no trace, to see that a model runs, how much memory it takes and how long.

Owns: `dummy_attention_inputs`, `least_seconds`. Must never know: models, platforms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from octavo.spec import AttentionMetadataInputs


def dummy_attention_inputs(num_tokens: int, block_size: int, device: torch.device) -> AttentionMetadataInputs:
    """One sequence of `num_tokens` tokens whose KV all goes to the null block."""
    table = np.zeros((1, -(-num_tokens // block_size)), dtype=np.int32)
    lens, starts = np.array([num_tokens], dtype=np.int32), np.array([0, num_tokens], dtype=np.int32)
    positions = torch.arange(num_tokens, device=device)
    return AttentionMetadataInputs(
        block_table=torch.from_numpy(table).to(device),
        slot_mapping=positions % block_size,
        query_start_loc=torch.from_numpy(starts).to(device),
        seq_lens=torch.from_numpy(lens).to(device),
        positions=positions,
        block_table_cpu=table,
        query_start_loc_cpu=starts,
        seq_lens_cpu=lens,
        max_query_len=num_tokens,
        max_seq_len=num_tokens,
        block_size=block_size,
    )


def least_seconds(run: Callable[[int], None], sizes: Sequence[int], time_limit: float) -> list[float]:
    """Seconds that `run` takes for each of `sizes`, which rise; for the first few only, if `time_limit` seconds pass.

    Up to three rounds, as time allows, and the least counts: what disturbs a try only makes it longer.
    """

    def timed(size: int) -> float:
        before = time.perf_counter()
        run(size)
        return time.perf_counter() - before

    run(sizes[0])  # what is done once only is not part of the cost
    start, found = time.perf_counter(), [timed(sizes[0])]
    for size in sizes[1:]:
        if time.perf_counter() - start + 2 * found[-1] > time_limit:  # it may take twice as long as the one before
            break
        found.append(timed(size))
    for _ in range(2):
        if time.perf_counter() - start + sum(found) > time_limit:
            break
        found = [min(seconds, timed(size)) for seconds, size in zip(found, sizes, strict=False)]
    return found
