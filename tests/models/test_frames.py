"""The frame store: content addressing, atomic files, damaged files, decoding, many writers."""

import hashlib
import io
import multiprocessing
import os

import numpy as np
import pytest
from PIL import Image

from guiderail.models.frames import FrameStore


def png(color: tuple[int, int, int], mode: str = "RGB", size: tuple[int, int] = (7, 5)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).convert(mode).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    return FrameStore(tmp_path / "frames" if request.param == "folder" else None)


def test_bytes_come_back_under_their_sha256(store):
    data = png((10, 20, 30))
    sha = store.put(data)
    assert sha == hashlib.sha256(data).hexdigest() == store.put(data)
    assert store.get_png(sha) == data
    assert sha in store and "0" * 64 not in store and 3 not in store and "../x" not in store
    assert list(store) == [sha] and len(store) == 1


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_pixels_are_rgb(store, mode):
    sha = store.put(png((204, 204, 204), mode))
    array = store.get_array(sha)
    assert array.shape == (5, 7, 3) and array.dtype == np.uint8 and (array == 204).all()
    assert store.get_image(sha).size == (7, 5) and store.get_image(sha).mode == "RGB"
    with pytest.raises(ValueError):
        array[0, 0, 0] = 1


def test_drawing_on_an_image_leaves_the_store_alone(store):
    sha = store.put(png((1, 2, 3)))
    store.get(sha).putpixel((0, 0), (9, 9, 9))
    assert store.get(sha).getpixel((0, 0)) == (1, 2, 3)


def test_refusals(store):
    with pytest.raises(KeyError, match="0000 is not in"):
        store.get_png("0" * 64)
    with pytest.raises(ValueError, match="is not a PNG"):
        store.put(b"\xff\xd8\xff jpeg")


def test_the_image_cache_is_small(tmp_path):
    store = FrameStore(tmp_path, cache=2)
    shas = [store.put(png((i, 0, 0))) for i in range(3)]
    first = store.get_array(shas[0])
    assert store.get_array(shas[0]) is first
    store.get_array(shas[1])
    store.get_array(shas[2])
    assert store.get_array(shas[0]) is not first


def test_a_damaged_or_foreign_file_is_never_served(tmp_path):
    store = FrameStore(tmp_path)
    sha = store.put(png((1, 1, 1)))
    store.path(sha).write_bytes(png((2, 2, 2)))
    with pytest.raises(ValueError, match="content does not match its name"):
        FrameStore(tmp_path).get_png(sha)
    with pytest.raises(ValueError, match="not a sha256"):
        store.get_png("../../etc/passwd")


def test_a_writer_that_dies_leaves_no_frame(tmp_path, monkeypatch):
    store, data = FrameStore(tmp_path), png((3, 3, 3))

    def die(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(OSError, match="disk full"):
        store.put(data)
    assert os.listdir(tmp_path) == [] and list(store) == []
    monkeypatch.undo()
    assert store.get_png(store.put(data)) == data


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_store_syncs_and_both_are_whole(tmp_path, monkeypatch, durable):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    store, data = FrameStore(tmp_path, durable=durable), png((1, 2, 3))
    sha = store.put(data)
    assert len(synced) == durable
    assert (tmp_path / f"{sha}.png").read_bytes() == data and len(os.listdir(tmp_path)) == 1


def _put_all(folder: str) -> None:
    store = FrameStore(folder)
    for i in range(20):
        store.put(png((i, i, i)))


def test_several_processes_share_a_folder(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=_put_all, args=(str(tmp_path),)) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(30)
        assert w.exitcode == 0
    store = FrameStore(tmp_path)
    assert len(store) == 20 and len(os.listdir(tmp_path)) == 20
    assert {store.get_array(sha)[0, 0, 0] for sha in store} == set(range(20))


def test_memory_frames_have_no_path():
    store = FrameStore()
    with pytest.raises(ValueError, match="in memory"):
        store.path(store.put(png((0, 0, 0))))
