"""Chat templates: the same text as transformers for what is sound, a prompt error for what is not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.errors import ConfigError, InvalidRequestError
from octavo.loading import chat_template
from octavo.loading.chat_template import ChatTemplate, read_chat_template
from octavo.loading.tokenizer import HFTokenizer

HI = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' ~ message['content'] ~ eos_token }}
    {%- endif %}
{%- endfor %}"""
TOOLS = """{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last < 0 and message.role == "user" %}{%- set ns.last = index %}{%- continue %}{%- endif %}
    {%- if index > 9 %}{%- break %}{%- endif %}
    {{- message | tojson }}
{%- endfor %}
{%- macro say(what) %}<{{ what * 2 }}>{% endmacro %}
{{- say(ns.last ~ "x" ~ 1.5) }}
{% generation %}  body {{ messages[0].content }}
{% endgeneration %}
   {# trimmed #}
   {% if documents is none %}no documents{% endif %}
"""


@pytest.mark.parametrize("template", [CHATML, ALTERNATING, TOOLS], ids=["chatml", "alternating", "tools"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [{"name": "größe", "args": {"x": [1, None, True], "<b>": "'"}}]])
def test_rendering_equals_transformers(template, add_generation_prompt, tools):
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [
        {"role": "user", "content": "  héllo <b>\n{{ x }}"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "two ☃", "name": "ann"},
    ]
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    expected, _ = utilities.render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        **special,
    )
    assert ChatTemplate(template, special).render(messages, add_generation_prompt, {"tools": tools}) == expected[0]


def test_a_template_sees_its_variables():
    template = ChatTemplate("{{ enable_thinking }}{{ strftime_now('%Y') }}", {})
    assert template.render(HI, True, {"enable_thinking": False}) == f"False{time.strftime('%Y')}"


@pytest.mark.parametrize("name", ["bos_token", "messages", "add_generation_prompt"])
def test_what_the_engine_gives_cannot_be_overridden(name):
    with pytest.raises(InvalidRequestError, match=f"{name} cannot be overridden") as caught:
        ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"}).render(HI, True, {name: "x"})
    assert caught.value.field == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "must be a list"),
        (None, "must be a list"),
        ({"role": "user", "content": "hi"}, "must be a list"),
        ([], "at least one message"),
        (["hi"], "message 0 is str"),
        ([*HI, None], "message 1 is NoneType"),
        ([{"content": "hi"}], "message 0 has no role"),
        ([{"role": 3, "content": "hi"}], "message 0 has no role"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": 5}], "content must be text or a list"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "text parts only, not 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text parts only"),
        ([{"role": "user", "content": [5]}], "text parts only"),
    ],
)
def test_bad_messages_are_refused(messages, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        ChatTemplate(CHATML, {}).render(messages, True, {})
    assert caught.value.field == "messages"


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render([{"role": "user", "content": parts}], True, {}) == "a\nb\nc"


def test_content_may_be_absent_beside_tool_calls():
    template = ChatTemplate("{{ messages[0].content is none }}{{ messages[0].tool_calls[0] }}", {})
    assert template.render([{"role": "assistant", "tool_calls": ["f"]}], True, {}) == "Truef"
    assert template.render([{"role": "assistant", "content": None, "tool_calls": ["f"]}], True, {}) == "Truef"


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    ChatTemplate(CHATML, {}).render(messages, True, {})
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses them: roles must alternate"),
        ("{% for x in %}", "is broken"),
        ("{{ absent.attribute }}", "refuses them"),
        ("{{ none + 1 }}", "failed on them: TypeError"),
        ("{{ messages[0].content / 0 }}", "failed on them"),
        ("{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}", "chat template"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "chat template"),
        ("{% include 'other' %}", "chat template"),
        ("{% import 'os' as os %}", "chat template"),
    ],
)
def test_a_failing_template_ends_its_own_request(template, message):
    made = ChatTemplate(template, {})
    with pytest.raises(InvalidRequestError, match=message) as caught:
        made.render(HI, True, {})
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self._TemplateReference__context }}",
        "{{ ''['__class__'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_the_sandbox_holds(template):
    try:
        rendered = ChatTemplate(template, {}).render(HI, True, {})
    except InvalidRequestError:
        return
    assert rendered == ""  # an undefined value, not the thing that was reached for


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999)|list %}{% for a in r %}{% for b in r %}{% set x = a * b %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for x in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
        "{% for a in range(999999) %}{% endfor %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{{ lipsum(n=10 ** 6) }}",
        "{{ [1] | slice(10 ** 9) | list }}",
        "{{ [1] | batch(10 ** 9, 'x') | list }}",
        "{{ 5 | round(-(10 ** 9)) }}",
        "{{ 'a\nb' | indent(10 ** 9, true) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ range(99999) | map('string') | map('center', 99999) | join }}",
        "{{ ('a ' * 4000000) | wordwrap(1) }}",
        "{{ ('a' * 9000000) | replace('a', 'a' * 1000) | length }}",
        "{{ ('a' * 9000000).replace('a', 'a' * 1000) | length }}",
        "{{ (['a' * 1000000] * 3000) | join | length }}",
        "{{ ''.join(['a' * 1000000] * 3000) | length }}",
        "{{ '%*d' % (10 ** 9, 1) | length }}",
        "{% set ns = namespace(x=3) %}{% for a in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        *(f"{{{{ 'a'.{name}(10 ** 9) | length }}}}" for name in ("ljust", "rjust", "center", "zfill")),
        "{{ ('\t' * 9000000).expandtabs(1000) | length }}",
        "{{ 'a'.translate({97: 'a' * 9000000}) | length }}",
        "{{ '{:>1000000000}'.format('a') | length }}",
        "{{ '{a:>1000000000}'.format_map({'a': 1}) | length }}",
    ],
)
def test_time_and_size_are_bounded(template, monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.3)
    made = ChatTemplate(template, {})
    start = time.process_time()
    with pytest.raises(InvalidRequestError, match="chat template"):
        made.render(HI, True, {})
    assert time.process_time() - start < 3
    assert ChatTemplate(CHATML, {}).render(HI, False, {}) == "<|im_start|>user\nhi<|im_end|>\n"  # then healthy


