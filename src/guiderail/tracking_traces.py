"""Episodes as MLflow traces: one span per step with the frame the policy saw attached.

Guarantees: spans are built and sent here, without MLflow's global state and background queues, so that what goes wrong
is raised and can be told. Times are those of the record; where only the episode's is known, steps share it evenly.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guiderail.tracking_mlflow import MlflowRun


@dataclass(frozen=True)
class TracedStep:
    """One step: the frame (PNG), what the model wrote, the action read from it or why none was, seconds it took."""

    frame: bytes
    text: str
    action: str
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class TracedEpisode:
    """One episode. `tags` are for filtering (checkpoint, split, template, ...)."""

    name: str
    instruction: str
    outcome: str
    reward: float | None
    steps: Sequence[TracedStep]
    tags: Mapping[str, str] = field(default_factory=dict)


def send(run: MlflowRun, episode: TracedEpisode, now_s: float | None = None) -> str:
    """Log the trace to the run's experiment, linked to the run; gives its id."""
    from mlflow.entities import LiveSpan, SpanType, TraceData, TraceInfo, TraceState
    from mlflow.entities.trace_location import TraceLocation
    from mlflow.tracing.attachments import Attachment
    from mlflow.tracing.client import TracingClient
    from mlflow.tracing.constant import TRACE_SCHEMA_VERSION, TRACE_SCHEMA_VERSION_KEY, TraceMetadataKey
    from mlflow.tracing.utils import add_size_stats_to_trace_metadata, generate_trace_id_v3
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import set_span_in_context

    total = sum(s.seconds for s in episode.steps)
    began = int(((time.time() if now_s is None else now_s) - total) * 1e9)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("guiderail")
    first = tracer.start_span(episode.name, start_time=began)
    trace_id = generate_trace_id_v3(first)
    root = LiveSpan(first, trace_id, SpanType.AGENT)
    asked = {"instruction": episode.instruction}
    told = {"outcome": episode.outcome, "reward": episode.reward, "steps": len(episode.steps)}
    root.set_inputs(asked)
    live, at, context = [root], began, set_span_in_context(first)
    for number, step in enumerate(episode.steps):
        span = tracer.start_span(_title(number, step), context=context, start_time=at)
        at += int(step.seconds * 1e9)
        part = LiveSpan(span, trace_id, SpanType.TOOL)
        part.set_inputs({"frame": Attachment(content_type="image/png", content_bytes=step.frame)})
        part.set_outputs({"text": step.text, "action": step.action} | ({"problem": step.error} if step.error else {}))
        if step.error:
            part.set_status("ERROR")
        span.end(end_time=at)
        live.append(part)
    root.set_outputs(told)
    root.set_status("OK")
    first.end(end_time=max(at, began))
    spans = [s.to_immutable_span() for s in live]
    info = TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(run.experiment),
        request_time=began // 10**6,
        execution_duration=(at - began) // 10**6,
        state=TraceState.OK,
        request_preview=episode.instruction[:1000],
        response_preview=f"{episode.outcome}, {len(episode.steps)} steps",
        client_request_id=uuid.uuid4().hex,
        trace_metadata={TraceMetadataKey.SOURCE_RUN: run.run, TRACE_SCHEMA_VERSION_KEY: str(TRACE_SCHEMA_VERSION)},
        tags={"mlflow.traceName": episode.name, "outcome": episode.outcome, **episode.tags},
    )
    _store(run, info, spans, TraceData(spans=spans), add_size_stats_to_trace_metadata, TracingClient(_uri(run)))
    return str(trace_id)


def _title(number: int, step: TracedStep) -> str:
    """`2 click "Ok"`: the first line of what the model wrote, or that it could not be read."""
    line = step.text.strip().splitlines()[0] if step.text.strip() else "nothing"
    return f"{number} {line[:60]}" + (" (unreadable)" if step.error else "")


def _uri(run: MlflowRun) -> str:
    return str(run.client.tracking_uri)


def _store(run: MlflowRun, info: Any, spans: list[Any], data: Any, add_sizes: Any, client: Any) -> None:
    """Spans, then the trace, then the frames: the way MLflow's own exporter goes, but errors are raised."""
    from mlflow.entities import Trace
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.tracing.utils.artifact_utils import get_artifact_uri_for_trace

    client.log_spans(run.experiment, spans)
    add_sizes(Trace(info=info, data=data))
    stored = client.start_trace(info)
    attachments = {k: v for s in spans for k, v in s._attachments.items()}
    if attachments:
        repository = get_artifact_repository(get_artifact_uri_for_trace(stored), tracking_uri=_uri(run))
        for number, attachment in attachments.items():
            repository.upload_attachment(number, attachment.content_bytes)
