"""Breaks the code on purpose, one guarantee at a time, and expects a red test each time.

    python -m tests.mutations               all, one after the other
    python -m tests.mutations skipped-append --list

Each mutation changes one line in a copy of the checkout and runs the tests that claim the
guarantee, until one is red. If all stay green, no test holds the guarantee, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One line of the product, what to make of it, and the tests that must notice.

    Attributes:
        name: what goes wrong.
        file: path of the changed file.
        old: text that stands in the file once.
        new: its replacement.
        tests: arguments of pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LOG = "tests/handler/prediction_log"
GRANIAN = "tests/serving/granian/test_granian.py"
DOOR = "tests/serving/front/test_door_lifecycle.py"
MUTATIONS = (
    Mutation(
        "skipped-append",
        "handler/prediction_log/spool.py",
        "        segment.append(data, records, self._is_synced)",
        "        self.appended == 3 or segment.append(data, records, self._is_synced)",
        (DOOR, GRANIAN, "-k", "sigterm"),
    ),
    Mutation(
        "segment-shipped-twice",
        "handler/prediction_log/delivery.py",
        "                await self._sink.put(segment.name.key, body, segment.name.compression)",
        "                for key in (segment.name.key, segment.name.key + '2'):\n"
        "                    await self._sink.put(key, body, segment.name.compression)",
        (f"{LOG}/test_log_kill.py", f"{LOG}/test_log_s3.py"),
    ),
    Mutation(
        "connection-dropped-at-the-drain",
        "serving/front/nginx.py",
        "        self._signal(signal.SIGQUIT)",
        "        self._signal(signal.SIGTERM)",
        (DOOR, GRANIAN, "-k", "sigterm"),
    ),
    Mutation(
        "worker-left-behind",
        "serving/process/guard.py",
        "    end_family(int(leader_pid), STOP_TIMEOUT_S)",
        "    return",
        ("tests/serving/process/test_guard.py",),
    ),
    Mutation(
        "answer-before-the-append",
        "handler/classifier.py",
        "                self._log.append(records)",
        "                __import__('threading').Timer(1, self._log.append, [records]).start()",
        (GRANIAN, DOOR, "-k", "killed or sigterm"),
    ),
    Mutation(
        "broken-image-is-a-bug",
        "handler/image/decode.py",
        '        raise UndecodableImage("the image data is broken or incomplete") from error',
        "        raise",
        ("tests/fuzz/test_images.py",),
    ),
    Mutation(
        "big-endian-image-read-as-little-endian",
        "handler/image/decode.py",
        "        grey = (np.asarray(image) >> 8).astype(np.uint8)",
        '        grey = (np.asarray(image).view("<u2") >> 8).astype(np.uint8)',
        ("tests/handler/image/test_decode.py", "-k", "16_bit_grey"),
    ),
    Mutation(
        "body-left-open",
        "handler/request/body_from_front_door.py",
        "            os.close(file)",
        "            pass",
        ("tests/handler/request/test_body_from_front_door.py",),
    ),
    Mutation(
        "another-handler-wins",
        "handler/classifier_entry.py",
        "            del sys.modules[name]",
        "            pass",
        ("tests/archive/test_loads_alone.py", "-k", "imported_before"),
    ),
    Mutation(
        "escapes-reach-the-terminal",
        "offpath/commands/logs.py",
        "        rows = [[printable(cell) for cell in _row(record)] for record in chosen]",
        "        rows = [[cell for cell in _row(record)] for record in chosen]",
        ("tests/offpath/commands/test_logs_poisoned.py", "-k", "surrogates"),
    ),
    Mutation(
        "image-budget-of-fifteen-seconds",
        "handler/image/decode_cost.py",
        "self._end_s = time.thread_time() + BUDGET_S - spent_s",
        "self._end_s = time.thread_time() + 10 * BUDGET_S - spent_s",
        ("tests/handler/image/test_decode_cost.py", "-k", "ends_with_the_budget"),
    ),
    Mutation(
        "tiff-tag-that-comes-twice",
        "handler/image/tiff_cost.py",
        "if not is_forgiven and (tag in self._tags or kind not in sizes):",
        "if not is_forgiven and kind not in sizes:",
        ("tests/handler/image/test_tiff_cost.py", "-k", "a-tag-twice"),
    ),
    Mutation(
        "json-of-a-million-values-is-parsed",
        "handler/request/payload.py",
        "if sum(map(text.count, JSON_STRUCTURE)) > MAX_JSON_VALUES:",
        "if False:",
        ("tests/handler/request/test_payload.py", "-k", "million_values"),
    ),
    Mutation(
        "bad-item-fails-its-batch",
        "handler/pipeline.py",
        "            decoded = time.perf_counter()  # only decoding raises",
        "            raise",
        ("tests/handler/test_pipeline.py", "-k", "stale_image"),
    ),
    Mutation(
        "batch-decodes-for-ever",
        "handler/pipeline.py",
        "if start > self._end_s:",
        "if False:",
        ("tests/handler/test_pipeline.py", "-k", "near_its_timeout"),
    ),
    Mutation(
        "explanations-are-open",
        "handler/model/explanations.py",
        "if not self._is_open:",
        "if False:",
        ("tests/handler/model/test_explanations.py", "-k", "closed_by_default"),
    ),
    Mutation(
        "explanations-take-all-the-time",
        "handler/model/explanations.py",
        "self._next_s = end_s + PAUSE_FACTOR * (end_s - begin_s)",
        "self._next_s = end_s",
        ("tests/handler/model/test_explanations.py", "-k", "quarter"),
    ),
    Mutation(
        "any-key-is-the-doors",
        "handler/request/body_from_front_door.py",
        "return isinstance(key, str) and hmac.compare_digest(key.encode(), self._key)",
        "return isinstance(key, str)",
        ("tests/handler/request/test_body_from_front_door.py", "-k", "without_the_key"),
    ),
    Mutation(
        "deadlines-suspend-a-canary",
        "serving/front/reply_counts.py",
        """count * (status >= "500" and (status, kind) != ("504", ""))""",
        """count * (status >= "500")""",
        ("tests/serving/front/test_reply_counts.py", "-k", "canary"),
    ),
    Mutation(
        "line-break-after-a-models-name",
        "serving/conf/nginx.conf",
        r"""(infer{{ explain }}){% endif %})\z" {""",
        """(infer{{ explain }}){% endif %})$" {""",
        ("tests/serving/front/test_door_inputs.py", "-k", "doors_own_errors"),
    ),
    Mutation(
        "no-token-is-enough",
        "serving/conf/nginx.conf",
        "default {{ 0 if settings.tokens else 1 }};",
        "default 1;",
        ("tests/serving/front/test_door_tls.py", "-k", "without_a_valid_token"),
    ),
    Mutation(
        "no-limit-per-second",
        "serving/conf/nginx.conf",
        "limit_req zone=rates burst={{ settings.client_rate }} nodelay;",
        "limit_req zone=rates burst=100000 nodelay;",
        ("tests/serving/front/test_door_limits.py", "-k", "per_second"),
    ),
    Mutation(
        "one-client-takes-all-memory",
        "serving/conf/nginx.conf",
        "limit_conn {{ size }}_of_one {{ one }};",
        "",
        ("tests/serving/front/test_door_limits.py", "-k", "half_of_the_memory"),
    ),
    Mutation(
        "each-ipv6-address-is-a-client",
        "serving/conf/nginx.conf",
        '"~(?s)^(?<offpath_network>.{8}).{8}$" $offpath_network;',
        '"~(?s)^(?<offpath_network>.{16})$" $offpath_network;',
        ("tests/serving/front/test_door_limits.py", "-k", "ipv6"),
    ),
    Mutation(
        "uploads-without-a-byte-stay",
        "serving/granian/uploads.py",
        "(MOST_S if body.size else FIRST_S)",
        "MOST_S",
        ("tests/serving/granian/test_uploads.py", "-k", "nothing_arrives"),
    ),
    Mutation(
        "cut-off-uploads-stay",
        "serving/granian/worker.py",
        "return  # the client has left in the middle of its body",
        "await asyncio.Event().wait()",
        ("tests/serving/granian/test_connections.py", "-k", "cut_off"),
    ),
    Mutation(
        "headers-without-an-end",
        "serving/conf/nginx.conf",
        "large_client_header_buffers 2 2k;",
        "large_client_header_buffers 64 1m;",
        ("tests/serving/front/test_door_floods.py", "-k", "frames"),
    ),
    Mutation(
        "bodies-stay-in-memory",
        "serving/conf/nginx.conf",
        "client_body_in_file_only clean;",
        "client_body_in_file_only on;",
        ("tests/serving/front/test_door_floods.py", "-k", "one_byte_early"),
    ),
    Mutation(
        "requests-outlive-their-clients",
        "serving/conf/nginx.conf",
        "proxy_set_header {{ names.BODY_HEADER }} $request_body_file;",
        "proxy_set_header {{ names.BODY_HEADER }} $request_body_file;\n"
        "proxy_ignore_client_abort on;",
        ("tests/serving/front/test_door_hostile.py", "-k", "have_left"),
    ),
    Mutation(
        "weights-are-unpickled",
        "archive/sources/checkpoint.py",
        'map_location="cpu", weights_only=True)\n    except Exception as error:',
        'map_location="cpu", weights_only=False)\n    except Exception as error:',
        ("tests/archive/sources/test_model_source.py", "-k", "pickled_code"),
    ),
    Mutation(
        "archive-writes-outside",
        "archive/mar_file.py",
        'is_outside = name.is_absolute() or ".." in name.parts or not name.parts',
        "is_outside = False",
        ("tests/archive/test_mar_file.py", "-k", "member-above"),
    ),
    Mutation(
        "names-are-markup",
        "profiling/report/page.py",
        "autoescape=True,",
        "autoescape=False,",
        ("tests/profiling/report/test_page.py", "-k", "markup"),
    ),
    Mutation(
        "launcher-leaves-its-streams",
        "serving/fork/fork_request.py",
        "            os.close(stream)",
        "            pass",
        ("tests/fuzz/test_protocols.py", "-k", "launcher"),
    ),
    Mutation(
        "forged-manifest-is-believed",
        "serving/offline/manifest.py",
        "is_list = type(names) is list and {*map(type, names)} == {str}",
        "is_list = True",
        ("tests/serving/offline/test_offline.py", "-k", "no_run_wrote"),
    ),
    Mutation(
        "user-id-of-any-length",
        "handler/prediction_log/batch_records.py",
        "return str(value)[:MAX_USER_ID]",
        "return str(value)",
        ("tests/handler/prediction_log/test_batch_records.py", "-k", "long_user_id"),
    ),
    Mutation(
        "any-200-is-a-proof",
        "handler/prediction_log/sinks.py",
        "if not is_proof:",
        "if False:",
        ("tests/handler/prediction_log/test_sinks.py", "-k", "proves_nothing"),
    ),
    Mutation(
        "log-commands-the-terminal",
        "serving/server/server_log.py",
        "    text = printable(text)\n",
        "",
        ("tests/serving/server/test_server_log.py", "-k", "terminal"),
    ),
    Mutation(
        "log-without-a-bound",
        "serving/granian/server.py",
        "if not log.exists() or log.stat().st_size <= MOST_LOG_BYTES:",
        "if True:",
        ("tests/serving/granian/test_log.py",),
    ),
    Mutation(
        "management-has-a-port",
        "serving/server/server_settings.py",
        'return (*metrics, "management") if settings.management_port is None else metrics',
        "return metrics",
        ("tests/serving/torchserve/test_properties.py", "-k", "management_is_a_socket"),
    ),
    Mutation(
        "direct-door-is-for-strangers",
        "offpath/commands/serve_options.py",
        "    if not is_loopback:",
        "    if False:",
        ("tests/offpath/commands/test_serve_options.py", "-k", "without_the_door"),
    ),
    Mutation(
        "strangers-register-models",
        "config.properties",
        "enable_model_api=false",
        "enable_model_api=true",
        ("tests/serving/torchserve/test_properties.py", "-k", "closed_store"),
    ),
    Mutation(
        "failed-delivery-is-given-up",
        "handler/prediction_log/delivery.py",
        "            self._failed(segment, error)",
        "            self._delivered(segment, 0)",
        ("tests/handler/prediction_log/test_sinks.py", "-k", "login_page_costs"),
    ),
    Mutation(
        "full-disk-ends-the-door",
        "serving/front/reply_counts.py",
        "the next count tries again.\n        with contextlib.suppress(OSError):",
        "the next count tries again.\n        with contextlib.suppress(KeyError):",
        ("tests/serving/front/test_reply_counts.py", "-k", "half_lines"),
    ),
    Mutation(
        "dropped-records-are-not-counted",
        "handler/prediction_log/spool.py",
        "self.dropped += records\n                    return False",
        "return False",
        ("tests/handler/prediction_log/test_spool.py", "-k", "costs_records_but_no_request"),
    ),
    Mutation(
        "clock-set-back-refuses-requests",
        "handler/deadline.py",
        "began_s = min(began_s, read_start(value))",
        "began_s = min(began_s, now_s - abs(now_s - read_start(value)))",
        ("tests/handler/test_deadline.py", "-k", "jump"),
    ),
    Mutation(
        "queue-without-a-bound",
        "serving/service/model_service.py",
        "if self.requests + requests > self._settings.most_requests:",
        "if False:",
        ("tests/serving/service/test_contract.py", "-k", "more_requests and granian"),
    ),
    Mutation(
        "bodies-take-more-memory-than-there-is",
        "serving/conf/nginx.conf",
        "limit_conn {{ size }}_of_all {{ all }};",
        "",
        ("tests/serving/front/test_door_limits.py", "-k", "half_of_the_memory"),
    ),
    Mutation(
        "lack-of-descriptors-ends-the-door",
        "serving/process/descriptors.py",
        "if error.errno not in (errno.EMFILE, errno.ENFILE):",
        "if True:",
        (DOOR, "-k", "descriptors"),
    ),
    Mutation(
        "spool-without-locks",
        "handler/prediction_log/owner.py",
        "        fcntl.flock(fd, kind | fcntl.LOCK_NB)",
        "        pass",
        (f"{LOG}/test_owner.py", "-k", "only_one"),
    ),
    Mutation(
        "reload-ends-the-old-server-at-once",
        "serving/front/rotation.py",
        "return age_s > self.drain_s or (age_s > SETTLE_S and self._is_left())",
        "return True",
        (GRANIAN, "-k", "reload_loses"),
    ),
    Mutation(
        "dead-fork-server-stays-dead",
        "serving/fork/fork_launcher.py",
        "except (FileNotFoundError, ConnectionRefusedError):",
        "except FileNotFoundError:",
        ("tests/serving/fork/test_fork_server.py", "-k", "killed_fork_server"),
    ),
    Mutation(
        "dead-nginx-stays-dead",
        "serving/front/door.py",
        "died = not nginx.is_running()",
        "died = False",
        (DOOR, "-k", "kill_nginx and not kill_nginx_worker"),
    ),
    Mutation(
        "folders-left-behind",
        "serving/process/guard.py",
        "        shutil.rmtree(folder, ignore_errors=True)",
        "        pass",
        ("tests/serving/process/test_guard.py", "-k", "session"),
    ),
    Mutation(
        "sticky-error-is-forgiven",
        "handler/process/sick_worker.py",
        "        if is_sticky(error):",
        "        if False:",
        ("tests/handler/process/test_sick_worker.py", "-k", "sticky_error"),
    ),
    Mutation(
        "lack-of-memory-ends-the-worker-at-once",
        "handler/process/sick_worker.py",
        "if self.out_of_memory >= MOST_OUT_OF_MEMORY_IN_A_ROW:",
        "if self.out_of_memory >= 1:",
        ("tests/handler/process/test_sick_worker.py", "-k", "ten_batches"),
    ),
    Mutation(
        "ping-hides-dead-workers",
        "serving/front/one_host.py",
        "self.door.set_ready(versions.items() <= ready and not self._is_sick())",
        "self.door.set_ready(not self._is_sick())",
        (GRANIAN, "-k", "stopped_workers"),
    ),
    Mutation(
        "stopped-worker-stays",
        "serving/granian/supervisor.py",
        "elif slot.pid and now_s > self.deadlines[number]:",
        "elif False:",
        ("tests/serving/granian/test_supervisor.py",),
    ),
    Mutation(
        "failing-canary-goes-on",
        "serving/front/reply_counts.py",
        "return count >= FAILURES and last - first >= FAILING_S",
        "return False",
        ("tests/serving/front/test_reply_counts.py", "-k", "canary"),
    ),
    Mutation(
        "bad-payloads-stay-in-memory",
        "handler/errors.py",
        "return error.with_traceback(None)",
        "return error",
        ("tests/handler/test_pipeline.py", "-k", "freed"),
    ),
    Mutation(
        "slow-client-stays",
        "serving/conf/nginx.conf",
        "client_body_timeout {{ settings.client_timeout_s }}s;",
        "client_body_timeout 3600s;",
        ("tests/serving/front/test_door_hostile.py", "-k", "stops_sending"),
    ),
)


