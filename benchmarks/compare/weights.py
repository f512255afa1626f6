"""One model in the forms that the engines read: the same numbers everywhere, but for what a precision rounds.

The packaged model is quantised. It is decoded once: to a folder as Hugging Face lays one out, or to a GGUF file of
another type. Norms and biases stay float32 in GGUF files, as converters of llama.cpp leave them.

Owns: the files. Must never know: who reads them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file

from octavo_gguf.source import GGUFSource

_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
"""GGUF tensor type to the value of `general.file_type`."""


def weights_for(packaged: Path, form: str, precision: str, root: Path) -> Path:
    """`packaged` itself, a folder in `precision`, or a GGUF file of type `form`; made in `root` if not there yet."""
    if form == "packaged":
        return packaged
    status = packaged.stat()
    stem = (
        f"{packaged.stem}-{status.st_size:x}-{status.st_mtime_ns:x}"  # another file of the same name is another model
    )
    name = f"{stem}-{precision}" if form == "folder" else f"{stem}-as-{form}.gguf"
    target = root / name
    if target.exists():
        return target
    root.mkdir(parents=True, exist_ok=True)
    unfinished = root / f"{name}.{os.getpid()}.tmp"
    if form == "folder":
        _write_folder(packaged, precision, unfinished)
    else:
        _write_gguf(packaged, gguf.GGMLQuantizationType[form], unfinished)
    unfinished.rename(target)
    return target


def vocab_size(packaged: Path) -> int:
    return GGUFSource(str(packaged)).config["vocab_size"]


def _write_folder(packaged: Path, precision: str, folder: Path) -> None:
    source = GGUFSource(str(packaged))
    folder.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in source.tensors(getattr(torch, precision))}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {key: value for key, value in source.config.items() if value is not None}
    _write_json(folder / "config.json", config | {"dtype": precision})
    _write_json(folder / "generation_config.json", dict(source.generation_config))
    tokenizer = source.tokenizer()
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json, encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.bos_token,
            "eos_token": next(iter(tokenizer.eos_tokens), None),
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _write_gguf(packaged: Path, kind: gguf.GGMLQuantizationType, target: Path) -> None:
    reader = gguf.GGUFReader(packaged)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        value = _FILE_TYPES[kind.name] if field.name == gguf.Keys.General.FILE_TYPE else field.contents()
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(field.name, value, field.types[0], sub_type=field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        its_kind = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quantize(values, its_kind), raw_dtype=its_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
