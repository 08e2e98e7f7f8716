"""Names of servers: what each stands for, and who is refused."""

from __future__ import annotations

import pytest

from offpath.profiling.load.model_under_test import ModelUnderTest, load_model
from offpath.profiling.servers import archives
from offpath.profiling.servers.registry import SERVERS, make_servers


@pytest.fixture(scope="module")
def model() -> ModelUnderTest:
    return load_model("near-free")


def test_every_server_that_batches_asks_for_the_same_batch(model: ModelUnderTest) -> None:
    variants = ["a=offpath:handler.decode=exact", "b=torchserve-fixed:env.X=1"]
    for size in (8, 16):
        servers = make_servers(list(SERVERS), model, 2, variants, size)
        assert {server.batch_size for server in servers} == {size}
        asked = [s.config["batchSize"] for s in servers if getattr(s, "config", None)]
        assert set(asked) == {size} and len(asked) > 5


def test_variant_keeps_the_batch_of_its_server_unless_it_sets_one(
    model: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a GPU the archives come from the preset t4, whose batch differs from the benchmark's.
    monkeypatch.setattr(archives, "host_preset", lambda: "t4")
    variants = ["a=offpath:handler.decode=exact", "b=offpath:model.batch_size=4"]
    own, plain, four = make_servers(["offpath"], model, 2, variants)
    assert [s.config["batchSize"] for s in (own, plain, four)] == [8, 8, 4]
