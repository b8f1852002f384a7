"""The control API's own thread and loop.

mitmproxy makes every task of the plane's loop eager, and a saturated plane would starve whatever shares
its loop: revoking must work then most of all.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from coatcheck.control.backend import Backend, Daemon
from coatcheck.control.bridge import PlaneBridge
from coatcheck.control.context import Context
from coatcheck.control.dispatch import Dispatcher, refused
from coatcheck.control.grants import Grants, GrantsError, load_grants
from coatcheck.control.identity import Channel, identify, uid_of
from coatcheck.control.listener import Listener, answer_bytes
from coatcheck.control.page.openid_login import OpenIdLogins
from coatcheck.control.problem import ControlProblem
from coatcheck.control.request_guards import LOOPBACK
from coatcheck.control.sandbox_opening import incarnations, maker
from coatcheck.control.sockets import (
    BACKLOG,
    ControlSocketError,
    bind_tcp,
    bind_unix,
    server_tls,
    unusable,
)
from coatcheck.durable.incarnations import Maker
from coatcheck.durable.reconcile import Reconciler
from coatcheck.durable.snapshotting import save
from coatcheck.durable.stopping import put_to_sleep
from coatcheck.platform.server_tls import ServerTls
from coatcheck.settings.daemon import Settings
from coatcheck.settings.page import OidcClient

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 10.0


class ControlServer:
    """`start` is called on the plane's loop, `reload` in any thread but ours, `stop` anywhere but there."""

    def __init__(self, daemon: Daemon, settings: Settings, plane: asyncio.AbstractEventLoop) -> None:
        self._daemon = daemon
        self._settings = settings
        self._plane = plane
        self._grants = Grants({})
        self._dispatcher: Dispatcher | None = None
        self._context: Context | None = None
        self._forget_links: Callable[[], None] = lambda: None
        self._openid: OpenIdLogins | None = None
        self._tls: ServerTls | None = None
        self._unix: tuple[socket.socket, tuple[int, int]] | None = None
        self._tcp: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._started = threading.Event()

    @property
    def path(self) -> Path:
        """The Unix socket."""
        return self._settings.control.absolute()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each TCP listener."""
        return tuple(each.getsockname()[:2] for each in self._tcp)

    def start(self) -> None:
        """Listen; `stop` may have been called before. Raises GrantsError or ControlSocketError: a daemon that
        nobody can stop does not start."""
        settings = self._settings
        self._grants = self._load_grants()
        if settings.control_tls_certificate is not None:
            self._tls = server_tls(settings.control_tls_certificate, settings.control_client_ca)
        if settings.page_oidc is not None and settings.control_port is not None:
            self._openid = _openid(settings.page_oidc)
        try:
            bound = bind_unix(self.path, self._mode())
            status = self.path.stat()
            self._unix = (bound, (status.st_dev, status.st_ino))
            if settings.control_port is not None:
                self._tcp = bind_tcp(settings.control_host, settings.control_port)
            for host, port in self.addresses:
                if self._daemon.listeners is not None:
                    self._daemon.listeners.keep_out(host, port)
            for each in (bound, *self._tcp):
                each.listen(BACKLOG)
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()
        self._started.wait(STOP_SECONDS)

    def reload(self) -> str | None:
        """Read grants and certificates again. Says what is wrong with them; then the old ones stay."""
        try:
            grants = self._load_grants()
            if self._tls is not None:
                self._check_certificates(self._tls)
        except (GrantsError, ControlSocketError) as error:
            logger.error("control API not reloaded, the old grants stay in force: %s. %s", error, error.hint)
            return f"{error}. {error.hint}"
        self._grants = grants
        if self._dispatcher is not None:
            self._dispatcher.grants = grants
        try:
            os.chmod(self.path, self._mode())
        except OSError as error:
            logger.error("cannot set the mode of %s: %s", self.path, error.strerror)
        if self._loop is not None:
            self.look()
            self._loop.call_soon_threadsafe(self._forget_links)
        return None

    async def put_to_sleep(self) -> None:
        """As the daemon ends: what is to outlive it sleeps, or ends with the reason. On the plane's loop."""
        if self._context is not None and self._loop is not None:
            seconds = self._settings.sandbox_sleep_seconds
            work = put_to_sleep(self._daemon.sandboxes, self._daemon.state, self._context.take, seconds)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """Close the listeners and wait for what runs."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(STOP_SECONDS)
            self._thread = self._loop = None
        self._close_sockets()

    # --- in its own thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            logger.exception("the control API ended")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        bridge = PlaneBridge(self._plane)
        context = Context(Backend(self._daemon, self.reload), bridge, self._page_origin(), self._openid)
        self._context = context
        self._forget_links = context.logins.forget_links
        self._dispatcher = Dispatcher(context, self._grants, self._names())
        tls = self._tls.context if self._tls is not None else None
        doors = [Listener(each, self._dispatcher.handle, _everybody, tls) for each in self._tcp]
        if self._unix is not None:
            doors.append(Listener(self._unix[0], self._dispatcher.handle, self._admit))
        tasks = [asyncio.create_task(door.keep_open()) for door in doors]
        tasks.append(asyncio.create_task(bridge.keep_beating()))
        tasks.append(asyncio.create_task(self._reconciler(context, self._dispatcher).run()))
        self._started.set()
        try:
            await self._ending.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._daemon.inspector.close()
            for door in doors:
                await door.close()
            await context.close()

    def _reconciler(self, context: Context, dispatcher: Dispatcher) -> Reconciler:
        """It opens sessions as handlers do, so it runs beside them."""

        def maker_named(name: str) -> Maker | None:
            caller = dispatcher.grants.of_name(name)
            return maker(context, caller) if caller is not None else None

        sandboxes, state = self._daemon.sandboxes, self._daemon.state
        return Reconciler(
            sandboxes,
            incarnations(context),
            partial(save, sandboxes, state),
            maker_named,
            lambda: context.backend.serving,
            brings_back=self._settings.recover_sandboxes,
        )

    def _admit(self, connection: socket.socket) -> bytes | None:
        """On the Unix socket only callers are listened to; a sandbox's user is told so, and not parsed."""
        try:
            identify(Channel(uid_of(connection), None), None, self._grants)
        except ControlProblem as problem:
            logger.warning("control: a connection of uid %d refused", uid_of(connection))
            return answer_bytes(refused(problem))
        return None

    def look(self) -> None:
        """At the certificates, which may have been renewed: on the control API's loop, between handshakes."""
        if self._tls is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._tls.look)

    def _check_certificates(self, tls: ServerTls) -> None:
        try:
            tls.check()
        except OSError as error:
            raise unusable(error) from None

    # --- what settings mean ------------------------------------------------------------------------

    def _load_grants(self) -> Grants:
        return load_grants(self._settings.control_grants, {os.geteuid(), *self._settings.control_uids})

    def _mode(self) -> int:
        """Only as wide as there are callers of other users: the first fence, before the kernel's word."""
        return 0o600 if set(self._grants.by_uid) <= {os.geteuid(), 0} else 0o666

    def _names(self) -> frozenset[str]:
        return LOOPBACK | {self._settings.control_host.lower().strip("[]"), *self._settings.control_names}

    def _page_origin(self) -> str | None:
        """Where a browser on this machine, or one that knows us by name, finds the page."""
        if not self._tcp:
            return None
        host, port = self._settings.control_host, self.addresses[0][1]
        if host in ("0.0.0.0", "::"):  # noqa: S104 - every address of ours, and none that can be written down
            host = next(iter(self._settings.control_names), "localhost")
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls is not None else 'http'}://{host}:{port}"

    def _close_sockets(self) -> None:
        for each in self._tcp:
            each.close()
        if self._unix is not None:
            bound, inode = self._unix
            bound.close()
            try:
                status = self.path.lstat()
                if (status.st_dev, status.st_ino) == inode:  # not the socket of a daemon that came after us
                    self.path.unlink(missing_ok=True)
            except FileNotFoundError:
                pass
            self._unix = None


def _openid(client: OidcClient) -> OpenIdLogins:
    try:
        return OpenIdLogins(client)
    except OSError as error:
        raise ControlSocketError(
            f"the roots for the OpenID provider {client.host} cannot be read: {error.strerror}",
            "Check COATCHECK_PAGE_OIDC_CA_FILE: a PEM file.",
        ) from None


def _everybody(connection: socket.socket) -> bytes | None:
    """Over TCP, what a connection proves is seen after TLS, or in its head."""
    return None
