"""Inputs of a step that leaves no trace, to see that a model runs and how much memory it takes.

Owns: `dummy_attention_inputs`. Must never know: models, platforms.
"""

from __future__ import annotations

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
