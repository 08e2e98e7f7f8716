"""A typical first handler, as a baseline: all of its work is on the request's path.

The configuration is read and parsed for every request, the payload takes a detour through a
temporary file, the transforms are built again for each image, and each prediction is put into S3
before the reply is sent. OFFPATH_NAIVE_BUCKET names the bucket and OFFPATH_NAIVE_ENDPOINT an
optional endpoint. Without a bucket, nothing is put.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from typing import Any

import boto3
import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class NaiveClassifier(ImageClassifier):
    """A handler that classifies as the stock handler does."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.model_dir = context.system_properties["model_dir"]
        self.bucket = os.environ.get("OFFPATH_NAIVE_BUCKET")
        self.s3 = boto3.client("s3", endpoint_url=os.environ.get("OFFPATH_NAIVE_ENDPOINT"))

    def _read_config(self) -> Any:
        with open(os.path.join(self.model_dir, "naive_config.json")) as file:
            return json.load(file)

    def preprocess(self, data: Any) -> Any:
        tensors = []
        for row in data:
            config = self._read_config()
            with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
                file.write(row.get("data") or row.get("body"))
                file.flush()
                image = Image.open(file.name).convert("RGB")
            prepare = transforms.Compose(
                [
                    transforms.Resize(config["resize_size"]),
                    transforms.CenterCrop(config["image_size"]),
                    transforms.ToTensor(),
                    transforms.Normalize(config["mean"], config["std"]),
                ]
            )
            tensors.append(prepare(image))
        return torch.stack(tensors).to(self.device)

    def postprocess(self, data: Any) -> Any:
        self.topk = self._read_config()["top_k"]
        predictions = super().postprocess(data)
        if self.bucket:
            for prediction in predictions:
                self._put(prediction)
        return predictions

    def _put(self, prediction: Any) -> None:
        now = time.gmtime()
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
            "predictions": prediction,
        }
        self.s3.put_object(
            Bucket=self.bucket,
            Key=time.strftime("predictions/%Y/%m/%d/", now) + f"{uuid.uuid4()}.json",
            Body=json.dumps(record).encode(),
        )
