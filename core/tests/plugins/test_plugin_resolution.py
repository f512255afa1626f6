"""All plugins together: what is loaded, what is left out, what collides, and in which order they are asked."""

from __future__ import annotations

import sys
import types

import importlib_metadata
import pytest

from octavo.config import EngineConfig, Section
from octavo.errors import ConfigError, PluginError
from octavo.extensions import Offer, Origin, Registry
from octavo.hookspecs import hookimpl
from octavo.plugins import load_extensions, resolve_settings, survey
from octavo.spec import DrafterEntry, load_factory

OPTIONS = """
from typing import Annotated, Literal
from msgspec import Meta
from octavo.config import Section

class Options(Section):
    window: Annotated[int, Meta(ge=1, description="Tokens looked at.")] = 3
    mode: Literal["fast", "exact"] = "fast"
    words: tuple[str, ...] = ()
    limit: int | None = 7

@hookimpl
def octavo_options():
    return Options
"""


class Passed:
    """A plugin that is handed over as an object."""

    @hookimpl
    def octavo_register_drafters(self) -> list[DrafterEntry]:
        return [DrafterEntry(name="passed", factory=lambda target: None)]


def test_plugins_are_sorted_by_name_and_builtins_answer_last(site) -> None:
    maker = "@hookimpl{}\ndef octavo_make_verifier(name):\n    return {!r} if name in ('exact', {!r}) else None\n"
    site.add("zeta", maker.format("", "zeta", "zeta"), distribution="a-first")
    site.add("alpha", maker.format("", "alpha", "alpha"), distribution="z-last")
    site.add("late", maker.format("(trylast=True)", "late", "late"))
    extensions = load_extensions(EngineConfig())
    assert [origin.plugin for origin in extensions.plugins] == ["alpha", "builtin", "late", "zeta"]
    order = [maker.origin.plugin for maker in extensions.verifier_makers]
    assert order.index("alpha") < order.index("zeta") < order.index("builtin")
    assert order.index("late") > order.index("zeta")
    assert extensions.first(extensions.verifier_makers, "verifier", "zeta") == "zeta"
    assert extensions.first(extensions.verifier_makers, "verifier", "exact") == "alpha"


def test_a_maker_takes_only_the_arguments_that_it_wants(site) -> None:
    site.add(
        "chooser",
        "@hookimpl\ndef octavo_choose_attention_backend(candidates, device):\n    return (device, candidates)\n",
    )
    (chooser,) = load_extensions(EngineConfig()).backend_choosers
    assert chooser.entry(1, 2, "cpu", "float32", ("a", "b")) == ("cpu", ("a", "b"))
    assert chooser.entry(layer=1, spec=2, device="cuda", dtype="", candidates=()) == ("cuda", ())


def test_a_failing_maker_names_its_plugin(site) -> None:
    site.add("bad", "@hookimpl\ndef octavo_make_queue(policy):\n    raise KeyError(policy)\n", version="5")
    extensions = load_extensions(EngineConfig())
    with pytest.raises(PluginError, match=r"bad \(dist-bad 5\) failed to make queue 'x': KeyError"):
        extensions.first(extensions.queue_makers, "queue", "x")


@pytest.mark.parametrize("how", ["config", "environment", "command line"])
def test_a_disabled_plugin_is_never_imported(site, drafter, how) -> None:
    unwanted = site.add("unwanted", drafter("unwanted"))
    also = site.add("also", "raise SystemExit\n")
    wanted = site.add("wanted", drafter("wanted"))
    if how == "config":
        config = EngineConfig(disable_plugins=("unwanted", "also"))
    elif how == "environment":
        config = resolve_settings(env={"OCTAVO_DISABLE_PLUGINS": " also , unwanted ,"}).config
    else:
        config = resolve_settings(env={}, command_line={"disable_plugins": "unwanted,also"}).config
    extensions = load_extensions(config)
    assert unwanted not in sys.modules
    assert also not in sys.modules
    assert wanted in sys.modules
    assert list(extensions.drafters) == ["none", "wanted"]
    states = {report.name: report.state for report in survey(config).plugins()}
    assert states == {"builtin": "active", "wanted": "idle", "unwanted": "disabled", "also": "disabled"}


