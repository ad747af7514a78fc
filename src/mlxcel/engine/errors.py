"""Why the engine refuses a request. The API ring turns each class into one HTTP answer."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine refuses with."""


class Busy(EngineError):
    """Every slot and every queue place is taken."""

    def __init__(self) -> None:
        super().__init__("All slots are busy. Please try again later.")


class Loading(EngineError):
    """The model is still being loaded."""

    def __init__(self) -> None:
        super().__init__("The model is still loading. Please try again later.")


class Dead(EngineError):
    """The worker thread has ended; nothing will be generated until a restart."""

    def __init__(self, cause: str = "") -> None:
        super().__init__("The model worker has exited" + (f": {cause}" if cause else "."))


class Stuck(EngineError):
    """The worker thread has been in one step for longer than may be; nothing is generated until that ends."""

    def __init__(self) -> None:
        super().__init__("The model worker does not respond.")


class Closing(EngineError):
    """The server is shutting down: nothing new is begun, and what lasts too long is cut off."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.")


class ContextOverflow(EngineError):
    """The prompt does not fit the context of a slot."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"prompt is too long: {prompt_tokens} tokens, while the context of this server holds {context}"
        )
        self.prompt_tokens = prompt_tokens
        self.context = context


class UnknownToken(EngineError):
    """A request names a token the model does not have.

    field: where it does.
    """

    def __init__(self, field: str, token: int, vocabulary: int) -> None:
        super().__init__(f"{field} holds the token id {token}, outside the model's vocabulary of {vocabulary}")
        self.field = field


class AllBanned(EngineError):
    """A request leaves no token that may come: its bias, or that and `ignore_eos`, bans them all."""

    field = "logit_bias"

    def __init__(self) -> None:
        super().__init__("logit_bias, with ignore_eos if that is set, bans every token: nothing could be generated")


class OverBudget(EngineError):
    """The prompt does not fit the memory for keys and values, even when nothing else is there.

    needed, budget: bytes.
    """

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"the prompt needs about {needed} bytes of memory for keys and values; this server has {budget} "
            "(--kv-cache-budget)"
        )
        self.needed = needed
        self.budget = budget


class BadConfig(EngineError):
    """The engine cannot run as configured; the message says why. Raised before anything is loaded."""
