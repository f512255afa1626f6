"""Where files that can be made again are kept between runs.

Owns: the place. Must never know: what is kept there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PLACES = {"win32": ("LOCALAPPDATA", "~/AppData/Local"), "darwin": ("", "~/Library/Caches")}
"""Platform to the variable that names the place for caches, and where that is if it is not set."""


def cache_folder() -> Path | None:
    """`OCTAVO_CACHE_DIR`, or `octavo` in the platform's place for caches; None if that is set but empty.

    Raises RuntimeError if it depends on a home folder that does not exist.
    """
    chosen = os.environ.get("OCTAVO_CACHE_DIR")
    if chosen == "":
        return None
    if chosen is None:
        return _platform_folder()
    return _under_home(chosen) if chosen.startswith("~") else Path(chosen)


def _platform_folder() -> Path:
    variable, place = _PLACES.get(sys.platform, ("XDG_CACHE_HOME", "~/.cache"))
    given = os.environ.get(variable, "")
    if os.path.isabs(given):  # relative ones are to be ignored: XDG Base Directory Specification
        return Path(given) / "octavo"
    return _under_home(place) / "octavo"


def _under_home(place: str) -> Path:
    """`~/x` or `~user/x` as a path. Raises RuntimeError if there is no such home folder, rather than to make one."""
    home = Path(Path(place).parts[0]).expanduser()
    if not os.environ.get("HOME", "unset") or not home.is_absolute() or not os.path.isdir(home):
        raise RuntimeError(f"the home folder {str(home)!r} is relative or does not exist")
    return Path(place).expanduser()
