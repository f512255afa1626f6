"""The conformance suites can fail: plugins that are each wrong in one way break exactly the laws that forbid it.

The plugins are in `wrong_plugins/`, next to one of each kind that is as it should be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent / "wrong_plugins"
SUITES = {
    "drafters": "DrafterSuite",
    "processors": "LogitsProcessorSuite",
    "grammars": "GrammarSuite",
    "attention_backends": "AttentionBackendSuite",
    "kv_policies": "KVPolicySuite",
    "models": "ModelSuite",
    "executors": "ExecutorSuite",
    "tool_parsers": "ToolParserSuite",
    "reasoning_parsers": "ReasoningParserSuite",
    "routes": "RouteSuite",
}

_ROWS = "a_row_is_what_it_is_alone_and_other_rows_stay_as_they_are"
_ORDER = "the_order_of_sequences_does_not_matter"
_DRAFTS = "drafts_are_history_to_the_rows_behind_them"
_ACCEPT = "only_accept_moves_its_state"
_AT_ONCE = "tokens_accepted_at_once_are_tokens_accepted_one_by_one"
_RELEASE = "released_sequences_leave_nothing"
_SAME_TOKENS = "the_tokens_are_the_same_in_every_circumstance"
_PLAIN_TOKENS = "the_tokens_are_those_of_plain_decoding"
_OTHERS = "a_sequences_drafts_do_not_depend_on_other_requests"
_PROPOSALS = "proposals_are_token_ids_and_not_too_many"
_COPES = "it_copes_with_whatever_sequence_there_is"
_RUNNER_TOKENS = "the_tokens_are_those_of_the_runner_in_this_process"
_RECORDED = "a_recorded_run_has_the_same_results_step_by_step"
_SAMPLES = "samples_are_taken_apart"
_CUT = "the_cut_does_not_matter"
_PLAIN_TEXT = "plain_text_comes_out_as_it_is"
_AT_ONCE_OUT = "plain_text_is_not_held_back"
_ONCE = "what_is_put_in_comes_out_once_and_in_order"
_FLUSH = "flushing_twice_adds_nothing"
_SHARE = "parsers_share_nothing"
_ARGUMENTS = "arguments_are_those_that_were_spoken"
_BACK = "a_conversation_told_in_plain_messages_parses_back"
_PROCESSOR_LAWS = {
    *(_ROWS, _ORDER, _DRAFTS, _ACCEPT, _AT_ONCE, _RELEASE, _SAME_TOKENS),
    *("two_processors_share_nothing_and_agree", "an_id_used_anew_starts_from_nothing"),
}
"""Those that a grammar breaks whose engine accepts what its mask does not allow, or the other way round."""
_ATTENTION_LAWS = {
    "prefill_and_decode_in_one_batch",
    "lengths_about_the_edges_of_blocks",
    "head_sizes_and_groups_of_heads",
    "chunks_are_as_the_whole",
    "layers_of_one_group_share_metadata",
    "two_caches_in_one_process_do_not_meet",
    "sequences_that_share_their_first_blocks",
}

BROKEN_LAWS: dict[str, set[str]] = {
    "drafters.Right": set(),
    "drafters.Leaky": {_RELEASE},
    "drafters.Peeking": {_OTHERS},
    "drafters.Remembering": {_OTHERS, _COPES},
    "drafters.Overlong": {_PROPOSALS, _COPES},
    "drafters.Fragile": {
        *(_PLAIN_TOKENS, _PROPOSALS, _COPES, _OTHERS, _RELEASE),
        *("two_drafters_share_nothing", "state_grows_by_so_much_with_each_token_and_no_more"),
    },
    "processors.Right": set(),
    "processors.NeighbourReading": {_ROWS, _DRAFTS, _SAME_TOKENS},
    "processors.NeighbourWriting": {_ROWS, _ORDER},
    "processors.DraftBlind": {_DRAFTS, _SAME_TOKENS},
    "processors.DraftCounting": {_ROWS, _ORDER, _DRAFTS, _ACCEPT, _AT_ONCE, _SAME_TOKENS},
    "processors.Leaky": {_RELEASE},
    "grammars.Right": set(),
    "grammars.WrongRollback": {
        "the_mask_allows_what_accept_takes",
        "it_ends_where_the_output_may_end",
        "rollback_is_exact",
    },
    "grammars.ShortRollback": {
        *_PROCESSOR_LAWS,
        "rollback_is_exact",
        "rows_behind_drafts_are_the_masks_of_the_history",
    },
    "grammars.OneTooMany": {
        *_PROCESSOR_LAWS,
        "the_mask_allows_what_accept_takes",
        "it_ends_where_the_output_may_end",
        "forced_text_is_forced",
    },
    "grammars.EarlyEnd": {"it_ends_where_the_output_may_end"},
    "grammars.Drifting": {
        *_PROCESSOR_LAWS,
        "rows_behind_drafts_are_the_masks_of_the_history",
        "sequences_in_one_bitmask_are_each_as_alone",
    },
    "attention_backends.Right": set(),
    "attention_backends.OffByOne": _ATTENTION_LAWS,
    "attention_backends.Unclean": {*_ATTENTION_LAWS, "a_sequence_does_not_depend_on_its_batch_mates"},
    "attention_backends.Overwriting": {"only_the_slots_of_the_step_are_written"},
    "kv_policies.Right": set(),
    "kv_policies.TooLongHit": {
        "a_hit_is_the_longest_that_can_be_used",
        "every_block_that_is_read_holds_what_was_written",
    },
    "kv_policies.TooShortHit": {"a_hit_is_the_longest_that_can_be_used"},
    "kv_policies.TooSmall": {
        "what_is_needed_never_comes_back",
        "every_block_that_is_read_holds_what_was_written",
    },
    "kv_policies.Modest": {"no_sequence_holds_more_than_it_says"},
    "models.Right": set(),
    "models.OffInChunks": {"chunks_batches_and_caches_change_nothing"},
    "models.BatchBlind": {"chunks_batches_and_caches_change_nothing"},
    "models.Forgetful": {"every_weight_counts"},
    "executors.Right": set(),
    "executors.AbortDropping": {_RUNNER_TOKENS, "every_sequence_is_released_once"},
    "executors.DraftLosing": {_RECORDED},
    "executors.Mixing": {_RUNNER_TOKENS, _RECORDED, "a_processor_that_fails_ends_its_own_sequence"},
    "executors.Lingering": {"it_can_be_shut_down_twice_and_leaves_nothing"},
    "tool_parsers.Right": set(),
    "tool_parsers.Whole": {_AT_ONCE_OUT, "arguments_come_as_they_are_spoken"},
    "tool_parsers.TakingPiecesForMarks": {_SAMPLES, _CUT, _SHARE, _ARGUMENTS, _BACK},
    "tool_parsers.Losing": {_SAMPLES, _ONCE},
    "tool_parsers.Doubling": {_SAMPLES, _ONCE, _FLUSH},
    "tool_parsers.Credulous": {_SAMPLES, _PLAIN_TEXT, _ARGUMENTS, _BACK},
    "tool_parsers.Reordering": {_CUT, _SHARE},
    "tool_parsers.LateName": {_SAMPLES, _CUT, _ONCE, _FLUSH, _SHARE, _ARGUMENTS, _BACK},
    "tool_parsers.Shared": {_SHARE},
    "tool_parsers.Unfaithful": {_BACK},
    "tool_parsers.Blunt": {"it_tells_which_templates_it_suits"},
    "tool_parsers.Hurried": {_SAMPLES, _ARGUMENTS, _BACK},
    "reasoning_parsers.Right": set(),
    "reasoning_parsers.PromptBlind": {_SAMPLES},
    "reasoning_parsers.AlwaysInside": {_SAMPLES, _PLAIN_TEXT, _AT_ONCE_OUT},
    "reasoning_parsers.Patient": {_SAMPLES, _ONCE, "reasoning_comes_as_it_is_spoken"},
    "reasoning_parsers.Anywhere": {_SAMPLES},
    "reasoning_parsers.Calling": {_SAMPLES, _CUT, _ONCE, _SHARE},
    "routes.Right": set(),
    "routes.Undeclared": {"answers_are_what_the_entry_says"},
    "routes.Unannounced": {"answers_are_what_the_entry_says"},
    "routes.Careless": {"calls_at_once_are_answered_as_alone"},
    "routes.Orphaning": {"a_client_that_leaves_leaves_nothing_running"},
    "routes.Mixing": {"calls_at_once_are_answered_as_alone"},
    "routes.Counting": {
        "calls_at_once_are_answered_as_alone",
        "the_order_of_calls_does_not_matter",
        "a_client_that_leaves_leaves_nothing_running",
    },
    "routes.Brave": {"an_engine_that_ends_meanwhile_leaves_no_half_answer"},
    "routes.Undescribed": {"a_server_can_describe_it"},
    "routes.Silent": {"what_is_refused_is_told_why"},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """For each plugin its laws, each with how it came out: `passed`, `failed`, `skipped`."""
    report = tmp_path_factory.mktemp("suites") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:logging", "--tb=no", "--assert=plain"]
    files = [str(FOLDER / f"{name}.py") for name in SUITES]
    command = [sys.executable, "-m", "pytest", *options, "-o", "python_files=*.py", f"--junitxml={report}", *files]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER.parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for case in ElementTree.parse(report).iter("testcase"):
        plugin = ".".join(case.attrib["classname"].split(".")[-2:]).replace(".Test", ".")
        law = case.attrib["name"].partition("[")[0].removeprefix("test_")
        ends = {child.tag for child in case}
        outcome = "failed" if ends & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"
        found[plugin][law].add(outcome)
    return found


def test_every_plugin_here_was_tried(outcomes: dict[str, dict[str, set[str]]]) -> None:
    assert set(outcomes) == set(BROKEN_LAWS)
    assert {name.partition(".")[0] for name in outcomes} == set(SUITES)
    for suite in SUITES:
        assert "passed" in {outcome for laws in outcomes[f"{suite}.Right"].values() for outcome in laws}


@pytest.mark.parametrize("plugin", BROKEN_LAWS)
def test_exactly_the_laws_that_it_breaks_fail(plugin: str, outcomes: dict[str, dict[str, set[str]]]) -> None:
    assert {law for law, found in outcomes[plugin].items() if "failed" in found} == BROKEN_LAWS[plugin]
