"""`octavo plugins`: the list, one plugin in detail, what is wrong, what goes together, and a new one.

Owns: how the report is printed. Must never know: how plugins are found and loaded.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from octavo.cli.matrix import run_matrix
from octavo.cli.new_plugin import KINDS, write_plugin
from octavo.cli.options import add_engine_options, settings_from
from octavo.cli.parser import Parser
from octavo.cli.tables import shown, table
from octavo.errors import ConfigError, PluginError
from octavo.plugins import PluginReport, Survey, survey
from octavo.plugins.resolve import plugin_suggestion

_NAMED = {"show": "show NAME", "new": "new NAME --kind KIND"}
"""Actions that take a name, as they are written."""


def configure(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "show", "doctor", "matrix", "new"), default="list")
    parser.add_argument("name", nargs="?", help="the plugin to show, or the name of a new one, like my-drafter")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--kind", metavar="KIND", help=f"what a new plugin offers: {', '.join(KINDS)}")
    parser.add_argument("--output", metavar="DIR", help="folder to make for a new plugin; default: octavo-NAME")
    add_engine_options(parser, listed=False)  # their values show in the report


def run(arguments: argparse.Namespace) -> int:
    action = arguments.action
    if (action in _NAMED) != (arguments.name is not None):
        usage = _NAMED.get(action, "show NAME")
        raise ConfigError(f"write `octavo plugins {usage}`; see `octavo plugins --help`")
    if action != "new" and (arguments.kind or arguments.output):
        raise ConfigError(f"--kind and --output are for `octavo plugins {_NAMED['new']}`")
    settings = settings_from(arguments)
    if action == "matrix":
        return run_matrix(settings.config, arguments.json)
    found = survey(settings.config)
    if action == "new":
        print(write_plugin(arguments.name, arguments.kind, arguments.output, found.plugins()))
        return 0
    if action == "doctor":
        return _doctor(found, arguments.json)
    reports = found.plugins()
    if action == "show":
        reports = [report for report in reports if report.name == arguments.name]
        if not reports:
            names = [report.name for report in found.plugins()]
            near = plugin_suggestion(arguments.name, names)
            raise PluginError(f"no plugin is called {arguments.name!r}{near}; there is: {', '.join(names)}")
    if arguments.json:
        _print_json(reports if action == "list" else reports[0])
    elif action == "list":
        rows = [[r.name, r.distribution, r.version, r.state, r.reason or _offers(r)] for r in reports]
        print(table(["NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"], rows))
    else:
        print("\n\n".join(_details(report) for report in reports))
    return 0


def _doctor(found: Survey, as_json: bool) -> int:
    problems = found.problems()
    if as_json:
        _print_json(problems)
    elif not problems:
        print("no problems")
    for problem in [] if as_json else problems:
        print(f"- {problem.problem}\n  mend: {problem.mend}")
    return 1 if problems else 0


def _offers(report: PluginReport) -> str:
    kinds: dict[str, list[str]] = {}
    for offer in report.offers:
        kinds.setdefault(offer.kind, []).append(offer.name)
    parts = [f"{kind}: {', '.join(names)}" for kind, names in kinds.items()]
    makers = [hook for hook in report.hooks if hook.startswith(("octavo_make_", "octavo_choose_"))]
    parts += [hook.removeprefix("octavo_").replace("_", " ") for hook in makers]
    return "; ".join(parts)


def _details(report: PluginReport) -> str:
    needs = report.requires or "no range of octavo declared"
    lines = [f"{report.name}  {report.distribution} {report.version}  ({needs})", f"state: {report.state}"]
    if report.reason:
        lines.append(f"reason: {report.reason}")
    if report.hooks:
        lines.append(f"hooks: {', '.join(report.hooks)}")
    for offer in report.offers:
        told = ", ".join(f"{name} {shown(value)}" for name, value in offer.capabilities.items())
        lines.append(f"{offer.kind} {offer.name}" + (f": {told}" if told else ""))
    if report.options:
        rows = [
            [f"plugins.{report.name}.{o.name}", o.type, shown(o.default), shown(o.value), o.help]
            for o in report.options
        ]
        lines += ["options:", table(["KEY", "TYPE", "DEFAULT", "NOW", "HELP"], rows)]
    return "\n".join(lines)


def _print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2))
