"""How one request wants its tokens chosen. A frozen record that refuses values out of range.

Owns: `SamplingParams` and its validation. Must never know: tokenizers, models, engines.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from octavo.errors import InvalidRequestError, quoted, suggestion
from octavo.structured_outputs import StructuredOutputsParams

MAX_N = 1024
MAX_LOGPROBS = 128
MAX_STOP_STRINGS = 256
MAX_BAD_WORDS = 1024
MAX_BAD_WORDS_CHARS = 65_536
"""Of all bad words together: they are turned into tokens while other requests wait."""
MAX_TOKEN_ID_ENTRIES = 65_536
GREEDY_TEMPERATURE = 1e-6
"""At or below this temperature the highest logit is taken: a smaller one would only overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request. Names and meanings follow vLLM's and OpenAI's.

    Raises `InvalidRequestError` naming the field for a value of the wrong type or out of range.
    """

    n: int = 1
    """Number of completions of the same prompt, 1 to 1024."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this times the most likely one, in [0, 1]."""
    seed: int | None = None
    """Same seed, same tokens, in whatever batch. None: drawn by the engine."""
    max_tokens: int | None = 16
    """Generate at most this many tokens; None: until the model's length is reached."""
    min_tokens: int = 0
    """No EOS, stop token or stop string ends the sequence before this many tokens."""
    stop: Sequence[str] = ()
    """Strings that end the sequence. A string that is exactly one special token stops at that token."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the sequence; the token is kept in `token_ids` and left out of the text."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence tokens."""
    include_stop_str_in_output: bool = False
    """Keep the stop string (or the text of the stop token) in the text."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token already generated, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that a token was already generated, in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt and output, in [0.001, 2^16]."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to a value added to its logit, in [-100, 100]."""
    allowed_token_ids: Sequence[int] | None = None
    """Only these token ids can be generated."""
    bad_words: Sequence[str] = ()
    """Words that must not appear: the token that would complete one is forbidden."""
    logprobs: int | None = None
    """Return the log probabilities of the sampled token and of this many most likely ones."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    detokenize: bool = True
    """False returns token ids only; stop strings then need to be empty."""
    priority: int = 0
    """Under the priority policy lower values run first."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form that the output must have; a mapping of its fields will do."""
    extra_args: Mapping[str, Any] = field(default_factory=dict)
    """Options for logits processors of plugins, by the processor's name. A name nobody offers is an error.

    False and None are the same as leaving the name out.
    """

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            self._set(name, (value,) if isinstance(value, str) else self._entries(name))
        for name in ("stop_token_ids", "allowed_token_ids"):
            if name == "stop_token_ids" or self.allowed_token_ids is not None:
                self._set(name, tuple(dict.fromkeys(_token_id(name, value) for value in self._entries(name))))
        self._set("logit_bias", {_token_id("logit_bias", i): b for i, b in self._mapping("logit_bias").items()})
        named = self._mapping("extra_args")
        self._set(
            "extra_args", {name: value for name, value in named.items() if value is not None and value is not False}
        )
        self._check_numbers()
        self._check_lists()
        self._set("structured_outputs", _structured_outputs(self.structured_outputs))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken instead of a drawn one."""
        return self.temperature <= GREEDY_TEMPERATURE

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _entries(self, name: str) -> tuple[Any, ...]:
        """The list in field `name`, not longer than allowed; nothing for None."""
        value, limit = getattr(self, name), _MOST_ENTRIES.get(name, MAX_TOKEN_ID_ENTRIES)
        if value is None:
            return ()
        if isinstance(value, str | bytes | Mapping) or not (hasattr(value, "__len__") and hasattr(value, "__iter__")):
            raise InvalidRequestError(name, f"must be a list, got {_short(value)}")
        if len(value) > limit:
            raise InvalidRequestError(name, f"at most {limit} entries, got {len(value)}")
        return tuple(value)

    def _mapping(self, name: str) -> dict[Any, Any]:
        value = getattr(self, name)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidRequestError(name, f"must be a mapping, got {_short(value)}")
        if value is not None and len(value) > MAX_TOKEN_ID_ENTRIES:
            raise InvalidRequestError(name, f"at most {MAX_TOKEN_ID_ENTRIES} entries, got {len(value)}")
        return dict(value or {})

    def _check_numbers(self) -> None:
        for name, low, high, optional in _INT_RANGES:
            given = getattr(self, name)
            if given is None and optional:
                continue
            value = whole_number(given)
            if value is None:
                raise InvalidRequestError(name, f"must be a whole number, got {_short(given)}")
            if not low <= value <= high:
                raise InvalidRequestError(name, f"must be from {low} to {high}, got {_short(value)}")
            self._set(name, value)
        for name, low, high, above in _FLOAT_RANGES:
            given = getattr(self, name)
            value = _real(given)
            if value is None:
                raise InvalidRequestError(name, f"must be a finite number, got {_short(given)}")
            if not (low < value if above else low <= value) or value > high:
                bound = "above" if above else "at least"
                raise InvalidRequestError(name, f"must be {bound} {low:g} and at most {high:g}, got {value!r}")
            self._set(name, value)
        for name in _BOOLS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(name, f"must be true or false, got {_short(getattr(self, name))}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError("min_tokens", f"{self.min_tokens} is more than max_tokens, {self.max_tokens}")

    def _check_lists(self) -> None:
        for name in ("stop", "bad_words"):
            if any(not isinstance(value, str) or not value for value in getattr(self, name)):
                raise InvalidRequestError(name, "every entry must be a non-empty string")
        if sum(map(len, self.bad_words)) > MAX_BAD_WORDS_CHARS:
            raise InvalidRequestError("bad_words", f"at most {MAX_BAD_WORDS_CHARS} characters together")
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop", "stop strings need detokenize=True")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequestError("allowed_token_ids", "must name at least one token id")
        biases: dict[int, float] = {}
        for token_id, given in self.logit_bias.items():
            bias = _real(given)
            if bias is None or not -100 <= bias <= 100:
                raise InvalidRequestError(
                    "logit_bias", f"the bias of token {token_id} must be from -100 to 100, got {_short(given)}"
                )
            biases[token_id] = bias
        self._set("logit_bias", biases)
        if any(not isinstance(name, str) for name in self.extra_args):
            raise InvalidRequestError("extra_args", "every key must be the name of a logits processor")

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated anew."""
        return dataclasses.replace(self, **changes)


