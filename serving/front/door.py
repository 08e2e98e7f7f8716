"""The front door: a running nginx with its folders, configuration and logs."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from dataclasses import replace
from pathlib import Path

import httpx

from offpath.errors import ExpectedError
from offpath.serving.front.bodies import free_bytes, make_folder, remove_orphans
from offpath.serving.front.door_settings import DoorPlace, DoorSettings, read_tokens
from offpath.serving.front.nginx import Nginx, NginxBinary
from offpath.serving.front.nginx_config import MODELS, DoorPlan, write_config, write_models
from offpath.serving.front.reply_counts import ReplyCounts
from offpath.serving.front.upstreams import Upstreams, point_links
from offpath.serving.process.tmp_folders import lock_folder, make_short_tmp_dir, remove_folder
from offpath.serving.server.server import Server

READY_FILE = "ready"
PROBE_TIMEOUT_S = 10.0
PROBE_POLL_S = 0.05
MAX_LOG_BYTES = 20 << 20
# Orphaned bodies are looked for when an nginx worker has ended, and this often.
ORPHANS_S = 30.0
COUNT_S = 1.0


class Door:
    """nginx in front of one server.

    Args:
        settings: how to start the door, with ports that are not 0.
        upstreams: the servers behind it.
        binary: the nginx to run.
        log_dir: folder of its logs; by default a temporary folder.

    Raises:
        ExpectedError: the bodies have too little room in memory.
    """

    def __init__(
        self,
        settings: DoorSettings,
        upstreams: Upstreams,
        binary: NginxBinary,
        log_dir: Path | None,
    ) -> None:
        self.settings, self.upstreams, self.binary = settings, upstreams, binary
        self._bodies_lock: int | None
        bodies, self._bodies_lock = make_folder(
            upstreams.max_body_bytes, settings.memory, settings.front_bodies
        )
        run = make_short_tmp_dir()
        log = (log_dir or run / "logs").resolve()
        log.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.place = DoorPlace(run, bodies, free_bytes(bodies), log, secrets.token_hex(32))
        self._nginx: Nginx | None = None
        self._server: Server | None = None
        self.replies = ReplyCounts(run)
        self._files_seen: list[tuple[str, int]] = []
        self._workers: set[int] = set()
        self._orphans_at = self._counted_at = 0.0
        # Lines for /metrics on the server's workers.
        self.workers: list[str] = []

    @property
    def url(self) -> str:
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{self.settings.addresses[0]}"

    @property
    def urls(self) -> dict[str, str]:
        """The addresses to show, by what they are for."""
        return {
            "inference": self.url,
            "management": f"unix:{self.place.run}/management.sock",
            "metrics": f"http://{self.settings.metrics_address}/metrics",
            "logs": str(self.place.log),
        }

    @property
    def token(self) -> str | None:
        """A bearer token, if predictions need one."""
        file = self.settings.tokens
        return None if file is None else read_tokens(file)[0]

    @property
    def nginx(self) -> Nginx:
        """The running nginx; RuntimeError before the start."""
        if self._nginx is None:
            raise RuntimeError("not started")
        return self._nginx

    def switch_to(self, server: Server) -> list[int]:
        """Sends new requests to a server.

        Returns:
            process ids of nginx's workers that may still pass requests to the server before it.

        Raises:
            ExpectedError or OSError: a disk is full, or nginx rejects the new configuration;
                requests still go to the server before it.
        """
        upstreams = self.upstreams
        old_workers: list[int] = []
        routes = server.plan.routes
        # A reload may bring other models, another number of workers or another kind of server.
        if routes != upstreams.routes:
            generation = upstreams.generation + 1
            upstreams = replace(upstreams, routes=routes, generation=generation)
            old_workers = self.nginx.worker_pids() if self._nginx is not None else []
        new_models = write_models(self.place.run, server.plan.names)
        point_links(server, self.place.run, upstreams)
        try:
            self.change(upstreams=upstreams)
        except ExpectedError:
            # The links that do not depend on the configuration, such as that to the metrics.
            if self._server is not None:
                point_links(self._server, self.place.run, self.upstreams)
            raise
        self._server = server
        new_models.replace(self.place.run / MODELS)
        return old_workers

    def start(self) -> None:
        """Starts nginx and waits until it answers. Call `switch_to` first.

        Raises:
            ExpectedError: nginx does not start; the message has its output.
        """
        self._write()
        files = self.place.config, self.place.error_log
        self.binary.check(*files)
        self._nginx = Nginx(self.binary, *files, (self.place.run, self.place.bodies))
        self._wait_until_open()
        self._count_replies()
        self._workers = set(self._nginx.worker_pids())

    def set_ready(self, is_ready: bool) -> None:
        """Sets the reply to /ping: 200 or 503."""
        file = self.place.run / READY_FILE
        # On a full disk the next call tries again.
        with contextlib.suppress(OSError):
            if is_ready:
                file.touch()
            else:
                file.unlink(missing_ok=True)

    def change(
        self, settings: DoorSettings | None = None, upstreams: Upstreams | None = None
    ) -> None:
        """Puts other settings or upstreams into force.

        Raises:
            ExpectedError: nginx rejects the new configuration, or it cannot be written.
        """
        before = self.settings, self.upstreams
        wanted = settings or self.settings, upstreams or self.upstreams
        if wanted == before:
            return
        self.settings, self.upstreams = wanted
        try:
            if self._nginx is not None:
                self._rewrite()
        except ExpectedError:
            # So that the next attempt finds that something is to be changed.
            self.settings, self.upstreams = before
            raise

    def refresh(self) -> None:
        """Reads replaced tokens and certificates; to be called regularly.

        Raises:
            ExpectedError: the new files cannot be used; the old content stays in force.
        """
        if self._read_stamps() != self._files_seen:
            # Set before the attempt: a file that fails is tried again only when it changes.
            self._files_seen = self._read_stamps()
            self._rewrite()

    def look_after(self) -> bool:
        """Restarts a dead nginx, removes orphaned bodies, counts replies and rotates the logs.

        Returns True if nginx had died.
        """
        nginx = self.nginx
        died = not nginx.is_running()
        if died:
            # Workers that outlive their master hold the listener.
            nginx.stop()
            self.start()
        self._restore_bodies()
        workers = set(self.nginx.worker_pids())
        is_due = time.monotonic() - self._orphans_at > ORPHANS_S
        if died or self._workers - workers or is_due:
            remove_orphans(self.place.bodies, workers)
            self._orphans_at = time.monotonic()
        self._workers = workers
        if time.monotonic() - self._counted_at > COUNT_S:
            self._count_replies()
        self._rotate_logs()
        return died

    def _restore_bodies(self) -> None:
        """Makes the folder of the bodies again if somebody has removed it."""
        if self._bodies_lock is None or self.place.bodies.is_dir():
            return
        with contextlib.suppress(OSError):  # /ping says 503, and the next look tries again
            self.place.bodies.mkdir(mode=0o700)
            os.close(self._bodies_lock)
            self._bodies_lock = lock_folder(self.place.bodies)

    def drain(self) -> bool:
        """Accepts no new requests and answers those in flight; False if the time was up first.

        For `unready_s`, /ping says 503 and new requests are still answered.
        """
        self.set_ready(False)
        if self._server is not None:
            time.sleep(self.settings.unready_s)
        return self._nginx is None or self._nginx.drain(self.settings.drain_s)

    def stop(self) -> None:
        """Ends nginx and removes the folders. Safe to call twice."""
        if self._nginx is not None:
            self._nginx.stop()
        self.replies.close()
        shutil.rmtree(self.place.bodies, ignore_errors=True)
        remove_folder(self.place.run)
        if self._bodies_lock is not None:
            os.close(self._bodies_lock)
            self._bodies_lock = None

    def _count_replies(self) -> None:
        self._counted_at = time.monotonic()
        is_ready = (self.place.run / READY_FILE).exists()
        if self.replies.count(is_ready, self.workers, self.settings.canary):
            self.nginx.reopen_logs()

    def _write(self) -> None:
        self._files_seen = self._read_stamps()
        file = self.settings.tokens
        tokens = () if file is None else read_tokens(file)
        plan = DoorPlan(self.place, self.settings, has_http2=self.binary.is_patched)
        write_config(plan, self.upstreams, tokens)

    def _rewrite(self) -> None:
        try:
            self._write()
        except OSError as error:  # such as a full disk
            raise ExpectedError(
                f"nginx's configuration cannot be written ({error}); repair that, then try again "
                "or touch the changed file"
            ) from error
        # A failing reload keeps the old configuration, but nginx reports that only in its log.
        self.binary.check(self.place.config, self.place.error_log)
        self.nginx.reload()

    def _read_stamps(self) -> list[tuple[str, int]]:
        """Returns the real path and time of each file, as Kubernetes replaces files by links."""
        settings = self.settings
        stamps = []
        for path in (settings.tokens, settings.tls_cert, settings.tls_key):
            if path is not None and path.is_file():
                stamps.append((str(path.resolve()), path.stat().st_mtime_ns))
        return stamps

    def _wait_until_open(self) -> None:
        deadline = time.monotonic() + PROBE_TIMEOUT_S
        # Where the door listens on all addresses, loopback is one of them.
        url = self.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        # The certificate need not be valid for this address.
        with httpx.Client(trust_env=False, verify=False, timeout=1.0) as client:
            while True:
                try:
                    client.get(f"{url}/ping")
                    return
                except httpx.HTTPError as error:
                    if not self.nginx.is_running() or time.monotonic() > deadline:
                        raise ExpectedError(
                            f"nginx does not answer at {self.url} ({error}); {self._last_words()}"
                        ) from error
                time.sleep(PROBE_POLL_S)

    def _last_words(self) -> str:
        log = self.place.error_log
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return f"its log is {log}" + "".join(f"\n  {line}" for line in lines[-3:])

    def _rotate_logs(self) -> None:
        is_renamed = False
        for log in (self.place.error_log, self.place.access_log):
            if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
                log.replace(log.with_name(f"{log.name}.1"))
                is_renamed = True
        if is_renamed:
            self.nginx.reopen_logs()
