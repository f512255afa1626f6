"""The cache of converted models: fast when warm, harmless when damaged, full or forbidden."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from octavo_gguf import cache, source, tensor_file
from octavo_gguf.sealed import read_sealed, write_sealed
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
    monkeypatch.setattr(cache, "_SETTLED_SECONDS", 600)
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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"sha256": "", "value": {}})])
def test_a_damaged_record_is_made_again(model, path, cache_dir, text, caplog):
    load(path)
    (memo,) = (cache_dir / "gguf/seen").iterdir()
    files = [memo, entry(cache_dir) / "model.json", entry(cache_dir) / "float32.json"]
    good = [file.read_bytes() for file in files]
    for file in files:
        file.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert [str(file) in record.message for file, record in zip(files, caplog.records, strict=True)] == [True] * 3
    assert [file.read_bytes() for file in files] == good


SECTIONS = ("config", "generation_config", "tokenizer", "shapes")
WRONG = [lambda v, s=s, x=x: v | {s: x} for s in SECTIONS for x in ({}, None, [], 7)]
WRONG += [
    lambda v: {},
    lambda v: v | {"config": v["config"] | {"hidden_size": 64}},
    lambda v: v | {"config": v["config"] | {"num_attention_heads": "4"}},
    lambda v: v | {"generation_config": {"eos_token_id": [3]}},
    lambda v: v | {"shapes": dict(reversed(v["shapes"].items()))},
]


@pytest.mark.parametrize("change", WRONG)
def test_a_record_with_other_values_is_made_again(model, path, cache_dir, change, caplog):
    """Valid JSON throughout, so that only the checksum can tell."""
    first = GGUFSource(path)
    file = entry(cache_dir) / "model.json"
    good = file.read_text()
    sealed = json.loads(good)
    changed = change(sealed["value"])
    assert json.dumps(changed) != json.dumps(sealed["value"])
    file.write_text(json.dumps(sealed | {"value": changed}))
    with caplog.at_level(logging.WARNING):
        second = GGUFSource(path)
    assert [str(file) in record.message for record in caplog.records] == [True]
    assert (second.config, second.generation_config) == (first.config, first.generation_config)
    assert second.tokenizer() == first.tokenizer()
    assert_right(model, dict(second.tensors(torch.float32)))
    assert file.read_text() == good


def test_every_flipped_bit_of_a_sealed_file_is_noticed(tmp_path):
    file = tmp_path / "new/x.json"
    assert read_sealed(file) is None
    value = {"a": [1, 2.5, None, "é"], "b": {}}
    write_sealed(file, value)
    assert read_sealed(file) == value
    good = file.read_bytes()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=r"x\.json is damaged"):
            read_sealed(file)
    for cut in range(len(good)):
        file.write_bytes(good[:cut])
        with pytest.raises(ValueError, match="damaged"):
            read_sealed(file)


def test_a_flipped_bit_of_small_tensors_is_noticed(model, path, cache_dir, caplog):
    """A file of less than 1 MB is read as a whole; the first bits are the length of the header."""
    load(path)
    file = entry(cache_dir) / "float32.safetensors"
    good = file.read_bytes()
    rng = random.Random(0)
    places = [*range(8), 8, 100, len(good) - 1, *(rng.randrange(len(good)) for _ in range(40))]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        file.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert_right(model, load(path))
        assert [str(file) in record.message for record in caplog.records] == [True]
        assert file.read_bytes() == good


def test_exchanged_names_of_tensors_are_noticed(model, path, cache_dir, caplog):
    """Two of one shape, so that the file stays one of the expected names, shapes and data."""
    load(path)
    file = entry(cache_dir) / "float32.safetensors"
    good = file.read_bytes()
    one, other = b"layers.0.self_attn.q_proj", b"layers.1.self_attn.q_proj"
    file.write_bytes(good.replace(one, b"?").replace(other, one).replace(b"?", other, 1))
    assert file.stat().st_size == len(good)
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert [str(file) in record.message for record in caplog.records] == [True]


def test_of_large_tensors_samples_are_read(tmp_path):
    """Every stretch as long as the distance of the samples is noticed, and the first and the last byte."""
    shape = [4 << 20]
    file = tensor_file.TensorFile()
    file.open(tmp_path, torch.float32, {"x": shape})
    file.add(torch.ones(shape))
    file.commit()
    path = tmp_path / "float32.safetensors"
    size = path.stat().st_size
    distance = size // 250
    stretches = [(place, distance) for place in [*range(0, size - distance, size // 37), size - distance]]
    for place, length in [*stretches, (size - 4 * shape[0] + 3, 1), (size - 1, 1)]:
        with path.open("r+b") as raw:
            raw.seek(place)
            good = raw.read(length)
            raw.seek(place)
            raw.write(bytes(length))
        with pytest.raises(ValueError, match="damaged"):
            tensor_file.read_tensors(tmp_path, torch.float32, {"x": shape})
        with path.open("r+b") as raw:
            raw.seek(place)
            raw.write(good)
    ((_, tensor),) = tensor_file.read_tensors(tmp_path, torch.float32, {"x": shape})
    assert tensor.min() == tensor.max() == 1


def test_tensors_without_fingerprint_are_not_taken(model, path, cache_dir, conversions):
    load(path)
    (entry(cache_dir) / "float32.json").unlink()
    assert_right(model, load(path))
    assert conversions.count("_convert_tensors") == 2
    assert (entry(cache_dir) / "float32.json").exists()


@pytest.mark.parametrize("digest", ["../../../x", "/x", "", "A" * 64, "0" * 63, "0" * 64 + "\n", None, 7])
def test_a_digest_cannot_lead_out_of_the_cache(model, path, tmp_path, cache_dir, digest):
    load(path)
    (memo,) = (cache_dir / "gguf/seen").iterdir()
    before = sorted(tmp_path.rglob("*"))
    write_sealed(memo, read_sealed(memo) | {"digest": digest})
    assert_right(model, load(path))
    assert sorted(tmp_path.rglob("*")) == before
    assert read_sealed(memo)["digest"] == entry(cache_dir).name[:64]


def test_abandoned_temporary_files_are_removed(model, path, cache_dir):
    load(path)
    files = [folder / name for folder in (entry(cache_dir), cache_dir / "gguf/seen") for name in ("old.tmp", "new.tmp")]
    for file in files:
        file.write_text("")
        age = 25 if file.name == "old.tmp" else 23
        os.utime(file, (time.time() - 3600 * age,) * 2)
    long_ago = (1e9, 1e9)
    os.utime(entry(cache_dir) / "float32.safetensors", long_ago)
    assert_right(model, load(path))
    assert [file.exists() for file in files] == [False, True] * 2
    assert (entry(cache_dir) / "float32.safetensors").exists()


def test_a_folder_that_cannot_be_made_costs_one_warning(model, path, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert len(caplog.records) == 1
    assert "OCTAVO_CACHE_DIR" in caplog.text


@pytest.mark.parametrize("folder", ["n" * 256, "a/" + "n" * 300 + "/b", "~nosuchuser/x"])
def test_an_impossible_folder_costs_one_warning(model, path, tmp_path, monkeypatch, folder, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCTAVO_CACHE_DIR", folder if folder.startswith("~") else str(tmp_path / folder))
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert len(caplog.records) == 1
    assert "OCTAVO_CACHE_DIR" in caplog.text
    assert not list(tmp_path.glob("~*"))


@pytest.mark.parametrize("home", ["nonexist", ".", "", "/nonexist/home", "n" * 300])
@pytest.mark.parametrize("chosen", [None, "~/x"])
def test_without_an_absolute_home_there_is_no_cache(model, path, tmp_path, monkeypatch, home, chosen, caplog):
    """`expanduser` takes an empty one for `/`, where root may write."""
    asked = []
    monkeypatch.setattr(Path, "mkdir", lambda path, **_: asked.append(path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OCTAVO_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", home)
    if chosen is not None:
        monkeypatch.setenv("OCTAVO_CACHE_DIR", chosen)
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert os.listdir(tmp_path) == ["m.gguf"]
    assert not asked
    assert len(caplog.records) == 1
    assert "OCTAVO_CACHE_DIR" in caplog.text


def test_a_full_disk_costs_one_warning_and_leaves_nothing(model, path, cache_dir, monkeypatch, caplog):
    original = tensor_file.TensorFile._write

    def write(self, data):
        if len(data) > 1000 and self._file is not None:
            self._file.close()  # the next write fails
            self.failure = OSError(28, "No space left on device")
            self.close()
        original(self, data)

    monkeypatch.setattr(tensor_file.TensorFile, "_write", write)
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert len(caplog.records) == 1
    assert [f.name for f in entry(cache_dir).iterdir()] == ["model.json"]


def test_too_little_room_is_seen_beforehand(model, path, cache_dir, monkeypatch):
    monkeypatch.setattr(tensor_file, "_SPARE_BYTES", 1 << 60)
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


def test_the_cache_can_be_turned_off(model, path, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OCTAVO_CACHE_DIR", "")
    with caplog.at_level(logging.WARNING):
        assert_right(model, load(path))
    assert os.listdir(tmp_path) == ["m.gguf"]
    assert not caplog.records


def test_writing_to_a_tensor_does_not_reach_the_cache(model, path):
    load(path)
    for _, tensor in GGUFSource(path).tensors(torch.float32):
        tensor.zero_()
    assert_right(model, load(path))
