"""Ask for all thoughts of a folder: in a test's process, or as a script to be killed: `cot_child.py <folder> <url>`."""

import sys
from pathlib import Path

from guiderail.endpoint import Endpoint
from guiderail.models.frames import FrameStore
from guiderail.params_endpoint import Endpoint as EndpointParams
from guiderail.params_train import Cot
from guiderail.train import cot


def settings(url, **more) -> Cot:
    where = EndpointParams(url=url, model="teacher", key_env="NO_SUCH_KEY", retries=0, price_in=5.0, price_out=100.0)
    return Cot(source="teacher", endpoint=where, **more)


def annotate(folder, url, usable=lambda line, step, thought: "", cache="cache", **more):
    params = settings(url, **more)
    with Endpoint(params.endpoint, "sft.cot.endpoint") as endpoint:
        steps = cot.steps_of(folder / "demos.jsonl", params)
        return cot.annotate(steps, FrameStore(folder / "frames"), endpoint, params, folder / cache, usable)


if __name__ == "__main__":
    annotate(Path(sys.argv[1]), sys.argv[2])
