"""Model folders with safetensors weights, as `save_pretrained` writes them.

Owns: which files a folder must hold and whether they agree. Must never know: architectures, parameters, engines.
Format: the safetensors header (name, dtype, shape, byte range of each tensor) is checked against the file's size
when a shard is opened, so a truncated file is found before any tensor is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from octavo.errors import ModelLoadError
from octavo.spec import TokenizerData

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class SafetensorsSource:
    """A `ModelSource` over such a folder. Reads headers at once and tensors when they are asked for.

    Raises `ModelLoadError` if a file is missing, unreadable or contradicts another one.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder = Path(path)
        if not (self._folder / "config.json").is_file():
            raise ModelLoadError(f"{path}: there is no config.json; is this the folder of a model?")
        self.config: Mapping[str, Any] = self._json("config.json")
        self.generation_config: Mapping[str, Any] = self._json("generation_config.json")
        self._shards = self._find_shards()
        """Tensor names of each shard file."""

    def tensor_names(self) -> Sequence[str]:
        return [name for names in self._shards.values() for name in names]

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for file, names in self._shards.items():
            try:
                with safe_open(str(self._folder / file), framework="pt") as shard:
                    for name in names:
                        tensor = shard.get_tensor(name)
                        yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{self._folder / file}: {error}; fetch the file again") from error

    def tokenizer(self) -> TokenizerData:
        file = self._folder / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(f"{self.path}: {self._why_no_tokenizer()}")
        config = {**self._json("special_tokens_map.json"), **self._json("tokenizer_config.json")}
        spelt = {name: _spelling(config[name]) for name in _SPECIAL if config.get(name) is not None}
        eos = spelt.get("eos_token")
        return TokenizerData(
            tokenizer_json=_text(file),
            bos_token=spelt.get("bos_token"),
            eos_tokens=(eos,) if eos else (),
            special_tokens=spelt,
            chat_template=self._chat_template(config),
        )

    def _why_no_tokenizer(self) -> str:
        slow = [n for n in ("tokenizer.model", "vocab.json", "spiece.model") if (self._folder / n).is_file()]
        if slow:
            return (
                f"the tokenizer is only there as {slow[0]}; convert it to tokenizer.json once, with transformers: "
                "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            )
        return "there is no tokenizer.json; name another source with --tokenizer, or pass token ids only"

    def _chat_template(self, tokenizer_config: Mapping[str, Any]) -> str | None:
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return _text(file)
        template = self._json("chat_template.json").get("chat_template") or tokenizer_config.get("chat_template")
        if isinstance(template, list):
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
            template = named.get("default") or next(iter(named.values()), None)
        return template if isinstance(template, str) else None

    def _json(self, name: str) -> dict[str, Any]:
        """A file's JSON object; empty if there is no such file."""
        file = self._folder / name
        if not file.is_file():
            return {}
        try:
            content = json.loads(_text(file))
        except (ValueError, RecursionError) as error:
            raise ModelLoadError(f"{file}: not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise ModelLoadError(f"{file}: holds {type(content).__name__}, not a JSON object")
        return content

    def _find_shards(self) -> dict[str, tuple[str, ...]]:
        if (self._folder / SINGLE_FILE).is_file():
            return {SINGLE_FILE: self._header(SINGLE_FILE)}
        if not (self._folder / INDEX_FILE).is_file():
            raise ModelLoadError(f"{self.path}: {self._why_no_weights()}")
        weight_map = self._json(INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise ModelLoadError(f"{self._folder / INDEX_FILE}: has no weight_map of tensor names to file names")
        listed = sorted(set(weight_map.values()))
        self._compare_files(listed)
        shards = {file: self._header(file) for file in listed}
        for file, names in shards.items():
            promised = {name for name, where in weight_map.items() if where == file}
            absent, unlisted = sorted(promised.difference(names)), sorted(set(names).difference(promised))
            if absent or unlisted:
                what = f"lacks {_few(absent)} of its index" if absent else f"holds {_few(unlisted)}, not in its index"
                raise ModelLoadError(f"{self._folder / file}: {what}; fetch the model's files again")
        return shards

    def _compare_files(self, listed: Sequence[str]) -> None:
        outside = [file for file in listed if Path(file).name != file]
        if outside:
            raise ModelLoadError(f"{self._folder / INDEX_FILE}: names files outside of the folder: {_few(outside)}")
        missing = [file for file in listed if not (self._folder / file).is_file()]
        if missing:
            raise ModelLoadError(f"{self.path}: {len(missing)} of {len(listed)} shards are missing: {_few(missing)}")
        surplus = sorted(
            file.name for file in self._folder.iterdir() if _SHARD.fullmatch(file.name) and file.name not in listed
        )
        if surplus:
            raise ModelLoadError(f"{self.path}: shards that the index does not know: {_few(surplus)}; mixed downloads?")

    def _why_no_weights(self) -> str:
        others = sorted(f.name for f in self._folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".safetensors"))
        if any(_SHARD.fullmatch(name) for name in others):
            return f"there are shards but no {INDEX_FILE}"
        if others:
            return f"weights are only there as {_few(others)}; convert them to {SINGLE_FILE}"
        return f"there are no weights: neither {SINGLE_FILE} nor {INDEX_FILE}"

    def _header(self, file: str) -> tuple[str, ...]:
        try:
            with safe_open(str(self._folder / file), framework="np") as shard:
                return tuple(shard.keys())
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{self._folder / file}: {error}; truncated? fetch the file again") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{file}: cannot be read as text: {error}") from error


def _spelling(token: Any) -> str:
    """A special token is given as its text, or as an object that has it as `content`."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise ModelLoadError(f"tokenizer_config.json: {token!r} is no special token")
    return text


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
