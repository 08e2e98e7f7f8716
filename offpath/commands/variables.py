"""Names all environment variables with offpath's prefix, and finds those that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from offpath.handler.config_section import suggest

VARIABLE_PREFIX = "OFFPATH_"
# The variables of this repository after their prefix: of commands and workers, of images and units,
# of measurements, of scripts and tests.
VARIABLES = frozenset(
    """PREDICTION_LOG SPOOL_DIR SERVER NGINX TOKEN CACHE_DIR FRONT_FOLDER FRONT_KEY WARM_UP_KEY
    LOG_REQUESTS LOG_SERVER LOG_CHATTER LOG_TRACE LOG_BURST MODEL_DIR LOG_DIR INVOCATIONS BASE
    VENV NEAR_FREE_MS_PER_IMAGE NAIVE_BUCKET NAIVE_ENDPOINT SERVER_ID SERVICE RAY_PAUSE_S
    RAY_ROUNDS AUTOSCALING ATTACKS ATTACK_WINDOW_S DRILL_S FAULTS FAULT_STAGE_S FRONT_ROUNDS
    FUZZ_EXAMPLES HOST_ROUNDS KILL_ROUNDS MUTATED_FILES OUTAGE_STAGE_S RANDOM_REQUESTS
    SOAK_CLIENTS SOAK_MINUTES SOAK_PAUSE_S SOAK_RELOAD_MINUTES TEST_CLOCK TEST_KILL_ROUNDS
    TEST_SEED TEST_WAIT_S""".split()
)
# Kubernetes gives every pod such variables for a Service whose name begins with "offpath".
OF_A_SERVICE = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_[A-Z]+(_[A-Z]+)?)?)")


def find_unread_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the variables with offpath's prefix that nothing reads."""
    names = [
        name.removeprefix(VARIABLE_PREFIX) for name in environ if name.startswith(VARIABLE_PREFIX)
    ]
    for name in names:
        if name not in VARIABLES and not OF_A_SERVICE.fullmatch(name):
            near = suggest(name, VARIABLES).replace("mean ", f"mean {VARIABLE_PREFIX}")
            yield f"unknown variable {VARIABLE_PREFIX + name}{near}"