def whole_number(value: Any) -> int | None:
    """A whole number as an int, numpy's included; None for anything else. Truth values are no numbers."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _real(value: Any) -> float | None:
    """A finite real number as a float, numpy's included; None for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _structured_outputs(given: Any) -> StructuredOutputsParams | None:
    if given is None or isinstance(given, StructuredOutputsParams):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequestError("structured_outputs", f"must be StructuredOutputsParams, got {type(given).__name__}")
    known = [field.name for field in fields(StructuredOutputsParams)]
    for name in given:
        if name not in known:
            near = suggestion(str(name), known)
            raise InvalidRequestError(
                "structured_outputs", f"has no field {quoted(str(name))}{near}; there is: {', '.join(known)}"
            )
    return StructuredOutputsParams(**given)


def _token_id(name: str, value: Any) -> int:
    token_id = whole_number(value)
    if token_id is None or token_id < 0:
        raise InvalidRequestError(name, f"token ids must be whole numbers of at least 0, got {_short(value)}")
    return token_id


def _short(value: Any) -> str:
    """A value for an error message, however large it is."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print whole numbers of more than 4,300 digits
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 80 else f"{text[:80]}…"


_MOST_ENTRIES = {"stop": MAX_STOP_STRINGS, "bad_words": MAX_BAD_WORDS}
_UNBOUNDED = 2**31 - 1
_INT_RANGES = (
    # name, lowest, highest, may be None
    ("n", 1, MAX_N, False),
    ("top_k", -1, _UNBOUNDED, False),
    ("seed", -(2**63), 2**64 - 1, True),
    ("max_tokens", 1, _UNBOUNDED, True),
    ("min_tokens", 0, _UNBOUNDED, False),
    ("logprobs", 0, MAX_LOGPROBS, True),
    ("prompt_logprobs", 0, MAX_LOGPROBS, True),
    ("priority", -(2**31), _UNBOUNDED, False),
)
_FLOAT_RANGES = (
    # name, lowest, highest, whether the lowest itself is excluded
    ("temperature", 0.0, 1e6, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 1.0, False),
    ("presence_penalty", -2.0, 2.0, False),
    ("frequency_penalty", -2.0, 2.0, False),
    ("repetition_penalty", 1e-3, 65_536.0, False),
)
_BOOLS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize")
