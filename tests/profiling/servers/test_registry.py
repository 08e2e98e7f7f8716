"""Names of servers: what each stands for, and who is refused."""

from __future__ import annotations

import pytest

from offpath.profiling.load.model_under_test import ModelUnderTest, load_model
from offpath.profiling.servers.registry import ENVIRONMENTS, SERVERS, make_servers


@pytest.fixture(scope="module")
def model() -> ModelUnderTest:
    return load_model("near-free")


def test_every_server_has_the_name_it_is_asked_by(model: ModelUnderTest) -> None:
    servers = make_servers(list(SERVERS), model, 2)

    assert [server.name for server in servers] == list(SERVERS)
    assert set(ENVIRONMENTS) <= set(SERVERS)


def test_every_server_that_batches_asks_for_the_same_batch(
    model: ModelUnderTest,
) -> None:
    assert {s.batch_size for s in make_servers(list(SERVERS), model, 2)} == {8}


def test_thin_clients_send_arrays_and_all_others_photographs(
    model: ModelUnderTest,
) -> None:
    contents = {s.name: s.call.content for s in make_servers(list(SERVERS), model, 2)}

    thin = {name for name, content in contents.items() if content == "npy"}
    assert thin == {"offpath-thin", "triton-thin"}


def test_naive_handler_says_where_it_puts_its_predictions(
    model: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFFPATH_NAIVE_ENDPOINT", raising=False)
    monkeypatch.setenv("OFFPATH_NAIVE_BUCKET", "predictions")
    (with_store,) = make_servers(["torchserve-naive"], model, 2)
    monkeypatch.delenv("OFFPATH_NAIVE_BUCKET")
    (without_store,) = make_servers(["torchserve-naive"], model, 2)

    assert with_store.settings["env"] == {"OFFPATH_NAIVE_BUCKET": "predictions"}
    assert without_store.settings["env"] == {}
