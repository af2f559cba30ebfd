"""The checker finds each kind of broken promise in a history, and none in one where all were kept."""

import pytest

from tests.campaign.real.checker import check, longest_gap, quantile, read_histories


def sent(number, t=0.0, task="smooth", deadline=5.0, client=7):
    return {"t": t, "what": "sent", "id": f"{client}.1.{number}", "task": task, "input": 0, "deadline": deadline}


def answered(number, t=0.1, off=0.0, client=7):
    return {"t": t, "what": "answered", "id": f"{client}.1.{number}", "digest": "d", "off": off}


def failed(number, t=0.1, text="agent 'agent0' was lost", kind="ExecutionError"):
    return {"t": t, "what": "failed", "id": f"7.1.{number}", "kind": kind, "text": text, "ours": True}


def fault(number, t, kind="agent killed", *, blocks=False, alone=True):
    return {"t": t, "what": "fault", "fault": number, "kind": kind, "targets": [], "blocks": blocks, "counts": True, "alone": alone}


def healed(number, t):
    return {"t": t, "what": "healed", "fault": number}


def found(*lines):
    return set(check(sorted(lines, key=lambda line: line["t"])).breaches)


def test_answers_in_time_break_nothing():
    verdict = check([sent(1), answered(1), sent(2, 1.0), answered(2, 1.5)])
    assert (verdict.requests, verdict.answered, dict(verdict.breaches)) == (2, 2, {})


@pytest.mark.parametrize(
    ("lines", "breach"),
    [
        ((sent(1),), "never answered"),
        ((sent(1), answered(1), answered(1, 0.2)), "answered twice"),
        ((sent(1), answered(1, off=1.5)), "wrong answer"),
        ((sent(1), answered(1, 6.5)), "after its deadline"),
        ((sent(1), failed(1)), "failed"),
        ((sent(1), failed(1, 5.1, "its deadline of 5 s passed")), "lost until its deadline"),
        ((sent(1, task="killer:3"), failed(1, text="it did not work")), "an error that names nobody"),
        (({"t": 0, "what": "broken", "kind": "agent killed", "text": "KeyError"},), "the campaign itself"),
        (({"t": 0, "what": "all back", "seconds": None, "missing": ["agent0"], "unreachable": {}},), "nodes came back late"),
        (({"t": 0, "what": "all back", "seconds": 12.0, "missing": [], "unreachable": {}},), "nodes came back late"),
    ],
)
def test_a_broken_promise_is_found(lines, breach):
    assert found(*lines) == {breach}


def test_a_killed_client_waits_for_nothing():
    assert found(sent(1), {"t": 1.0, "what": "client killed", "pid": 7}) == set()
    assert found(sent(1), {"t": 1.0, "what": "client killed", "pid": 8}) == {"never answered"}


def test_hostile_models_may_fail_but_late_they_may_not():
    assert found(sent(1, task="endless:1", deadline=2.0), failed(1, 2.5, "its deadline passed")) == set()
    assert found(sent(1, task="endless:1", deadline=2.0), failed(1, 3.5, "its deadline passed")) == {"after its deadline"}


def test_a_full_disk_excuses_models_that_cannot_be_brought_while_it_is_full():
    refused = (sent(1, 1.0, "fresh:1"), failed(1, 1.1, "model: the coordinator cannot store it: there is room for 0"))
    assert found(*refused, fault(1, 0.5, "coordinator's disk full"), healed(1, 2.0)) == set()
    assert found(*refused, fault(1, 3.0, "coordinator's disk full"), healed(1, 4.0)) == {"failed"}


def stream(*pauses):
    """Requests every 0.1 s for 20 s, but none is answered in the pauses."""
    times = [t / 10 for t in range(200) if not any(begin < t / 10 < end for begin, end in pauses)]
    return [line for number, t in enumerate(times) for line in (sent(number, t), answered(number, t + 0.01))]


def test_a_slow_recovery_is_found():
    assert found(*stream((5.0, 6.0)), fault(1, 5.0), healed(1, 5.5)) == set()
    assert found(*stream((5.0, 7.0)), fault(1, 5.0), healed(1, 5.5)) == {"slow recovery"}


def test_while_nobody_can_answer_no_time_is_counted():
    assert found(*stream((5.0, 9.0)), fault(1, 5.0, "coordinator stopped", blocks=True), healed(1, 8.5)) == set()
    assert found(*stream((5.0, 12.0)), fault(1, 5.0, "coordinator stopped", blocks=True), healed(1, 8.5)) == {"slow recovery"}


def test_faults_together_are_not_held_to_the_time_of_one():
    assert found(*stream((5.0, 8.0)), fault(1, 5.0, alone=False), healed(1, 5.5)) == set()


