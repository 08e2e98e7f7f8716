"""Wrong inputs of every command: derived from click's own declarations, and written by hand."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import torch

from tests.profiling.runs import make_compare
from tests.support.pictures import jpeg

# They import torch before they look closer, and make photographs where nothing is wrong.
MEASURING = (
    "bench compare",
    "bench sweep",
    "bench latency",
    "bench engines",
    "bench setup",
)
MEASURING += ("profile stages", "profile cprofile", "profile lines", "profile flame")
MEASURING += ("profile server", "tune")
# What a command needs beside a wrong option to come that far.
NEEDED = {
    "check": "",
    "cost": "--rate-per-instance a=1 --peak-per-s 1 --hourly-price 1",
    "export ray": "good.mar --output out",
    "front": "--upstream 127.0.0.1:9",
    "export triton": "good.mar --output out",
    "logs read": "file://{folder}/log",
    "logs verify": "file://{folder}/log --ids ids.txt",
    "predict": "photo.jpg",
    "bench show": "result.json",
    "profile compare": "result.json result.json",
    "profile show": "result.json",
    "serve": "--model-store store",
    "tune": "--model near-free --output new.yaml",
}
# Command -> wrong arguments between bars. Those that end with `!` are documented to end with 1:
# nothing is wrong with them but what they meet.
BY_HAND = {
    "archive": """--model none.py --weights random | --model folder --weights random
        | --model text.txt --weights random | --model net.py | --model net.py --weights none.pt
        | --model net.py --weights text.txt | --model net.py --weights other.pt
        | --model net.py:Gone --weights random | --model net.py:1x --weights random
        | --model broken.py --weights random | --model vgg:x --weights random
        | --model torchvision:nothing --weights random | --model torchvision:alexnet
        | --model near-free --labels none.txt | --model near-free --labels text.txt
        | --model near-free --preset none | --model near-free --preset list.yaml
        | --model near-free --preset text.json | --model near-free --mean x
        | --model near-free --std 0 | --model near-free --set nonsense
        | --model near-free --set no_such=1 | --model near-free --set top_k=many
        | --model near-free --set 'x=[' | --model near-free --engine warp
        | --model near-free --precision fp7 | --model near-free --engine eager --precision int8
        | --model near-free --prediction-log ftp://x | --model near-free --handler none.py
        | --model near-free --handler net.py | --model near-free --extra-file none.txt
        | --model near-free --name ../up | --model near-free --output text.txt
        | --model near-free --calibrate none | --from none.mar | --from text.txt
        | --from truncated.mar | --from good.mar --model near-free | --from folder
        | --model near-free --weights-key ema | --model net.py --weights both.pt --weights-key x
        | --model near-free --batch-size 0 | --model near-free --workers 99999""",
    "check": """none.properties | folder | text.txt | truncated.mar! | text.mar! | bad.properties
        | binary.properties | good.mar --url nonsense | --url http://127.0.0.1:9!
        | --url unix:/none.sock! | --token ni\u00f1o | --url http://127.0.0.1:x""",
    "serve": """none.mar | none | folder folder | none/none.mar | store empty | truncated.mar
        | text.mar
        | --model-store none | --model-store empty | --model-store text.txt
        | --host 0.0.0.0 | --host ::1 --port 1 | --host no.such.host.invalid
        | --config none.properties
        | --config bad.properties | --config folder | --model-store store --port {busy}!
        | --tls-cert cert.pem
        | --front --token-auth | --front --tls-cert text.txt | --front --tokens text.txt
        | --front --tokens empty.txt | --tokens text.txt | --front --front-memory folder
        | good.mar x=good.mar good.mar=""",
    "front": """ | --upstream nonsense:x | --upstream 127.0.0.1:9 --host 0.0.0.0
        | --upstream 127.0.0.1:9 --tls-cert cert.pem
        | --upstream 127.0.0.1:9 --port 0 --log-dir text.txt/x
        | --upstream 127.0.0.1:9 --tokens empty.txt""",
    "reload": """--log-dir none! | --log-dir empty! | --log-dir text.txt | --port -1
        | --port 70000 | surplus
        | --timeout-s -1 | --timeout-s 0""",
    "predict": """none.jpg | empty | *.gif | photo.jpg --url http://127.0.0.1:x
        | photo.jpg --url ''
        | photo.jpg --url http://127.0.0.1:9! | photo.jpg --url nonsense | photo.jpg --url ftp://x
        | photo.jpg --set image_size=0 | photo.jpg --set nonsense | photo.jpg --set no_such=1
        | photo.jpg --set top_k=1 | photo.jpg --token ni\u00f1o""",
    "logs ship": """--spool none | --spool text.txt | --spool none/none | surplus
        | --every-s nothing""",
    "logs status": """--spool none | --spool text.txt | --spool none/none | surplus | --json x
        | --spool
        | --spool text.txt/x | --nothing | -s""",
    "logs read": """nowhere | ftp://x/y | file:///none/none | s3:// | off | file://relative | ''
        | file://{folder}/log --since yesterday | file://{folder}/log --until 25h61
        | file://{folder}/text.txt""",
    "logs verify": """file://{folder}/log | nowhere --ids ids.txt
        | file://{folder}/log --ids none.txt
        | file://{folder}/log --ids empty.txt | file://{folder}/log --ids binary.properties
        | file://{folder}/log --ids list.jsonl | file://{folder}/log --ids folder
        | file://{folder}/log --ids ids.txt --since x | file://{folder}/log --ids ids.txt!""",
    "cost": """--result none.json | --result text.json | --result folder | --result truncated.mar
        | --peak-per-s 1 --hourly-price 1 | --rate-per-instance a --peak-per-s 1 --hourly-price 1
        | --rate-per-instance a=x --peak-per-s 1 --hourly-price 1
        | --rate-per-instance a=0 --peak-per-s 1 --hourly-price 1
        | --rate-per-instance a=1 --rate-per-instance a=2 --peak-per-s 1 --hourly-price 1
        | --rate-per-instance a=1 --peak-per-s -1 --hourly-price 1
        | --rate-per-instance a=1 --peak-per-s nan --hourly-price 1
        | --rate-per-instance a=1 --peak-per-s 1 | --rate-per-instance a=1 --hourly-price 1
        | --rate-per-instance a=1 --peak-per-s 1 --peak-per-minute 1 --hourly-price 1
        | --rate-per-instance a=1 --peak-per-s 1 --instance t4000 --hourly-price 1
        | --rate-per-instance a=1 --peak-per-s 1 --instance t4000
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --prices none.yaml
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --prices list.yaml
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --prices text.json
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --paid-instances b=1
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --paid-instances a=1.5
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --head-room 1
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --workers 0
        | --rate-per-instance a=1 --peak-per-s 1 --hourly-price 1 --workload photos-55k
        | --result result.json --workload nothing --peak-per-s 1 --hourly-price 1""",
    "export ray": """none.mar --output out | text.mar --output out | truncated.mar --output out
        | folder --output out | good.mar | good.mar --output text.txt | good.mar --output folder
        | good.mar --output out --replicas x | good.mar --output out --replicas 0
        | good.mar --output out --replicas 4-1 | stock.mar --output out""",
    "export triton": """none.mar --output out | text.mar --output out | truncated.mar --output out
        | folder --output out | good.mar | good.mar --output text.txt | good.mar --output folder
        | good.mar --output out --name ../up | good.mar --output out --name ''
        | stock.mar --output out""",
    "tune": """--model near-free --mar good.mar | --workload nowhere --model near-free
        | --model nothing | --mar none.mar | --mar text.mar | --model near-free --p95-ms 0
        | --model near-free --preset none | --model near-free --batch-sizes x
        | --model near-free --workers 0 | --model near-free --output folder
        | --model near-free --output text.txt | --model near-free --workload empty""",
    "bench compare": """--workload nowhere | --workload empty | --workload damaged
        | --servers nobody
        | --servers '' | --servers offpath,offpath | --model none.mar | --model vgg
        | --model text.mar
        | --clients x | --clients 0 | --workers x | --variant nonsense | --probe nothing
        | --seconds 0
        | --seconds 1 --requests 1 | --fail-if nonsense | --fail-if 'p99_ms>x' | --plot a.gif
        | --json result.json | --baseline nobody --workload nowhere""",
    "bench sweep": """--workload nowhere | --workload empty | --servers nobody | --model none.mar
        | --clients x | --vary nonsense | --vary delay=x | --vary delay=0 | --preset t4
        | --vary delay=1 --preset none | --plot a.gif | --json result.json""",
    "bench latency": """--workload nowhere | --workload empty | --servers nobody
        | --model none.mar
        | --variant nonsense | --plot a.gif | --json result.json""",
    "bench engines": """--model nothing | --engines warp | --engines eager:fp7 | --batch-sizes x
        | --batch-sizes 0 | --workload nowhere | --workload empty | --plot a.gif
        | --json result.json""",
    "bench setup": """nobody | --list offpath | --list --all | --all offpath | nobody offpath | ''
        | ../up | OFFPATH | 1 | --list --list x""",
    "bench show": """none.json | text.json | folder | truncated.mar
        | result.json --baseline nobody
        | result.json --fail-if x | result.json --csv '' | result.json --html none/a.html
        | result.json --fail-if 'nobody:p99_ms>1'
        | result.json --plot a.gif
        | result.json --bound-ms 0 | result.json --fail-if 'rate>0'!""",
    "profile compare": """none.json none.json | text.json text.json | result.json | folder folder
        | result.json none.json | truncated.mar truncated.mar | result.json text.json
        | result.json result.json --json photo.jpg/x/y""",
    "profile show": """none.json | text.json | folder | truncated.mar | list.yaml
        | result.json --plot a.gif
        | result.json result.json""",
    "profile server": """--images nowhere | --images empty | --mar none.mar | --mar text.mar
        | --mar good.mar --model near-free | --url here | --url http://127.0.0.1:9!
        | --served-as a
        | --url http://h --cprofile | --plot a.gif""",
}
IN_PROCESS = """--handler none.py:A | --handler nobody | --mar none.mar
    | --mar text.mar | --mar truncated.mar | --images nowhere | --images empty | --plot a.gif
    | --handler offpath --handler offpath"""
