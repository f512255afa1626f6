"""The exceptions that users of Octavo meet. Each message says what to do next.

Owns: the error types and the wording of suggestions and messages. Must never know: anything else of Octavo.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_NAME = 200


def quoted(name: str) -> str:
    """`name` in quotes for a message, cut if a stranger made it very long."""
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")


def suggestion(name: str, choices: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the choice nearest to `name`, or nothing if none is near."""
    if len(name) > _LONGEST_NAME:  # a stranger's text, which would take long to compare
        return ""
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def one_line(error: BaseException) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose; the CLI prints it as one line and exits with 2."""


class InvalidRequestError(OctavoError, ValueError):
    """A request cannot be served as it was asked. Only that request ends.

    `field` names the offending argument (`"prompt"`, `"max_tokens"`, …), so that a server can report it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ConfigError(OctavoError, ValueError):
    """A configuration key or value is unknown, out of range or contradicts another one."""


class PluginError(OctavoError):
    """A plugin that was asked for is missing, broken, of the wrong version, or collides with another one."""


class ModelLoadError(OctavoError):
    """A model's files are missing, truncated, contradictory, or of an architecture that no plugin offers."""


class CapacityError(OctavoError):
    """The machine or the configured memory cannot hold what the configuration asks for."""


class EngineDeadError(OctavoError):
    """The engine's process has ended; no request can be served until the program is started again."""
