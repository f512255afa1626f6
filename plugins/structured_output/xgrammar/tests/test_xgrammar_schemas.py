"""Each keyword of JSON Schema is enforced, or refused by name; nothing is silently weaker."""

from __future__ import annotations

import json
import random

import pytest

from octavo.errors import InvalidRequestError
from octavo_xgrammar.plugin import XGrammarOptions

INT, STR = {"type": "integer"}, {"type": "string"}
RECURSIVE = {"type": "object", "properties": {"v": INT, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
SHAPES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "circle"}, "r": INT}, "required": ["kind", "r"]},
        {"type": "object", "properties": {"kind": {"enum": ["box", "cube"]}, "w": INT}, "required": ["kind", "w"]},
    ]
}
EXACT = [
    # objects
    ({"properties": {"a": INT}}, ["{}", '{"a":1}'], ['{"a":"x"}', '{"a":1,"a":2}', '{"a": 1}', "1"]),
    (
        {"properties": {"a": INT}, "additionalProperties": True},
        ['{"a":1,"b":[]}'],
        ['{"b":1,"a":"x"}', '{"a":"x"}', '{"\\u0061":"x"}'],
    ),
    (
        {"properties": {"a": INT, "s/t": INT}, "additionalProperties": True},
        [r'{"a":1,"\nx":[],"b\u0061":1,"q\"":1}'],
        [rf'{{"z":1,"{name}":"x"}}' for name in (r"\u0061", r"s\/t", r"\u0073/t", r"s\u002ft")],
    ),
    (
        {"properties": {"a": INT, 'q"': INT, "s/t": INT, "n\n": INT}, "additionalProperties": True},
        [r'{"a":1,"q\"":2,"n\n":3,"b\u0061":1}'],
        [
            rf'{{"z":1,"{name}":"x"}}'
            for name in (r"\u0061", r"q\"", r"q\u0022", r"s\/t", r"\u0073/t", r"n\n", r"n\u000a")
        ],
    ),
    ({"properties": {"a": INT}, "additionalProperties": STR}, ['{"a":1,"b":"x"}', '{"b":"x"}'], ['{"b":1}']),
    ({"properties": {"a": INT}, "unevaluatedProperties": STR}, ['{"a":1,"b":"x"}'], ['{"b":1}']),
    ({"type": "object"}, ['{"a":1,"b":null}', "{}"], ["[]"]),
    ({"properties": {"a": INT}, "required": ["a", "b"]}, ['{"a":1,"b":[]}'], ["{}", '{"a":1}']),
    ({"properties": {"a": INT}, "required": ["b"], "additionalProperties": STR}, ['{"a":1,"b":"x"}'], ['{"b":1}']),
    ({"required": ["b"]}, ['{"b":1}'], ["{}", '{"a":1}']),
    ({"properties": {"a": INT, "b": INT}, "minProperties": 1}, ['{"b":1}', '{"a":1,"b":1}'], ["{}"]),
    ({"properties": {"a": INT, "b": INT}, "maxProperties": 1}, ["{}", '{"b":1}'], ['{"a":1,"b":1}']),
    ({"additionalProperties": INT, "minProperties": 1, "maxProperties": 2}, ['{"x":1}'], ["{}", '{"a":1,"b":1,"c":1}']),
    ({"patternProperties": {"^a": INT}}, ['{"ab":1,"a":2}', "{}"], ['{"ab":"x"}', '{"b":1}']),
    ({"propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": INT}, ['{"ab":1}'], ['{"d":1}', '{"ab":"x"}']),
    ({"propertyNames": {"maxLength": 2}}, ['{"ab":1}', '{"é":1}'], ['{"abc":1}']),
    ({"propertyNames": {"enum": ["x", "y"]}}, ['{"y":1}'], ['{"z":1}']),
    ({"propertyNames": {"enum": [1]}}, ["{}"], ['{"1":1}']),
    ({"propertyNames": {"type": "null"}}, ["{}"], ['{"1":1}']),
    ({"properties": {"a": False, "b": INT}}, ['{"b":1}', "{}"], ['{"a":1}']),
    ({"properties": {"é": INT, 'a"b': INT, "😀": INT}}, ['{"é":1,"a\\"b":2,"😀":3}'], ['{"e":1}']),
    # arrays
    ({"items": INT}, ["[]", "[1,2]"], ['["x"]', "[1, 2]"]),
    ({"minItems": 2, "maxItems": 3}, ["[1,[]]", "[1,2,3]"], ["[1]", "[1,2,3,4]"]),
    ({"prefixItems": [INT, STR], "items": False, "minItems": 1}, ["[1]", '[1,"x"]'], ["[]", "[1,2]", '[1,"x",3]']),
    ({"prefixItems": [INT], "items": STR}, ['[1,"x","y"]', "[]"], ["[1,2]", '["x"]']),
    ({"prefixItems": [INT]}, ["[1,null]"], ["[null]"]),
    ({"items": [INT], "additionalItems": False}, ["[1]"], ["[1,2]", '["x"]']),
    ({"items": False}, ["[]"], ["[1]"]),
    ({"prefixItems": [INT, STR], "maxItems": 1}, ["[]", "[1]"], ['[1,"x"]', '["x"]']),
    ({"items": INT, "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1,1]"]),
    ({"prefixItems": [INT, False]}, ["[1]", "[]"], ["[1,2]"]),
    # strings
    ({"minLength": 2, "maxLength": 3}, ['"ab"', '"éé😀"', r'"\"\\\n"', r'"\u00e9b"'], ['"a"', '"abcd"', '"\tab"']),
    ({"minLength": 200}, ['"' + "a" * 200 + r'\n"'], ['"' + "a" * 199 + '"']),
    ({"maxLength": 300}, ['"' + "é" * 300 + '"', '""'], ['"' + "a" * 301 + '"', '"\t"', '"a\\"']),
    ({"pattern": "b+"}, ['"abc"', '"b"'], ['"a"', '""']),
    ({"pattern": "^[a-z]+$", "maxLength": 3}, ['"abc"'], ['""', '"abcd"', '"1"']),
    ({"pattern": "^[0-9]{4}$", "minLength": 4, "maxLength": 9}, ['"1234"'], ['"123"']),
    ({"format": "date"}, ['"2024-02-29"', '"2023-12-31"'], ['"2023-02-29"', '"2023-13-01"', '"2023-04-31"', '"x"']),
    ({"format": "date", "maxLength": 10}, ['"2024-02-29"'], ['"2024-2-9"']),
    ({"format": "time"}, ['"10:00:00Z"', '"10:00:00.5+01:00"'], ['"24:00:00Z"', '"10:00:00"']),
    ({"format": "date-time"}, ['"2024-02-29T10:00:00Z"'], ['"2024-02-29"', '"2024-02-30T10:00:00Z"']),
    ({"format": "ipv4"}, ['"255.0.10.1"'], ['"256.0.0.1"', '"01.2.3.4"', '"1.2.3"']),
    ({"format": "ipv6"}, ['"::1"', '"2001:db8::1"', '"1:2:3:4:5:6:7:8"'], ['"1:2"', '"g::1"', '"::1::"']),
    (
        {"format": "uuid"},
        ['"123e4567-e89b-12d3-A456-426614174000"'],
        ['"123e4567"', '"123e4567e89b12d3a456426614174000"'],
    ),
    ({"format": "email"}, ['"a.b+c@d-e.org"'], ['"a@"', '"a b@c.de"', '"@b"']),
    ({"format": "hostname"}, ['"a-b.example"'], ['"-a"', '"a..b"', '""']),
    ({"format": "uri"}, ['"http://a.b/c?d#e"'], ['"/a"', '"http://a b"']),
    ({"format": "duration"}, ['"P1DT2H"', '"P1W"'], ['"P"', '"1D"']),
    ({"format": "json-pointer"}, ['"/a/~0"', '""'], ['"a"', '"/~2"']),
    ({"format": "password"} | STR, ['"x"'], ["1"]),
    # numbers
    ({"minimum": 3} | INT, ["3", "10"], ["2", "-5", "3.5"]),
    ({"minimum": 2.5, "exclusiveMaximum": 5} | INT, ["3", "4"], ["2", "5"]),
    ({"exclusiveMinimum": True, "minimum": 3} | INT, ["4"], ["3"]),
    ({"minimum": 0, "maximum": 2**64} | INT, ["0", str(2**63 - 1)], ["-1"]),
    ({"format": "int32"} | INT, ["2147483647", "-2147483648"], ["2147483648"]),
    ({"format": "uint8"} | INT, ["255"], ["256", "-1"]),
    ({"format": "uint8", "minimum": 3}, ["255", "3"], ["256", "2", "3.5", '"x"']),
    ({"multipleOf": 5} | INT, ["0", "-15", "100"], ["3", "101"]),
    ({"multipleOf": 5, "minimum": 7, "maximum": 20} | INT, ["10", "20"], ["5", "11", "25"]),
    ({"multipleOf": 0.5} | INT, ["3"], ["3.5"]),
    ({"type": "number", "multipleOf": 3}, ["9", "-3"], ["1", "9.5"]),
    ({"type": "number", "multipleOf": 0.01}, ["1.25", "0.5", "-3"], ["1.255", "1e2"]),
    ({"type": "number"}, ["1.5e-3", "-0"], ["01", ".5", "NaN"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.001", "1"], ["0", "1.1", "-1"]),
    # types, enum, const
    ({"type": ["integer", "null"]}, ["1", "null"], ['"x"']),
    ({"type": ["integer", "string"], "minimum": 3, "maxLength": 1}, ["3", '"a"'], ["1", '"ab"']),
    ({"enum": ["a", 1, None, True, {"x": [1, 2]}]}, ['"a"', "1", "null", "true", '{"x":[1,2]}'], ["false", "2"]),
    ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    ({"enum": [1, 2, 3.0], "minimum": 2}, ["2", "3"], ["1"]),
    ({"const": 3, "enum": [1, 3]}, ["3"], ["1"]),
    ({"const": None}, ["null"], ["1", ""]),
    ({"const": False}, ["false"], ["0"]),
    ({"enum": ["日本", "é", "😀", 'a"b', "a\nb"]}, ['"日本"', '"é"', '"😀"', '"a\\"b"', '"a\\nb"'], ['"?"', '"a\nb"']),
    # combinations
    ({"anyOf": [INT, STR]}, ["1", '"x"'], ["null"]),
    ({"anyOf": [INT, False, {"enum": [1], "type": "string"}]}, ["1"], ["null"]),
    ({"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": 1}]}, ["3", "1"], ["2", '"x"']),
    ({"minimum": 3, "anyOf": [INT, STR]}, ["3", '"x"'], ["1"]),
    (
        {"properties": {"b": STR}, "required": ["b"], "anyOf": [{"required": ["a"]}, {"properties": {"c": INT}}]},
        ['{"b":"x","a":1}', '{"b":"x","c":1}', '{"b":"x"}'],
        ['{"c":1}', '{"b":"x","c":"y"}'],
    ),
    ({"allOf": [INT | {"minimum": 3}, {"maximum": 5}]}, ["4"], ["1", "6", '"x"']),
    (
        {"allOf": [{"properties": {"a": INT}, "required": ["a"]}], "properties": {"b": STR}, "required": ["b"]},
        ['{"b":"x","a":1}'],
        ['{"a":1}', '{"b":"x"}'],
    ),
    ({"allOf": [{"properties": {"a": INT}}, {"properties": {"a": {"minimum": 2}}}]}, ['{"a":2}'], ['{"a":1}']),
    (
        {"allOf": [{"properties": {"a": INT}, "additionalProperties": False}, {"properties": {"a": {}, "b": {}}}]},
        ['{"a":1}'],
        ['{"b":1}', '{"a":"x"}'],
    ),
    ({"allOf": [{"properties": {"a": INT}}], "unevaluatedProperties": False}, ['{"a":1}'], ['{"b":1}']),
    (SHAPES, ['{"kind":"circle","r":1}', '{"kind":"cube","w":1}'], ['{"kind":"circle","w":1}', '{"kind":"x"}']),
    (
        {"anyOf": [{"minItems": 1}, {"maxItems": 3}], "unevaluatedItems": {"const": 1}},
        ["[1]", "[1,1]"],
        ["[2]", "[1,2]"],
    ),
    ({"oneOf": [INT | {"maximum": 2}, INT | {"minimum": 5}, STR]}, ["1", "7", '"x"'], ["3"]),
    # references
    ({"$defs": {"x": INT}, "$ref": "#/$defs/x"}, ["1"], ['"x"']),
    ({"$defs": {"x": INT}, "$ref": "#/$defs/x", "minimum": 5}, ["5"], ["3"]),
    ({"definitions": {"a/b": INT, "c~d": STR}, "items": {"$ref": "#/definitions/a~1b"}}, ["[1]"], ['["x"]']),
    ({"properties": {"a": INT, "b": {"$ref": "#/properties/a"}}}, ['{"b":1}'], ['{"b":"x"}']),
    (RECURSIVE, ['{"v":1,"next":{"v":2,"next":null}}', "{}"], ['{"next":1}', '{"next":{"v":"x"}}']),
    ({"type": "array", "items": {"$ref": "#"}}, ["[[],[[]]]"], ["[1]"]),
    # annotations
    (
        {"$schema": "x", "$id": "y", "$comment": "c", "title": "t", "description": "d", "default": 1, "examples": [1]}
        | {
            "deprecated": True,
            "readOnly": True,
            "x-order": 3,
            "discriminator": {"propertyName": "k"},
            "type": "integer",
        },
        ["1"],
        ['"x"'],
    ),
    (True, ["1", '{"a":[null]}'], ["", "x"]),
    ({}, ["1", '{"a":[null]}'], ["", "[1, 2]"]),
]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), EXACT, ids=lambda x: json.dumps(x)[:60] if not isinstance(x, list) else ""
)
def test_enforced(grammars, schema, valid, invalid):
    grammar = grammars.compile(json=schema if isinstance(schema, dict) else json.dumps(schema))
    assert [text for text in valid if not grammars.accepts(grammar, text)] == []
    assert [text for text in invalid if grammars.accepts(grammar, text)] == []