def test_an_empty_disable_list_disables_nothing(site, drafter) -> None:
    site.add("wanted", drafter("wanted"))
    assert "wanted" in load_extensions(resolve_settings(env={"OCTAVO_DISABLE_PLUGINS": " "}).config).drafters


def test_unknown_names_in_the_disable_list_are_errors(site, drafter) -> None:
    site.add("ngram", drafter("ngram"))
    with pytest.raises(ConfigError, match=r"no plugin is called 'ngrm'; did you mean 'ngram'\?"):
        load_extensions(EngineConfig(disable_plugins=("ngrm",)))
    with pytest.raises(ConfigError, match="cannot be disabled"):
        load_extensions(resolve_settings(env={"OCTAVO_DISABLE_PLUGINS": "builtin"}).config)


def test_no_autoload_looks_at_no_entry_point(site, monkeypatch) -> None:
    def forbidden(**_: object) -> None:
        raise AssertionError("looked at entry points")

    monkeypatch.setattr(importlib_metadata, "entry_points", forbidden)
    config = EngineConfig(autoload_plugins=False)
    assert [origin.plugin for origin in load_extensions(config).plugins] == ["builtin"]
    extensions = load_extensions(config, [Passed()])
    assert extensions.drafters["passed"].origin.plugin == "Passed"


def test_a_module_passed_in_goes_by_its_short_name() -> None:
    module = types.ModuleType("octavo_special.plugin")
    code = compile("from octavo.hookspecs import hookimpl\n" + OPTIONS, "special", "exec", dont_inherit=True)
    exec(code, module.__dict__)
    config = EngineConfig(autoload_plugins=False, plugins={"special": {"window": 9}})
    assert load_extensions(config, [module]).options["special"].window == 9


def test_a_passed_in_plugin_that_fails_is_an_error() -> None:
    module = types.ModuleType("octavo_special.plugin")
    module.octavo_register_modles = list
    with pytest.raises(PluginError, match=r"special .*did you mean 'octavo_register_models'"):
        load_extensions(EngineConfig(autoload_plugins=False), [module])


def test_an_installed_plugin_that_is_passed_in_too_is_loaded_once(site, drafter) -> None:
    name = site.add("mine", drafter("mine"), distribution="my-dist")
    module = __import__(name)
    extensions = load_extensions(EngineConfig(), [module])
    assert extensions.drafters["mine"].origin == Origin("mine", "my-dist", "1.0")
    assert [origin.plugin for origin in extensions.plugins] == ["builtin", "mine"]


def test_a_worker_loads_exactly_the_parents_list(site, drafter) -> None:
    site.add("a", drafter("a"))
    b = site.add("b", drafter("b"))
    parent = load_extensions(EngineConfig(disable_plugins=("b",)))
    names = [origin.plugin for origin in parent.plugins]
    worker = load_extensions(EngineConfig(), only=names)
    assert worker.plugins == parent.plugins
    assert b not in sys.modules
    assert load_extensions(EngineConfig(autoload_plugins=False), only=names).plugins == parent.plugins


def test_a_worker_that_lacks_a_plugin_says_how_to_mend_it(site) -> None:
    parent = load_extensions(EngineConfig(), [Passed()])
    with pytest.raises(PluginError, match=r"'Passed' is not installed here.*entry point"):
        load_extensions(EngineConfig(), only=[origin.plugin for origin in parent.plugins])


def test_a_worker_accepts_no_broken_plugin(site) -> None:
    site.add("faulty", "raise ValueError('no luck')\n")
    with pytest.raises(PluginError, match="no luck"):
        load_extensions(EngineConfig(), only=["faulty"])


