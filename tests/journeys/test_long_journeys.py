"""Journeys that take minutes: `scripts/test.sh --all -k long_journeys`."""

from __future__ import annotations

import pytest
from PIL import Image

from tests.journeys.conftest import LABELS
from tests.journeys.shell import Shell
from tests.support.hugging_face import TOLD_APART, write_model

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_resnet50_gets_the_fast_engine_by_itself(shell: Shell) -> None:
    shell.run(
        *("archive", "--model", "torchvision:resnet50", "--weights", "random"),
        *("--labels", "classes.txt", "--name", "six", "--output", "long"),
    )
    with shell.serve("long") as ready:
        assert ready["models"][0]["described"]["engine"] == "openvino"
        said = shell.run_json("predict", "part.jpg", "--url", ready["inference"])
        assert said["status"] == 200 and set(said["labels"]) <= set(LABELS)
        findings = shell.run_json("check", "--url", ready["management"])
        assert "wrong" not in {one["state"] for one in findings}


def test_hugging_face_folders_answer_as_the_pipeline_of_transformers(shell: Shell) -> None:
    import transformers

    store = ("--output", "faces", "--calibrate", "photographs", "--workers", 1)
    engines = {"vit": "openvino", "resnet": "openvino", "resnet-bgr": "eager"}
    for kind, engine in engines.items():
        write_model(kind, shell.folder / kind)
        command = ("--model", f"{kind}/", "--name", kind, "--engine", engine)
        shell.run("archive", *command, "--precision", "fp32", *store, "--force")
        assert "ImageProcessor" in shell.said and "taking logits" in shell.said
    with shell.serve("faces") as ready:
        served = [one["described"]["engine"] for one in ready["models"]]
        assert sorted(served) == sorted(engines.values())
        for kind in engines:
            url = ("--url", ready["inference"], "--model", kind)
            found = shell.run_json("predict", "part.jpg", *url)["labels"]
            folder = shell.folder / kind
            model = transformers.AutoModelForImageClassification.from_pretrained(folder)
            model.config.id2label = dict(enumerate(TOLD_APART))
            processor = transformers.AutoImageProcessor.from_pretrained(folder)
            task = "image-classification"
            ask = transformers.pipeline(task, model=model, image_processor=processor)
            with Image.open(shell.folder / "part.jpg") as photograph:
                answers = ask(photograph.convert("RGB"), top_k=5)
            expected = {one["label"]: one["score"] for one in answers}
            # The gate's bound; by default large JPEGs are decoded at a fraction of their size.
            assert found == pytest.approx(expected, abs=0.05)
            assert next(iter(found)) == next(iter(expected))
