"""Makes the library of kernels: found ready in the package, found in the user's cache, or compiled.

A library is named by what it depends on: sources, compiler, flags.
Racing processes compile once, under a file lock; a library is written beside its place and renamed.

Owns: where libraries are, and the compiler. Must never know: what the kernels do.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path

from octavo.cache_folder import cache_folder
from octavo.errors import OctavoError

logger = logging.getLogger(__name__)

KERNELS = Path(__file__).parent / "kernels"
PREBUILT = Path(__file__).parent / "prebuilt"
SETTINGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")
ISAS = {
    "avx512_bf16": (*_AVX512, "avx512_bf16", "avx512_vnni"),
    "avx512_vnni": (*_AVX512, "avx512_vnni"),
    "avx512": _AVX512,
    "avx2": ("avx2", "fma"),
    "portable": (),
}
"""Instruction sets, best first, and the processor features that each needs, as Linux names them."""
_COMPILERS = ("g++", "clang++", "c++")
_COMPILE_SECONDS = 300


class BuildError(OctavoError):
    """The library cannot be made on this machine; the message says what is missing."""


def supported_isas() -> list[str]:
    """The instruction sets of `ISAS` that the processor has, best first.

    Intel's cores start a bfloat16 dot product every other cycle, but two float32 FMAs every cycle (85 against 170
    GFLOP/s on a core of Sapphire Rapids), so that bfloat16 widened in registers goes first there.
    """
    processor = _processor()
    found = [isa for isa, needed in ISAS.items() if set(processor.get("flags", "").split()).issuperset(needed)]
    if found[0] == "avx512_bf16" and processor.get("vendor_id") == "GenuineIntel":
        found[:2] = reversed(found[:2])
    return found


def _processor() -> dict[str, str]:
    """What Linux says of the first processor. Empty on other systems: what is portable runs everywhere."""
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        pairs = (line.partition(":") for line in first.splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs}
    return {}


def find_compiler() -> list[str] | None:
    """The command that starts a C++ compiler: `CXX`, or the first of the usual ones on the path; None without one."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        return chosen if shutil.which(chosen[0]) else None
    return next(([name] for name in _COMPILERS if shutil.which(name)), None)


@lru_cache
def unavailable(isa: str = "auto") -> str | None:
    """Why this machine cannot have the kernels, in one clause, or None if it has them now."""
    try:
        library(isa)
    except BuildError as error:
        return str(error)
    return None


@lru_cache
def library(isa: str = "auto", settings: tuple[str, ...] = SETTINGS) -> Path:
    """The path of the library for an instruction set, compiled if need be; auto: the best that can be had.

    Raises `BuildError` if there is none and no compiler, or if compiling fails.
    """
    if sys.platform == "win32":
        raise BuildError("there are no CPU kernels for Windows yet; Linux and macOS have them")
    if isa == "auto":
        return _best_library(settings)
    ready = PREBUILT / f"octavo-cpu-{platform.machine().lower()}-{isa}.so"
    if settings == SETTINGS and ready.exists():
        return ready
    compiler = find_compiler()
    if compiler is None:
        wanted = os.environ.get("CXX")
        what = f"CXX is {wanted!r}, which is not there" if wanted else "has no C++ compiler"
        raise BuildError(f"{what}; install one (g++ or clang, for example `apt install g++`) or set CXX")
    flags = [*settings, *(f"-m{feature.replace('avx512_', 'avx512')}" for feature in ISAS[isa])]
    name = f"octavo-cpu-{isa}-{_fingerprint(compiler, flags)}.so"
    with _folder() as folder, _locked(folder / f"{name}.lock"):
        path = folder / name
        if not _is_whole(path):
            logger.warning("compiling the CPU kernels (%s), once; this takes some seconds", isa)
            _compile(compiler, flags, path)
        return path


def _best_library(settings: tuple[str, ...]) -> Path:
    """An old compiler may not know the newest instructions."""
    failures = []
    for isa in supported_isas():
        try:
            return library(isa, settings)
        except BuildError as error:
            failures.append(error)
    raise failures[0]


def _is_whole(path: Path) -> bool:
    """Whether the library is there as it was compiled: loading a damaged one can end the process."""
    try:
        return _seal(path).read_text(encoding="utf-8") == _digest(path)
    except OSError:
        return False


def _seal(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _fingerprint(compiler: list[str], flags: list[str]) -> str:
    digest = hashlib.sha256()
    version = _run([*compiler, "--version"]).splitlines()[:1]
    for text in (*compiler, *version, *flags, platform.machine()):
        digest.update(text.encode() + b"\0")
    for source in sorted(KERNELS.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    """The user's cache; where there is none, a new folder with which nothing is shared."""
    try:
        root = cache_folder()
        if root is not None:
            folder = root / "cpu"
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                yield folder
                return
    except (OSError, RuntimeError) as error:
        logger.warning("compiled kernels are not kept (%s); set OCTAVO_CACHE_DIR to a folder", error)
    yield Path(tempfile.mkdtemp(prefix="octavo-cpu-"))


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    import fcntl  # not on every platform, and this module is imported wherever the plugin is installed

    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # ends with the process that holds it
        yield


def _compile(compiler: list[str], flags: list[str], path: Path) -> None:
    sources = sorted(KERNELS.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        objects = [f"{folder}/{source.stem}.o" for source in sources]
        commands = [[*compiler, *flags, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        _run([*compiler, *flags, "-shared", *objects, "-o", f"{folder}/library.so"])
        _seal(path).write_text(_digest(Path(folder, "library.so")), encoding="utf-8")
        os.replace(f"{folder}/library.so", path)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"cannot run {command[0]}: {error}; install g++ or clang, or set CXX") from error
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise BuildError(f"{command[0]} cannot compile the kernels: {said}; install another compiler, or set CXX to it")
    return done.stdout
