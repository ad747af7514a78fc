from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mlxcel.cli.command import CommandError
from mlxcel.cli.listener import Listener, bound, check_tls, is_unix
from mlxcel.config import NetworkConfig

TLS = Path(__file__).parent / "tls"


def test_a_free_port_is_found_and_told() -> None:
    with bound(NetworkConfig(port=0)) as listener:
        port = listener.socket.getsockname()[1]
        assert port
        assert listener.url == f"http://127.0.0.1:{port}"
        assert listener.is_local
        listener.listen()
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(CommandError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"),
            bound(NetworkConfig(port=port)),
        ):
            pass


def test_of_two_servers_on_one_address_only_one_gets_it() -> None:
    """Refused when binding or when listening, whichever the system does."""

    def start_second(first: Listener) -> None:
        with bound(NetworkConfig(port=first.socket.getsockname()[1])) as second:
            first.listen()
            second.listen()

    with bound(NetworkConfig(port=0)) as first, pytest.raises(CommandError, match="in use"):
        start_second(first)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.256.256.256", "a" * 300, "x..y"])
def test_an_address_that_is_none_is_one_clear_error(host: str) -> None:
    with pytest.raises(CommandError, match="cannot listen on") as error, bound(NetworkConfig(host=host, port=0)):
        pass
    assert "\n" not in str(error.value)


def test_every_address_of_the_machine_is_not_local() -> None:
    with bound(NetworkConfig(host="0.0.0.0", port=0)) as listener:
        assert not listener.is_local


def test_https_is_in_the_url() -> None:
    network = NetworkConfig(port=0, ssl_cert_file=TLS / "certificate.pem", ssl_key_file=TLS / "key.pem")
    check_tls(network)
    with bound(network) as listener:
        assert listener.url.startswith("https://127.0.0.1:")


@pytest.mark.parametrize(
    ("certificate", "key"),
    [("certificate.pem", "locked-key.pem"), ("key.pem", "key.pem"), ("certificate.pem", "missing.pem")],
)
def test_certificates_that_do_not_work_are_one_clear_error(certificate: str, key: str) -> None:
    with pytest.raises(CommandError, match="for HTTPS") as error:
        check_tls(NetworkConfig(ssl_cert_file=TLS / certificate, ssl_key_file=TLS / key))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("host", "port", "unix"),
    [("x.sock", 8080, True), ("/run/x.sock", 1, True), ("/run/x", 0, True), ("/run/x", 1, False), ("::1", 0, False)],
)
def test_what_names_a_unix_socket(host: str, port: int, unix: bool) -> None:
    assert is_unix(NetworkConfig(host=host, port=port)) is unix


def test_a_unix_socket_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    network = NetworkConfig(host=str(path))
    with bound(network) as listener:
        assert listener.url == f"unix:{path}"
        assert listener.is_local
        listener.listen()
        with pytest.raises(CommandError, match="another server"), bound(network):
            pass
        assert path.is_socket()
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    assert path.is_socket()
    with bound(NetworkConfig(host=str(path))):
        assert path.is_socket()
    assert not path.exists()


def test_nothing_but_a_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious.sock"
    path.write_text("content")
    with pytest.raises(CommandError, match="is not a socket"), bound(NetworkConfig(host=str(path))):
        pass
    assert path.read_text() == "content"
    with pytest.raises(CommandError, match="cannot listen"), bound(NetworkConfig(host=str(tmp_path / "no" / "x.sock"))):
        pass
