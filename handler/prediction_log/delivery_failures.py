"""Failures: how they are described, and how long to wait before the next attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

FIRST_S = 0.5
DOUBLINGS = 16
# Code of an answer to wrong credentials -> what to do.
KEYS = {
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidAccessKeyId": "the server does not know the access key (AWS_ACCESS_KEY_ID)",
    "InvalidToken": "the session token is wrong (AWS_SESSION_TOKEN)",
    "SignatureDoesNotMatch": "the secret key is not the access key's (AWS_SECRET_ACCESS_KEY)",
}
# botocore takes the status for the code where the answer has no body of S3's.
REDIRECTS = ("301", "302", "303", "307", "308")
# Name of a refused operation -> the permission that it needs.
ACTIONS = {
    "PutObject": "s3:PutObject on {uri}/*",
    "GetObject": "s3:GetObject on {uri}/*",
    "ListObjectsV2": "s3:ListBucket on the bucket of {uri}",
}


def pause_s(failures: int, max_s: float, draw: Callable[[], float] = random.random) -> float:
    """Returns the seconds to wait after `failures` failures in a row.

    The step grows exponentially up to `max_s`. The pause is between half and all of the step, so
    that workers spread out.
    """
    step_s = min(max_s, FIRST_S * 2.0 ** min(failures - 1, DOUBLINGS))
    return step_s * (0.5 + 0.5 * draw())


def describe_error(error: BaseException, uri: str) -> tuple[str, str]:
    """Returns (kind, message) for a failed delivery; the message says what to do."""
    code = error_code(error)
    name = type(error).__name__
    if "Credentials" in name or name in ("ProfileNotFound", "TokenRetrievalError"):
        advice = (
            f"no usable AWS credentials ({error}): provide them by the AWS default chain "
            "(environment, profile, instance or pod role), and check that TorchServe's "
            "blacklist_env_vars does not hide AWS_* from the workers"
        )
        return "credentials", advice
    if code == "PermanentRedirect":
        return "region", "the bucket is in another region: set prediction_log.s3.region"
    if name == "UnprovenReply" or code in REDIRECTS:
        return "unproven", (
            f"the response does not prove that the object was stored ({error}): check for a proxy "
            "or a login page in between, or a server that encrypts by KMS and knows no checksums"
        )
    if code == "RequestTimeTooSkewed":
        return "clock", "refused because this machine's clock is wrong: set the clock"
    if code in KEYS:
        return "refused", f"refused with {code}: {KEYS[code]}"
    if code in ("AccessDenied", "403"):
        action = ACTIONS.get(getattr(error, "operation_name", ""), ACTIONS["PutObject"])
        return "refused", f"refused with {code}: allow {action.format(uri=uri)}"
    if code == "NoSuchBucket":
        return "bucket", f"the bucket of {uri} does not exist: create it"
    if code in ("SlowDown", "503", "ServiceUnavailable"):
        return "busy", f"the server asks for fewer requests ({code})"
    is_late = isinstance(error, (asyncio.TimeoutError, TimeoutError)) or "Timeout" in name
    if is_late or code == "RequestTimeout":
        return "timeout", f"no response in time ({name})"
    if name == "NoRegionError":
        return "region", "no region: set prediction_log.s3.region or AWS_DEFAULT_REGION"
    if isinstance(error, ImportError):
        return "import", f"{error}: install aiobotocore in the workers' environment"
    return name, f"{name}: {error}"


def error_code(error: BaseException) -> str | None:
    """Returns the code of S3's error, or its status as text if it has no body; otherwise None."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code")) if isinstance(response, dict) else None