def test_two_plugins_that_offer_one_name(site, drafter) -> None:
    site.add("one", drafter("ngram"), distribution="dist-one")
    site.add("two", drafter("ngram") + "\n@hookimpl\ndef octavo_make_queue(policy):\n    return 1\n")
    with pytest.raises(
        PluginError, match=r"drafter 'ngram' is offered by one \(dist-one 1.0\) and by two \(dist-two 1.0\)"
    ):
        load_extensions(EngineConfig())
    with pytest.raises(PluginError, match="is offered by"):
        load_extensions(EngineConfig(override_plugins=("one", "two")))
    for winner in ("one", "two"):
        extensions = load_extensions(EngineConfig(override_plugins=(winner,)))
        assert extensions.drafters["ngram"].origin.plugin == winner
        assert len(extensions.queue_makers) == 2
    assert load_extensions(EngineConfig(disable_plugins=("one",))).drafters["ngram"].origin.plugin == "two"
    found = survey(EngineConfig())
    states = {report.name: report.state for report in found.plugins()}
    assert states == {"builtin": "active", "one": "broken", "two": "broken"}
    assert [problem.plugin for problem in found.problems() if problem.plugin] == ["one", "two"]
    assert sum("'ngram' is offered by" in problem.problem for problem in found.problems()) == 2


def test_a_name_of_core_is_taken(site) -> None:
    source = "@hookimpl\ndef octavo_register_executors():\n    return [ExecutorEntry(name='inproc', factory='m:x')]\n"
    site.add("thief", source)
    with pytest.raises(PluginError, match=r"executor 'inproc' is offered by builtin \(octavo .*\) and by thief"):
        load_extensions(EngineConfig())
    found = survey(EngineConfig())
    assert found.extensions.executors["inproc"].origin.plugin == "builtin"
    won = load_extensions(EngineConfig(override_plugins=("thief",)))
    assert won.executors["inproc"].origin.plugin == "thief"


def test_an_unknown_override_is_an_error(site, drafter) -> None:
    site.add("ngram", drafter("ngram"))
    with pytest.raises(ConfigError, match=r"override_plugins: no plugin is called 'ngrm'; did you mean 'ngram'\?"):
        load_extensions(EngineConfig(override_plugins=("ngrm",)))


@pytest.mark.parametrize("name", ["twin", "builtin"])
def test_two_plugins_of_one_name(site, drafter, name) -> None:
    modules = [site.add(name, drafter(f"d{i}"), distribution=f"dist-{i}") for i in (1, 2)]
    with pytest.raises(PluginError, match=f"the plugin name '{name}' is taken twice, by .*dist-1 1.0 and dist-2 1.0"):
        load_extensions(EngineConfig())
    assert not set(modules) & set(sys.modules)
    found = survey(EngineConfig())
    assert sorted(b.origin.distribution for b in found.extensions.broken) == ["dist-1", "dist-2"]
    assert "inproc" in found.extensions.executors


def test_one_module_under_two_names_collides_with_itself(site, drafter) -> None:
    module = site.add("first", drafter("d"))
    site.add("second", "", module=module)
    with pytest.raises(PluginError, match=r"drafter 'd' is offered by first .* and by second"):
        load_extensions(EngineConfig())


def test_options_are_parsed_by_the_plugins_schema(site) -> None:
    site.add("opt", OPTIONS)
    assert load_extensions(EngineConfig()).options["opt"].window == 3
    text = {"window": "5", "mode": "exact", "words": "a, b", "limit": "none"}
    options = load_extensions(EngineConfig(plugins={"opt": text})).options["opt"]
    assert isinstance(options, Section)
    assert (options.window, options.mode, options.words, options.limit) == (5, "exact", ("a", "b"), None)
    offer = Offer(None, Origin("opt", "", ""))
    assert load_extensions(EngineConfig()).options_of(offer).window == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"opt": {"windw": 1}},
            r"unknown option 'plugins.opt.windw' from argument; did you mean 'plugins.opt.window'\?",
        ),
        ({"opt": {"window": 0}}, r"plugins.opt.window: must be int >= 1; got 0 from argument"),
        ({"opt": {"mode": "exat"}}, r"plugins.opt.mode: must be one of fast, exact; did you mean 'exact'\?"),
        ({"plain": {"x": 1}}, "plugins.plain: the plugin has no options"),
        (
            {"op": {"x": 1}},
            r"plugins.op: no such plugin is installed; did you mean 'opt'\?; installed: opt, plain; "
            "install the plugin, or remove its options from argument",
        ),
        ({"octavo-opt": {"x": 1}}, r"plugins.octavo-opt: no such plugin is installed; did you mean 'opt'\?"),
        ({"off": {"x": 1}}, "plugins.off: the plugin is disabled"),
    ],
)
def test_wrong_options(site, drafter, given, message) -> None:
    site.add("opt", OPTIONS)
    site.add("plain", drafter("plain"))
    site.add("off", OPTIONS)
    settings = resolve_settings(env={}, keywords={"plugins": given, "disable_plugins": ["off"]})
    with pytest.raises(ConfigError, match=message):
        load_extensions(settings.config, sources=settings.sources)


