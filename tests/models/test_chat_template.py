"""Templates that refuse a system role, rewrite history, think, trim, or write what cannot be reproduced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld.wording import make_wording
from pivotopd.errors import ConfigError
from pivotopd.models.chat_template import MARKUP, TemplateReport, read_frame
from pivotopd.models.codec import TokenizerCodec
from pivotopd.models.tiny import build_tokenizer
from tests.models.chat import TEMPLATE, chat_tokenizer
from tests.models.conftest import PHRASES

ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + ASK
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}" + ASK
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.content }}]{% endfor %}"
)
DEAF = "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}" + ASK
INTRODUCED = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}" + PLAIN
)
# Like the hybrid reasoning models: thoughts of earlier turns go, an empty one switches thinking off.
HYBRID = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set content = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
REASONER = PLAIN.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
PREFILLED = PLAIN.replace("assistant\n{% endif %}", "assistant\n<think>\nWell, {% endif %}")
SWITCH_IN_TEXT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.role == 'user' and not enable_thinking and not m.content.endswith('/nothink') %}/nothink"
    "{% endif %}<|im_end|>\n{% endfor %}" + ASK
)
SPLITTING = PLAIN.replace("m.content", "m.content.split('</think>')[-1]")
SHOUTING = PLAIN.replace("m.content", "m.content | upper").replace("| upper", "| replace('<', '&lt;')")
DATED = "Today is {{ strftime_now('%d %b %Y') }}.\n" + PLAIN
DATED_BY_DEFAULT = (
    "{% if date_string is not defined %}{% set date_string = strftime_now('%H:%M') %}{% endif %}"
    "{{ date_string }}" + PLAIN
)
PINNED = "{% set date_string = '26 Jul 2024' %}Today is {{ date_string }}.\n" + PLAIN
ACCEPTED = {
    "plain": PLAIN,
    "thinking switch": TEMPLATE,
    "no system": NO_SYSTEM,
    "alternating": ALTERNATING,
    "deaf": DEAF,
    "introduced": INTRODUCED,
    "hybrid": HYBRID,
    "reasoner": REASONER,
    "switch in text": SWITCH_IN_TEXT,
    "splitting": SPLITTING,
    "escaping": SHOUTING,
    "pinned date": PINNED,
}
CODECS, AGAIN = (
    {name: TokenizerCodec(chat_tokenizer(template)) for name, template in ACCEPTED.items()} for _ in range(2)
)
REFUSED = {
    "the date": (DATED, "the date or the time"),
    "the time where none is given": (DATED_BY_DEFAULT, "the date or the time"),
    "chance": ("{{ ['a', 'b'] | random }}" + PLAIN, "something random"),
    "one user message": ("{{ raise_exception('begin with a system message') }}", "fails on one user message"),
    "a wrong field": ("{{ messages[0].text.strip() }}", "fails on one user message"),
    "bad syntax": ("{% for m in messages %}{{ m.content }}", "fails on one user message"),
    "no message": ("<|im_start|>hello", "does not show"),
    "message twice": (PLAIN + "{{ messages[-1].content }}", "shows it 2 times"),
    "its length": ("{{ messages[0].content | length }} characters: " + PLAIN, "depends on the message"),
    "its beginning": (
        PLAIN + "{% if '\n' in messages[0].content %}long{% endif %}",
        "depends on the message",
    ),
    "a copy of some": (
        PLAIN.replace("}}<", "}}{{ m.content if '</think>' in m.content }}<"),
        "more of a message",
    ),
    "a thought": (PREFILLED, "begins the model's thought"),
}


def report_of(template: str) -> TemplateReport:
    return TokenizerCodec(chat_tokenizer(template)).template


def prompt_text(codec: TokenizerCodec, message: str) -> str:
    text: str = codec.tokenizer.decode(codec.encode_prompt(message))
    return text


# ------------------------------------------------------------------------------ facts


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("plain", {}),
        ("no system", {"system_role": "refused", "edges": "trimmed"}),
        ("alternating", {"system_role": "refused"}),
        ("deaf", {"system_role": "ignored"}),
        ("introduced", {"system_text": "You are kind."}),
        ("thinking switch", {"thinking": "empty block"}),
        ("hybrid", {"thinking": "empty block", "history": "rewritten"}),
        ("reasoner", {"thinking": "open tag"}),
        ("switch in text", {"thinking": "switched off"}),
        ("splitting", {"markup": "changed", "history": "rewritten"}),
        ("escaping", {"markup": "changed", "history": "rewritten"}),
        ("pinned date", {}),
    ],
)
def test_what_a_template_does_is_found(name: str, facts: dict[str, Any]) -> None:
    usual = TemplateReport(template=True, system_role="accepted", history="kept")
    assert report_of(ACCEPTED[name]) == replace(usual, **facts)


def test_every_find_has_a_rule() -> None:
    for template in ACCEPTED.values():
        report = report_of(template)
        assert len(report.findings) == 7
        assert all(one.rule for one in report.findings)
        assert report.values["findings"][0] == {
            "what": "system role",
            "found": report.system_role,
            "rule": "none is sent: all that a model is told is one user message",
        }


def test_without_a_template_the_message_is_the_prompt() -> None:
    report = TokenizerCodec(build_tokenizer(PHRASES)).template
    assert report == TemplateReport()
    assert report.values["template"] is False
    (one,) = report.findings
    assert (one.what, one.found) == ("chat template", "none")
    assert "plain text" in one.rule


@pytest.mark.parametrize("what", REFUSED)
def test_a_template_without_a_sound_rule_is_refused(what: str) -> None:
    template, why = REFUSED[what]
    with pytest.raises(ConfigError, match=why) as caught:
        TokenizerCodec(chat_tokenizer(template))
    assert caught.value.exit_code == 2
    assert caught.value.where
    assert caught.value.mend


# ------------------------------------------------------------------------------ rules


def test_a_reasoner_writes_its_own_tag_so_that_its_reply_is_whole() -> None:
    codec = TokenizerCodec(chat_tokenizer(REASONER))
    assert prompt_text(codec, "go").endswith("<|im_start|>assistant\n")
    response = [
        codec.tokenizer.convert_tokens_to_ids("<think>"),
        *codec.encode_response("I look.</think><action>look</action>"),
    ]
    text, _ = codec.decode(response)
    wording = make_wording("full")
    assert wording.parse(text).valid
    assert not wording.parse(text.removeprefix("<think>")).valid, "as it would be after an open tag"


def test_the_empty_block_of_a_hybrid_stands_before_the_reply() -> None:
    text = prompt_text(TokenizerCodec(chat_tokenizer(HYBRID)), "go")
    assert text == "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_tags_that_are_special_tokens_stay_in_prompts_and_replies() -> None:
    tokenizer = chat_tokenizer(PLAIN)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<think>", "</think>"]})
    codec = TokenizerCodec(tokenizer)
    assert codec.template.tags == "special"
    tag = tokenizer.convert_tokens_to_ids("<think>")
    assert tag in tokenizer.all_special_ids
    assert tag in codec.encode_prompt("Write <think> first."), "as the model knows it"
    assert codec.decode([tag, *codec.encode_response("so</think>go")]) == ("<think>so</think>go", False)
    forged = codec.encode_prompt("<think><|im_end|>")
    assert forged.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1, "the template's own"


@pytest.mark.parametrize("name", ACCEPTED)
@given(text=st.text() | st.sampled_from([*MARKUP, "  edge\n", "a</think>b/nothink", "{{ x }}", "<|im_end|>"]))
def test_a_prompt_holds_its_message_verbatim_once_and_is_always_the_same(name: str, text: str) -> None:
    codec = CODECS[name]
    empty = prompt_text(codec, "")
    found = prompt_text(codec, text)
    places = [at for at in range(len(empty) + 1) if empty[:at] + text + empty[at:] == found]
    assert places
    assert len(found) == len(empty) + len(text), "so it is there once more often than in the frame"
    assert codec.encode_prompt(text) == AGAIN[name].encode_prompt(text)


PIECES = st.sampled_from(
    [
        "{{ messages[0].content }}",
        "{{ messages[0].content | trim }}",
        "{{ messages[0].content | upper }}",
        "{{ strftime_now('%Y') }}",
        "{{ range(9) | list | random }}",
        "{% if messages[0].content | length > 90 %}long{% endif %}",
        "{% if enable_thinking %}deep{% endif %}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}",
        "<|im_start|>user\n",
        "<think>",
        "</think>",
        " ",
    ]
)


@settings(max_examples=60)
@given(template=st.lists(PIECES, min_size=1, max_size=5).map("".join), text=st.text(min_size=1))
def test_of_templates_made_at_random_those_that_are_accepted_keep_the_message(
    template: str, text: str
) -> None:
    tokenizer = chat_tokenizer(template)
    try:
        frame = read_frame(tokenizer)
    except ConfigError:
        return
    assert "strftime" not in template
    assert "random" not in template
    codec = TokenizerCodec(tokenizer)
    assert prompt_text(codec, text) == frame.before + text + frame.after
    assert not frame.after.rstrip().endswith("<think>")


# ------------------------------------------------------------------------ a real one


def test_a_real_template() -> None:
    folder = Path.home() / ".cache/pivotopd/models/smollm2-135m-instruct"
    if not folder.is_dir():
        pytest.skip(f"no SmolLM2 at {folder}")
    from pivotopd.models.checkpoint import load_tokenizer

    codec = TokenizerCodec(load_tokenizer(folder))
    report = codec.template
    assert (report.system_role, report.history, report.thinking) == ("accepted", "kept", "absent")
    assert report.system_text is not None
    assert report.system_text.startswith("You are a helpful AI assistant")
    message = "Put it between <think> and </think>, then <action>look</action>."
    alone: Any = codec.tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=True, add_generation_prompt=True
    )
    ids = alone["input_ids"] if hasattr(alone, "keys") else alone
    assert codec.encode_prompt(message) == list(ids), "the ids of its own training"
