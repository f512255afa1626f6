"""The leaves of the configuration tree, and how one value becomes what its leaf wants.

Owns: dotted keys with type, default and help; conversion with errors that name key and source; sizes in bytes.
Must never know: where values come from.
"""

from __future__ import annotations

import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.config import Section
from octavo.errors import ConfigError, suggestion

_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_NONE_TEXTS = ("", "none", "null")
SECRET = "***"
"""What is shown in place of a secret."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One option."""

    key: str
    """Dotted: `cache.block_size`."""
    type: Any
    default: Any
    help: str
    unit: str = ""
    """`bytes` for a size; other numbers have none."""
    is_secret: bool = False
    """Whether its value must not be shown (`extra={"secret": True}` of its `Meta`)."""

    @property
    def members(self) -> tuple[Any, ...]:
        """The types that a value may have."""
        plain = _plain(self.type)
        union = typing.get_origin(plain) in (typing.Union, types.UnionType)
        return tuple(_plain(member) for member in typing.get_args(plain)) if union else (plain,)

    @property
    def type_name(self) -> str:
        """The type in words: `int or none`, `auto|cpu|cuda`."""
        return " or ".join(_type_name(member) for member in self.members)

    def convert(self, value: Any, source: str = "", *, text: bool = False) -> Any:
        """`value` as this leaf's type. `text`: it was written as text, so "4" is a number and "a, b" a list.

        Raises `ConfigError` naming key, value and source.
        """
        try:
            parsed = self._from_text(value) if text and isinstance(value, str) else value
            result = msgspec.convert(parsed, self.type, strict=not text)
            if isinstance(result, float) and not math.isfinite(result):
                raise ConfigError("must be a finite number")
            if self.unit == "bytes":
                parse_bytes(result)
        except msgspec.ValidationError as error:
            raise ConfigError(self._message(self._explain(error, value), value, source)) from None
        except ConfigError as error:
            raise ConfigError(self._message(str(error), value, source)) from None
        return result

    def _from_text(self, value: str) -> Any:
        if type(None) in self.members and value.strip().lower() in _NONE_TEXTS:
            return None
        if any(typing.get_origin(member) in (tuple, list, set, frozenset) for member in self.members):
            return split_names(value)
        return value

    def _explain(self, error: msgspec.ValidationError, value: Any) -> str:
        choices = [c for m in self.members if typing.get_origin(m) is typing.Literal for c in typing.get_args(m)]
        if choices:
            return f"must be one of {', '.join(map(str, choices))}{suggestion(str(value), map(str, choices))}"
        message = re.sub(r", got .*$| - at `.*`$", "", str(error)).replace("`", "").replace("| null", "or none")
        return re.sub("^Expected", "must be", message)

    def _message(self, reason: str, value: Any, source: str) -> str:
        got = "a value that is kept secret" if self.is_secret else shortened(value)
        return f"{self.key}: {reason}; got {got}" + (f" from {source}" if source else "")

    def shown(self, value: Any) -> Any:
        """`value` as it may be shown to anybody."""
        return SECRET if self.is_secret and value else value


def leaves_of(section: type[Section], prefix: str = "") -> dict[str, Leaf]:
    """Every leaf below `section`, by dotted key, in the order of the tree."""
    leaves: dict[str, Leaf] = {}
    for field in msgspec.structs.fields(section):
        key = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Section):
            leaves |= leaves_of(field.type, f"{key}.")
            continue
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        metas = getattr(field.type, "__metadata__", ())
        help_text = next((meta.description for meta in metas if meta.description), "")
        extra = {name: value for meta in metas for name, value in (meta.extra or {}).items()}
        unit, is_secret = extra.get("unit", ""), extra.get("secret", False)
        leaves[key] = Leaf(key, field.type, default, help_text, unit, is_secret)
    return leaves


def shortened(value: Any, most: int = 80) -> str:
    """`repr(value)` for a message, cut to `most` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, too deep a nest
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list; spaces and empty entries do not count."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_bytes(size: str | int | None) -> int | None:
    """Bytes of `1073741824`, `"1GiB"` or `"1.5 GB"`; None stays None. Raises `ConfigError`."""
    if size is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)\s*", str(size).lower())
    unit = match and _UNITS.get(match[2] or "b")
    if match is None or unit is None or isinstance(size, bool):
        raise ConfigError("must be a size such as 2GiB, 500MB or a number of bytes")
    num_bytes = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if num_bytes < 1:
        raise ConfigError("must be at least one byte")
    return num_bytes


def _plain(annotated: Any) -> Any:
    return typing.get_args(annotated)[0] if typing.get_origin(annotated) is typing.Annotated else annotated


def _type_name(member: Any) -> str:
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if member is type(None):
        return "none"
    if origin is typing.Literal:
        return "|".join(map(str, arguments))
    if origin in (tuple, list, set, frozenset):
        return f"list of {_type_name(_plain(arguments[0]))}"
    return getattr(member, "__name__", str(member))
