"""A front door as a part of a session: it replaces the server, and is looked after itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from offpath.errors import ExpectedError
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings, settle_ports
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.readiness import Readiness
from offpath.serving.front.reload_requests import ReloadRequests
from offpath.serving.front.splits import check_splits, parse_split
from offpath.serving.front.upstreams import check_successor, plan_upstreams, put_behind_door
from offpath.serving.process.interrupts import Hangup
from offpath.serving.rotation import Rotation
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.model_store import copy_archives
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.starting import SERVERS

KEPT_LOGS = 3


class DoorTasks:
    """A front door before the server of a session, and the tasks that look after both.

    Args:
        make_settings: returns the settings of a server to start (`Session`).
        settings: those of the door.
        hangup: remembers SIGHUP.
        show: shows an operator what has happened, and the consequence.
        greet: takes the settings in force of a server that was let in.

    Attributes:
        tasks: to be called again and again while a server runs.
    """

    def __init__(
        self,
        make_settings: Callable[[str | None], ServerSettings],
        settings: DoorSettings,
        hangup: Hangup,
        show: Callable[[str], None],
        greet: Callable[[Iterable[ModelStatus]], None],
    ) -> None:
        self._make_settings, self._hangup = make_settings, hangup
        self._show, self._greet = show, greet
        self._reloads, self._is_reload = ReloadRequests(self._change_splits), False
        first = make_settings(None)
        # TorchServe or Granian; differs from the one that runs only during a reload to the other.
        self._next_kind = first.server
        upstreams = plan_upstreams(plan_server(first), settings)
        self.door = Door(settle_ports(settings), upstreams, find_nginx(), first.log_dir)
        last = find_last_number(self.door.place.log)
        self.rotation = Rotation(self._plan_next, self.door.switch_to, settings.drain_s, last)
        self.readiness = Readiness(self.door, self.rotation, show)
        self.tasks: tuple[Callable[[], object], ...] = (
            *(self.door.look_after, self._replace_where_dead, self._follow_reload),
            *(self.rotation.end_retired, self.readiness.tell_ready, self._refresh_door),
        )

    def open(self) -> None:
        """Lets clients in."""
        self.door.start()
        self.door.set_ready(True)
        try:
            self._reloads.open(self.door.place.run)
        except ExpectedError as error:
            self._show(f"{error}; only SIGHUP reloads")
        if gap := self.door.binary.describe_gap():
            self._show(gap)

    def close(self) -> None:
        self._reloads.close()
        self.door.stop()

    def list_files(self) -> list[Path]:
        """Returns the files without which the door cannot go on."""
        return [self.door.place.config, *self._reloads.list_sockets()]

    def _plan_next(self, number: int, in_force: ServePlan | None) -> ServePlan:
        # Each server has its own folder of logs.
        plan, log, run = in_force, self.door.place.log, self.door.place.run
        if plan is None:
            settings = self._make_settings(self._next_kind)
            if self.rotation.is_let_in():  # only the first start may fail for want of a spool
                settings = replace(settings, lenient=True)
            new = plan_upstreams(plan_server(settings), self.door.settings)
            check_successor(self.door.upstreams, new)
            for folder in run.glob("store-*"):
                if folder != self.rotation.current.settings.model_store:
                    shutil.rmtree(folder)
            plan = plan_server(copy_archives(settings, run / f"store-{number}"))
        for kind in SERVERS:
            shutil.rmtree(log / f"{kind}-{number - KEPT_LOGS}", ignore_errors=True)
        folder = log / f"{plan.settings.server}-{number}"
        return put_behind_door(plan, self.door.place, self.door.upstreams, folder)

    def _follow_reload(self) -> None:
        """Begins a reload that was asked for, and lets in a server that has become READY."""
        is_free = not self._is_reload and self.rotation.starting is None
        if is_free and (self._reloads.accept_new() | self._hangup.take()):
            self._is_reload = True
            self._next_kind = self._reloads.begin() or self._next_kind
            self.rotation.begin()
        ended = self.rotation.finish()
        if ended is not None and ended.failure is None:
            self._greet(ended.statuses)
        elif ended is not None and not self.rotation.current.is_running():
            raise ExpectedError(str(ended.failure)) from ended.failure
        elif ended is not None and self._is_reload:
            self._end_reload(str(ended.failure))
        elif self._is_reload and self.rotation.starting is None:
            if self.rotation.has_turned():
                self._end_reload(None)

    def _end_reload(self, failure: str | None) -> None:
        self._is_reload = False
        self._reloads.end(failure)
        if failure is None:
            self._show(f"reloaded; a new {self.rotation.current.product} serves")
        else:
            self._next_kind = self.rotation.current.settings.server
            self._show(f"not reloaded; the old server continues: {failure}")

    def _replace_where_dead(self) -> None:
        """Starts another server after one has ended by itself.

        There is no limit to these restarts: each takes seconds, /ping tells the load balancer to
        wait, and a server that does not become READY ends the command.
        """
        server = self.rotation.current
        if server.is_running() or self.rotation.starting is not None:
            return
        self.door.set_ready(False)
        self._show(f"{server.describe_end()}\nAnother one is starting")
        # Whatever the model store has by now: only a reload reads that.
        self.rotation.begin(server.plan)

    def _refresh_door(self) -> None:
        try:
            self.door.refresh()
        except ExpectedError as error:
            self._show(f"{error}; the door keeps its old files")

    def _change_splits(
        self, canary: list[str], shadow: list[str], stop: list[str]
    ) -> dict[str, list[str]]:
        """Changes canaries and shadows as `offpath canary` asks.

        Returns:
            those in force then, those that have ended, because a model has either a canary or a
            shadow, and the canaries that get no requests at present.
        """
        before = self.door.settings
        settings = before.change_splits(
            list(map(parse_split, canary)), list(map(parse_split, shadow)), stop
        )
        if settings != before:
            check_splits(settings.splits, self.rotation.current.plan.models)
            self.door.change(settings)
            self.door.replies.forgive()
        return {
            "canary": list(map(str, settings.canary)),
            "shadow": list(map(str, settings.shadow)),
            "ended": before.list_ended(settings),
            "suspended": [
                f"{one}: {one.suspended.value}" for one in settings.canary if one.suspended
            ],
        }


def find_last_number(log: Path) -> int:
    """Returns the highest number of a server's folder of logs, 0 without one."""
    ends = (path.name.rpartition("-")[2] for path in log.glob("*-*") if path.is_dir())
    return max((int(end) for end in ends if end.isdecimal()), default=0)
