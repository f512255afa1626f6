"""One plugin at a time: what is wrong with it is found, said, and costs nobody else anything."""

from __future__ import annotations

import logging
import sys

import pytest

from octavo.config import EngineConfig
from octavo.errors import PluginError
from octavo.plugins import load_extensions, resolve_settings, survey

REGISTER = "@hookimpl\ndef octavo_register_drafters():\n"

FAULTS = {
    "misspelt hook": (
        "@hookimpl\ndef octavo_registr_models():\n    return []\n",
        "no hook is called octavo_registr_models; did you mean 'octavo_register_models'?",
    ),
    "misspelt and unmarked": (
        "def octavo_register_model():\n    return []\n",
        "no hook is called octavo_register_model; did you mean 'octavo_register_models'?",
    ),
    "unmarked": (
        "def octavo_register_models():\n    return []\n",
        "octavo_register_models is not marked with @hookimpl",
    ),
    "wrong argument": (
        "@hookimpl\ndef octavo_make_verifier(nmae):\n    return None\n",
        "octavo_make_verifier takes nmae; the hook passes name",
    ),
    "surplus argument": (
        "@hookimpl\ndef octavo_register_models(config):\n    return []\n",
        "octavo_register_models takes config; the hook passes nothing",
    ),
    "wrapper": ("@hookimpl(wrapper=True)\ndef octavo_make_verifier(name):\n    return (yield)\n", "wraps"),
    "wrong specname": (
        "@hookimpl(specname='octavo_register_drafter')\ndef offer():\n    return []\n",
        "no hook is called octavo_register_drafter; did you mean 'octavo_register_drafters'?",
    ),
    "attribute raises": (
        "class P:\n    @hookimpl\n    def octavo_register_models(self):\n        return []\n"
        "    @property\n    def other(self):\n        raise RuntimeError('lost')\n"
        "import sys\nsys.modules[__name__] = P()\n",
        "its other raised RuntimeError: lost",
    ),
    "no hooks": ("x = 1\n", "it has no hooks; does its entry point name the right module?"),
    "raises on import": ("raise ValueError('no luck')\n", "importing it failed: ValueError: no luck"),
    "lacks a module": ("import a_module_nobody_has\n", "ModuleNotFoundError: No module named 'a_module_nobody_has'"),
    "exits on import": ("import sys\nsys.exit(3)\n", "importing it failed: SystemExit: 3"),
    "syntax error": ("def broken(:\n", "importing it failed: SyntaxError"),
    "hook raises": (
        REGISTER + "    raise RuntimeError('lost')\n",
        "octavo_register_drafters raised RuntimeError: lost",
    ),
    "hook exits": (REGISTER + "    raise SystemExit(4)\n", "octavo_register_drafters raised SystemExit: 4"),
    "generator raises": (REGISTER + "    yield 1 / 0\n", "octavo_register_drafters raised ZeroDivisionError"),
    "returns None": (REGISTER + "    return None\n", "returned None, not a list of DrafterEntry"),
    "returns a record": (
        REGISTER + "    return DrafterEntry(name='x', factory='m:x')\n",
        "returned a DrafterEntry, not a",
    ),
    "returns rubbish": (REGISTER + "    return ['x']\n", "returned 'x' among its entries, not a DrafterEntry"),
    "returns another kind": (
        REGISTER + "    return [ExecutorEntry(name='x', factory='m:x')]\n",
        "returned a ExecutorEntry among its entries, not a DrafterEntry",
    ),
    "nameless": (REGISTER + "    return [DrafterEntry(name='', factory='m:x')]\n", "an entry whose name is ''"),
    "one name twice": (REGISTER + "    return [DrafterEntry(name='x', factory='m:x')] * 2\n", "two entries called 'x'"),
    "bad factory": (
        REGISTER + "    return [DrafterEntry(name='x', factory='just.a.module')]\n",
        "factory of 'x' must be callable or 'module:name'",
    ),
    "bad second callable": (
        "@hookimpl\ndef octavo_register_tool_parsers():\n"
        "    return [ToolParserEntry(name='x', factory='m:x', suits=any, spell_out='just.a.module')]\n",
        "spell_out of 'x' must be callable or 'module:name'",
    ),
    "options are no section": (
        "@hookimpl\ndef octavo_options():\n    return dict\n",
        "not a subclass of octavo.config.Section",
    ),
    "option without default": (
        "from octavo.config import Section\nclass O(Section):\n    window: int\n"
        "@hookimpl\ndef octavo_options():\n    return O\n",
        "need resolvable types and defaults: Missing required argument 'window'",
    ),
    "option of an unknown type": (
        "from octavo.config import Section\nclass O(Section):\n    window: 'Nothing' = 1\n"
        "@hookimpl\ndef octavo_options():\n    return O\n",
        "need resolvable types and defaults: name 'Nothing' is not defined",
    ),
    "options in a tree": (
        "from octavo.config import Section\nclass I(Section):\n    x: int = 1\nclass O(Section):\n    i: I = I()\n"
        "@hookimpl\ndef octavo_options():\n    return O\n",
        "its options must be flat, not i.x",
    ),
}