for kind in ("stages", "cprofile", "lines", "flame"):
    BY_HAND[f"profile {kind}"] = IN_PROCESS


def derive(command: click.Command) -> Iterator[list[str]]:
    """Wrong values of each option by its type, and what no command takes."""
    yield ["--no-such-option"]
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        name, kind = option.opts[0], option.type
        yield [name]
        if isinstance(kind, click.Choice):
            yield [name, "no such choice"]
        elif isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
            yield [name, "x"]
            yield [name, ""]
        if isinstance(kind, (click.IntRange, click.FloatRange)):
            if kind.min is not None:
                yield [name, str(kind.min - 1)]
            if kind.max is not None:
                yield [name, str(kind.max + 1)]
        if isinstance(kind, click.Path):
            if kind.exists:
                yield [name, "none"]
            if not kind.file_okay:
                yield [name, "text.txt"]
            if not kind.dir_okay:
                yield [name, "folder"]


def write_files(folder: Path) -> None:
    """What the inputs name; `out`, `new.yaml` and what is called none are not there."""
    for name in ("folder", "empty", "store", "log", "damaged"):
        (folder / name).mkdir()
    (folder / "folder" / "a.txt").write_text("a")
    (folder / "damaged" / "a.jpg").write_bytes(b"no picture")
    for name in ("text.txt", "text.mar", "cert.pem", "text.json"):
        (folder / name).write_text("one\ntwo: [\n")
    (folder / "empty.txt").write_text("")
    (folder / "ids.txt").write_text("a\n")
    (folder / "list.jsonl").write_text('{"status": 200}\n')
    (folder / "list.yaml").write_text("[1, 2]\n")
    (folder / "bad.properties").write_text("no equals sign\n")
    (folder / "binary.properties").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "photo.jpg").write_bytes(jpeg(size=(64, 64)))
    (folder / "broken.py").write_text("def x(:\n")
    net = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n"
    (folder / "net.py").write_text(f"{net}        super().__init__(3, 2)\n")
    torch.save({"other": torch.zeros(1)}, folder / "other.pt")
    torch.save({"model": {"weight": torch.zeros(2, 3)}}, folder / "both.pt")
    make_compare().save(folder / "result.json")
    write_archive(folder / "good.mar", "offpath/handler/classifier_entry.py")
    write_archive(folder / "stock.mar", "image_classifier")
    whole = (folder / "good.mar").read_bytes()
    (folder / "truncated.mar").write_bytes(whole[: len(whole) // 2])
    (folder / "store" / "good.mar").write_bytes(whole)


def write_archive(path: Path, handler: str) -> None:
    """A manifest and a configuration, nothing that runs."""
    model = {"modelName": path.stem, "modelVersion": "1.0", "handler": handler}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        archive.writestr("model-config.yaml", "batchSize: 8\nhandler: {}\n")
