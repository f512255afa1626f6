"""The plugin platform: what is installed, what of it works, and the configuration that says what is wanted.

Owns: `load_extensions`, `survey`, `resolve_settings`. Must never know: what the things that plugins offer do.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from octavo.config import EngineConfig
from octavo.errors import PluginError
from octavo.extensions import Extensions
from octavo.plugins.keys import Leaf, leaves_of, parse_bytes
from octavo.plugins.report import PluginReport, Problem, Survey
from octavo.plugins.resolve import resolve
from octavo.plugins.settings import Settings, resolve_settings

__all__ = [
    "Leaf",
    "PluginReport",
    "Problem",
    "Settings",
    "Survey",
    "leaves_of",
    "load_extensions",
    "parse_bytes",
    "resolve_settings",
    "survey",
]

logger = logging.getLogger("octavo.plugins")


def load_extensions(
    config: EngineConfig,
    plugins: Sequence[object] = (),
    *,
    only: Collection[str] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Extensions:
    """Load plugins and freeze what they offer.

    `plugins` are modules or objects with hooks, besides those installed. `only` names exactly the plugins to load:
    a worker process passes the names in its parent's `Extensions.plugins`. `sources` (of `Settings`) lets errors say
    where an option came from. A plugin that is merely installed and fails gets one warning; under `strict_plugins` it
    is an error.

    Raises `PluginError` for a plugin that was asked for and fails and for names taken twice, `ConfigError` for
    unknown plugins and options.
    """
    state, extensions = resolve(config, plugins, only, sources)
    if state.errors:
        raise state.errors[0]
    if extensions.broken and config.strict_plugins:
        raise PluginError("; ".join(str(broken) for broken in extensions.broken))
    for broken in extensions.broken:
        logger.warning("%s", broken)
    return extensions


def survey(config: EngineConfig, plugins: Sequence[object] = ()) -> Survey:
    """What there is, whatever is wrong with it: for `octavo plugins` and to find commands. Raises and logs nothing."""
    state, extensions = resolve(config, plugins)
    return Survey(config, extensions, state)
