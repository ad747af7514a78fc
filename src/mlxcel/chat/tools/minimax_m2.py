"""MiniMax M2: `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, one block a call.

The wrapper around the blocks means nothing.
"""

from __future__ import annotations

from mlxcel.chat.tools import xml_calls
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = "<invoke name="
WRAPPER = ("<minimax:tool_call>", "</minimax:tool_call>")
CLOSE = "</invoke>"
_TAGS = xml_calls.Tags("<parameter name=", "</parameter>", CLOSE, WRAPPER[1])


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after `<invoke name=`. Raises NotACall when no parameters follow."""
    name = yield from xml_calls.read_name(src)
    if name is None:
        raise NotACall
    yield from src.space()
    if not (yield from src.sees(_TAGS.parameter, _TAGS.call_end)) and not (
        src.ends_within(_TAGS.parameter, _TAGS.call_end) and sink.tools.accept(name)
    ):
        raise NotACall
    src.commit()
    yield from xml_calls.read_parameters(src, sink, name, _TAGS, streams=False)