REFUSED = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems at $"),
    ({"contains": INT}, "contains at $"),
    ({"not": INT}, "not at $"),
    ({"properties": {"x": {"items": {"if": INT, "then": INT}}}}, "if at $.properties.x.items"),
    ({"properties": {"a": INT}, "dependentRequired": {"a": ["b"]}}, "dependentRequired at $"),
    ({"dependentSchemas": {"a": INT}}, "dependentSchemas at $"),
    ({"dependencies": {"a": ["b"]}}, "dependencies at $"),
    ({"$dynamicRef": "#x"}, "$dynamicRef at $"),
    ({"$recursiveRef": "#"}, "$recursiveRef at $"),
    ({"$ref": "https://example.com/x"}, "$ref 'https://example.com/x' at $"),
    ({"$ref": "#/$defs/x"}, "$ref '#/$defs/x' at $: there is no '$defs'"),
    ({"$ref": "#anchor"}, "$ref '#anchor' at $"),
    ({"properties": {"x": {"$id": "y", "type": "integer"}}}, "$id at $.properties.x"),
    ({"properties": {"x": INT | {"multipleOf": 1025}}}, "multipleOf at $.properties.x"),
    (INT | {"multipleOf": 1.5}, "multipleOf at $"),
    (INT | {"multipleOf": 3, "minimum": 1}, "multipleOf at $"),
    ({"type": "number", "multipleOf": 0.3}, "multipleOf at $"),
    ({"type": "string", "format": "iri"}, "format at $ 'iri'"),
    ({"type": "string", "format": "uri", "maxLength": 5}, "minLength or maxLength at $ next to format uri"),
    ({"type": "string", "format": "date", "pattern": "a"}, "format at $ next to pattern"),
    ({"type": "string", "pattern": "a.*b", "maxLength": 5}, "minLength or maxLength at $ next to a pattern"),
    ({"type": "string", "pattern": "(?=a)"}, "pattern at $: a lookahead"),
    ({"type": "string", "pattern": "[a"}, "pattern at $: a set [ is not closed"),
    ({"patternProperties": {"^a": INT}, "additionalProperties": STR}, "patternProperties at $ next to additionalProp"),
    ({"patternProperties": {"^a": INT, "b$": STR}}, "patternProperties at $ with several patterns"),
    ({"properties": {"ab": INT}, "patternProperties": {"^a": INT}}, "pattern matches the property 'ab'"),
    ({"properties": {"ab": INT}, "propertyNames": {"maxLength": 1}}, "propertyNames at $ next to properties"),
    ({"additionalProperties": INT, "minProperties": 2}, "minProperties at $"),
    ({"oneOf": [INT, {"type": "number"}]}, "oneOf at $ is not enforced"),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "oneOf at $ is not enforced"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern at $.allOf[1] next to another one"),
    ({"enum": ["a"], "pattern": "b"}, "pattern or format at $ next to enum"),
    ({"enum": [[1]], "minItems": 2}, "enum or const of type array at $"),
    ({"type": "string", "maxlength": 5}, "maxlength at $ is no keyword; did you mean maxLength?"),
    # malformed
    ({"type": "str"}, "type at $ must be one or more of object"),
    ({"type": []}, "type at $ must be"),
    ({"type": "string", "maxLength": -1}, "maxLength at $ must be a whole number"),
    ({"type": "integer", "minimum": "1"}, "minimum at $ must be a number"),
    ({"required": "a"}, "required at $ must be a list of names"),
    ({"anyOf": []}, "anyOf at $ must be a list of schemas"),
    ({"properties": {"a": 1}}, "properties at $ must be a mapping of schemas"),
    ({"enum": "a"}, "enum at $ must be a list"),
    # unsatisfiable
    (False, "$ is false"),
    ({"enum": []}, "enum at $ is empty"),
    ({"type": "integer", "const": "x"}, "no value of enum or const at $"),
    (INT | {"minimum": 5, "maximum": 1}, "bounds at $"),
    (INT | {"minimum": 5.1, "maximum": 5.9}, "bounds at $"),
    ({"type": "number", "minimum": 5, "maximum": 1}, "bounds at $"),
    ({"type": "number", "exclusiveMinimum": 5, "maximum": 5}, "bounds at $"),
    ({"type": "number", "exclusiveMinimum": 5, "maximum": 5.000001}, "maximum at $ so near"),
    (INT | {"minimum": 2**70}, "bounds at $"),
    (INT | {"multipleOf": 7, "minimum": 1, "maximum": 6}, "no multiple of 7"),
    ({"minItems": 3, "maxItems": 1}, "minItems is above maxItems at $"),
    ({"minLength": 3, "maxLength": 1}, "minLength is above maxLength at $"),
    ({"type": "string", "format": "date", "minLength": 20}, "no string at $"),
    ({"properties": {}, "required": ["b"], "additionalProperties": False}, "$ requires 'b'"),
    ({"properties": {"b": False}, "required": ["b"]}, "$.properties.b is false"),
    ({"properties": {"a": INT}, "minProperties": 2, "additionalProperties": False}, "contradict each other at $"),
    ({"allOf": [INT, STR]}, "nothing at $.allOf[1] is both"),
    ({"anyOf": [False, {"enum": []}]}, "enum at $.anyOf[1] is empty"),
    ({"$ref": "#"}, "# contains itself without end"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "# contains itself without end"),
    ({"prefixItems": [False], "minItems": 1}, "$.prefixItems[0] is false"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=lambda x: json.dumps(x)[:60])
