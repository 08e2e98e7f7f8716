"""Settings are checked once; the environment wins."""

from __future__ import annotations

from typing import Any

import pytest

from offpath.handler.prediction_log.log_settings import PredictionLogSettings


def make(mapping: dict[str, Any] | None = None, **environ: str) -> PredictionLogSettings:
    return PredictionLogSettings.from_mapping(mapping, environ)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"url": "s3://a"}, "unknown key 'url' in prediction_log; did you mean uri"),
        ({"uri": "file://relative"}, "prediction_log.uri is 'file://relative'"),
        ({"s3": {"acl": "public-read"}}, "unknown key 'acl' in prediction_log.s3"),
        ({"spool_max_bytes": 8 << 20}, "4 times segment_max_bytes"),
    ],
)
def test_a_wrong_setting_names_its_key_and_what_is_accepted(
    mapping: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        make(mapping)

    assert message in str(caught.value)


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError) as caught:
        make({"uri": "s3://key:secret@bucket/a"})

    assert "secret" not in str(caught.value)
