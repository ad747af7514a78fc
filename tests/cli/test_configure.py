from __future__ import annotations

from pathlib import Path

import pytest

from mlxcel.cli.configure import configure, with_variables
from mlxcel.cli.flag import FlagError
from mlxcel.cli.flags import SERVER_FLAGS
from mlxcel.cli.parser import parse
from mlxcel.config import EngineConfig, ModelConfig, ServerConfig


def configured(*argv: str, base: ServerConfig | None = None, **environ: str) -> ServerConfig:
    return configure(parse(argv, SERVER_FLAGS, environ), base)


def test_nothing_given_is_the_default() -> None:
    assert configured() == ServerConfig()


def test_what_is_given_goes_over_the_base() -> None:
    base = ServerConfig(model=ModelConfig(model="a", warmup=False), engine=EngineConfig(parallel=1))
    config = configured("--model", "b", "-c", "600", base=base)
    assert config.model == ModelConfig(model="b", warmup=False)
    assert config.engine == EngineConfig(parallel=1, ctx_size=600)


def test_keys_from_everywhere_add_up(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("three\nfour\n")
    config = configured("--api-key", "one", "--api-key-file", str(file), LLAMA_API_KEY="two")
    assert config.network.api_keys == ("one", "two", "three", "four")


def test_the_repository_beats_the_model() -> None:
    for argv in (["-hf", "a/b", "-m", "c"], ["-m", "c", "-hf", "a/b"]):
        assert configured(*argv).model.model == "a/b"
    assert configured("-m", "c", LLAMA_ARG_HF_REPO="a/b").model.model == "a/b"


def test_a_template_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert configured("--chat-template-file", str(file)).model.chat_template == "{{ messages }}"
    with pytest.raises(FlagError, match="exclude each other"):
        configured("--chat-template-file", str(file), "--chat-template", "{{ x }}")


def test_certificate_and_key_need_each_other() -> None:
    with pytest.raises(FlagError, match="need each other"):
        configured("--ssl-cert-file", "/cert")
    config = configured("--ssl-cert-file", "/cert", "--ssl-key-file", "/key")
    assert (config.network.ssl_cert_file, config.network.ssl_key_file) == (Path("/cert"), Path("/key"))


@pytest.mark.parametrize(
    ("argv", "fits"),
    [
        (["-c", "2048"], True),
        (["-c", "2047"], False),
        (["-c", "512", "-np", "1"], True),
        (["-c", "512", "--no-cont-batching"], True),
        (["-c", "1024", "--max-batch-size", "2"], True),
        (["-c", "511", "-np", "1"], False),
        (["-c", "0", "-np", "100"], True),
    ],
)
def test_every_slot_needs_some_context(argv: list[str], fits: bool) -> None:
    if fits:
        configured(*argv)
    else:
        with pytest.raises(FlagError, match="at least 512"):
            configured(*argv)


def test_no_secret_is_in_the_text_of_a_configuration() -> None:
    config = configured("--api-key", "s3cret", "--hf-token", "t0ken")
    assert "s3cret" not in repr(config)
    assert "t0ken" not in repr(config)


def test_variables_without_a_flag_take_a_one() -> None:
    for value, turned in (("1", True), ("true", False), ("", False)):
        names = ("MLXCEL_APC_TRACE", "MLXCEL_DISABLE_BOUNDARY_SNAPSHOT", "MLXCEL_DISABLE_CACHE_WARMUP")
        cache = with_variables(ServerConfig(), dict.fromkeys(names, value)).cache
        assert (cache.trace, cache.boundaries, cache.warm_up) == (turned, not turned, not turned)


def test_the_memory_for_reasoning_is_a_size() -> None:
    for value, size in (("1K", 1024), ("0", 0), ("", 0)):
        assert with_variables(ServerConfig(), {"MLXCEL_REASONING_ECHO_MAX_BYTES": value}).chat.reasoning_echo == size
    assert with_variables(ServerConfig(), {}) == ServerConfig()
    with pytest.raises(FlagError, match="MLXCEL_REASONING_ECHO_MAX_BYTES expects a number of bytes"):
        with_variables(ServerConfig(), {"MLXCEL_REASONING_ECHO_MAX_BYTES": "much"})