def test_refused_by_name(grammars, schema, message):
    with pytest.raises(InvalidRequestError) as caught:
        grammars.compile(json=schema if isinstance(schema, dict) else json.dumps(schema))
    assert message in str(caught.value)
    assert caught.value.field == "structured_outputs"


@pytest.mark.parametrize(
    ("constraint", "before", "after"),
    [
        ({"json": {"type": "string"}}, b'"', b'"'),
        ({"json": {"maxLength": 20}}, b'"', b'"'),
        ({"json": {"maxLength": 900}}, b'"', b'"'),
        ({"json": {"minLength": 2}}, b'"a', b'"'),
        ({"json": {"pattern": "."}}, b'"', b'"'),
        ({"json": {"pattern": "^[^a]{0,300}$"}}, b'"', b'"'),
        ({"json": {"patternProperties": {"b": {}}}}, b'{"b', b'":1}'),
        ({"json": {"properties": {"ab": {}}, "additionalProperties": True}}, b'{"', b'":1}'),
        ({"json_object": True}, b'{"', b'":1}'),
        ({"regex": r"[\s\S]*"}, b"", b""),
        ({"regex": "[^a]{0,500}z"}, b"", b"z"),
    ],
)
def test_only_utf8_can_be_spelt(grammars, constraint, before, after):
    grammar = grammars.compile(**constraint)
    broken = [b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\x80", b"\xff"]
    for part in (*broken, *(text.encode() for text in ("é", "中", "😀", "\ud7ff", "\ue000", "\U0010ffff"))):
        matcher = grammar.matcher(frozenset([grammars.eos]))
        whole = all(matcher.accept(grammars.byte(byte)) for byte in before + part + after)
        assert (whole and grammars.eos in grammars.allowed(matcher)) == (part not in broken), part


@pytest.mark.parametrize(
    "name",
    ["é1", "éa", "ÿf", "a\0b", "a\x001", "\x1fa", r"a\x41", r"\xe9e", "日a", "😀a", "\u200da", '"', "/"],
)
def test_names_and_constants_of_any_characters(grammars, name):
    spelt = json.dumps(name, ensure_ascii=False)
    assert grammars.accepts(grammars.compile(json={"enum": [name]}), spelt)
    grammar = grammars.compile(json={"properties": {name: INT, "b": INT}, "required": [name]})
    assert grammars.accepts(grammar, f'{{{spelt}:1,"b":1}}')
    assert not grammars.accepts(grammar, '{"b":1}')


def test_both_spellings_of_a_schema_are_one_grammar(grammars):
    schema = {"enum": ["日本", "😀"]}
    for ensure_ascii in (True, False):
        grammar = grammars.compile(json=json.dumps(schema, ensure_ascii=ensure_ascii))
        assert grammars.accepts(grammar, '"😀"')
        assert not grammars.accepts(grammar, '"?"')


@pytest.mark.parametrize("seed", range(40))
def test_integer_bounds(grammars, seed):
    rng = random.Random(seed)
    size = rng.choice([3, 50, 10**6, 10**17])
    low, high = sorted(rng.randint(-size, size) for _ in range(2))
    schema = {"type": "integer"} | rng.choice([{"minimum": low, "maximum": high}, {"minimum": low}, {"maximum": high}])
    grammar = grammars.compile(json=schema)
    around = [edge + step for edge in (low, high, 0) for step in (-10, -1, 0, 1, 10)]
    for value in {*around, low * 10, high * 10, low // 10, high // 10, rng.randint(low, high)}:
        wanted = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        assert grammars.accepts(grammar, str(value)) == wanted, (schema, value)


@pytest.mark.parametrize("seed", range(40))
def test_number_bounds_let_nothing_else_through(grammars, seed):
    rng = random.Random(seed)
    low, high = sorted(round(rng.uniform(-20, 20), rng.randint(0, 4)) for _ in range(2))
    if low == high:
        return
    names = rng.choice(
        [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), ("minimum", "exclusiveMaximum")]
    )
    grammar = grammars.compile(json={"type": "number", names[0]: low, names[1]: high})
    for value in (low, high, *(round(edge + step, 6) for edge in (low, high) for step in (-1, -0.0001, 0.0001, 1))):
        inside = (
            low < value < high or (value == low and names[0] == "minimum") or (value == high and names[1] == "maximum")
        )
        assert grammars.accepts(grammar, f"{value:.6f}".rstrip("0")[:30].removesuffix(".") or "0") == inside, (
            low,
            high,
            value,
        )


def test_whitespace(make_grammars):
    grammars = make_grammars(XGrammarOptions(max_whitespace=3))
    schema = {"properties": {"a": {"type": "array", "items": INT}, "b": {}}, "required": ["a"]}
    compact, free = (grammars.compile(json=schema, any_whitespace=flag) for flag in (False, True))
    spaced = '{ "a" :\n [1 , 2],  "b":{ "c" : 1 } }'
    assert grammars.accepts(free, spaced)
    assert not grammars.accepts(compact, spaced)
    assert grammars.accepts(compact, '{"a":[1,2],"b":{"c":1}}')
    assert grammars.accepts(free, '{"a":   [1]}')
    assert not grammars.accepts(free, '{"a":    [1]}')
    assert not grammars.accepts(free, '{"a":[1],"b":    {}}')
    for spacious in (False, True):
        grammar = grammars.compile(json_object=True, any_whitespace=spacious)
        assert grammars.accepts(grammar, '{"a":[1,{}]}')
        assert grammars.accepts(grammar, '{"a": 1}') == spacious
        assert not grammars.accepts(grammar, "[1]")


def test_open_objects_are_an_option(grammars, make_grammars):
    schema = {"properties": {"a": INT}}
    assert not grammars.accepts(grammars.compile(json=schema), '{"b":1}')
    grammars = make_grammars(XGrammarOptions(closed_objects=False))
    grammar = grammars.compile(json=schema)
    assert grammars.accepts(grammar, '{"b":1}')
    assert not grammars.accepts(grammar, '{"b":1,"a":"x"}')


def test_structural_tags(grammars):
    schema = {"properties": {"a": INT | {"minimum": 3}}, "required": ["a"]}
    newer = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}],
        },
    }
    older = {"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]}
    for tag in (newer, older):
        grammar = grammars.compile(structural_tag=tag)
        assert grammars.accepts(grammar, 'so: <f>{"a":3}</f> and "more"')
        assert not grammars.accepts(grammar, 'so: <f>{"a":2}</f>')
        assert not grammars.accepts(grammar, 'so: <f>{"a": 3}</f>')
    pattern = {"type": "structural_tag", "format": {"type": "regex", "pattern": "^[0-9]+$|a"}}
    assert grammars.accepts(grammars.compile(structural_tag=pattern), "12")
    for tag, message in (
        ({"type": "structural_tag", "format": {"type": "nope"}}, "nope"),
        ({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"not": INT}}}, "not at $"),
        (
            {"type": "structural_tag", "format": {"type": "json_schema", "style": "qwen_xml", "json_schema": INT}},
            "qwen_xml",
        ),
        ({"structures": [{}], "triggers": ["<"]}, "begin"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            grammars.compile(structural_tag=tag)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a"\nroot ::= "b"', "defined multiple times"),
        ("root ::= x", 'Rule "x" is not defined'),
        ('x ::= "a"', 'root rule with name "root" is not found'),
        ('root ::= "a', "string literal"),
        ("root ::= (", "Expect element"),
        ('root ::= "\x00"', "NUL"),
        ("garbage", "root"),
        ('root ::= ""', "no token that an output could begin with"),
        ("root ::= root", "no token that an output could begin with"),
    ],
)
def test_wrong_ebnf_after_a_right_one(grammars, grammar, message):
    assert grammars.accepts(grammars.compile(grammar='root ::= "a" | "b"'), "b")
    with pytest.raises(InvalidRequestError) as caught:
        grammars.compile(grammar=grammar)
    assert message in str(caught.value)
    assert grammars.accepts(grammars.compile(grammar='root ::= "a" | "c"'), "c")
