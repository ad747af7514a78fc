"""For each format: answers, and the messages they make."""

from tests.chat.tools.cases import (
    command_r,
    function_gemma,
    functionary_v31,
    functionary_v32,
    gemma4,
    generic_json,
    glm,
    granite,
    harmony,
    hermes,
    kimi_k2,
    llama3,
    minimax_m2,
    minimax_m3,
    mistral_bracketed,
    mistral_nemo,
    pythonic,
    qwen3_coder,
)
from tests.chat.tools.cases.case import TOOLS, Case

FORMATS: dict[str, list[Case]] = {
    "hermes": hermes.CASES,
    "qwen3_coder": qwen3_coder.CASES,
    "mistral_nemo": mistral_nemo.CASES,
    "mistral_bracketed": mistral_bracketed.CASES,
    "minimax_m2": minimax_m2.CASES,
    "minimax_m3": minimax_m3.CASES,
    "functionary_v31": functionary_v31.CASES,
    "functionary_v32": functionary_v32.CASES,
    "command_r": command_r.CASES,
    "granite": granite.CASES,
    "gemma4": gemma4.CASES,
    "function_gemma": function_gemma.CASES,
    "llama3": llama3.CASES,
    "generic_json": generic_json.CASES,
    "kimi_k2": kimi_k2.CASES,
    "pythonic": pythonic.CASES,
    "glm47": glm.CASES,
    "longcat": glm.LONGCAT_CASES,
    "harmony": harmony.CASES,
}
ALL = [(name, case) for name, cases in FORMATS.items() for case in cases]

__all__ = ["ALL", "FORMATS", "TOOLS", "Case"]
