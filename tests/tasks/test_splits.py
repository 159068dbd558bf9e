"""Splits: seeds, manifests, overlap and the RL stream."""

import copy
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.errors import InputError
from guiderail.params import Provision
from guiderail.tasks import splits
from guiderail.tasks.splits import (
    OverlapError,
    build_manifest,
    check_manifest,
    check_no_overlap,
    derive,
    load_manifest,
    manifest_hash,
    rl_task,
    tasks,
)

NAT = st.integers(0, 2**63)
SMALL = build_manifest(Provision(templates=["click-tab", "enter-text", "click-link"], heldout=["focus-text-2"]))


def test_derive_is_the_head_of_sha256():
    # printf '["a", 1]' | sha256sum -> 2657442bb4a48d62f780...
    assert derive("a", 1, bits=32) == 0x2657442B


@given(st.sampled_from(sorted(splits.NAMESPACES)), NAT, st.text(max_size=5))
def test_a_seed_tells_its_namespace_and_fits_javascript(namespace, a, b):
    seed = splits.instance_seed(namespace, a, b)
    assert splits.namespace_of(seed) == namespace
    assert 0 <= seed < 2**53


@given(NAT, NAT, st.integers(0, 10**6), st.integers(0, 10**6))
def test_rl_never_draws_an_evaluation_instance(task_seed, run_seed, iteration, index):
    """By construction: the low bits differ from those of every seed of every manifest."""
    manifest = {**SMALL, "task_seed": task_seed}
    task = rl_task(manifest, run_seed, iteration, index)
    assert task.seed % 4 == 3
    assert all(t["seed"] % 4 != 3 for split in SMALL["splits"].values() for t in split)
    assert task.split == "train" and task.template in SMALL["train_templates"]
    assert task == rl_task(manifest, run_seed, iteration, index)


@settings(max_examples=20, deadline=None)
@given(task_seed=NAT, n=st.integers(1, 5), m=st.integers(1, 5), k=st.integers(1, 5))
def test_manifests_are_disjoint_counted_and_reproducible(task_seed, n, m, k):
    params = Provision(task_seed=task_seed, train_instances=n, fresh_instances=m, heldout_instances=k)
    manifest = build_manifest(params)
    assert manifest == build_manifest(params)
    train, fresh, heldout = (
        {(t.template, t.seed) for t in tasks(manifest, split)} for split in ("train", "fresh", "heldout")
    )
    assert (len(train), len(fresh), len(heldout)) == (25 * n, 25 * m, 8 * k)
    assert not train & fresh and not train & heldout and not fresh & heldout
    assert not {t for t, _ in train | fresh} & {t for t, _ in heldout}


def test_more_instances_start_with_the_same_ones():
    few, many = (build_manifest(Provision(templates=["click-tab"], train_instances=n)) for n in (3, 9))
    assert tasks(few, "train") == tasks(many, "train")[:3]


def test_a_training_run_has_distinct_instances():
    drawn = [rl_task(SMALL, run, i, j) for run in range(3) for i in range(20) for j in range(30)]
    assert len({t.seed for t in drawn}) == len(drawn)


@given(NAT, st.integers(0, 1000))
def test_templates_are_drawn_evenly_within_an_iteration(run_seed, iteration):
    drawn = Counter(rl_task(SMALL, run_seed, iteration, i).template for i in range(16))
    assert sorted(drawn.values()) == [5, 5, 6]


def test_templates_are_drawn_evenly_over_iterations():
    """One task an iteration: no template may starve."""
    drawn = Counter(rl_task(SMALL, 0, i, 0).template for i in range(600))
    assert len(drawn) == 3 and min(drawn.values()) > 150


def test_specs_carry_the_templates_budget():
    task = next(t for t in tasks(SMALL, "train") if t.template == "enter-text")
    assert (task.max_steps, task.domain, task.threshold, task.wording) == (5, "text", 1.0, 0)
    assert task.id == f"miniwob/enter-text/{task.seed}/0"


def test_wordings_go_round():
    manifest = build_manifest(Provision(templates=["click-tab"], wordings=3, fresh_instances=7))
    assert [t.wording for t in tasks(manifest, "fresh")] == [0, 1, 2, 0, 1, 2, 0]
    assert {rl_task(manifest, 0, i, 0).wording for i in range(40)} == {0, 1, 2}


def test_the_hash_is_of_the_canonical_json():
    assert SMALL["hash"] == manifest_hash(SMALL)
    assert manifest_hash({"b": 1, "a": "é", "hash": "x"}) == manifest_hash({"a": "é", "b": 1})
    # printf '{"a":"é","b":1}' | sha256sum
    assert manifest_hash({"b": 1, "a": "é"}) == "aa58fba8483623bed37c1b02edfccbdd9a53123837c20bfa4cb4049993a2872e"
    assert build_manifest(Provision(task_seed=1))["hash"] != build_manifest(Provision(task_seed=2))["hash"]


