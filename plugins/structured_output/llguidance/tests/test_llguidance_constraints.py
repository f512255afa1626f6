"""What each kind of constraint means, and what is refused because it would not be enforced."""

from __future__ import annotations

import datetime
import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.errors import InvalidRequestError
from octavo.structured_outputs import StructuredOutputsParams

OBJECT = {"type": "object"}
A_INTEGER = {**OBJECT, "properties": {"a": {"type": "integer"}}}
CLOSED = {**A_INTEGER, "required": ["a"], "additionalProperties": False}

REFUSED = [
    # (constraint, what the message names)
    ({"regex": "[a"}, "unclosed character class"),
    ({"regex": "(a)\\1"}, "backreferences"),
    ({"regex": "a(?=b)b"}, "look-around"),
    ({"regex": "\\bfoo\\b"}, "lookarounds"),
    ({"regex": "x(^a)"}, "lookarounds"),
    ({"regex": "a{5,2}"}, "repetition"),
    ({"regex": "a\\"}, "backslash"),
    ({"regex": "[a&&b]"}, "nothing satisfies it"),
    ({"grammar": 'root ::= "a" | "b"'}, "::="),
    ({"grammar": "start: b"}, "unknown name"),
    ({"grammar": 'start: "a"\nstart: "b"'}, "duplicate rule"),
    ({"grammar": 'a: "x"'}, "no start rule"),
    ({"grammar": 'start: "a'}, "lexer error"),
    ({"grammar": "start: /[/"}, "unclosed character class"),
    ({"grammar": "start: x\nx: x"}, "nothing satisfies it"),
    ({"grammar": "start: x\nx[temperature=0.5]: /[a-z]/"}, "temperature"),
    ({"grammar": "start: x\nx[max_tokens=5]: /[a-z]+/"}, "max_tokens"),
    ({"grammar": '%llguidance {"no_forcing": false}\nstart: "a"'}, "%llguidance"),
    ({"grammar": 'start: <[1]> | "a"'}, "special tokens"),
    ({"json": False}, "false"),
    ({"json": {"type": "str"}}, "str"),
    ({"json": {"type": []}}, "anyOf is empty"),
    ({"json": {"enum": []}}, "anyOf is empty"),
    ({"json": {"minimum": "3"}}, "minimum"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 1}}, "minimum"),
    ({"json": {"type": "array", "minItems": 3, "maxItems": 1}}, "minItems"),
    ({"json": {"type": "string", "minLength": 3, "maxLength": 1}}, "minLength"),
    ({"json": {**OBJECT, "required": ["a"], "additionalProperties": False}}, "required property 'a'"),
    ({"json": {"allOf": [{"type": "integer"}, {"type": "string"}]}}, "Unsatisfiable"),
    ({"json": {"$ref": "#"}}, "nothing satisfies it"),
    ({"json": {"$ref": "#/$defs/nowhere"}}, "nowhere"),
    ({"json": {"$ref": "http://example.com/schema"}}, "example.com"),
    ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "oneOf"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json": {"type": "array", "contains": {"type": "string"}}}, "contains"),
    ({"json": {**OBJECT, "propertyNames": {"pattern": "^x"}}}, "propertyNames"),
    ({"json": {**OBJECT, "dependentRequired": {"a": ["b"]}}}, "dependentRequired"),
    ({"json": {**OBJECT, "unevaluatedProperties": False}}, "unevaluatedProperties"),
    ({"json": {**OBJECT, "minProperties": 2}}, "minProperties"),
    ({"json": {**OBJECT, "patternProperties": {"^a": {"type": "null"}, "b$": {}}}}, "not disjoint"),
    ({"json": {"not": {"type": "string"}}}, "not"),
    ({"json": {"if": {"type": "string"}, "then": {"maxLength": 1}}}, "if"),
    ({"json": {"$dynamicRef": "#a"}}, "dynamicRef"),
    ({"json": {"type": "string", "format": "nonsense"}}, "nonsense"),
    ({"json": {"type": "integer", "format": "int32"}}, "int32"),
    ({"json": {"type": "string", "format": "unknown"}}, "unknown"),
    ({"json": {"type": "string", "nullable": True}}, "nullable"),
    ({"json": {"type": "integer", "divisibleBy": 2}}, "divisibleBy"),
    ({"json": {"type": "string", "maxlength": 2}}, "maxLength"),
    ({"json": {"items": {"anyOf": [{"type": "array", "min_items": 2}]}}}, "minItems"),
    ({"json": {"$defs": {"a": {"x-guidance": {"lenient": True}}}}}, "x-guidance"),
    ({"json": {"type": "string", "pattern": "^[a&&b]$"}}, "&&"),
    ({"json": {"type": "string", "pattern": "^[[:alpha:]]$"}}, r"\["),
    ({"json": {**OBJECT, "patternProperties": {"^[+--]$": {}}}}, "--"),
    ({"json": {"const": {"a": ["\x01"]}}}, "const"),
    ({"json": {**OBJECT, "properties": {"\x7f": {}}}}, "properties"),
]


