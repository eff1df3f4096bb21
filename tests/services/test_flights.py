"""Requests in flight over servers: what lands is what the engine gives, whatever is lost or taken over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.errors import ConfigError, EngineFault, PivotError
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.in_flight import Continuous
from pivotopd.services import wire
from pivotopd.services.client import RemoteEngine
from pivotopd.services.pool import EnginePool
from pivotopd.services.protocol import Failure, FlightGone
from pivotopd.services.remote_flight import RemoteFlight
from pivotopd.services.server_flight import ServerFlights
from tests.child_process import wait_until
from tests.services.seeded import REQUESTS, SAMPLING, Hover, Hovering, Seeded, drawn, flown
from tests.services.test_server import running

WANTED = drawn(Seeded().generate(REQUESTS, SAMPLING))
PATIENCE_S = 60


# ------------------------------------------------------------------ one server


@pytest.mark.parametrize("most", [1, 3, 1_000])
@pytest.mark.parametrize("engine_of", [Hovering, Seeded])
def test_a_flight_over_a_server_is_the_engines(engine_of: type[Seeded], most: int) -> None:
    """An engine without flights is asked for whole rounds."""
    with running(engine_of()) as url, closing(RemoteEngine(url)) as remote:
        assert isinstance(remote, Continuous)
        assert flown(remote.begin(SAMPLING), REQUESTS, most) == WANTED
        assert drawn(remote.generate(REQUESTS, SAMPLING)) == WANTED
    counts = remote.counts
    assert (counts.prompts, counts.prompt_tokens, counts.generated_tokens) == (40, 120, 120)
    if engine_of is Hovering:
        assert counts.rounds == 1 + {1: 20, 3: 18, 1_000: 1}[most]


def test_what_ends_first_lands_first_and_prompts_join_in_between() -> None:
    with running(Hovering()) as url, closing(RemoteEngine(url)) as remote:
        flight = remote.begin(SAMPLING)
        flight.send({7: REQUESTS[4], 8: REQUESTS[2]})
        assert list(flight.land()) == [8]
        flight.send({1: REQUESTS[3]})
        assert [list(flight.land()), list(flight.land()), list(flight.land())] == [[1], [7], []]
        flight.close()


def test_calls_that_are_made_again_change_nothing() -> None:
    engine = Hovering()
    flights = ServerFlights(engine)
    message = wire.pack_sent(dict(enumerate(REQUESTS[:3])), SAMPLING)
    for _ in range(2):
        assert flights.send("f", 0, message) == b""
    first = flights.land("f", 0)
    assert flights.land("f", 0) == first
    assert list(wire.unpack_landed(first)) == [0]
    assert list(wire.unpack_landed(flights.land("f", 1))) == [1]
    assert engine.sizes == [1, 1]
    for number in (0, 3):
        with pytest.raises(EngineFault, match="where 2 is due"):
            flights.land("f", number)
    with pytest.raises(EngineFault, match="where 1 is due"):
        flights.send("f", 2, message)
    with pytest.raises(EngineFault, match="sampled in one way"):
        flights.send("f", 1, wire.pack_sent({}, Sampling(0.5, 4)))
    with pytest.raises(FlightGone):
        flights.land("g", 0)


class Lossy:
    """A server in memory: of each call the question or the answer may be lost, or another took the engine.

    Args:
        faults: What happens to the calls to come; nothing once they are used up.
    """

    def __init__(self, faults: list[str]) -> None:
        self.flights = ServerFlights(Hovering())
        self._faults = iter(faults)

    def ask(self, call: str, message: bytes) -> bytes:
        while True:
            fault = next(self._faults, "none")
            if fault == "taken":
                self.flights.give_up()
            if fault == "question":
                continue
            try:
                answer = self._answer(call, message)
            except PivotError as error:
                raise Failure.model_validate_json(Failure.of(error).model_dump_json()).error("url") from error
            if fault != "answer":
                return answer

    def _answer(self, call: str, message: bytes) -> bytes:
        _, name, what, number = call.split("/")
        if what == "sends":
            return self.flights.send(name, int(number), message)
        return self.flights.land(name, int(number))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["none", "question", "answer", "taken"]), max_size=60), st.integers(1, 8))
def test_whatever_is_lost_every_request_lands_once(faults: list[str], most: int) -> None:
    server, counts = Lossy(faults), [Counts()]

    def count(more: Counts) -> None:
        counts[0] += more

    flight = RemoteFlight("url", SAMPLING, server.ask, lambda call: None, count)
    assert flown(flight, REQUESTS, most) == WANTED
    assert (counts[0].prompts, counts[0].prompt_tokens) == (20, 60)


KEYS = st.integers(-(2**63), 2**63 - 1)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=8)


@given(st.dictionaries(KEYS, st.tuples(IDS, KEYS), max_size=5), st.floats(0, 2), st.integers(1, 2**40))
def test_what_is_sent_comes_back(
    rows: dict[int, tuple[list[int], int]], temperature: float, most: int
) -> None:
    sent = {key: Request(ids, seed) for key, (ids, seed) in rows.items()}
    sampling = Sampling(temperature, most)
    assert wire.unpack_sent(wire.pack_sent(sent, sampling)) == (sent, sampling)


@given(st.dictionaries(KEYS, st.integers(0, 3), max_size=5))
def test_what_landed_comes_back_bit_for_bit(sizes: dict[int, int]) -> None:
    rows = Seeded().generate(REQUESTS[:1], SAMPLING)[0]
    sent = {
        key: Completion(rows.response_ids[:size], rows.logprobs_nats[:size], "length", size)
        for key, size in sizes.items()
    }
    got = wire.unpack_landed(wire.pack_landed(sent))
    assert list(got) == list(sent)
    assert drawn(list(got.values())) == drawn(list(sent.values()))
    assert [one.cached_tokens for one in got.values()] == list(sizes.values())


def test_rows_without_their_keys_are_one_error() -> None:
    with pytest.raises(EngineFault, match="keys is missing"):
        wire.unpack_sent(wire.pack_requests(REQUESTS, SAMPLING))
    with pytest.raises(EngineFault, match="damaged"):
        wire.unpack_landed(wire.pack_sent({}, SAMPLING))


# ------------------------------------------------------------------ several clients of one server


def test_another_run_has_its_turn_when_a_client_has_vanished_and_what_it_asked_is_dropped() -> None:
    engine = Hovering()
    with running(engine, lease_s=0.05) as url, closing(RemoteEngine(url)) as other:
        gone = RemoteEngine(url)
        gone.begin(SAMPLING).send(dict(enumerate(REQUESTS)))
        gone.close()
        assert drawn(other.generate(REQUESTS[:3], SAMPLING)) == WANTED[:3]
    assert engine.given_up == [list(range(20))]


def test_a_client_that_was_passed_over_sends_again_and_loses_nothing() -> None:
    engine = Hovering()
    with running(engine, lease_s=0.0) as url, closing(RemoteEngine(url)) as ours, closing(
        RemoteEngine(url)
    ) as other:  # fmt: skip
        mine, others = ours.begin(SAMPLING), other.begin(SAMPLING)
        found: dict[int, Completion] = {}
        mine.send(dict(enumerate(REQUESTS)))
        for place in range(5):
            others.send({place: REQUESTS[place]})
            found |= mine.land()
        assert drawn([others.land()[key] for key in (0,)]) == WANTED[:1]
        while landed := mine.land():
            found |= landed
        mine.close()
        others.close()
    assert drawn([found[key] for key in range(20)]) == WANTED
    assert len(engine.given_up) > 5


def test_a_flight_that_has_landed_keeps_nobody_waiting() -> None:
    """Its lease would last longer than the test."""
    with running(Hovering()) as url, closing(RemoteEngine(url)) as ours, closing(RemoteEngine(url)) as other:
        flight = ours.begin(SAMPLING)
        flight.send({0: REQUESTS[0]})
        assert list(flight.land()) == [0]
        assert drawn(other.generate(REQUESTS, SAMPLING)) == WANTED
        flight.send({1: REQUESTS[1]})
        flight.close()
        ours.reload(Path("next"), "b")


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises(PivotError) as error:
        call()
    return error.value


def test_a_flight_is_given_up_at_once_while_the_engine_works() -> None:
    engine = Hovering()
    with running(engine) as url, closing(RemoteEngine(url)) as remote:
        flight = remote.begin(SAMPLING)
        flight.send(dict(enumerate(REQUESTS)))
        engine.goes_on.clear()
        errors: list[BaseException] = []
        landing = Thread(target=lambda: errors.append(caught(flight.land)))
        landing.start()
        assert engine.works.wait(PATIENCE_S)
        flight.close()
        assert engine.given_up == [], "it still works on it"
        engine.goes_on.set()
        landing.join()
        assert isinstance(errors[0], EngineFault)
        wait_until(lambda: engine.given_up == [list(range(1, 20))], PATIENCE_S, str(engine.given_up))
        assert drawn(remote.generate(REQUESTS, SAMPLING)) == WANTED


def test_a_reload_by_another_ends_a_flight() -> None:
    with running(Hovering(), lease_s=0.0) as url, closing(RemoteEngine(url)) as ours, closing(
        RemoteEngine(url)
    ) as other:  # fmt: skip
        flight = ours.begin(SAMPLING)
        flight.send(dict(enumerate(REQUESTS)))
        other.reload(Path("next"), "b")
        with pytest.raises(EngineFault, match="holds policy b, not a"):
            flight.land()


class Refusing(Hovering):
    """An engine to which no request is good."""

    def begin(self, sampling: Sampling) -> Hover:
        raise ConfigError("not a way to sample", mend="another")


def test_a_refusal_keeps_its_class_and_gains_the_address() -> None:
    with running(Refusing()) as url, closing(RemoteEngine(url)) as remote:
        with pytest.raises(ConfigError, match="not a way to sample") as error:
            remote.begin(SAMPLING).send({0: REQUESTS[0]})
        assert error.value.where == url
        with pytest.raises(ConfigError):
            flown(EnginePool({url: remote, "b": Hovering()}, 4).begin(SAMPLING), REQUESTS)


# ------------------------------------------------------------------ several servers


@pytest.mark.parametrize("landings", [1_000, 4, 0])
@pytest.mark.parametrize("most", [1, 5, 1_000])
def test_a_pool_lands_what_one_engine_does_whoever_ends(landings: int, most: int) -> None:
    mortal, other = Hovering(landings=landings), Hovering()
    with ExitStack() as stack:
        urls = [stack.enter_context(running(engine)) for engine in (mortal, other)]
        engines = {url: stack.enter_context(closing(RemoteEngine(url))) for url in urls}
        pool = EnginePool(dict(engines), 3)
        assert flown(pool.begin(SAMPLING), REQUESTS, most) == WANTED
        assert drawn(pool.generate(REQUESTS, SAMPLING)) == WANTED
    assert max(mortal.most, other.most) <= 3
    assert sum(mortal.sizes) + sum(other.sizes) == 40
    assert pool.counts.prompts == 40
    assert (sum(mortal.sizes) <= 4) == (landings < 1_000)


def test_prompts_go_where_they_were_and_none_has_more_than_its_share() -> None:
    one, two = Hovering(), Hovering()
    pool = EnginePool({"1": one, "2": two}, 100)
    flight = pool.begin(SAMPLING)
    flight.send(dict(enumerate(REQUESTS)))
    while flight.land():
        pass
    assert (sum(one.sizes), sum(two.sizes)) == (10, 10)
    flight.send(dict(enumerate(REQUESTS[:5])))
    flight.send(dict(enumerate(REQUESTS[5:10], 5)))
    while flight.land():
        pass
    assert (sum(one.sizes), sum(two.sizes)) == (15, 15)
    flight.close()


def test_the_last_engines_end_is_one_error() -> None:
    pool = EnginePool({"m": Hovering(landings=1), "n": Hovering(landings=2)}, 3)
    with pytest.raises(EngineFault, match="no policy engine is left"):
        flown(pool.begin(SAMPLING), REQUESTS)


def test_an_engine_that_works_for_long_keeps_no_other_ones_responses_back() -> None:
    slow, quick = Hovering(), Hovering()
    slow.goes_on.clear()
    pool = EnginePool({"slow": slow, "quick": quick}, 100)
    flight = pool.begin(SAMPLING)
    flight.send(dict(enumerate(REQUESTS)))
    found = [flight.land() for _ in range(10)]
    assert sum(quick.sizes) == sum(map(len, found)) == 10
    assert slow.sizes == []
    slow.goes_on.set()
    assert sum(len(flight.land()) for _ in range(10)) == 10
    flight.close()
