from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from offpath.commands.predict import find_images
from offpath.errors import ExpectedError
from offpath.handler.request.npy import read_npy
from offpath.serving.printable import UNPRINTABLE
from tests.guarantees import guarantee
from tests.offpath.conftest import Done, Run, read_json_keys
from tests.support.answering_server import Answers, answering_server
from tests.support.certificates import write_certificate
from tests.support.photographs import encode, find_photograph

Predict = Callable[..., Done]
JPEG = encode(find_photograph("coffee").rgb, "JPEG")


@pytest.fixture
def predict(run: Run) -> Predict:
    """`predict("a.jpg", ...)`: what `offpath predict a.jpg ...` leaves."""
    return lambda *arguments: run("predict", *arguments)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    file = tmp_path / "photo.jpg"
    file.write_bytes(JPEG)
    return file


def test_model_token_and_thin_pixels_reach_the_server(
    predict: Predict, answers: Answers, photo: Path
) -> None:
    options = ("--url", answers.url, "--model", "cats", "--token", "secret")
    assert predict(photo, *options, "--thin")[0] == 0
    path, headers, body = answers.requests[0]
    assert path == "/predictions/cats"
    assert headers["authorization"] == "Bearer secret"
    assert read_npy(body, (224, 224, 3)).shape == (224, 224, 3)


def test_image_that_cannot_be_sent_does_not_stop_the_others(
    predict: Predict, answers: Answers, tmp_path: Path, photo: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"junk")
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "fifo.jpg")
    code, out, err = predict(tmp_path, "--url", answers.url, "--thin", "--json")
    lines = {Path(line["image"]).name: line for line in map(json.loads, out.splitlines())}
    assert code == 1
    assert lines["photo.jpg"]["status"] == 200
    assert list(lines["photo.jpg"]) == read_json_keys()["predict"]
    for name in ("broken.png", "folder.jpg", "fifo.jpg"):
        assert lines[name]["status"] is None
        assert lines[name]["error"]
    assert "3 of 4 images" in err


def test_private_certificate_is_trusted_only_by_name(
    predict: Predict, tmp_path: Path, photo: Path
) -> None:
    certificate, key = write_certificate(tmp_path)
    with answering_server(tls=(certificate, key)) as server:
        url = server.url.replace("http:", "https:")
        code, _, err = predict(photo, "--url", url)
        assert (code, server.requests) == (1, [])
        assert "pass --cacert" in err
        assert predict(photo, "--url", url, "--cacert", certificate)[0] == 0
        named = url.replace("127.0.0.1", "localhost")
        code, _, err = predict(photo, "--url", named, "--cacert", certificate)
        assert (code, len(server.requests)) == (1, 1)
        assert "Hostname mismatch" in err
        assert "pass --cacert" not in err
        code, _, err = predict(photo, "--url", url, "--cacert", key)
    assert code == 2
    assert f"--cacert {key}" in err


def test_files_folders_and_globs_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "notes.txt", "deep/c.webp", "x[1].jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def found(*patterns: Path) -> list[str]:
        paths = find_images(tuple(map(str, patterns)))
        return [str(path.relative_to(tmp_path)) for path in paths]

    assert found(tmp_path) == ["a.jpg", "b.PNG", "deep/c.webp", "x[1].jpg"]
    assert found(tmp_path / "*.jpg") == ["a.jpg", "x[1].jpg"]
    assert found(tmp_path / "**/*.webp") == ["deep/c.webp"]
    # A file that was named is sent, whatever it is called.
    assert found(tmp_path / "x[1].jpg", tmp_path / "notes.txt") == ["x[1].jpg", "notes.txt"]
    with pytest.raises(ExpectedError):
        found(tmp_path / "a.jpg", tmp_path / "*.gif")


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        pytest.param(b'{"boxes": [1]}', {"boxes": [1]}, id="object"),
        pytest.param(b"a text", "a text", id="text"),
        pytest.param(b"[" * 100_000, "[" * 100_000, id="nested"),
        pytest.param(b'{"cat": 0.75}', None, id="labels"),
    ],
)
def test_answer_of_a_custom_handler_is_in_the_json(
    predict: Predict, answers: Answers, photo: Path, body: bytes, answer: object
) -> None:
    answers.body = body
    code, out, _ = predict(photo, "--url", answers.url, "--json")
    assert code == 0 and json.loads(out)["answer"] == answer


ESCAPE = "\x1b[2J\x9b\u202e"


@guarantee(
    "Replies that never end or command the terminal",
    "offpath/commands/predict.py",
    'return printable(f"{path}  {what}  {ms}{in_server}")',
    'return f"{path}  {what}  {ms}{in_server}"',
)
@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(200, {f"{ESCAPE}[/red]cat": 1.0}, id="label"),
        pytest.param(200, {"answer": ESCAPE}, id="custom-answer"),
        pytest.param(400, {"message": ESCAPE + "x" * 2000}, id="message"),
        pytest.param(404, {"models": [{"modelName": ESCAPE}, {"modelName": "b"}]}, id="models"),
    ],
)
def test_no_text_of_a_server_or_file_commands_the_terminal(
    predict: Predict, answers: Answers, tmp_path: Path, status: int, body: dict[str, object]
) -> None:
    file = tmp_path / f"a{ESCAPE}[red].jpg"
    file.write_bytes(JPEG)
    answers.headers = {"Server-Timing": f"{ESCAPE.encode().decode('latin-1')};dur=5"}

    def respond(path: str, _: bytes) -> tuple[int, bytes]:
        is_list = path == "/models"
        return (200 if is_list else status), json.dumps(body, ensure_ascii=False).encode()

    answers.respond = respond
    _, out, err = predict(file, "--url", answers.url)
    shown = out + err
    assert UNPRINTABLE.search(shown.replace("\n", "")) is None
    assert r"\x1b[2J\x9b\u202e" in shown
    # Brackets are no markup.
    assert ("[red].jpg" in shown or status == 404) and (
        "[/red]cat" in shown or "cat" not in str(body)
    )
    assert "x" * 1000 not in shown