def test_a_manifest_survives_a_file_and_not_an_edit(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(SMALL))
    assert load_manifest(path) == SMALL
    edited = copy.deepcopy(SMALL)
    edited["splits"]["fresh"][0]["seed"] += 4
    path.write_text(json.dumps(edited))
    with pytest.raises(ValueError, match="it was edited"):
        load_manifest(path)
    path.write_text(json.dumps({k: v for k, v in SMALL.items() if k != "hash"}))
    with pytest.raises(ValueError, match="hash is None"):
        load_manifest(path)
    old = {**SMALL, "version": 0}
    old["hash"] = manifest_hash(old)
    path.write_text(json.dumps(old))
    with pytest.raises(ValueError, match="version 0"):
        load_manifest(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not readable as JSON"),
        (b'{"suite": "miniwob", "ver', "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"[]", "must hold a mapping, holds list"),
        (b"{}", "hash is None"),
    ],
)
def test_a_damaged_file_names_itself_and_the_remedy(tmp_path, data, words):
    (tmp_path / "tasks.json").write_bytes(data)
    with pytest.raises(InputError) as e:
        load_manifest(tmp_path / "tasks.json")
    assert words in str(e.value)
    assert str(e.value).startswith(f"{tmp_path / 'tasks.json'}: ")
    assert "Run `guiderail provision` again" in str(e.value)


def without(tree, *keys):
    return {k: v for k, v in tree.items() if k not in keys}


TASK = SMALL["splits"]["train"][0]


@pytest.mark.parametrize(
    ("edited", "words"),
    [
        (without(SMALL, "splits"), "splits: Field required"),
        (without(SMALL, "wordings", "suite"), "suite: Field required (and 1 more)"),
        ({**SMALL, "splits": without(SMALL["splits"], "fresh")}, "splits.fresh: Field required"),
        ({**SMALL, "splits": {**SMALL["splits"], "other": []}}, "splits.other: Extra inputs are not permitted"),
        ({**SMALL, "splits": {**SMALL["splits"], "train": [{**TASK, "seed": "7"}]}}, "splits.train.0.seed: Input"),
        ({**SMALL, "splits": {**SMALL["splits"], "train": [{**TASK, "x": 1}]}}, "splits.train.0.x: Extra inputs"),
        ({**SMALL, "train_templates": "click-tab"}, "train_templates: Input should be a valid list"),
        ({**SMALL, "suite": "maxiwob"}, "suite 'maxiwob' does not exist here"),
        ({**SMALL, "train_templates": ["click-tob"]}, "suite miniwob has no templates click-tob"),
        ({**SMALL, "heldout_templates": ["click-tab"]}, "both trained and held out"),
    ],
)
def test_an_edited_manifest_with_a_right_hash_is_refused_by_its_shape(tmp_path, edited, words):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps({**edited, "hash": manifest_hash(edited)}))
    with pytest.raises(InputError) as e:
        load_manifest(path)
    assert words in str(e.value) and str(e.value).startswith(f"{path}: ") and "guiderail provision" in str(e.value)


def test_a_manifest_whose_splits_mix_is_refused():
    mixed = copy.deepcopy(SMALL)
    mixed["splits"]["fresh"][0] = mixed["splits"]["train"][0]
    with pytest.raises(ValueError, match="stands twice: in split train and in split fresh"):
        check_manifest(mixed)
    moved = copy.deepcopy(SMALL)
    moved["splits"]["fresh"].append(moved["splits"]["train"].pop())
    with pytest.raises(ValueError, match="does not belong in split fresh"):
        check_manifest(moved)
    with pytest.raises(ValueError, match="both trained and held out"):
        check_manifest({**SMALL, "heldout_templates": ["click-tab"]})


def test_training_tasks_do_not_overlap():
    trained = [t.id for t in tasks(SMALL, "train")] + [rl_task(SMALL, 0, i, j).id for i in range(5) for j in range(5)]
    check_no_overlap(SMALL, trained)


def test_overlap_is_refused_by_instance_in_any_wording_and_by_held_out_template():
    fresh = tasks(SMALL, "fresh")[0]
    for bad in (fresh.id, fresh.id[:-1] + "2", "miniwob/focus-text-2/12/0"):
        with pytest.raises(OverlapError, match="1 trained tasks are tested"):
            check_no_overlap(SMALL, [tasks(SMALL, "train")[0].id, bad])
    with pytest.raises(ValueError, match="is no task id"):
        check_no_overlap(SMALL, ["click-tab"])


@pytest.mark.parametrize(("iteration", "index"), [(-1, 0), (0, -1)])
def test_negative_positions_are_refused(iteration, index):
    with pytest.raises(ValueError, match="must be 0 or more"):
        rl_task(SMALL, 0, iteration, index)
