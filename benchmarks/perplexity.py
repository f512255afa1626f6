"""Perplexity of the packaged model with and without quantisation, on the text of Python's own manual.

    python benchmarks/perplexity.py --tokens 20480 --json result.json

The text is `pydoc_data.topics`, which comes with every Python; it is cut into windows that are read one by one.

Owns: the text, the windows, the comparison. Must never know: how weights are quantised.
"""

from __future__ import annotations

import argparse
import math
import sys
from pydoc_data import topics

from measuring import counted, print_table, write_json

from octavo import LLM, SamplingParams

ARMS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    **{
        quantization: {"dtype": "bfloat16", "plugin_options": {"cpu": {"quantization": quantization}}}
        for quantization in ("int8", "int8_weight_only", "int4")
    },
}


def windows(tokenizer, num_tokens: int, size: int) -> list[list[int]]:
    """The text's first tokens, in windows of equal size."""
    ids = tokenizer.encode("\n\n".join(topics.topics[name] for name in sorted(topics.topics)))
    assert len(ids) >= num_tokens, f"the text has only {len(ids)} tokens"
    return [list(ids[i : i + size]) for i in range(0, num_tokens - size + 1, size)]


def perplexity(arm: str, num_tokens: int, size: int) -> tuple[float, int]:
    """exp of the mean negative log probability of all tokens but each window's first, and how many these are."""
    total, count = 0.0, 0
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    with LLM(memory="256MiB", enable_prefix_caching=False, **ARMS[arm]) as llm:
        for window in counted(windows(llm.get_tokenizer(), num_tokens, size), arm):
            output = llm.generate({"prompt_token_ids": window}, params, use_tqdm=False)[0]
            logprobs = [entry.logprob for entry in output.prompt_logprobs or () if entry is not None]
            total -= sum(logprobs)
            count += len(logprobs)
    return math.exp(total / count), count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default="bfloat16,int8", help=f"of {', '.join(ARMS)}; the first is compared with")
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    options = parser.parse_args()
    arms = [arm.strip() for arm in options.arms.split(",")]
    if unknown := set(arms) - set(ARMS):
        parser.error(f"--arms: there is no {min(unknown)!r}; there is {', '.join(ARMS)}")
    found = {arm: perplexity(arm, options.tokens, options.window) for arm in arms}
    first = next(iter(found.values()))[0]
    print_table(
        ["arm", "perplexity", "ratio", "tokens"], [[a, p, f"{p / first:.4f}", n] for a, (p, n) in found.items()]
    )
    write_json(options.json, {"perplexity": {arm: value for arm, (value, _) in found.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
