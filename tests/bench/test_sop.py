"""Recorded benchmarks: hand-worked progress, histories, kills, errors, and lines that must not mix."""

import json

import pytest

from guiderail.actions.types import Click, Drag, Finish, Open, Type, Wait
from guiderail.bench.sop import Past, Prediction, play, run
from guiderail.bench.sop_metrics import progress, steps, summary
from guiderail.envs.types import InfraError
from guiderail.errors import InputError
from guiderail.tasks.recorded import Expected, RecordedStep, Recording

LEFT, RIGHT, MISS = Click(0.1, 0.5), Click(0.9, 0.5), Click(0.5, 0.1)


def recording(name, *actions, instruction="tap"):
    made = [
        RecordedStep(f"{name}-{k}.png", 1000, 1000, Expected(a), instruction, raw={"action_content": raw_of(a)})
        for k, a in enumerate(actions)
    ]
    return Recording(name, f"goal of {name}", tuple(made))


def raw_of(a):
    if isinstance(a, Type):
        return {"action": "type", "text": a.text}
    if isinstance(a, Open):
        return {"action": "open", "text": a.app}
    return {"action": "click", "coordinate": [a.x * 1000, a.y * 1000]}


FOUR = [
    recording("a", LEFT, RIGHT, LEFT),
    recording("b", LEFT, RIGHT),
    recording("c", Open("Mail"), LEFT, RIGHT, LEFT),
    recording("d", Type("hi")),
]


class Player:
    """Plays the expert but where `wrong` {(episode, step): action or error} says otherwise; remembers the queries."""

    def __init__(self, wrong):
        self.wrong, self.asked = wrong, []

    def __call__(self, query):
        self.asked.append(query)
        expert = next(r for r in FOUR if r.id == query.episode).steps[query.step].expected.action
        said = self.wrong.get((query.episode, query.step), expert)
        if isinstance(said, Exception):
            raise said
        return Prediction(said, f"text {query.step}", "" if said else "no call")


def test_progress_by_hand(tmp_path):
    """s/n = 3/3, 1/2, 2/4, 0/1: TSR 1/4, PG (1 + .5 + .5 + 0)/4 = 1/2, Score 3/8."""
    player = Player({("b", 1): MISS, ("c", 2): Type("x"), ("d", 0): None})
    rows = run(FOUR, player, tmp_path / "out.jsonl", "m")
    assert [(r["episode_id"], r["s"], r["n"], r["success"]) for r in rows] == [
        ("a", 3, 3, True), ("b", 1, 2, False), ("c", 2, 4, False), ("d", 0, 1, False),
    ]  # fmt: skip
    found = progress(rows)
    assert (found["tsr"].mean, found["pg"].mean, found["score"].mean) == (0.25, 0.5, 0.375)
    assert all(v.lo < v.mean < v.hi and v.n == 4 for v in found.values())
    assert len(player.asked) == 3 + 2 + 3 + 1, "a trajectory ends at its first miss"
    asked = steps(rows, draws=200)
    assert asked["asked"] == 9 and asked["success"].mean == pytest.approx(6 / 9)
    assert asked["type"].mean == pytest.approx(7 / 9)  # b's click beside the target is a click
    assert (asked["grounding"].mean, asked["grounding"].n) == (pytest.approx(5 / 6), 6)
    assert {k: v["n"] for k, v in asked["actions"].items()} == {"Click": 7, "Open": 1, "Type": 1}
    assert asked["actions"]["Type"]["success"].mean == 0.0 and asked["actions"]["Type"]["grounding"].mean is None
    everything = json.loads(json.dumps(summary(rows, draws=200)))
    assert everything["tsr"]["mean"] == 0.25 and everything["coverage"] == 1.0 and everything["errors"] == {}


def test_what_cannot_be_read_is_a_miss_of_its_step_and_no_wait():
    """The reference sets the progress of the whole trajectory to 0 on any error, and its adapters fall back to waiting,
    which 567 expected steps are."""
    line = play(FOUR[0], Player({("a", 2): None}))
    assert (line["s"], line["success"], line["error"]) == (2, False, None)
    assert line["steps"][2]["problem"] == "no call" and line["steps"][2]["type"] is False
    for action in (Wait(1.0), Finish("success")):
        waits = Recording("w", "wait", (RecordedStep("w.png", 1000, 1000, Expected(action)),))
        assert play(waits, lambda q: Prediction(None, "mumble", "no call"))["s"] == 0
        assert play(waits, lambda q, action=action: Prediction(action))["s"] == 1


def test_goals_are_no_keys(tmp_path):
    """1,543 trajectories of the reference's file have 1,524 goals: two with the same goal are two lines."""
    same = [Recording(name, "the same goal", FOUR[1].steps) for name in ("x", "y")]
    expert = {k: s.expected.action for k, s in enumerate(FOUR[1].steps)}
    rows = run(same, lambda q: Prediction(expert[q.step] if q.episode == "x" else MISS), tmp_path / "o.jsonl", "m")
    assert [(r["episode_id"], r["goal"], r["s"]) for r in rows] == [
        ("x", "the same goal", 2),
        ("y", "the same goal", 0),
    ]


