"""plan of params.yaml: what `guiderail check` reckons with, and resources: what each job asks a scheduler for."""

from __future__ import annotations

from pydantic import Field

from guiderail.param_section import Section


class Plan(Section):
    """What `guiderail check` reckons with (docs/presets.md says where the numbers are from). Nothing else reads it."""

    gpus: int = Field(0, ge=0, le=4096, description="GPUs of the run; 0 = the CPUs and memory of this machine.")
    gpu_memory_gb: float = Field(80.0, gt=0, le=10_000, description="Of one GPU, in 10^9 bytes.")
    gpu_tflops: float = Field(989.0, gt=0, le=1_000_000, description="Dense peak in model.dtype, per GPU.")
    gpu_bandwidth_tbs: float = Field(3.35, gt=0, le=1000, description="Memory bandwidth in 10^12 bytes/s, per GPU.")
    train_mfu: float = Field(0.4, gt=0, le=1, description="Share of the peak that training reaches.")
    prefill_mfu: float = Field(0.5, gt=0, le=1, description="Share of the peak that reading prompts reaches.")
    decode_share: float = Field(0.7, gt=0, le=1, description="Share of the bandwidth that writing answers reaches.")
    cpu_gflops: float = Field(60.0, gt=0, le=1_000_000, description="gpus 0: what this machine reaches.")
    episode_steps: float = Field(2.0, ge=1, le=10_000, description="Steps of an episode, on average.")
    answer_tokens: int = Field(0, ge=0, le=100_000, description="Of an answer, on average; 0 = prompt.max_new_tokens.")
    action_s: float = Field(0.05, gt=0, le=10_000, description="From an action to the next frame.")
    reset_s: float = Field(0.2, ge=0, le=100_000, description="To make a screen ready for an episode.")


class Job(Section):
    """What one job of a stage asks for."""

    gpu: int = Field(1, ge=0, le=4096)
    cpus: int = Field(1, ge=1, le=4096)
    mem_mb: int = Field(8000, ge=100, le=100_000_000)
    minutes: int = Field(240, ge=1, le=100_000)


class Resources(Section):
    """What each job asks for: on one machine GPUs by number (a job sees only its own), on a cluster all of it."""

    light: Job = Field(default_factory=lambda: Job(gpu=0), description="provision, demos, report.")
    sft: Job = Field(default_factory=Job)
    prm: Job = Field(default_factory=Job)
    rl: Job = Field(default_factory=Job)
    merge: Job = Field(default_factory=lambda: Job(gpu=0))
    evaluate: Job = Field(default_factory=Job)

    def of(self, stage: str) -> Job:
        """What a job of `stage` asks for."""
        found = getattr(self, stage) if stage in type(self).model_fields else self.light
        assert isinstance(found, Job)
        return found
