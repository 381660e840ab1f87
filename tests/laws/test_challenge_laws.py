"""The challenge at the door of a driver: both ends prove that they have the token, however the bytes are split.

And nothing that any other end can say, record, repeat or send back is taken for a proof.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.backends._ray.challenge import (
    ADMITTED,
    MOST_HELLO,
    NAME,
    NONCE_SIZE,
    PREFACE,
    PROOF_SIZE,
    TOKEN_SIZE,
    VERSION,
    Challenge,
    ChallengeState,
    DriverEnd,
    Refused,
    WorkerEnd,
)

TOKEN = bytes(range(TOKEN_SIZE))
HELLO = b'[7, 8, "node", 9, {"python": "3.11"}]'

GREETING = len(PREFACE) + NONCE_SIZE
ANSWER = GREETING + PROOF_SIZE

nonces = st.binary(min_size=NONCE_SIZE, max_size=NONCE_SIZE)
cuts = st.lists(st.integers(0, 400), max_size=30)


def give(end: Challenge, said: bytes, cuts: list[int]) -> bytes:
    """Gives an end these bytes in pieces, none of which is longer than it wants. Returns what it answers."""
    answer, at = b"", 0
    bounds = sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})
    for start, stop in pairwise(bounds):
        at = start
        while at < stop:
            piece = said[at : min(stop, at + end.wants)]
            assert piece, f"it wants nothing, and {len(said) - at} bytes are left"
            answer += end.receive(piece)
            at += len(piece)
    return answer


@given(nonces, nonces, st.binary(min_size=1, max_size=300), cuts, cuts)
def test_two_ends_with_the_token_agree_however_the_bytes_are_split(
    ours: bytes, theirs: bytes, hello: bytes, there: list[int], back: list[int]
) -> None:
    driver, worker = DriverEnd(TOKEN, ours), WorkerEnd(TOKEN, theirs, hello)
    answer = give(driver, worker.greeting, there)
    assert driver.state is ChallengeState.PROVED and driver.hello == b""
    proof = give(worker, answer, back)
    assert worker.state is ChallengeState.LET_IN
    assert give(worker, give(driver, proof, there), back) == b""
    assert driver.state is worker.state is ChallengeState.DONE and driver.wants == worker.wants == 0
    assert driver.hello == hello
    everything = worker.greeting + answer + proof
    assert TOKEN not in everything and len(answer) == ANSWER and len(proof) == PROOF_SIZE + 4 + len(hello)


@given(st.binary(max_size=400), cuts)
def test_a_driver_takes_nothing_for_a_worker_that_is_none(said: bytes, there: list[int]) -> None:
    """And none that is refused has made the driver wait for more than 41 + 36 bytes."""
    for first in (b"", PREFACE, PREFACE + bytes(NONCE_SIZE)):
        driver = DriverEnd(TOKEN, b"n" * NONCE_SIZE)
        with suppress(Refused):
            give(driver, (first + said)[: GREETING + PROOF_SIZE + 4], there)
        assert driver.state in (ChallengeState.GREETED, ChallengeState.PROVED) and driver.hello == b""
        assert driver.wants <= GREETING


@given(st.binary(max_size=ANSWER), cuts, st.booleans())
def test_a_worker_tells_nothing_to_a_driver_that_is_none(said: bytes, back: list[int], knows: bool) -> None:
    worker = WorkerEnd(TOKEN, b"n" * NONCE_SIZE, HELLO)
    with suppress(Refused):
        assert give(worker, (PREFACE * knows + said)[:ANSWER], back) == b""
    assert worker.state is ChallengeState.GREETED


@given(st.integers(0, 999), st.integers(1, 255))
def test_a_byte_that_is_changed_on_the_way_is_refused_or_waited_for(at: int, by: int) -> None:
    """Of the greeting, the answer or the proof. (The hello is not covered: nor is anything after the handshake.)"""
    driver, worker = DriverEnd(TOKEN, b"d" * NONCE_SIZE), WorkerEnd(TOKEN, b"w" * NONCE_SIZE, HELLO)
    at %= GREETING + ANSWER + PROOF_SIZE

    def changed(said: bytes, start: int) -> bytes:
        if not start <= at < start + len(said):
            return said
        return said[: at - start] + bytes([said[at - start] ^ by]) + said[at - start + 1 :]

    def shake_hands() -> None:
        answer = give(driver, changed(worker.greeting, 0), [])
        proof = give(worker, changed(answer, GREETING), [])
        give(driver, changed(proof, GREETING + ANSWER), [])

    with pytest.raises(Refused):
        shake_hands()
    assert driver.state is not ChallengeState.DONE


@given(nonces, nonces, nonces)
def test_a_recorded_handshake_is_refused_when_it_is_replayed(first: bytes, second: bytes, theirs: bytes) -> None:
    assume(first != second)
    driver, worker = DriverEnd(TOKEN, first), WorkerEnd(TOKEN, theirs, HELLO)
    answer = give(driver, worker.greeting, [])
    proof = give(worker, answer, [])
    again = DriverEnd(TOKEN, second)
    give(again, worker.greeting, [])
    with pytest.raises(Refused, match="does not have the token"):
        give(again, proof, [])
    # The same with the driver's part: a worker with another nonce does not take it.
    assume(theirs != second)
    with pytest.raises(Refused, match="does not have the token"):
        give(WorkerEnd(TOKEN, second, HELLO), answer, [])


@given(nonces, nonces)
def test_a_proof_that_is_sent_back_is_refused(ours: bytes, chosen: bytes) -> None:
    """Also if the stranger chooses the driver's own nonce: so the role must be a part of the proof."""
    for theirs in (chosen, ours):
        driver = DriverEnd(TOKEN, ours)
        answer = give(driver, PREFACE + theirs, [])
        with pytest.raises(Refused, match="does not have the token"):
            give(driver, answer[-PROOF_SIZE:] + (1).to_bytes(4, "little"), [])
    # And a worker does not take its own words for those of a driver.
    worker = WorkerEnd(TOKEN, ours, HELLO)
    with pytest.raises(Refused, match="does not have the token"):
        give(worker, worker.greeting + bytes(PROOF_SIZE), [])


