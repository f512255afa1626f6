"""Files that are cut off, altered or something else: one clear error, never garbage."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
import torch

from octavo.errors import ModelLoadError
from octavo_gguf.source import GGUFSource


@pytest.fixture
def whole(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE_DIR", "")
    model = tiny("llama", tied=True)
    model.tokenizer |= {"add_bos_token": True}
    return Path(model.write(tmp_path / "whole.gguf")).read_bytes()


def opened(path, data):
    path.write_bytes(data)
    return GGUFSource(str(path))


def test_every_cut_is_an_error(whole, tmp_path):
    path = tmp_path / "cut.gguf"
    header = whole.index(b"output_norm.weight") + 200
    cuts = [*range(600), *range(600, header, 41), *range(header, len(whole), 997), len(whole) - 1]
    for cut in cuts:
        with pytest.raises(ModelLoadError, match=r"cut off|not a GGUF file") as caught:
            opened(path, whole[:cut])
        assert "\n" not in str(caught.value)
    opened(path, whole)


def test_altered_headers_are_errors_or_harmless(whole, tmp_path):
    path = tmp_path / "altered.gguf"
    end = whole.index(b"output_norm.weight") + 200
    rng = random.Random(0)
    refused = 0
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 4])):
            data[rng.choice([rng.randrange(end), rng.randrange(600)])] = rng.choice(
                [0, 1, 127, 255, rng.randrange(256)]
            )
        try:
            source = opened(path, bytes(data))
            for _name, tensor in source.tensors(torch.float32):
                assert tensor.dtype == torch.float32
        except ModelLoadError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF", "cut off"),
        (b"safetensors and so on", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1 is not supported, only 2 and 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63) + bytes(9), "cut off"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**62) + bytes(64), "cut off"),
    ],
)
def test_not_a_whole_gguf_file(tmp_path, data, message):
    with pytest.raises(ModelLoadError, match=message):
        opened(tmp_path / "m.gguf", data)


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelLoadError, match="cannot read"):
        GGUFSource(str(tmp_path / "nowhere.gguf"))
