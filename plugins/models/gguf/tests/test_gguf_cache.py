"""The cache of converted models: fast when warm, harmless when damaged, full or forbidden."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from octavo_gguf import cache, source
from octavo_gguf.source import GGUFSource


@pytest.fixture
def model(tiny):
    return tiny("llama", tied=True)


@pytest.fixture
def path(model, tmp_path):
    path = model.write(tmp_path / "m.gguf")
    os.utime(path, (1e9, 1e9))  # long settled, so that its digest is remembered
    return path


def load(path, dtype=torch.float32):
    return {name: tensor.clone() for name, tensor in GGUFSource(path).tensors(dtype)}


def assert_right(model, tensors, dtype=torch.float32):
    assert set(tensors) == set(model.weights)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.from_numpy(model.weights[name]).to(dtype))


@pytest.fixture
def conversions(monkeypatch):
    """How often a file was really converted."""
    counts = []
    for name in ("_convert_header", "_convert_tensors"):
        original = getattr(source, name)
        monkeypatch.setattr(source, name, lambda *a, n=name, f=original: counts.append(n) or f(*a))
    return counts


def entry(cache_dir):
    (folder,) = [f for f in (cache_dir / "gguf").iterdir() if f.name != "seen"]
    return folder


def test_the_second_start_converts_nothing(model, path, conversions):
    first = GGUFSource(path)
    assert_right(model, dict(first.tensors(torch.float32)))
    assert len(conversions) == 2
    second = GGUFSource(path)
    assert_right(model, load(path))
    assert len(conversions) == 2
    assert second.config == first.config
    assert second.generation_config == first.generation_config
    assert second.tokenizer() == first.tokenizer()
    assert list(second.tensor_names()) == list(first.tensor_names())
    assert_right(model, load(path, torch.bfloat16), torch.bfloat16)  # another dtype is another file
    assert len(conversions) == 3


def test_a_warm_start_needs_no_gguf_library(path):
    load(path)
    code = (
        "import sys, torch; from octavo_gguf.source import GGUFSource\n"
        "s = GGUFSource(sys.argv[1]); s.tokenizer(); dict(s.tensors(torch.float32)); sys.exit('gguf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0


def test_a_copy_hits_and_a_changed_file_does_not(model, path, tmp_path, conversions):
    load(path)
    copy = tmp_path / "other.name"
    shutil.copy(path, copy)
    assert_right(model, load(str(copy)))
    assert len(conversions) == 2
    data = bytearray(Path(path).read_bytes())
    data[-4:] = b"\0\0\x80\x3f"
    Path(path).write_bytes(data)
    assert load(path)["model.norm.weight"][-1] == 1.0
    assert len(conversions) == 4


def test_the_digest_is_remembered_only_for_settled_files(path, monkeypatch):
    load(path)
    hashed = []
    original = cache.hashlib.file_digest
    monkeypatch.setattr(cache.hashlib, "file_digest", lambda *a: hashed.append(1) or original(*a))
    GGUFSource(path)
    assert not hashed
    os.utime(path, (time.time(), time.time()))
    GGUFSource(path)
    GGUFSource(path)
    assert len(hashed) == 2


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_damaged_tensors_are_converted_again(model, path, cache_dir, cut, caplog):
    load(path)
    file = entry(cache_dir) / "float32.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:cut])
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert "damaged" in caplog.text
    assert file.read_bytes() == good


def test_a_header_that_lacks_a_tensor_is_not_taken(model, path, cache_dir):
    load(path)
    file = entry(cache_dir) / "float32.safetensors"
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    assert_right(model, load(path))


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"version": 0})])
def test_a_damaged_record_is_made_again(model, path, cache_dir, text):
    load(path)
    (entry(cache_dir) / "model.json").write_text(text)
    for memo in (cache_dir / "gguf/seen").iterdir():
        memo.write_text(text)
    assert_right(model, load(path))
    assert json.loads((entry(cache_dir) / "model.json").read_text())["config"]


def test_a_folder_that_cannot_be_made_costs_one_warning(model, path, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert len(caplog.records) == 1
    assert "OCTAVO_CACHE_DIR" in caplog.text


def test_a_full_disk_costs_one_warning_and_leaves_nothing(model, path, cache_dir, monkeypatch, caplog):
    original = cache._TensorFile._write

    def write(self, data):
        if len(data) > 1000 and self._file is not None:
            self._file.close()  # the next write fails
            self.failure = OSError(28, "No space left on device")
            self.close()
        original(self, data)

    monkeypatch.setattr(cache._TensorFile, "_write", write)
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert len(caplog.records) == 1
    assert [f.name for f in entry(cache_dir).iterdir()] == ["model.json"]


def test_too_little_room_is_seen_beforehand(model, path, cache_dir, monkeypatch):
    monkeypatch.setattr(cache, "_SPARE_BYTES", 1 << 60)
    assert_right(model, load(path))
    assert [f.name for f in entry(cache_dir).iterdir()] == ["model.json"]


def test_a_reader_that_stops_half_way_leaves_nothing(model, path, cache_dir):
    tensors = GGUFSource(path).tensors(torch.float32)
    next(tensors)
    tensors.close()
    assert [f.name for f in entry(cache_dir).iterdir()] == ["model.json"]
    assert_right(model, load(path))


def test_racing_starts(model, path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(load(path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for tensors in results:
        assert_right(model, tensors)


def test_the_cache_can_be_turned_off(model, path, cache_dir, monkeypatch):
    monkeypatch.setenv("OCTAVO_GGUF_CACHE", "0")
    assert_right(model, load(path))
    assert not cache_dir.exists()


def test_writing_to_a_tensor_does_not_reach_the_cache(model, path):
    load(path)
    for _, tensor in GGUFSource(path).tensors(torch.float32):
        tensor.zero_()
    assert_right(model, load(path))


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.delenv("OCTAVO_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "octavo"
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "x"))
    assert cache.cache_root() == tmp_path / "x"
