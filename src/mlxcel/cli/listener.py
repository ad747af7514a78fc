"""The socket a server listens on."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Generator
from dataclasses import dataclass

from mlxcel.cli.command import CommandError
from mlxcel.config import NetworkConfig

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket on which nobody can connect yet."""

    socket: socket.socket
    url: str
    """Where clients connect, for people."""
    is_local: bool
    """Only this machine can reach it."""

    def listen(self) -> None:
        """Let clients connect. Raises CommandError: a second process may have bound the address meanwhile."""
        try:
            self.socket.listen(_BACKLOG)
        except OSError as error:
            raise CommandError(f"cannot listen on {self.url}: {_reason(error)}") from error


@contextlib.contextmanager
def bound(network: NetworkConfig) -> Generator[Listener]:
    """Bind the address of `network`. A Unix socket is removed at the end.

    Raises CommandError when the address is in use or cannot be used.
    """
    if is_unix(network):
        yield from _bound_unix(network.host)
        return
    scheme = "https" if network.ssl_cert_file else "http"
    host = network.host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, network.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot listen on {network.host}: {_reason(error)}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise CommandError(f"cannot listen on {network.host} port {network.port}: {_reason(error)}") from error
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        url = f"{scheme}://{shown}:{listener.getsockname()[1]}"
        yield Listener(listener, url, _is_loopback(str(listener.getsockname()[0])))


def check_tls(network: NetworkConfig) -> None:
    """Raises CommandError when certificate and key cannot be used."""
    if network.ssl_cert_file is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An empty passphrase instead of a question on the terminal.
        context.load_cert_chain(network.ssl_cert_file, network.ssl_key_file, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise CommandError(
            f"cannot use {network.ssl_cert_file} with {network.ssl_key_file} for HTTPS: {reason}"
        ) from error


def is_unix(network: NetworkConfig) -> bool:
    """Whether the host names a Unix socket: it ends in `.sock`, or it is a path and the port is 0."""
    return network.host.endswith(".sock") or ("/" in network.host and network.port == 0)


def _bound_unix(path: str) -> Generator[Listener]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_stale(path)
            listener.bind(path)
            identity = os.stat(path).st_ino
        except OSError as error:
            raise CommandError(f"cannot listen on {path}: {_reason(error)}") from error
        try:
            yield Listener(listener, f"unix:{path}", True)
        finally:
            # Only the file made here: another server may have taken the name since.
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == identity:
                    os.unlink(path)


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on. Raises CommandError when somebody does, or it is no socket."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise CommandError(f"cannot listen on {path}: it exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise CommandError(f"cannot listen on {path}: another server does")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not an address"


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