def list_failures(mutation: Mutation) -> list[str]:
    """Runs a mutation's tests in a changed copy of the checkout; returns the red test and why."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / ROOT.name
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        file = copy / mutation.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise SystemExit(
                f"{mutation.name}: {mutation.file} does not have {mutation.old!r} once"
            )
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        # Before the installed package, which is the unchanged checkout.
        # On a busy machine, a longer wait than 30 s may be needed to be red for the right reason.
        environment = {"OFFPATH_TEST_WAIT_S": "30", **os.environ, "PYTHONPATH": str(copy)}
        environment["COLUMNS"] = "200"  # room for the reason beside the test's name
        # A file, because a process that is left behind would keep a pipe open.
        log = Path(folder) / "log"
        with open(log, "wb") as out:
            code = subprocess.call(
                [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *mutation.tests],
                cwd=copy,
                env=environment,
                stdout=out,
            )
        end_processes_below(copy)
        printed = log.read_text(encoding="utf-8", errors="replace")
        if code not in (0, 1):
            raise SystemExit(f"{mutation.name}: pytest ended with {code}\n{printed}")
        return FAILED.findall(printed)


def end_processes_below(folder: Path) -> None:
    """Kills what a mutation has left behind."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("PYTHONPATH", ""):
                process.kill()


def main() -> None:
    """Prints the red test of each mutation, and the seconds that it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="mutations to run (default: all)")
    parser.add_argument(
        "--list", action="store_true", help="print the names and files, run nothing"
    )
    options = parser.parse_args()
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := sorted(set(options.names) - known.keys()):
        parser.error(f"no mutation {', '.join(unknown)}; there are {', '.join(known)}")
    green = 0
    for name in options.names or known:
        if options.list:
            print(f"{name}: {known[name].file}")
            continue
        began_s = time.monotonic()
        red = list_failures(known[name])
        green += not red
        result = f"red: {red}" if red else "GREEN, so no test holds this"
        print(f"{name}: {result}, {time.monotonic() - began_s:.0f} s", flush=True)
    raise SystemExit(green > 0)


if __name__ == "__main__":
    main()
