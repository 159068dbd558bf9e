"""A results tree shaped like a real one, from a seeded generator: for tests and for looking at the figures."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from guiderail.bench import records
from guiderail.params import Params

TRAIN = {
    "click": ["click-button", "click-link", "click-tab", "click-test", "click-test-2", "click-color", "click-shape",
              "click-option", "click-dialog", "click-widget", "focus-text", "focus-text-2", "grid-coordinate"],
    "form": ["click-checkboxes", "login-user", "enter-text", "enter-password", "login-user-popup"],
    "text": ["find-word", "read-table"],
}  # fmt: skip
HELDOUT = {
    "click": ["click-button-sequence", "click-dialog-2", "unicode-test"],
    "form": ["enter-text-2", "click-checkboxes-soft", "enter-text-dynamic"],
}
LEVEL = {"base": -2.0, "sft": 0.1, "rl": 0.95}


def page(rng: np.random.Generator, words: list[str]) -> bytes:
    """A small page with a yellow instruction bar and buttons, as PNG."""
    image = Image.new("RGB", (160, 210), "white")
    d = ImageDraw.Draw(image)
    d.rectangle((0, 0, 160, 50), fill="#ffff00")
    d.text((4, 6), "Click on the", fill="black")
    d.text((4, 20), f'"{words[0]}" button.', fill="black")
    for i, word in enumerate(words):
        x, y = int(rng.integers(4, 90)), 60 + i * 34
        d.rectangle((x, y, x + 58, y + 20), outline="#777", fill="#eee")
        d.text((x + 6, y + 4), word, fill="black")
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _episode(rng: np.random.Generator, ckpt: str, split: str, domain: str, template: str, k: int, ease: float,
             frames: Path | None, hostile: str) -> dict[str, Any]:  # fmt: skip
    words = list(rng.choice(["Ok", "Cancel", "Submit", "next", "Yes", "no"], 3, replace=False))
    p = 1 / (1 + np.exp(-(LEVEL[ckpt] + ease)))
    win = bool(rng.random() < p)
    infra = rng.random() < 0.004
    steps = 1 if domain == "click" else int(rng.integers(2, 4))
    shas = []
    for _ in range(steps + 1):
        if frames is None:
            shas.append(hashlib.sha256(rng.bytes(8)).hexdigest())
            continue
        png = page(rng, words)
        shas.append(hashlib.sha256(png).hexdigest())
        (frames / f"{shas[-1]}.png").write_bytes(png)
    kind = "infra_error" if infra else "success" if win else "failure"
    cause = (
        "crash"
        if infra
        else "env_done"
        if win
        else str(rng.choice(["env_done", "step_limit", "parse_failure"], p=[0.6, 0.3, 0.1]))
    )
    action = {"kind": "Click", "x": round(float(rng.random()), 3), "y": round(float(rng.uniform(0.3, 0.95)), 3),
              "button": "left", "count": 1}  # fmt: skip
    return {
        "checkpoint": ckpt, "split": split, "suite": "miniwob", "template": template, "domain": domain,
        "task": f"miniwob/{template}/{ {'train': 0, 'fresh': 1000, 'heldout': 2000}[split] + k}/0", "episode": 0,
        "instruction": hostile or f'Click on the "{words[0]}" button.', "success": None if infra else win,
        "reward": None if infra else float(win),
        "kind": kind, "cause": cause, "detail": "", "attempt": 0, "steps": steps,
        "parse_failures": int(cause == "parse_failure"), "tokens": 22 * steps, "seconds": 0.3 * steps,
        "thoughts": json.dumps([hostile or f'click "{words[0]}"'] * steps),
        "actions": json.dumps([json.dumps(action)] * steps),
        "texts": json.dumps(["x"] * steps), "frames": json.dumps(shas[:-1]), "last_frame": shas[-1],
        "side_effects": json.dumps([f"made {hostile or 'Desktop/x'}"] * (k % 2)) if template == "click-tab" else None,
    }  # fmt: skip


def curves(rng: np.random.Generator, path: Path, kind: str, n: int) -> None:
    """Write a plausible curves.jsonl."""
    t = np.linspace(0, 1, n)
    noise = rng.standard_normal
    cols: dict[str, Any] = (
        {"loss": 1.6 * np.exp(-5 * t) + 0.22 + 0.03 * noise(n), "token_accuracy": 0.95 - 0.5 * np.exp(-5 * t), "grad_norm": 1 + np.exp(-3 * t) + 0.1 * noise(n)}  # noqa: E501
        if kind == "sft"
        else {
            "success": 0.42 + 0.2 * (1 - np.exp(-3 * t)) + 0.03 * noise(n),
            "reward_mean": 0.42 + 0.2 * t + 0.03 * noise(n),
            "kl": 0.02 * t + 0.001 * np.abs(noise(n)), "entropy": 0.5 - 0.2 * t + 0.01 * noise(n),
            "grad_norm": 0.6 + 0.1 * noise(n), "clip_fraction": 0.02 + 0.005 * np.abs(noise(n)),
            "groups_dropped": 5 + noise(n), "parse_failures": 0.1 * np.exp(-4 * t),
            "logprob_gap_max": 1e-5 + 1e-6 * noise(n),
        }
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps({"step": i, **{k: float(v[i]) for k, v in cols.items()}}) + "\n" for i in range(n))
    )


def provenance(folder: Path, seconds: float) -> None:
    """Write a provenance.json with what the report reads of it."""
    folder.mkdir(parents=True, exist_ok=True)
    cost = {"seconds": seconds, "peak_pss_bytes": int(8e8 + seconds * 1e6), "peak_rss_bytes": int(9e9)}
    (folder / "provenance.json").write_text(json.dumps({"cost": cost}))
    metrics = folder / "metrics.json"
    found = json.loads(metrics.read_text()) if metrics.exists() else {}
    metrics.write_text(json.dumps({**found, "env_steps": 4000, "tokens": 90000}))


def make(results: Path, *, recipes: tuple[str, ...] = ("grpo",), seeds: tuple[int, ...] = (0,), instances: int = 16,
         hostile: str = "", keep_frames: bool = True) -> Params:  # fmt: skip
    """Write a whole results tree and return the parameters whose sweep it fills."""
    ease = {t: float(np.random.default_rng(i).normal(0, 1.3)) for i, t in enumerate(
        t for group in (TRAIN, HELDOUT) for names in group.values() for t in names)}  # fmt: skip
    for i, name in enumerate(("provision", "demos")):
        provenance(results / name, 20.0 + 15 * i)
    for seed in seeds:
        curves(np.random.default_rng([1, seed]), results / "sft" / f"seed{seed}" / "curves.jsonl", "sft", 120)
        provenance(results / "sft" / f"seed{seed}", 95.0)
        for r, recipe in enumerate(recipes):
            curves(
                np.random.default_rng([2, r, seed]), results / "rl" / recipe / f"seed{seed}" / "curves.jsonl", "rl", 40
            )
            provenance(results / "rl" / recipe / f"seed{seed}", 330.0)
            provenance(results / "merge" / recipe / f"seed{seed}" / "model", 6.0)
            folder = results / "evaluate" / recipe / f"seed{seed}" / "miniwob"
            (folder / "frames").mkdir(parents=True)
            rows = []
            for split, group in (("train", TRAIN), ("fresh", TRAIN), ("heldout", HELDOUT)):
                for domain, names in group.items():
                    for template in names:
                        for k in range(instances):
                            for ckpt in LEVEL:
                                own = [0, 0] if ckpt == "base" else [seed, r if ckpt == "rl" else 0]
                                key = f"{ckpt}{split}{template}{k}{own}".encode()
                                rng = np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))
                                keep = folder / "frames" if keep_frames and k == 0 and split != "train" else None
                                lift = ease[template] - (0.6 if split == "heldout" else 0) + 0.3 * r * (ckpt == "rl")
                                rows.append(_episode(rng, ckpt, split, domain, template, k, lift, keep, hostile))
            records.table(rows).to_parquet(folder / "episodes.parquet", index=False)
            shown = [x for x in rows if keep_frames and x["split"] == "fresh" and x["task"].split("/")[2] == "1000"]
            strips = [[x["checkpoint"], x["task"], 0] for x in shown if x["domain"] != "text"][:18]
            (folder / "metrics.json").write_text(json.dumps({"confidence": 0.95, "bootstrap": 500, "strips": strips}))
            provenance(folder, 110.0)
    return Params.model_validate({
        "sweep": {"recipe": list(recipes), "seed": list(seeds)}, "recipes": {r: {} for r in recipes},
    })  # fmt: skip
