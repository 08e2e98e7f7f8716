"""Archives with any manifest, model-config.yaml or damage are read or refused, in time."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from offpath.archive.mar_file import MANIFEST
from offpath.archive.model_config import SERVER_SETTINGS
from offpath.archive.sources.stock_archive import unpack
from offpath.errors import ExpectedError
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.serving.check.files import check_archive
from tests.fuzz.seeds import CHANGES, Change, change
from tests.guarantees import guarantee
from tests.support.echo_archive import MODEL_CONFIG

MAX_S = 2.0
CONFIG = "model-config.yaml"
MODEL = {
    **{"modelName": "m", "modelVersion": "1.0", "handler": "m.py"},
    **{"modelFile": "m.py", "serializedFile": "m.pt", "configFile": CONFIG},
}
NAMES = st.sampled_from(
    ["m.py", "m.pt", CONFIG, "/etc/passwd", "../up", "..", ".", "", "a/b", "\x1b[2J"]
) | st.text(max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MODELS = st.dictionaries(
    st.sampled_from([*MODEL, "extraFiles"]) | st.text(max_size=8), VALUES, max_size=4
).map(lambda changes: {**MODEL, **changes})
MANIFESTS = (
    st.fixed_dictionaries({"model": MODELS | VALUES}).map(json.dumps)
    | VALUES.map(json.dumps)
    | st.text(max_size=40)
    | st.integers(1, 100_000).map(lambda depth: "[" * depth)
)
CONFIGS = (
    st.dictionaries(
        st.sampled_from([*MODEL_CONFIG, *SERVER_SETTINGS, "deviceType", "handler"]),
        VALUES
        | st.dictionaries(st.sampled_from(sorted(HandlerConfig.__dataclass_fields__)), VALUES),
        max_size=4,
    ).map(json.dumps)
    | st.lists(
        st.sampled_from(
            ["a: ", "&a ", "*a", "- ", "[", "]", "{", "}", "? ", "!!python/name:os.x ", "\n"]
            + ["!!bool x", "<<: ", "!!binary x", "1e999", "9" * 5000, "%", "|", "#", "  "]
        ),
        max_size=12,
    ).map("".join)
    | st.text(max_size=40)
)


def check(path: Path, folder: Path) -> None:
    """Checks that the commands that read an archive take it or refuse it in printable words."""
    begin_s = time.thread_time()
    for finding in check_archive(path):
        said = f"{finding.subject} {finding.found} {finding.cure}"
        assert said.isprintable()
    try:
        unpack(path, folder / "unpacked", has_own_handler=True)
    except (ExpectedError, ConfigError) as error:
        assert str(error).replace("\n", " ").isprintable()
    assert time.thread_time() - begin_s < MAX_S
    assert {one.name for one in folder.iterdir()} <= {"a.mar", "unpacked"}


def write_and_check(manifest: str, config: str, changes: Sequence[Change] = ()) -> None:
    """Checks an archive whose files are all there, and some of whose bytes are changed."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.mar"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(MANIFEST, manifest.encode("utf-8", "surrogatepass"))
            archive.writestr(CONFIG, config.encode("utf-8", "surrogatepass"))
            archive.writestr("m.py", "class Net: pass")
            archive.writestr("m.pt", "weights")
        path.write_bytes(change(path.read_bytes(), list(changes)))
        check(path, Path(folder))


@guarantee("Hostile archives and YAML")
@given(MANIFESTS)
@example(json.dumps({"model": {**MODEL, "configFile": "/dev/zero"}}))
def test_any_manifest_is_taken_or_refused(manifest: str) -> None:
    write_and_check(manifest, "batchSize: 8")


@guarantee("Hostile archives and YAML")
@given(CONFIGS)
@example("a: &a [x, x]\n" + "b: &b [*a, *a]\n" * 40)
@example("a: !!bool x")
@example('{"deviceType": "\\u001f"}')
def test_any_config_is_taken_or_refused(config: str) -> None:
    write_and_check(json.dumps({"model": MODEL}), config)


@guarantee("Hostile archives and YAML")
@given(CHANGES)
def test_any_damage_is_taken_or_refused(changes: list[Change]) -> None:
    write_and_check(json.dumps({"model": MODEL}), json.dumps(MODEL_CONFIG), changes)