def test_a_distributions_name_finds_its_plugin(site, drafter) -> None:
    site.add("torch_sdpa", drafter("a"))
    for field in ("disable_plugins", "override_plugins"):
        with pytest.raises(ConfigError, match=r"no plugin is called 'octavo-torch-sdpa'; did you mean 'torch_sdpa'\?"):
            load_extensions(EngineConfig(**{field: ("octavo-torch-sdpa",)}))


def test_two_engines_share_nothing(site, drafter) -> None:
    site.add("a", drafter("a"))
    first = load_extensions(EngineConfig())
    second = load_extensions(EngineConfig(disable_plugins=("a",)))
    assert "a" in first.drafters
    assert "a" not in second.drafters


def test_the_named_processor_must_exist() -> None:
    config = resolve_settings(env={}, keywords={"logits_processors": ["penaltys"], "autoload_plugins": False}).config
    with pytest.raises(PluginError, match=r"no logits processor is called 'penaltys'; did you mean 'penalties'\?"):
        load_extensions(config)


def test_the_report_tells_state_capabilities_and_options(site, drafter) -> None:
    backend = """
@hookimpl
def octavo_register_attention_backends():
    can = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}), alibi=True)
    why = lambda: "no gcc"
    return [AttentionBackendEntry(name="nat", factory="json:loads", capabilities=can, priority=3, unavailable=why)]
"""
    site.add("nat", OPTIONS + backend)
    site.add("ngram", drafter("ngram"))
    selected = resolve_settings(env={}, keywords={"drafter": "ngram", "plugins": {"nat": {"window": 8}}}).config
    found = survey(selected)
    reports = {report.name: report for report in found.plugins()}
    assert {name: report.state for name, report in reports.items()} == dict.fromkeys(reports, "active")
    assert survey(EngineConfig()).plugins()[2].state == "idle"
    (offer,) = reports["nat"].offers
    assert offer.capabilities["devices"] == ["cpu"]
    assert offer.capabilities["alibi"] is True
    assert offer.capabilities["priority"] == 3
    window, mode, words, limit = reports["nat"].options
    assert (window.type, window.default, window.value, window.help) == ("int", 3, 8, "Tokens looked at.")
    assert (mode.type, words.type, limit.type) == ("fast|exact", "list of str", "int or none")
    problems = [problem.problem for problem in found.problems()]
    lacking = [f"no installed plugin offers any {kind}" for kind in ("model", "weight format")]
    assert problems == ["attention backend 'nat' cannot run: no gcc", *lacking]


def test_a_registry_says_what_exists() -> None:
    registry = Registry("drafter", {"ngram": Offer(1, Origin("p", "d", "1"))})
    assert registry.find("ngram").entry == 1
    with pytest.raises(
        PluginError, match=r"no drafter is called 'ngrm'; did you mean 'ngram'\?; there is: ngram \[p\]"
    ):
        registry.find("ngrm")
    with pytest.raises(PluginError, match="no installed plugin offers any drafter"):
        Registry("drafter", {}).find("x")


def test_builtins_stay_clear_of_torch_and_their_import_strings_are_well_formed() -> None:
    extensions = load_extensions(EngineConfig(autoload_plugins=False))
    processors = {name: offer.entry for name, offer in extensions.logits_processors.items()}
    assert list(processors) == ["penalties", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"]
    assert [entry.order for entry in processors.values()] == [10, 20, 30, 40, 50]
    assert all(entry.always for entry in processors.values())
    assert set(extensions.platforms) == {"cpu", "cuda"}
    policy = extensions.kv_policies["FullAttentionSpec"].entry
    assert load_factory(policy.factory).__name__ == "FullAttentionPolicy"
    for name in ("fcfs", "priority"):
        assert len(extensions.first(extensions.queue_makers, "queue", name)) == 0
