"""Greedy tokens and their log probabilities against transformers, in float32 on the same weights.

Equality is tested by teacher forcing: transformers sees a prompt with Octavo's output in one forward pass, and each
output token must be the argmax of the logits before it. By induction over the tokens that is the same as equality
with transformers' own greedy tokens, and much faster. Prompts are token ids, so tokenizers play no part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.request import RequestOutput

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
}
TIED = 1e-4
"""Where two logits are closer than this, rounding may choose either token."""
PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "The largest planet of the solar system is",
    "Who wrote Hamlet?",
    "The chemical symbol of gold is",
    "Photosynthesis is the process by which",
    "In 1969, the first human beings",
    "The Pythagorean theorem says that",
    "Q: What is the opposite of hot?\nA:",
    "My favourite food is",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nx = np.",
    "for (int i = 0; i < 10; i++) {\n",
    "SELECT name, age FROM users WHERE",
    "<html>\n<head>\n<title>",
    '{"name": "Ada", "year": 1815, "',
    "#!/bin/sh\nset -e\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(",
    "fn main() {\n    println!(",
    "x = [1, 2, 3]\nprint(sum(x))  # prints",
    "1, 2, 3, 4, 5,",
    "2 + 2 =",
    "17 * 3 =",
    "3.14159265",
    "1000000007",
    "Monday, Tuesday, Wednesday,",
    "2, 4, 8, 16, 32,",
    "A B C D E F",
    "Hello",
    "The",
    "a",
    "Yes",
    "?",
    " ",
    "\n\n",
    "Bonjour, je m'appelle",
    "Die Hauptstadt von Deutschland ist",
    "El perro corre por",
    "La vita è",
    "Привет, как",
    "こんにちは、",
    "你好,世界",
    "안녕하세요",
    "مرحبا",
    "Ελλάδα",
    "naïve café – “quoted” … ½ µm",
    "🎉🎂 Happy birthday",
    "👩‍👩‍👧‍👦 family",
    "∀x ∈ ℝ: x² ≥",
    "<|im_start|>user\nTell me a joke.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a little girl who lived in a village near the forest. " * 6,
    "one two three four five six seven eight nine ten " * 15 + "one two",
    "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs. " * 5 + "How",
)


class Teacher:
    """transformers' logits for outputs; those of the same tokens are computed once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}
        self.num_tied = 0
        """Tokens that were excused because another one is tied with them."""

    def check(self, output: RequestOutput, tolerance: float = 1e-3) -> None:
        completion, num_prompt = output.outputs[0], len(output.prompt_token_ids)
        token_ids = (*output.prompt_token_ids, *completion.token_ids)
        if token_ids not in self._logits:
            with torch.inference_mode():
                self._logits[token_ids] = self._model(torch.tensor([token_ids])).logits[0, num_prompt - 1 : -1].float()
        logits = self._logits[token_ids]  # [num_tokens, vocab_size]
        logprobs = logits.log_softmax(-1)
        assert completion.logprobs is not None
        for row, token_id, found in zip(range(len(logits)), completion.token_ids, completion.logprobs, strict=True):
            if int(logits[row].argmax()) != token_id:
                gap = float(logits[row].max() - logits[row, token_id])
                assert gap < TIED, f"token {row} of {output.prompt!r} is {gap} below transformers' choice"
                self.num_tied += 1
            assert abs(found.logprob - float(logprobs[row, token_id])) <= tolerance


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, logprobs=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_tiny_models_of_each_family(name: str, tmp_path: Path) -> None:
    import transformers

    family, changes = FAMILIES[name]
    sizes = {
        "vocab_size": 199,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.4,
    }
    config = getattr(transformers, f"{family}Config")(**(sizes | changes))
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide a mix-up
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)

    llm = LLM(str(tmp_path), dtype="float32", device="cpu", num_blocks=100, num_threads=1)
    prompts = [torch.randint(3, 199, (length,)).tolist() for length in (1, 5, 16, 40, 90)]
    params = greedy(20).replace(ignore_eos=True, detokenize=False)
    together = llm.generate(prompts, params)
    llm.engine.reset_prefix_cache()
    alone = [llm.generate([prompt], params)[0] for prompt in prompts]
    assert all(len(output.outputs[0].token_ids) == 20 for output in together)
    teacher = Teacher(model)
    for output in (*together, *alone):
        teacher.check(output)
    assert teacher.num_tied == 0


@pytest.fixture(scope="module")
def reference(packaged_model: str) -> Any:
    """transformers' own reading of the packaged GGUF file."""
    import transformers

    path = Path(packaged_model)
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_packaged_model_alone_and_in_one_batch(packaged_model: str, reference: Any) -> None:
    """At least fifty prompts, sixteen tokens each; without the prefix cache, so that each run computes everything."""
    llm = LLM(packaged_model, dtype="float32", device="cpu", num_blocks=700, num_threads=1, enable_prefix_caching=False)
    assert len(set(PROMPTS)) >= 50
    together = llm.generate(list(PROMPTS), greedy(16), use_tqdm=False)
    teacher = Teacher(reference)
    for batched in together:
        teacher.check(batched)
        alone = llm.generate([list(batched.prompt_token_ids)], greedy(16), use_tqdm=False)[0]
        teacher.check(alone)
    assert teacher.num_tied <= 1
    assert " Paris" in together[0].outputs[0].text
