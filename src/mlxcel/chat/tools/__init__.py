"""Tool calls: nineteen formats, text in, calls out.

`ToolStream` takes an answer's text piece by piece, after stop strings and reasoning have been taken out of it, and
gives what a client is to see: content, and calls as they come. The answer given at once is the same, joined:
`ToolStream.message`, or `whole` for a text that is complete.

    tools = ToolSet.of_request(request.tools, only=named_choice)
    dialect = dialect_of_template(template_source)        # once per model
    stream = ToolStream(tools, dialect)                   # once per choice; chat_id makes the ids
    for piece in pieces:                                  # TextPiece: text and the log probabilities of its tokens
        for delta in stream.feed(piece): ...              # TextPiece: content; CallStart; CallArguments
    for delta in stream.finish(finished.reason, finished.kind, finished.stop_string): ...
    stream.message                                        # content, calls, finish_reason, abandoned

Rules a caller can rely on:

* What was given never changes. Joined, it does not depend on how the text was cut.
* A `TextPiece` with log probabilities and no text stands for a token that shows nothing (markup, a call's payload).
  Every token's entry comes out once, in order. Without log probabilities there are no empty pieces.
* A call is in `message.calls` when it is complete. One whose part was streamed and that was then cut off, or is
  malformed, is in `message.abandoned` instead: worth a warning in the log.
* `finish_reason` is `tool_calls` when there are calls and the model stopped by itself; a budget that ran out stays
  `length`.
* An empty tool set (no tools, `tool_choice: "none"`) turns everything off: pass the pieces through it or around it.

A reader of a format is a generator over a `Source` that reads on as text arrives and puts calls into a `Sink`.
`markers` says which text begins which reader. Formats:

    hermes            granite          mistral_nemo       mistral_bracketed   llama3           generic_json
    functionary_v31   functionary_v32  command_r          qwen3_coder         minimax_m2       minimax_m3
    gemma4            function_gemma   kimi_k2            pythonic            glm47            longcat
    harmony
"""

from mlxcel.chat.tools.dialect import Dialect, dialect_of_template
from mlxcel.chat.tools.ids import chat_id, item_id, messages_id, responses_id
from mlxcel.chat.tools.sink import CallArguments, CallStart, ToolCall
from mlxcel.chat.tools.stream import Delta, Message, ToolStream, whole
from mlxcel.chat.tools.toolset import ToolSet

__all__ = [
    "CallArguments",
    "CallStart",
    "Delta",
    "Dialect",
    "Message",
    "ToolCall",
    "ToolSet",
    "ToolStream",
    "chat_id",
    "dialect_of_template",
    "item_id",
    "messages_id",
    "responses_id",
    "whole",
]
