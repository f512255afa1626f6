"""A GGUF file as a `ModelSource`: converted once, then served from the cache.

Owns: when to convert and when to take what is kept. Must never know: the layout of GGUF or of the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelLoadError, OctavoError
from octavo.spec import TokenizerData
from octavo_gguf.cache import ModelCache, cache_root

if TYPE_CHECKING:
    import torch

    from octavo_gguf.reader import GGUFFile

logger = logging.getLogger(__name__)


class GGUFSource:
    """The model in the GGUF file at `path`, under Hugging Face's names.

    Raises `ModelLoadError` for a file that is cut off or contradictory, or of an architecture that is not mapped.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._cache = ModelCache(path, cache_root())
        except OSError as error:
            raise ModelLoadError(f"cannot read {path}: {error.strerror or error}") from error
        record = self._cache.load_record()
        if record is None:
            try:
                record = _convert_header(path)
            except OctavoError:
                raise
            except Exception as error:  # a field of the wrong type can surface anywhere, also inside libraries
                raise ModelLoadError(f"{path}: its GGUF header contradicts itself ({error!r})") from error
            self._cache.save_record(record)
        self.config: Mapping[str, Any] = record["config"]
        self.generation_config: Mapping[str, Any] = record["generation_config"]
        self._tokenizer: dict[str, Any] = record["tokenizer"]
        self._shapes: dict[str, list[int]] = record["shapes"]

    def tensor_names(self) -> Sequence[str]:
        return list(self._shapes)

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor once. Those from the cache are views of the file, copied where somebody writes to them."""
        kept = self._cache.load_tensors(dtype, self._shapes)
        if kept is not None:
            yield from kept
            return
        logger.info("converting %s to %s; the result is cached", self.path, dtype)
        with self._cache.saving_tensors(dtype, self._shapes) as file:
            for name, tensor in _convert_tensors(self.path, self.config, dtype):
                file.add(tensor)
                yield name, tensor

    def tokenizer(self) -> TokenizerData:
        data = dict(self._tokenizer)
        return TokenizerData(eos_tokens=tuple(data.pop("eos_tokens")), **data)


def _open(path: str) -> GGUFFile:
    from octavo_gguf.reader import GGUFFile  # brings in the gguf library, which a warm start does not need

    return GGUFFile(path)


def _convert_header(path: str) -> dict[str, Any]:
    """Everything but the tensors' values, as JSON can hold it."""
    from octavo_gguf.architectures import model_config, tensor_names
    from octavo_gguf.tokenizer import tokenizer_data

    file = _open(path)
    config = model_config(file)
    tokenizer = tokenizer_data(file)
    ids = {token: token_id for token_id, token in enumerate(file.fields["tokenizer.ggml.tokens"])}
    eos_ids = [ids[token] for token in tokenizer.eos_tokens]
    return {
        "config": config,
        "generation_config": {"eos_token_id": eos_ids} if eos_ids else {},
        "tokenizer": asdict(tokenizer),
        "shapes": {name: list(file.tensors[theirs].shape) for name, theirs in tensor_names(file).items()},
    }


def _convert_tensors(path: str, config: Mapping[str, Any], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Decode the tensors one at a time."""
    import torch

    from octavo_gguf.architectures import architecture_of, in_hugging_face_order, tensor_names

    file = _open(path)
    architecture = architecture_of(file)
    for name, theirs in tensor_names(file).items():
        values = in_hugging_face_order(file, theirs, file.tensor(theirs), architecture, dict(config))
        if not values.flags.writeable:
            values = values.copy()
        yield name, torch.from_numpy(values).to(dtype)