def test_growth_is_found():
    def points(*descriptors):
        return [
            {"t": t, "what": "measured", "machine": "agent0", "rss": 1 << 20, "descriptors": count, "disk": 0, "processes": 2}
            for t, count in enumerate(descriptors)
        ]

    assert found(*points(50, 50, 52, 50, 51, 50, 52)) == set()
    assert found(*points(50, 50, 60, 70, 80, 90, 100)) == {"growth"}


def test_a_model_that_ends_many_workers_is_found():
    def ended(t, by="SIGFPE", also=""):
        text = f"the worker of agent 'a' ended: the worker was ended by {by} while computing request 1 of epoch 2; epoch 2 is of "
        return {"t": t, "what": "worker ended", "text": f"{text}model 'killer_7' (01234567){also}"}

    attack = (fault(1, 9.0, "killer model"), sent(999, 9.1, "killer:7"), failed(999, 12.1), healed(1, 12.0), *stream())
    assert found(*attack, *map(ended, (9.5, 10.5))) == set()
    assert found(*attack, *map(ended, (9.5, 10.5, 11.5))) == {"a model ended too many workers"}
    # What has ended a worker with two models is in doubt; that is cleared, unless other faults come between.
    doubtful = [ended(9.5 + t / 9, also="; epoch 3 is of model 'smooth' (89abcdef)") for t in range(5)]
    assert found(*attack, *doubtful[:3]) == {"a model ended too many workers"}
    assert found(*attack, fault(3, 9.2, alone=False), healed(3, 9.3), *doubtful[:4]) == set()
    assert found(*attack, fault(3, 9.2, alone=False), healed(3, 9.3), *doubtful) == {"a model ended too many workers"}
    # What another hostile model may have ended is not the model's, nor what the system or the nanny ends.
    assert found(*attack, *map(ended, (9.5, 10.5)), ended(11.5, also="; epoch 3 is of model 'deadly_8' (89abcdef)")) == set()
    assert found(*attack, *map(ended, (9.5, 10.5)), ended(11.5, by="SIGKILL")) == set()
    # A coordinator that was hurt may have forgotten the first ones.
    restart = {**fault(2, 11.0, "coordinator killed"), "targets": ["coordinator"]}
    assert found(*attack, *map(ended, (9.5, 10.5, 11.5)), restart, healed(2, 11.1)) == set()


def test_a_line_that_was_cut_by_a_kill_is_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"t": 2.0, "what": "sent"}\n{"t": 3.0, "wh')
    (tmp_path / "b.jsonl").write_text('{"t": 1.0, "what": "ready"}\n')
    assert [line["t"] for line in read_histories(sorted(tmp_path.glob("*.jsonl")))] == [1.0, 2.0]


def test_gaps_and_quantiles():
    assert longest_gap([1.0, 2.0, 5.0], 1.5, 6.0) == 3.0
    assert longest_gap([1.0, 2.0, 5.0], 1.5, 6.0, [(2.5, 4.5)]) == 1.0
    assert (quantile([], 0.5), quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.99)) == (0.0, 2.0, 3.0)


def revoked(*lines):
    began = {**fault(1, 1.0, "client's token revoked"), "counts": False}
    return found(began, {"t": 1.1, "what": "revoked", "pid": 7}, {"t": 4.0, "what": "replaced", "pid": 7}, healed(1, 4.5), *lines)


def test_who_has_a_revoked_token_is_refused_and_answered_with_the_next_one():
    refused = failed(1, 2.0, "the coordinator does not know the key", "AccessError")
    assert revoked(sent(1, 1.5), refused, sent(2, 1.5), answered(2, 1.9), sent(3, 3.0), answered(3, 4.2)) == set()
    assert found(sent(1, 1.5), refused) == {"failed"}
    late = failed(1, 6.0, "the coordinator does not know the key", "AccessError")
    assert revoked(sent(1, 1.5), late) == {"failed"}


def test_an_answer_to_a_revoked_token_is_found():
    assert revoked(sent(1, 1.5), answered(1, 3.0)) == {"a revoked key was answered"}
    assert revoked(sent(1, 1.5, client=8), answered(1, 3.0, client=8)) == set()


def test_a_wrong_key_that_opens_something_is_found():
    knocked = {"t": 1.0, "what": "knocked", "key": "an old one", "came": False, "why": "not known"}
    assert check([knocked]).knocks == {"refused": 1}
    assert found({**knocked, "came": True}) == {"a wrong key was answered"}


@pytest.mark.parametrize(
    ("left", "ended", "breaches"),
    [
        (0.2, 3.0, set()),
        (1.5, 3.0, {"a revoked node stayed"}),
        (0.2, None, {"a revoked node did not end"}),
    ],
)
def test_a_revoked_node_that_stays_is_found(left, ended, breaches):
    assert found({"t": 1.0, "what": "shut out", "agent": "agent0", "left_s": left, "ended_s": ended}) == breaches