def test_a_proof_of_one_connection_to_the_driver_is_none_in_another() -> None:
    """A stranger opens two connections, and uses what it is told in one of them in the other."""
    first, second = DriverEnd(TOKEN, b"1" * NONCE_SIZE), DriverEnd(TOKEN, b"2" * NONCE_SIZE)
    answer = give(first, PREFACE + b"2" * NONCE_SIZE, [])
    give(second, PREFACE + b"1" * NONCE_SIZE, [])
    with pytest.raises(Refused):
        give(second, answer[-PROOF_SIZE:] + (1).to_bytes(4, "little"), [])


@given(st.integers(0, 255), cuts)
def test_another_version_is_told_to_both_ends(version: int, there: list[int]) -> None:
    assume(version != VERSION)
    greeting = NAME + bytes([version])
    for end in (DriverEnd(TOKEN, bytes(NONCE_SIZE)), WorkerEnd(TOKEN, bytes(NONCE_SIZE), HELLO)):
        with pytest.raises(Refused, match=rf"version {version} .* version {VERSION}: install the same") as caught:
            give(end, greeting, there)
        assert caught.value.answer == PREFACE  # so that the other end can say why, too


@pytest.mark.parametrize("said", [b"G", b"GET / HTTP/1.1", b"\x16\x03\x01", b"\0", b"penstocK", b"x" * 41])
def test_another_protocol_is_refused_at_its_first_wrong_byte(said: bytes) -> None:
    with pytest.raises(Refused, match="does not speak penstock's protocol"):
        give(DriverEnd(TOKEN, bytes(NONCE_SIZE)), said, [])


def met(hello: bytes = HELLO) -> tuple[DriverEnd, bytes]:
    """A driver that waits for a worker's proof, and that proof."""
    driver, worker = DriverEnd(TOKEN, b"d" * NONCE_SIZE), WorkerEnd(TOKEN, b"w" * NONCE_SIZE, hello)
    return driver, give(worker, give(driver, worker.greeting, []), [])


@pytest.mark.parametrize("length", [0, MOST_HELLO + 1, 1 << 31, (1 << 32) - 1])
def test_a_hello_that_is_empty_or_too_long_is_refused(length: int) -> None:
    driver, proof = met()
    with pytest.raises(Refused, match=f"its hello has {length} bytes"):
        give(driver, proof[:PROOF_SIZE] + length.to_bytes(4, "little"), [])


@given(st.integers(0, 60))
def test_a_handshake_that_is_cut_off_is_not_done(at: int) -> None:
    driver, proof = met()
    give(driver, proof[: min(at, len(proof) - 1)], [])
    assert driver.state in (ChallengeState.PROVED, ChallengeState.TOLD) and driver.wants > 0


def test_more_than_is_wanted_is_refused() -> None:
    ends: list[Any] = [DriverEnd(TOKEN, bytes(NONCE_SIZE)), WorkerEnd(TOKEN, bytes(NONCE_SIZE), HELLO)]
    driver, proof = met()
    give(driver, proof, [])
    for end in (*ends, driver):
        with pytest.raises(Refused, match=r"\d+ bytes, and \d+ were due"):
            end.receive(PREFACE.ljust(end.wants + 1, b"."))


def test_a_worker_waits_for_the_word_that_it_was_admitted() -> None:
    driver, worker = DriverEnd(TOKEN, b"d" * NONCE_SIZE), WorkerEnd(TOKEN, b"w" * NONCE_SIZE, HELLO)
    said = give(driver, give(worker, give(driver, worker.greeting, []), []), [])
    assert said == ADMITTED and worker.state is ChallengeState.LET_IN
    with pytest.raises(Refused):
        worker.receive(b"\0")
