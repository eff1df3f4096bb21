"""What a person is told of a finished stage."""

from __future__ import annotations

from flows.console import warnings_of


def test_episodes_without_a_teachers_signal_are_named() -> None:
    (warning,) = warnings_of("label", {}, {"label/unread_share": 0.25, "label/pivotal": 3})
    assert warning.startswith("25% of the episodes")
    assert "pivotopd inspect RUN --episode ID" in warning


def test_a_short_start_is_named() -> None:
    assert warnings_of("warm_start", {"falls_short": "success is 0"}, {}) == [
        "the start falls short: success is 0"
    ]


def test_what_is_well_gives_no_warning() -> None:
    assert not warnings_of("label", {}, {"label/unread_share": 0.0})
    assert not warnings_of("rollout", {"torch": "2.13.0"}, {"rollout/success": 0.0})