@pytest.mark.parametrize(("constraint", "named"), REFUSED, ids=str)
def test_what_would_not_be_enforced_is_refused_by_name(kit, constraint, named):
    with pytest.raises(InvalidRequestError, match=named.replace("(", r"\(")) as caught:
        kit.matcher(**constraint)
    assert caught.value.field == "structured_outputs"
    assert "\n" not in str(caught.value)


def test_errors_leave_the_backend_as_it_was_also_in_several_threads(kit):
    """vllm #43920, #17313: there a bad constraint behind a good one ended the engine."""
    good = [({"regex": "^(.*)$"}, "a"), ({"regex": "^(|.*)$"}, "a"), ({"json": CLOSED}, '{"a":1}')]
    work = [*good * 4, *((constraint, None) for constraint, _ in REFUSED[:12])]
    random.Random(0).shuffle(work)

    def outcome(item):
        constraint, text = item
        try:
            return kit.takes(text or "", **constraint)
        except InvalidRequestError:
            return text is None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(outcome, work))


FAITHFUL = [
    # (schema, texts that satisfy it, texts that do not)
    (CLOSED, ['{"a":1}'], ['{"a":1.0}', "{}", '{"a":1,"b":2}', '{"a": 1}']),
    (A_INTEGER, ['{"a":1,"b":"x"}', '{"é":[]}'], ['{"a":"x"}', '{"\\u0061":"x"}', '{"a":1,"a":2}']),
    ({**OBJECT, "patternProperties": {"^a": {"type": "null"}}}, ['{"ab":null,"b":1}'], ['{"ab":1}', '{"\\u0061b":1}']),
    ({**OBJECT, "maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":2}']),
    ({**CLOSED, "minProperties": 1}, ['{"a":1}'], ["{}"]),
    ({"prefixItems": [{"type": "null"}], "items": False}, ["[]", "[null]", "3"], ["[1]", "[null,1]"]),
    ({"type": "number", "multipleOf": 0.5, "minimum": 1}, ["1.5", "2"], ["0.5", "1.2"]),
    ({"minimum": 5}, ["5", '"x"'], ["4", "-5"]),
    ({"type": "string", "maxLength": 2}, ['"ab"', '"\\n\\""', '"é😀"', '"\\\\"'], ['"abc"', '"\\u00e9"', '"\t"']),
    ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xax"']),
    ({"type": "string", "pattern": "^\\d\\w$"}, ['"1a"'], ['"٣a"', '"1é"']),
    ({"type": "string", "format": "time"}, ['"23:59:59.5z"'], ['"23:59:60Z"', '"24:00:00Z"', '"12:00:00"']),
    ({"format": "date-time"}, ['"2024-02-29T23:59:59Z"', "3"], ['"2023-02-29T23:59:59Z"', '"2024-02-29T23:59:60Z"']),
    ({"enum": ["é", "日本", "😀", None]}, ['"é"', '"日本"', '"😀"', "null"], ['"\\u00e9"', '"?"', "Null"]),
    ({"const": {"b": "/", "a": [1, True]}}, ['{"b":"/","a":[1,true]}'], ['{"a":[1,true],"b":"/"}']),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"x"'], ["null"]),
    ({"allOf": [{"maxLength": 3}, {"minLength": 2}], "type": "string"}, ['"ab"'], ['"a"', '"abcd"']),
    ({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}, ["[[],[[]]]"], ["[1]"]),
    ({"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": {"type": "string"}}}, ['"a"'], ['"ab"', "1"]),
    ({}, ['{"a":[1,-2.5e3,null,"x"]}'], ["{a:1}", "01"]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), FAITHFUL, ids=lambda value: json.dumps(value)[:40])
def test_schemas_are_enforced(kit, schema, valid, invalid):
    for text in valid:
        assert kit.takes(text, json=schema), text
        json.loads(text)
    for text in invalid:
        assert not kit.takes(text, json=schema), text


