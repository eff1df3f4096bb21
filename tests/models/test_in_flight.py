from __future__ import annotations

from pivotopd.models.base import Request, Sampling
from pivotopd.models.in_flight import Rounds, begin
from tests import play

SAMPLING = Sampling(1.0, 12)


def test_an_engine_of_whole_batches_is_given_all_that_waits_at_once() -> None:
    policy = play.Scripted(lambda text, seed: play.reply(f"answer {seed}"))
    flight = begin(policy, SAMPLING)
    assert isinstance(flight, Rounds)
    prompt = play.codec().encode_prompt("look")
    flight.send({4: Request(prompt, 40)})
    flight.send({2: Request(prompt, 20), 9: Request(prompt, 90)})
    assert policy.seen == []
    landed = flight.land()
    assert list(landed) == [2, 4, 9]
    assert [seed for _, seed in policy.seen] == [20, 40, 90]
    said = {key: play.codec().decode(one.response_ids.tolist())[0] for key, one in landed.items()}
    assert said == {key: play.reply(f"answer {10 * key}") for key in (2, 4, 9)}
    assert flight.land() == {}


def test_what_was_given_up_is_not_asked() -> None:
    policy = play.Scripted(play.refuse)
    flight = begin(policy, SAMPLING)
    flight.send({0: Request([5], 0)})
    flight.close()
    assert flight.land() == {}
