"""Folders as `save_pretrained` writes them, and every way in which one can be broken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from octavo.errors import ModelLoadError
from octavo_safetensors.plugin import is_model_folder, octavo_register_weight_formats
from octavo_safetensors.source import SafetensorsSource


def toy_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"left.weight": (4, 4), "right.weight": (8, 4), "plain.weight": (4, 4), "plain.bias": (4,)}
    shapes |= {"norm.weight": (4,), "scale": (1,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def toy_folder(tmp_path):
    """`toy_folder(shards=1)` writes a model folder and returns it."""

    def make(shards: int = 1):
        tensors = toy_tensors()
        (tmp_path / "config.json").write_text('{"architectures": ["ToyForCausalLM"]}')
        (tmp_path / "tokenizer.json").write_text("{}")
        if shards == 1:
            save_file(tensors, tmp_path / "model.safetensors")
            return tmp_path
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = dict(list(tensors.items())[i::shards])
            save_file(part, tmp_path / file)
            weight_map |= dict.fromkeys(part, file)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return tmp_path

    return make


def edit(file, **changes):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_comes_once(shards, toy_folder):
    source = SafetensorsSource(str(toy_folder(shards)))
    expected = toy_tensors()
    read = list(source.tensors(torch.float32))
    assert len(read) == len(expected)
    assert sorted(source.tensor_names()) == sorted(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read)


def test_only_floating_point_is_converted(toy_folder):
    folder = toy_folder()
    save_file({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.int32)}, folder / "model.safetensors")
    dtypes = {name: tensor.dtype for name, tensor in SafetensorsSource(str(folder)).tensors(torch.bfloat16)}
    assert dtypes == {"a": torch.bfloat16, "b": torch.int32}


def test_configs_are_read(toy_folder):
    folder = toy_folder()
    assert SafetensorsSource(str(folder)).generation_config == {}
    edit(folder / "generation_config.json", eos_token_id=[1, 2])
    source = SafetensorsSource(str(folder))
    assert source.config["architectures"] == ["ToyForCausalLM"]
    assert source.generation_config == {"eos_token_id": [1, 2]}


def drop_config(folder):
    (folder / "config.json").unlink()


def break_config(folder):
    (folder / "config.json").write_text('{"architectures": [')


def list_config(folder):
    (folder / "config.json").write_text("[]")


def binary_config(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")


def nested_config(folder):
    (folder / "config.json").write_text("[" * 200_000)


def break_generation_config(folder):
    (folder / "generation_config.json").write_text("{")


def cut_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])


def cut_header(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def empty_weights(folder):
    (folder / "model.safetensors").write_bytes(b"")


def lengthen_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"more")


def drop_weights(folder):
    (folder / "model.safetensors").unlink()


def pickled_weights(folder):
    drop_weights(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")


def drop_shard(folder):
    (folder / "model-00002-of-00003.safetensors").unlink()


def add_shard(folder):
    save_file({"more": torch.zeros(1)}, folder / "model-00004-of-00004.safetensors")


def cut_shard(folder):
    file = folder / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def drop_index(folder):
    (folder / "model.safetensors.index.json").unlink()


def empty_index(folder):
    (folder / "model.safetensors.index.json").write_text("{}")


def promise_more(folder):
    file = folder / "model.safetensors.index.json"
    weight_map = json.loads(file.read_text())["weight_map"]
    edit(file, weight_map={**weight_map, "promised.weight": "model-00001-of-00003.safetensors"})


def promise_less(folder):
    file = folder / "model.safetensors.index.json"
    weight_map = json.loads(file.read_text())["weight_map"]
    del weight_map["norm.weight"]
    edit(file, weight_map=weight_map)


def point_outside(folder):
    file = folder / "model.safetensors.index.json"
    weight_map = json.loads(file.read_text())["weight_map"]
    edit(file, weight_map={**weight_map, "left.weight": "../model-00001-of-00003.safetensors"})


@pytest.mark.parametrize(
    ("breaks", "shards", "message"),
    [
        (drop_config, 1, r"there is no config\.json"),
        (break_config, 1, r"config\.json: not valid JSON"),
        (list_config, 1, r"config\.json: holds list, not a JSON object"),
        (binary_config, 1, r"config\.json: cannot be read as text"),
        (nested_config, 1, r"config\.json: not valid JSON"),
        (break_generation_config, 1, r"generation_config\.json: not valid JSON"),
        (cut_weights, 1, r"model\.safetensors: .*truncated\?"),
        (cut_header, 1, r"model\.safetensors: .*truncated\?"),
        (empty_weights, 1, r"model\.safetensors: .*truncated\?"),
        (lengthen_weights, 1, r"model\.safetensors: "),
        (drop_weights, 1, r"there are no weights"),
        (pickled_weights, 1, r"only there as pytorch_model\.bin; convert"),
        (drop_shard, 3, r"1 of 3 shards are missing: model-00002-of-00003\.safetensors"),
        (add_shard, 3, r"the index does not know: model-00004-of-00004\.safetensors"),
        (cut_shard, 3, r"model-00002-of-00003\.safetensors: .*truncated\?"),
        (drop_index, 3, r"there are shards but no model\.safetensors\.index\.json"),
        (empty_index, 3, r"has no weight_map"),
        (promise_more, 3, r"model-00001-of-00003\.safetensors: lacks promised\.weight of its index"),
        (promise_less, 3, r"holds norm\.weight, not in its index"),
        (point_outside, 3, r"names files outside of the folder"),
    ],
)
def test_broken_folders_are_refused_with_the_file_named(breaks, shards, message, toy_folder):
    folder = toy_folder(shards)
    SafetensorsSource(str(folder))  # sound before
    breaks(folder)
    with pytest.raises(ModelLoadError, match=message):
        SafetensorsSource(str(folder))


def test_other_weights_beside_an_index_are_left_alone(toy_folder):
    folder = toy_folder(3)
    save_file({"w": torch.zeros(1)}, folder / "consolidated.safetensors")
    assert "w" not in SafetensorsSource(str(folder)).tensor_names()


class TestTokenizerFiles:
    def test_special_tokens_are_text_or_objects(self, toy_folder):
        folder = toy_folder()
        edit(folder / "tokenizer_config.json", bos_token="<s>", eos_token={"content": "</s>", "lstrip": False})
        data = SafetensorsSource(str(folder)).tokenizer()
        assert data.bos_token == "<s>"
        assert data.eos_tokens == ("</s>",)
        assert data.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
        assert data.chat_template is None

    def test_the_special_tokens_map_fills_gaps(self, toy_folder):
        folder = toy_folder()
        edit(folder / "tokenizer_config.json", bos_token="<s>")
        edit(folder / "special_tokens_map.json", bos_token="<other>", eos_token="</s>")
        data = SafetensorsSource(str(folder)).tokenizer()
        assert (data.bos_token, data.eos_tokens) == ("<s>", ("</s>",))

    def test_templates_come_from_the_best_place(self, toy_folder):
        folder = toy_folder()
        named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
        edit(folder / "tokenizer_config.json", chat_template=named)
        assert SafetensorsSource(str(folder)).tokenizer().chat_template == "D"
        edit(folder / "tokenizer_config.json", chat_template="C")
        assert SafetensorsSource(str(folder)).tokenizer().chat_template == "C"
        edit(folder / "chat_template.json", chat_template="J")
        assert SafetensorsSource(str(folder)).tokenizer().chat_template == "J"
        (folder / "chat_template.jinja").write_text("F")
        assert SafetensorsSource(str(folder)).tokenizer().chat_template == "F"

    def test_a_bad_special_token_is_refused(self, toy_folder):
        folder = toy_folder()
        edit(folder / "tokenizer_config.json", eos_token=7)
        with pytest.raises(ModelLoadError, match="7 is no special token"):
            SafetensorsSource(str(folder)).tokenizer()

    def test_a_slow_tokenizer_says_how_to_convert_it(self, toy_folder):
        folder = toy_folder()
        (folder / "tokenizer.json").rename(folder / "tokenizer.model")
        with pytest.raises(ModelLoadError, match=r"only there as tokenizer\.model; convert"):
            SafetensorsSource(str(folder)).tokenizer()

    def test_no_tokenizer_says_so(self, toy_folder):
        folder = toy_folder()
        (folder / "tokenizer.json").unlink()
        source = SafetensorsSource(str(folder))  # weights alone can be opened
        with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
            source.tokenizer()


def test_a_file_that_breaks_after_opening_is_an_error(toy_folder):
    folder = toy_folder()
    source = SafetensorsSource(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        list(source.tensors(torch.float32))


@pytest.mark.parametrize(
    ("files", "is_model"),
    [
        ((), False),
        (("notes.txt",), False),
        (("config.json",), True),
        (("tokenizer.json",), True),
        (("a.safetensors",), True),
        (("a.safetensors.index.json",), True),
        (("a.gguf", "config.json"), False),
        (("a.gguf", "config.json", "a.safetensors"), True),
    ],
)
def test_which_folders_are_taken(files, is_model, tmp_path):
    for file in files:
        (tmp_path / file).touch()
    assert is_model_folder(str(tmp_path)) is is_model


def test_no_path_makes_the_question_raise(tmp_path):
    assert not is_model_folder(str(tmp_path / "absent"))
    assert octavo_register_weight_formats()[0].can_read is is_model_folder


def test_registering_needs_no_torch():
    code = "import sys, octavo_safetensors.plugin as p; p.octavo_register_weight_formats(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
