"""How the library of kernels is found or made, and what is said where it cannot be."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import sys
from pathlib import Path

import pytest

from octavo_cpu import build
from octavo_cpu.library import load_kernels

FAST = ("-std=c++17", "-O0", "-fPIC", "-pthread")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield
    forget()


def forget() -> None:
    build.library.cache_clear()
    build.unavailable.cache_clear()


def compiler_that(tmp_path: Path, script: str) -> str:
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_a_compiler_it_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler; install one" in build.unavailable()


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX is 'no-such-compiler', which is not there" in build.unavailable()


def test_windows_has_none(monkeypatch):
    monkeypatch.setattr(build.sys, "platform", "win32")
    assert "no CPU kernels for Windows" in build.unavailable()


def test_what_a_compiler_complains_of_is_shown(monkeypatch, tmp_path):
    says = 'case "$1" in --version) echo fake 1;; *) echo "x.cpp:1: error: no such luck" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", compiler_that(tmp_path, says))
    assert "x.cpp:1: error: no such luck" in build.unavailable()
    assert not list((tmp_path / "cache/cpu").glob("*.so"))


def test_a_library_is_compiled_once_for_each_compiler_flag_and_source(monkeypatch, tmp_path):
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", compiler_that(tmp_path, f'echo run >> {log}; exec g++ "$@"'))
    first = build.library("portable", FAST)
    runs = log.read_text().count("run")
    forget()
    assert build.library("portable", FAST) == first
    assert log.read_text().count("run") == runs + 1  # its version was asked for
    forget()
    assert build.library("portable", (*FAST, "-DX")) != first


@pytest.mark.parametrize("content", [b"", b"not a library", None])
def test_a_damaged_library_is_made_anew(content):
    path = build.library("portable", FAST)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    forget()
    assert build.library("portable", FAST) == path
    assert len(path.read_bytes()) == len(whole)


def test_auto_takes_what_an_old_compiler_can_make(monkeypatch, tmp_path):
    knows_no_avx512 = 'case "$*" in *-mavx512*) echo "error: what is -mavx512?" >&2; exit 1;; esac; exec g++ "$@"'
    monkeypatch.setenv("CXX", compiler_that(tmp_path, knows_no_avx512))
    first = next(isa for isa in build.supported_isas() if "avx512" not in isa)
    assert f"-{first}-" in build.library("auto", FAST).name


def _build(folder: str, results: multiprocessing.Queue) -> None:
    os.environ["OCTAVO_CACHE_DIR"] = folder
    results.put(str(build.library("portable", FAST)))


def test_racing_processes_compile_once(monkeypatch, tmp_path):
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", compiler_that(tmp_path, f'case "$*" in *-shared*) echo link >> {log}; esac; g++ "$@"'))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    racers = [context.Process(target=_build, args=(str(tmp_path / "cache"), results)) for _ in range(3)]
    for racer in racers:
        racer.start()
    paths = {results.get(timeout=280) for _ in racers}
    for racer in racers:
        racer.join()
    assert len(paths) == 1
    assert log.read_text().count("link") == 1


def test_a_library_in_the_package_goes_first(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    ready = tmp_path / "octavo-cpu-x86_64-portable.so"
    ready.write_bytes(b"")
    assert build.library("portable") == ready


def test_a_cache_that_cannot_be_made_is_gone_without(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert build.library("portable", FAST).exists()
    assert "compiled kernels are not kept" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="what a processor has is known on Linux only")
def test_an_instruction_set_that_the_processor_lacks_is_refused(monkeypatch):
    monkeypatch.setattr("octavo_cpu.library.supported_isas", lambda: ["avx2", "portable"])
    with pytest.raises(build.BuildError, match=r"has no avx512_vnni, only avx2, portable; set plugins\.cpu\.isa"):
        load_kernels("avx512_vnni")