@pytest.mark.parametrize(("source", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_plugin_is_listed_with_its_reason_and_the_rest_works(site, drafter, caplog, source, reason) -> None:
    site.add("faulty", source, distribution="faulty-dist", version="3.2")
    site.add("good", drafter("good"))
    extensions = load_extensions(EngineConfig())
    assert [str(broken.origin) for broken in extensions.broken] == ["faulty (faulty-dist 3.2)"]
    assert reason in extensions.broken[0].reason
    assert "good" in extensions.drafters
    assert [origin.plugin for origin in extensions.plugins] == ["builtin", "good"]
    warnings = [record for record in caplog.records if record.name == "octavo.plugins"]
    assert [record.levelno for record in warnings] == [logging.WARNING]
    assert "faulty (faulty-dist 3.2)" in warnings[0].getMessage()
    assert reason in warnings[0].getMessage()


def test_strict_makes_every_broken_plugin_an_error(site) -> None:
    site.add("faulty", "raise ValueError('no luck')\n")
    for value in ("1", "true"):
        with pytest.raises(PluginError, match=r"faulty \(dist-faulty 1.0\) is broken: .*no luck"):
            load_extensions(resolve_settings(env={"OCTAVO_STRICT_PLUGINS": value}).config)
    for value in ("0", "false"):
        load_extensions(resolve_settings(env={"OCTAVO_STRICT_PLUGINS": value}).config)


def test_a_plugin_that_the_configuration_asks_for_must_work(site) -> None:
    site.add("faulty", "raise ValueError('no luck')\n", version="7")
    with pytest.raises(
        PluginError, match=r"faulty \(dist-faulty 7\) is broken: importing it failed: ValueError"
    ) as raised:
        load_extensions(EngineConfig(plugins={"faulty": {"window": 3}}))
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_named_thing_that_a_broken_plugin_might_offer(site) -> None:
    site.add("faulty", "raise ValueError('no luck')\n")
    config = EngineConfig()
    config = type(config)(speculation=type(config.speculation)(drafter="ngram"))
    with pytest.raises(PluginError, match=r"no drafter is called 'ngram'.*there is: none \[builtin\].*faulty.*no luck"):
        load_extensions(config)


def test_keyboard_interrupt_passes(site) -> None:
    site.add("faulty", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_extensions(EngineConfig())


def test_half_a_registration_is_rolled_back(site) -> None:
    source = """
@hookimpl
def octavo_register_attention_backends():
    return []

@hookimpl
def octavo_register_drafters():
    return [DrafterEntry(name="half", factory="m:x")]

@hookimpl
def octavo_make_verifier(name):
    raise AssertionError("never asked")

@hookimpl
def octavo_register_models():
    raise RuntimeError("third hook")
"""
    site.add("half", source)
    extensions = load_extensions(EngineConfig())
    assert "half" not in extensions.drafters
    assert [maker.origin.plugin for maker in extensions.verifier_makers] == ["builtin"]
    assert "half" not in extensions.options


def test_imported_modules_and_optional_hooks_are_no_fault(site, drafter) -> None:
    extra = "\nimport types\noctavo_helpers = types.ModuleType('octavo_helpers')\n"
    extra += "@hookimpl(optionalhook=True)\ndef octavo_of_a_later_release():\n    return 1\n"
    site.add("good", drafter("good") + extra)
    extensions = load_extensions(EngineConfig())
    assert "good" in extensions.drafters
    assert not extensions.broken


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        (("octavo>=9",), "it needs octavo>=9, this is octavo"),
        (("octavo<0.1",), "it needs octavo<0.1"),
        (("octavo<0.1", "octavo!=9"), "it needs octavo"),
        (("other", "Octavo>=0.1", "octavo!=0.1.0"), "it needs octavo"),
        (("octavo>>1",), "unreadable requirement"),
        (('octavo>=9; python_version < "3"',), ""),
        (('octavo>=9; extra == "dev"',), ""),
        (("octavo-llama>=9",), ""),
        ((), ""),
        (("octavo>=0.1,<0.2",), ""),
    ],
)
def test_the_version_is_checked_before_the_import(site, drafter, requires, reason) -> None:
    module = site.add("picky", drafter("picky"), requires=requires)
    extensions = load_extensions(EngineConfig())
    assert (module in sys.modules) == ("picky" in extensions.drafters) == (not reason)
    if reason:
        assert reason in extensions.broken[0].reason


def test_survey_raises_nothing_and_doctor_has_a_mend_for_each(site) -> None:
    for name, (source, _) in FAULTS.items():
        site.add(name.replace(" ", "_"), source)
    site.add("skewed", "", requires=("octavo>=9",))
    problems = survey(EngineConfig()).problems()
    told = {problem.plugin: problem for problem in problems}
    assert {name.replace(" ", "_") for name in FAULTS} | {"skewed"} == set(told) - {""}
    assert all(problem.mend for problem in problems)
    assert "install a release for octavo" in told["skewed"].mend
    for name in ("misspelt_hook", "misspelt_and_unmarked", "wrong_specname"):
        assert "rename it, if the plugin is yours" in told[name].mend


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere_at_all:x", "cannot be imported: ModuleNotFoundError"),
        ("json:nothing", "cannot be imported: AttributeError"),
        ("json:__name__", "is not callable"),
        ("json:loads", None),
    ],
)
def test_doctor_follows_import_strings(site, target, reason) -> None:
    site.add("lazy", REGISTER + f"    return [DrafterEntry(name='x', factory={target!r})]\n")
    found = [problem for problem in survey(EngineConfig()).problems() if problem.plugin == "lazy"]
    assert len(found) == (reason is not None)
    if reason:
        assert f"lazy (dist-lazy 1.0): factory {target!r} of drafter 'x' {reason}" in found[0].problem


@pytest.mark.parametrize(
    ("metadata", "entry_points"),
    [
        (None, "[octavo]\ndamaged = somewhere\n"),
        ("Metadata-Version: 2.1\n", "[octavo]\ndamaged = somewhere\n"),
        ("Metadata-Version: 2.1\nName: d\nVersion: 1\n", "[octavo]\ndamaged = not a module\n"),
    ],
)
def test_a_damaged_installation_is_a_broken_plugin(site, metadata, entry_points) -> None:
    info = site.path / "damaged-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(entry_points)
    if metadata is not None:
        (info / "METADATA").write_text(metadata)
    (broken,) = load_extensions(EngineConfig()).broken
    assert broken.origin.plugin == "damaged"
    assert "its installation is damaged" in broken.reason
    assert broken.mend == "install it again"
