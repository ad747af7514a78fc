"""What tells how a model marks its reasoning."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlxcel.chat.dialects import DIALECTS, HARMONY, THINK, Lead, read_dialect, special_spelling
from mlxcel.chat.tools.markers import MARKUP
from tests.chat.tokenizers import CharTokenizer, MarkerTokenizer

GEMMA = next(dialect for dialect in DIALECTS if dialect.name == "gemma4")


class Unknowing(CharTokenizer):
    """Has one token for everything it does not know."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return [3]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "think"),
        ("deepseek", "think"),
        ("primed", "think"),
        ("glm", "think"),
        ("gemma4", "gemma4"),
        ("gpt_oss", "harmony"),
        ("inkling", "inkling"),
        ("kimi_k3", "kimi-k3"),
        ("chatml", None),
        ("llama3", None),
        ("gemma", None),
    ],
)
def test_templates_tell(family: str, name: str | None, template_source: Callable[[str], str]) -> None:
    dialect = read_dialect(template_source(family), CharTokenizer())
    assert (dialect.name if dialect else None) == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{%- set begin = '<think{}>'.format(suffix) %}", "hunyuan3"),
        ("{{- '<|begin|>assistant<|think|>' + message.reasoning + '<|end|>' }}", "solar"),
        ("<|user|>{{ message.content }}<|end|>", None),
        ("<seed:think>", "seed"),
        ("<|START_THINKING|>", "cohere"),
        ("[THINK]", "magistral"),
        ("<mm:think>", "minimax-m3"),
        ("<|inner_prefix|>", "apertus"),
        ("<longcat_think>", "longcat"),
    ],
)
def test_words_that_tell(source: str, name: str | None) -> None:
    dialect = read_dialect(source, CharTokenizer())
    assert (dialect.name if dialect else None) == name


def test_else_the_vocabulary_does() -> None:
    assert read_dialect("{{ x }}", MarkerTokenizer("<think>")) is None
    assert read_dialect("{{ x }}", MarkerTokenizer("</think>", plain=("<think>",))) is THINK
    assert read_dialect(None, MarkerTokenizer("<|channel|>", "<|message|>", "<|end|>")) is HARMONY
    assert read_dialect("<think>", MarkerTokenizer("<|channel|>", "<|message|>", "<|end|>")) is THINK
    assert read_dialect(None, Unknowing()) is None


def test_special_tokens_among_the_markers_have_their_text() -> None:
    tokenizer = MarkerTokenizer("<|open|>", "<|sep|>", plain=("<|close|>",))
    kimi = next(dialect for dialect in DIALECTS if dialect.name == "kimi-k3")
    assert special_spelling(kimi.markers, tokenizer) == {0x110000: "<|open|>", 0x110001: "<|sep|>"}
    whole = MarkerTokenizer("]<]minimax[>[", "[TOOL_CALLS]", '<|"|>')
    assert sorted(special_spelling(MARKUP, whole).values()) == ['<|"|>', "[TOOL_CALLS]", "]<]minimax[>["]
    assert special_spelling(THINK.markers, CharTokenizer()) == {}
    assert special_spelling(THINK.markers, Unknowing()) == {}


@pytest.mark.parametrize(
    ("prompt", "continued", "inside"),
    [
        ("user: hi\nassistant: ", 0, False),
        ("assistant: <think>", 0, True),
        ("assistant: <think>\n", 0, True),
        ("assistant: <think>\n\n</think>\n\n", 0, False),
        ("user: what is <think>?\nassistant: ", 0, False),
        ("user: what is <think>", 0, True),  # nobody could tell
        ("assistant: <think>\nso far", 6, True),
        ("assistant: <think>so far", 13, True),
        ("assistant: <think>so</think>far", 20, False),
        ("assistant: <think>\nso</think>far", 13, False),
        ("assistant: so far", 6, False),
    ],
)
def test_prompts_that_end_in_a_block(prompt: str, continued: int, inside: bool) -> None:
    assert THINK.begins_inside(prompt, continued) is inside


def test_prompts_of_other_families() -> None:
    assert GEMMA.begins_inside("<|turn>model\n<|channel>thought\n")
    assert not GEMMA.begins_inside("<|turn>model\n")
    assert HARMONY.begins_inside("<|start|>assistant<|channel|>analysis<|message|>")
    assert not HARMONY.begins_inside("<|start|>assistant")


@pytest.mark.parametrize(
    ("name", "prompt", "continued", "lead"),
    [
        ("think", "user: hi\nassistant: ", 0, Lead("</think>", "<think>")),
        ("think", "assistant: <think>\n", 0, Lead("</think>")),
        ("think", "assistant: <think>\n\n</think>\n\n", 0, None),
        ("think", "assistant: The answer", len("The answer"), None),
        ("harmony", "<|start|>assistant", 0, Lead("<|channel|>final<|message|>")),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", 0, Lead("<|channel|>final<|message|>")),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", 0, None),
        ("kimi-k3", "x", 0, Lead("<|open|>response<|sep|>")),
    ],
)
def test_what_comes_before_the_answer(name: str, prompt: str, continued: int, lead: Lead | None) -> None:
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    assert dialect.lead(prompt, continued) == lead
