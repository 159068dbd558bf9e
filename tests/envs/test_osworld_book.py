"""Tasks of the desktop suite on real desktops: the expert scores 1, doing nothing 0, and so do those who cheat."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from guiderail.actions.types import Finish, Wait
from guiderail.bench.desktop_check import check_all, tamper
from guiderail.envs.types import InfraError, JudgeError
from guiderail.pool.providers.local_desktop import LocalDesktopProvider
from guiderail.pool.vm import packages
from guiderail.tasks.desktop.every import every
from guiderail.tasks.desktop.suite import TEMPLATES, make
from guiderail.tasks.instances import instance_seed
from guiderail.tasks.types import TaskSpec

LACKING = packages.missing()
pytestmark = [
    pytest.mark.skipif(bool(LACKING), reason=f"no desktop packages: {', '.join(LACKING)}"),
    pytest.mark.timeout(600),
]
HOME = "/home/user"


@asynccontextmanager
async def desktop():
    provider = LocalDesktopProvider(size=(640, 480), call_timeout_s=120.0)
    await provider.start()
    env = await provider.new_env()
    try:
        yield env
    finally:
        await env.close()
        await provider.stop()


def spec(name, namespace="train"):
    t = TEMPLATES["desktop"][name]
    return TaskSpec("desktop", name, instance_seed(namespace, name, 0), "train", 0, t.domain, t.max_steps, 1.0)


async def expert(env, task, stop_before=0):
    """Play the expert; leave out the last `stop_before` actions before its Finish."""
    template, result, done = TEMPLATES[task.suite][task.template], await env.reset(task), []
    moves = template.steps[1] - 1 - stop_before
    while len(done) < moves:
        scene = await env.oracle() if template.looks(len(done)) else []
        decision = template.expert(scene, result.observation.instruction, len(done), done)
        assert decision is not None, f"{task.template}: nothing to aim at for move {len(done)}"
        done.append(decision[0])
        result = await env.step(decision[0])
    return done


def test_an_expert_one_that_stops_early_and_one_that_cheats():
    async def go():
        async with desktop() as env:
            task = spec("terminal-mkdir")
            await env.reset(task)
            assert await env.evaluate() == 0  # the initial state
            await env.step(Wait(0.1))
            await env.step(Finish("success"))
            assert await env.evaluate() == 0  # doing nothing
            await env.reset(task)
            await tamper(env.machine, make(task).task, make(task).files)
            await env.step(Finish("success"))
            assert await env.evaluate() == 0
            await expert(env, task)
            await env.step(Finish("failure"))
            assert await env.evaluate() == 0  # done, and called impossible
            await expert(env, task)
            assert await env.evaluate() == 1  # judged as it stands, also when the steps run out
            await env.machine.write(f"{HOME}/Desktop/other.txt", b"x")
            assert await env.side_effects() == ["made Desktop/other.txt"]  # and not the folder that was asked for

            task = spec("editor-append", "fresh")
            await expert(env, task, stop_before=1)
            assert await env.evaluate() == 0  # typed, not saved
            await tamper(env.machine, make(task).task, make(task).files)
            assert await env.evaluate() == 0
            await expert(env, task)
            await env.step(Finish("success"))
            assert await env.evaluate() == 1

            task = spec("editor-print")
            for said, wanted in (("success", 0), ("failure", 1)):
                await env.reset(task)
                await env.step(Finish(said))
                assert await env.evaluate() == wanted

    asyncio.run(go())


def test_a_sample_of_all_instances():
    """One of a kind of judge and of expert each; `guiderail selftest` tries all 1191."""
    names = ("calc-add", "editor-save-copy", "files-move")
    tasks = [every("desktop", name, 2)[-1] for name in names]  # values of the held-out side
    found = asyncio.run(check_all(tasks, 2))
    assert [str(c) for c in found if not c.ok] == [] and len(found) == len(names)


@pytest.mark.skipif(bool(packages.lacks_office()), reason="no LibreOffice: guiderail doctor --install office")
def test_a_sheet_and_a_document():
    tasks = [every("desktop_office", name, 2)[-1] for name in ("sheet-sum", "writer-centre")]
    found = asyncio.run(check_all(tasks, 2))
    assert [str(c) for c in found if not c.ok] == [] and len(found) == len(tasks)


CHEATS = {
    "terminal-mkdir": ["touch ~/project/{name}"],  # a file is no folder
    "files-delete": ["mv ~/Documents/{file}.txt ~/Documents/plan.txt", "mv ~/Documents/{file}.txt ~/Desktop"],
    "viewer-delete": ["rm ~/Pictures/picture.png; echo x > ~/Pictures/other.txt"],
    "viewer-save-copy": ["cd /usr/share/icons; cp $(find . -name '*.png' | head -1) ~/{name}.png; "
                         "cp ~/{name}.png ~/Pictures/picture.png"],
    # what cannot be judged because of the agent is its failure, and not the judge's
    "editor-append": ["rm ~/notes.txt; mkfifo ~/notes.txt", "ln -sf /dev/zero ~/notes.txt", "chmod 0 ~",
                      "rm ~/notes.txt; truncate -s 300M ~/notes.txt"],
}  # fmt: skip


def test_what_looks_like_the_outcome_and_is_not():
    async def go():
        async with desktop() as env:
            for name, scripts in CHEATS.items():
                values = make(spec(name)).values
                for script in scripts:
                    await env.reset(spec(name))
                    for key, value in values.items():
                        script = script.replace("{" + key + "}", value)
                    assert (await env.machine.execute(script, shell=True)).status == 0, script
                    assert await env.evaluate() == 0, f"{name}: {script}"

    asyncio.run(go())


def test_names_that_are_no_text_are_told_as_text():
    async def go():
        async with desktop() as env:
            await env.reset(spec("terminal-mkdir"))
            script = "touch ~/$(printf 'a\\377b'); ln -s $(printf 'c\\376') ~/link"
            assert (await env.machine.execute(script, shell=True)).status == 0
            assert await env.side_effects() == ["made a\\xffb", "made link"]
            assert (await env.machine.tree())["link"].digest == "c\\xfe"
            names = [child["name"] for child in (await env.machine.list_directory(HOME))["children"]]
            assert "a\\xffb" in names

    asyncio.run(go())


def test_a_task_that_nothing_solves_counts_as_unsound(monkeypatch):
    async def judge(self, machine, said):
        return 1.0

    monkeypatch.setattr("guiderail.envs.osworld_book.OsworldDesktopTask.judge", judge)
    (found,) = asyncio.run(check_all(every("desktop", "terminal-mkdir", 1), 1))
    assert not found.ok and "start 1, nothing 1, tampered 1, expert 1" in str(found)


def test_a_judge_that_fails_and_a_setup_that_fails_are_nobodys_failure(monkeypatch):
    from guiderail.envs import osworld_book
    from guiderail.tasks.judges.judge import Limits

    async def go():
        async with desktop() as env:
            await env.reset(spec("terminal-mkdir"))
            monkeypatch.setattr(osworld_book, "LIMITS", Limits(memory=1 << 20))
            with pytest.raises(JudgeError):
                await env.evaluate()
            monkeypatch.undo()
            assert await env.evaluate() == 0  # the desktop lives on
            monkeypatch.setattr(osworld_book, "SETUP_WINDOW_S", 0.0)
            broken = osworld_book.desktop_book(spec("calc-add"))
            broken.task = broken.task.__class__(**{**vars(broken.task), "config": broken.task.config[1:]})
            env.book = lambda task: broken
            with pytest.raises(InfraError, match="setup"):
                await env.reset(spec("calc-add"))

    asyncio.run(go())