def test_dates_are_those_of_the_calendar(kit):
    compiled = kit.backend.compile(StructuredOutputsParams(json={"type": "string", "format": "date"}))
    for year in (1, 1900, 2000, 2023, 2024):
        for month, day in itertools.product(range(14), range(33)):
            text = f'"{year:04}-{month:02}-{day:02}"'
            try:
                exists = bool(datetime.date(year, month, day))
            except ValueError:
                exists = False
            matcher = compiled.matcher(frozenset())
            assert all(matcher.accept(token_id) for token_id in kit.tokenizer.ids(text)) == exists, text


def test_keywords_that_say_nothing_are_passed_over(kit):
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A",
        "description": "maxlength of nothing",
        "type": "array",
        "uniqueItems": False,
        "unevaluatedItems": True,
        "items": {
            **OBJECT,
            "propertyNames": {},
            "dependentRequired": {},
            "nullable": False,
            "default": {"minItems": "x"},
        },
        "examples": [{"nullable": True}],
        "x-order": 3,
    }
    assert kit.takes("[{}]", json=schema)
    assert not kit.takes("{}", json=schema)


def test_a_property_may_be_called_like_a_keyword(kit):
    schema = {**OBJECT, "properties": {"maxlength": {"type": "null"}, "nullable": {"type": "integer"}}}
    assert kit.takes('{"maxlength":null,"nullable":1}', json=schema)


def test_both_spellings_of_a_schema_are_the_same(kit):
    schema = {"enum": ["é", "日本", "😀"], "title": "Größe"}
    spellings = [json.dumps(schema, ensure_ascii=ascii_only) for ascii_only in (True, False)]
    masks = [kit.mask(kit.matcher(json=text)) for text in spellings]
    assert spellings[0] != spellings[1]
    assert masks[0] == masks[1]


def test_whitespace_only_if_it_is_asked_for_and_then_bounded(kit):
    """vllm #4093: a model that likes whitespace went on until the last token."""
    loose = '{ "a" :\n\t1\r\n}'
    assert not kit.takes(loose, json=CLOSED)
    assert kit.takes(loose, json=CLOSED, any_whitespace=True)
    assert kit.takes('{"a":1}', json=CLOSED, any_whitespace=True)
    for count, expected in ((16, True), (17, False)):
        for place in ("{%s}", "{}", "[1,%s2]", '{"a"%s:1}'):
            text = place.replace("%s", " " * count)
            schema = {} if place != "{}" else OBJECT
            assert kit.takes(text, json=schema, any_whitespace=True) == (expected or place == "{}")
    for text in (" {}", "{} "):
        assert not kit.takes(text, json_object=True, any_whitespace=True)


def test_json_objects(kit):
    assert kit.takes('{"a":{"é":[1,"x"]}}', json_object=True)
    for text in ("[]", "1", '{"a": 1}', '{"a":1}}'):
        assert not kit.takes(text, json_object=True)


@pytest.mark.parametrize(
    ("regex", "valid", "invalid"),
    [
        ("^(foo|b.r)$", ["foo", "bar", "bér"], ["fo", "b\nr", "foobar"]),
        ("a/b\\/c", ["a/b/c"], ["a\\/b/c"]),
        ("(?i)abc", ["aBc"], ["abd"]),
        ("a\nb", ["a\nb"], ["ab"]),
        ("[\\d_]\\w", ["1a", "_1"], ["٣a", "1é", ""]),
        ("a\rb|\\r", ["a\rb", "\r"], ["ab"]),
        ('"#//x"', ['"#//x"'], ['"']),
        ("\\x00", ["\0"], ["x"]),
    ],
)
def test_regular_expressions(kit, regex, valid, invalid):
    assert all(kit.takes(text, regex=regex) for text in valid)
    assert not any(kit.takes(text, regex=regex) for text in invalid)


def test_many_choices(kit):
    choices = [f"choice {i * 7919} end" for i in range(2_000)]
    matcher = kit.matcher(choice=choices)
    assert matcher.forced_text() == "choice "
    assert kit.takes(choices[1234], choice=choices)
    assert not kit.takes("choice 1 end", choice=choices)


LARK = """
start: sum              // comment with ::= and temperature=1
sum: sum "+" product | product
product: NUMBER | "(" sum ")"
NUMBER: /[0-9]+(\\.[0-9]+)?/
%ignore / /
"""


def test_a_lark_grammar(kit):
    for text in ("1+2", "(1 + 2.5)+3", "((7))"):
        assert kit.takes(text, grammar=LARK), text
    for text in ("1+", "(1", "1\t+2", "a"):
        assert not kit.takes(text, grammar=LARK), text
    assert kit.takes('a::=<b>{"x":1}', grammar='start: "a::=<b>" %json {"type":"object"}')