def test_what_is_refused_is_named():
    with pytest.raises(InvalidRequestError, match=r"not offered: No filter named 'indent'\. There is: abs, .*, upper"):
        ChatTemplate("{{ 'a' | indent(4) }}", {}).render(HI, True, {})
    with pytest.raises(InvalidRequestError, match="'ljust' of 'str' object is unsafe"):
        ChatTemplate("{{ 'a'.ljust(4) }}", {}).render(HI, True, {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'a-b-a'.replace('a', 'xyz')", "xyz-b-xyz"),
        ("'a-b-a'.replace('a', '', 1)", "-b-a"),
        ("'a-b-a' | replace('a', 'x', 1)", "x-b-a"),
        ("none | replace('None', 'x')", "x"),
        ("', '.join(['a', 'b'])", "a, b"),
        ("[1, 2] | map('string') | join", "12"),
        ("messages | join(', ', attribute='role')", "user"),
        ("messages | join(',', 'content')", "hi"),
        ("absent | join(',')", ""),
        ("'%s is %d of %d' % ('**a**', 100000, 3)", "**a** is 100000 of 3"),
        ("' A b '.strip().split(' ') | first | lower", "a"),
        ("12345678901 * 12345678901", "152415787526596567801"),
        ("{'b': 1, 'a': 2} | dictsort | list", "[('a', 2), ('b', 1)]"),
        ("messages | selectattr('role', 'equalto', 'user') | list | length", "1"),
        ("[3, 1, 3] | unique | sort | last", "3"),
    ],
)
def test_what_templates_use_works(expression, expected):
    assert ChatTemplate(f"{{{{ {expression} }}}}", {}).render(HI, True, {}) == expected


def test_text_up_to_the_limit_is_rendered(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 1000)
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert len(template.render([{"role": "user", "content": "x" * 1000}], True, {})) == 1000
    with pytest.raises(InvalidRequestError, match="passes 1000 characters"):
        template.render([{"role": "user", "content": "x" * 1001}], True, {})


def test_threads_do_not_share_their_time():
    template = ChatTemplate("{% for a in range(n) %}{{ a }},{% endfor %}", {})
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: template.render(HI, True, {"n": n}), range(200)))
    assert results == ["".join(f"{i}," for i in range(n)) for n in range(200)]


def test_a_model_without_a_template_says_so(toy):
    with pytest.raises(InvalidRequestError, match="no chat template"):
        HFTokenizer(toy.byte_level()).apply_chat_template(HI)


class TestReadChatTemplate:
    def test_a_file_or_the_template_itself(self, tmp_path, monkeypatch):
        (tmp_path / "mine.jinja").write_text(f"{CHATML}ü", encoding="utf-8")
        assert read_chat_template(str(tmp_path / "mine.jinja")) == f"{CHATML}ü"
        monkeypatch.setenv("HOME", str(tmp_path))
        assert read_chat_template("~/mine.jinja") == f"{CHATML}ü"
        (tmp_path / "mine.jinja").write_bytes(f"\N{BYTE ORDER MARK}{CHATML}".encode())  # as some editors do
        assert read_chat_template(str(tmp_path / "mine.jinja")) == CHATML
        for source in ("{{ messages[0].content }}", "{% for m in messages %}x{% endfor %}", CHATML, ALTERNATING, TOOLS):
            assert read_chat_template(source) == source

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, r"model\.chat_template: '.*mine' cannot be read: No such file .*; name a file that holds a Jinja"),
            (b"\xff\xfe", "cannot be read: 'utf-8' codec .*; name a file"),
            (b" \n", "mine is empty; write a Jinja template into it"),
            (b"\n{% for m in messages %}", "mine, line 2: Unexpected end of template.*; mend the template"),
            (b"{{ x | nosuch }}", "mine, line 1: No filter named 'nosuch'; mend the template"),
            (b"{% break %}", "mine: 'break' outside loop .*; mend the template"),
            (b"{{ " + b"(" * 3000 + b"1" + b")" * 3000 + b" }}", "mine: maximum recursion depth .*; mend the template"),
        ],
    )
    def test_a_file_that_is_no_template_is_refused(self, tmp_path, content, message):
        file = tmp_path / "mine"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_chat_template(str(file))

    def test_a_text_that_is_no_template_is_refused(self):
        with pytest.raises(ConfigError, match=r"model\.chat_template: line 1: unexpected '}'; mend the template"):
            read_chat_template("{{ x }")

    def test_a_home_folder_that_is_unknown(self):
        with pytest.raises(ConfigError, match=r"'~nobody-of-that-name/mine' cannot be read: .*; name a file"):
            read_chat_template("~nobody-of-that-name/mine")
