"""The model of /invocations, the requirements for a new server, and the end of an old one."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from offpath.errors import ExpectedError
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.upstreams import check_successor, plan_upstreams
from offpath.serving.rotation import Retired
from offpath.serving.server.plan import plan_server
from offpath.serving.server.properties import find_config
from offpath.serving.server.server import Server
from tests.support.echo_archive import MakeMar, make_settings
from tests.support.eventually import eventually

INVOCATIONS = DoorSettings(invocations=True)


def test_invocations_leads_to_the_name_that_the_model_is_served_under(make_mar: MakeMar) -> None:
    settings = make_settings(make_mar())
    assert plan_upstreams(plan_server(settings), INVOCATIONS).only_model == "echo"
    renamed = replace(settings, models=("defects=echo.mar",))
    assert plan_upstreams(plan_server(renamed), INVOCATIONS).only_model == "defects"
    assert plan_upstreams(plan_server(settings), DoorSettings()).only_model is None


def test_bodies_go_by_name_unless_models_can_be_registered(
    model_store: Path, tmp_path: Path
) -> None:
    settings = make_settings(model_store / "near-free.mar")
    assert plan_upstreams(plan_server(settings), DoorSettings()).hand_over
    config = tmp_path / "config.properties"
    text = find_config().read_text()
    config.write_text(text.replace("enable_model_api=false", "enable_model_api=true"))
    settings = replace(settings, config=config)
    assert not plan_upstreams(plan_server(settings), DoorSettings()).hand_over
    # Which registers none.
    assert plan_upstreams(
        plan_server(replace(settings, server="granian")), DoorSettings()
    ).hand_over


def test_a_successor_whose_model_has_another_name_is_refused(make_mar: MakeMar) -> None:
    settings = make_settings(make_mar())
    old = plan_upstreams(plan_server(settings), INVOCATIONS)
    new = plan_upstreams(plan_server(replace(settings, models=("x=echo.mar",))), INVOCATIONS)
    check_successor(old, old)
    with pytest.raises(ExpectedError, match="'echo', but the model store now has 'x'"):
        check_successor(old, new)


def test_a_lack_of_descriptors_leaves_no_old_server_behind() -> None:
    class OldServer:
        stops = 0

        def is_running(self) -> bool:
            return False

        def stop(self) -> None:
            self.stops += 1
            if self.stops == 1:
                raise OSError(errno.EMFILE, "Too many open files")

    old = OldServer()
    retired = Retired(cast(Server, old), since=0, drain_s=0, old_nginx=[])
    eventually(retired.end_if_done)
    assert old.stops == 2
