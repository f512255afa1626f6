"""Chained block hashes: equal hashes mean equal tokens from the start of the sequence, and equal conditions.

Owns: what goes into a hash and how it is encoded. Must never know: which blocks exist.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from octavo.request import Request
from octavo.spec.kv import BlockHash

ExtraKey = tuple[str, str]
"""(kind, value): a condition besides the tokens that the KV of a block depends on."""


def root_hash(generation: int) -> BlockHash:
    """The parent of every first block. A new generation finds nothing that an older one has cached."""
    return hashlib.sha256(struct.pack("<Q", generation)).digest()


def hash_block(parent: BlockHash, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> BlockHash:
    """SHA-256 of the parent's hash, the token ids and the extra keys.

    Every part has a fixed width or is preceded by its length, so that no two inputs have one encoding.
    """
    digest = hashlib.sha256(parent)
    digest.update(struct.pack(f"<I{len(token_ids)}I", len(token_ids), *token_ids))
    for key in extra_keys:
        for part in key:
            data = part.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<I", len(data)))
            digest.update(data)
    return digest.digest()


def extra_keys(request: Request, block_index: int, block_size: int) -> tuple[ExtraKey, ...]:
    """What the KV of this block depends on besides tokens."""
    keys: list[ExtraKey] = []
    if request.adapter is not None:
        keys.append(("adapter", request.adapter))
    if block_index == 0 and request.cache_salt is not None:
        keys.append(("salt", request.cache_salt))  # later blocks inherit it through their parent
    start = block_index * block_size
    keys += [
        ("media", f"{span.start}+{span.num_tokens}:{span.content_hash}")
        for span in request.media
        if span.start < start + block_size and start < span.start + span.num_tokens
    ]
    return tuple(keys)


def extend_hashes(
    hashes: list[BlockHash], root: BlockHash, request: Request, token_ids: Sequence[int], block_size: int
) -> None:
    """Append the hashes of the blocks that `token_ids`, all committed, fill and `hashes` lacks."""
    for index in range(len(hashes), len(token_ids) // block_size):
        parent = hashes[-1] if hashes else root
        block = token_ids[index * block_size : (index + 1) * block_size]
        hashes.append(hash_block(parent, block, extra_keys(request, index, block_size)))