def test_own_history_under_sop_and_the_experts_when_forced():
    player = Player({("a", 2): MISS})
    play(FOUR[0], player)
    assert player.asked[2].history == (Past("a-0.png", LEFT, "text 0"), Past("a-1.png", RIGHT, "text 1"))
    assert player.asked[2].instruction == "" and player.asked[2].goal == "goal of a"
    player = Player({("a", 0): MISS, ("a", 2): MISS})
    row = play(FOUR[0], player, "high")
    assert [s["exact"] for s in row["steps"]] == [False, True, False] and (row["s"], row["n"]) == (0, 3)
    assert player.asked[2].history == (Past("a-0.png", LEFT), Past("a-1.png", RIGHT))
    assert {q.instruction for q in player.asked} == {""}
    player = Player({})
    play(FOUR[0], player, "low")
    assert {q.instruction for q in player.asked} == {"tap"}
    with pytest.raises(InputError, match="no instruction of its own"):
        play(recording("a", LEFT, instruction=""), Player({}), "low")


def test_summary_of_forced_steps_and_of_mixed_lines():
    rows = [play(r, Player({("b", 1): MISS}), "high") for r in FOUR]
    found = summary(rows, draws=200)
    assert "tsr" not in found and found["steps"]["success"]["mean"] == pytest.approx(9 / 10)
    with pytest.raises(ValueError, match="2 protocols"):
        summary([*rows, play(FOUR[0], Player({}))])


def test_an_engine_error_is_excluded_listed_and_played_again(tmp_path):
    out = tmp_path / "out.jsonl"
    rows = run(FOUR, Player({("b", 1): InfraError("no answer", "timeout")}), out, "m")
    assert rows[1]["error"] == {"kind": "timeout", "detail": "no answer"} and rows[1]["s"] is None
    found = summary(rows, draws=200)
    assert (found["tsr"]["mean"], found["tsr"]["n"], found["coverage"]) == (1.0, 3, 0.75)
    assert found["errors"] == {"timeout": 1} and found["steps"]["asked"] == 8
    again = Player({})
    rows = run(FOUR, again, out, "m")
    assert {q.episode for q in again.asked} == {"b"} and rows[1]["success"] is True
    assert len(out.read_text().splitlines()) == 5


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_and_resumed_plays_the_rest_once(tmp_path, workers):
    out = tmp_path / "out.jsonl"
    with pytest.raises(MemoryError):
        run(FOUR, Player({("c", 1): MemoryError()}), out, "m", workers=workers)
    with out.open("ab") as f:
        f.write(b'{"episode_id": "c", "s"')  # cut short by the kill
    before = {json.loads(line)["episode_id"] for line in out.read_text().splitlines()[:-1]}
    rest, ends = Player({}), []
    rows = run(FOUR, rest, out, "m", workers=workers, done=lambda k, n: ends.append((k, n)))
    assert {q.episode for q in rest.asked} == {"a", "b", "c", "d"} - before and ends[-1] == (4, 4)
    assert [r["success"] for r in rows] == [True] * 4
    assert [json.loads(line)["episode_id"] for line in out.read_text().splitlines()].count("c") == 1
    idle = Player({})
    assert run(FOUR, idle, out, "m") == rows and idle.asked == []


def test_lines_of_a_policy_that_writes_line_separators_are_read_again(tmp_path):
    """JSON holds U+2028 and U+0085 as they are; only a newline ends a line of the file."""
    file, odd = tmp_path / "out.jsonl", "one\u2028two\x85three\u2029"

    def says(query):
        return Prediction(Type("hi"), odd, "", odd)

    made = run([FOUR[3]], says, file, "m")
    assert made[0]["success"] and made[0]["steps"][0]["text"] == odd
    assert run([FOUR[3]], Player({}), file, "m") == made


def test_lines_of_something_else_are_refused(tmp_path):
    out = tmp_path / "out.jsonl"
    run(FOUR, Player({}), out, {"model": "A"})
    other = [recording("a", RIGHT, RIGHT, LEFT), *FOUR[1:]]
    for kw in ({"identity": "B"}, {"protocol": "high"}, {"scorer": "reference_sop"}, {"recordings": other}):
        with pytest.raises(InputError, match="another file"):
            run(**{"recordings": FOUR, "predict": Player({}), "out": out, "identity": {"model": "A"}} | kw)
    out.write_text("nonsense\n")
    with pytest.raises(InputError, match="line 1: not JSON"):
        run(FOUR, Player({}), out, "m")


def test_the_references_evaluator_under_its_name():
    """It passes the empty text, and an answer that cannot be read takes the whole trajectory to 0."""
    wrong = Player({("d", 0): Type("")})
    assert play(FOUR[3], wrong)["s"] == 0 and play(FOUR[3], wrong, scorer="reference_sop")["s"] == 1
    unread = Player({("c", 3): None})
    assert play(FOUR[2], unread)["s"] == 3 and play(FOUR[2], unread, scorer="reference_sop")["s"] == 0


def test_ground_truth_scores_everything_and_reversed_swipes_nothing():
    swipe = recording("a", Drag(0.5, 0.8, 0.5, 0.2))
    ends = [
        play(swipe, lambda q, a=a: Prediction(a))["s"] for a in (Drag(0.5, 0.8, 0.5, 0.2), Drag(0.5, 0.2, 0.5, 0.8))
    ]
    assert ends == [1, 0]
    assert progress([])["tsr"].mean is None and progress([])["tsr"].reason
