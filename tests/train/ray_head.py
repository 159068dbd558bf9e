"""A cluster in a process of its own, to be attached to and killed: `python ray_head.py LOG`. Prints its address."""

import sys
import time
from pathlib import Path

from guiderail.cluster.start import ray_cluster
from guiderail.params_trainer import Trainer

if __name__ == "__main__":
    trainer = Trainer(kind="ray", actor=2, rollout=2, prm=1, object_store_mb=80)
    with ray_cluster(trainer, Path(sys.argv[1])) as ray:
        print(ray.get_runtime_context().gcs_address, flush=True)
        time.sleep(3600)
