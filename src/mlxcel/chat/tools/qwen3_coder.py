"""Qwen3-Coder: `<function=NAME><parameter=KEY>VALUE</parameter></function>`, mostly inside `<tool_call>`.

Functionary v3.1 has the same outer tags; its body is JSON.
"""

from __future__ import annotations

from mlxcel.chat.tools import functionary_v31, xml_calls
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = functionary_v31.OPEN
OTHER_WRAPPER = ("<seed:tool_call>", "</seed:tool_call>")
"""Seed-OSS writes the same calls inside these."""
_WRAPPER_END = "</tool_call>"
_TAGS = xml_calls.Tags("<parameter=", "</parameter>", functionary_v31.CLOSE, _WRAPPER_END)


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after `<function=`. Raises NotACall when it is neither format."""
    name = yield from xml_calls.read_name(src)
    if name is None:
        raise NotACall
    yield from src.space()
    if (yield from src.peek()) == "{":
        src.commit()
        yield from functionary_v31.read_body(src, sink, name)
        return
    if not (yield from src.sees(_TAGS.parameter, _TAGS.call_end, _WRAPPER_END)) and not (
        src.ends_within(_TAGS.parameter, _TAGS.call_end) and sink.tools.accept(name)
    ):
        raise NotACall
    src.commit()
    yield from xml_calls.read_parameters(src, sink, name, _TAGS, streams=True)


def read_wrapped(src: Source, sink: Sink) -> Reading[None]:
    """As `read`, after `<tool_call>`: whatever stands there is no text for the reader of the answer."""
    try:
        yield from read(src, sink)
    except NotACall:
        yield from src.skip(_WRAPPER_END, OPEN)
