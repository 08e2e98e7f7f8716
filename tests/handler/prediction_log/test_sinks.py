"""A segment is deleted only after a response that proves that its object was stored."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offpath.handler.prediction_log.log_settings import S3Options
from offpath.handler.prediction_log.prediction_log import PredictionLog
from offpath.handler.prediction_log.sink_file import make_sink_folder_name
from offpath.handler.prediction_log.sinks import S3Sink
from tests.guarantees import guarantee
from tests.handler.prediction_log.conftest import make_record
from tests.support.answering_server import Answers, answering_server
from tests.support.eventually import eventually
from tests.support.s3_servers import make_environ

BODY = b"the object's bytes" * 100
MD5 = hashlib.md5(BODY).hexdigest()
SHA256 = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
CHECKSUM = "x-amz-checksum-sha256"
KMS = "x-amz-server-side-encryption"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in make_environ().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3() -> Iterator[Answers]:
    with answering_server() as answers:
        answers.body = b""
        yield answers


def put(endpoint_url: str, **options: str) -> Exception | None:
    """Puts an object; returns the exception, or None for a success."""

    async def put_one() -> Exception | None:
        settings = S3Options(endpoint_url=endpoint_url, timeout_s=60, **options)
        sink = S3Sink("s3://bucket/p", settings)
        try:
            await sink.put("key", BODY)
        except Exception as error:
            return error
        finally:
            await sink.close()
        return None

    return asyncio.run(put_one())


def test_storage_class_and_kms_key_are_asked_for(s3: Answers) -> None:
    put(s3.url, storage_class="STANDARD_IA", sse_kms_key_id="alias/log")
    ((_, headers, _),) = s3.requests
    assert headers["x-amz-storage-class"] == "STANDARD_IA"
    assert (headers[KMS], headers[f"{KMS}-aws-kms-key-id"]) == ("aws:kms", "alias/log")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"ETag": f'"{MD5}"'}, id="etag-is-the-md5"),
        pytest.param({CHECKSUM: SHA256, "ETag": f'"{MD5}"'}, id="both"),
        pytest.param({CHECKSUM: SHA256, "ETag": '"00ff"', KMS: "aws:kms"}, id="kms-and-checksum"),
    ],
)
def test_an_answer_that_proves_the_object_is_accepted(s3: Answers, headers: dict[str, str]) -> None:
    s3.headers = headers

    assert put(s3.url) is None


@guarantee(
    "Another server's answer taken for S3's",
    "handler/prediction_log/sinks.py",
    "if not is_proof:",
    "if False:",
)
@guarantee("S3 fails")
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param({}, b"<html>please log in</html>", id="login-page"),
        pytest.param({}, b"", id="no-etag"),
        pytest.param({"ETag": f'"{MD5[::-1]}"'}, b"", id="another-etag"),
        pytest.param({"ETag": f'"{MD5}"', CHECKSUM: SHA256[::-1]}, b"", id="checksum"),
        pytest.param({"ETag": '"00ff"', KMS: "aws:kms"}, b"", id="kms-alone"),
    ],
)
def test_a_200_that_proves_nothing_is_refused(
    s3: Answers, headers: dict[str, str], body: bytes
) -> None:
    s3.headers, s3.body = headers, body

    error = put(s3.url)

    assert type(error).__name__ == "UnprovenReply"


@guarantee("Another server's answer taken for S3's")
@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_to_another_host_is_refused(s3: Answers, status: int) -> None:
    with answering_server() as other:
        other.headers = {"ETag": f'"{MD5}"'}
        s3.status, s3.headers = status, {"Location": f"{other.url}/bucket/p/key"}

        error = put(s3.url)

        assert isinstance(error, Exception)
        assert other.requests == []


@guarantee("Another server's answer taken for S3's")
@guarantee(
    "S3 fails",
    "handler/prediction_log/delivery.py",
    "            self._failed(segment, error)",
    "            self._delivered(segment, 0)",
)
def test_a_login_page_costs_no_record(
    s3: Answers,
    open_log: Callable[..., PredictionLog],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = open_log(uri="s3://bucket/p", s3={"endpoint_url": s3.url, "timeout_s": 60})
    log.append([make_record()])
    eventually(lambda: log.counters().retries > 1)
    log.close()

    assert log.counters().shipped == 0
    assert len(list(tmp_path.glob("spool/*/*/*.spool"))) == 1
    assert "does not prove that the object was stored" in caplog.text


def test_sinks_with_similar_uris_have_different_folders() -> None:
    assert make_sink_folder_name("s3://a/b-c") != make_sink_folder_name("s3://a/b/c")
