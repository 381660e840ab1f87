"""Driver and worker prove to each other that they have the same token, without sending it. This module does no I/O.

    worker   PREFACE, its nonce                       ->
                                                      <-   PREFACE, the driver's nonce, the driver's proof
    worker   its proof, the length of the hello       ->   (all messages up to here have a fixed length)
    worker   the hello (its description of itself)    ->
                                                      <-   ADMITTED

A proof is the HMAC-SHA256 of PREFACE, the prover's role and both nonces, with the token as the key. Both nonces are
new for each connection, so a recorded proof is worthless in another connection. The roles differ, so a proof that is
sent back to the prover proves nothing.

Each end is a state machine. In each state, it waits for the bytes given here, in pieces of any size:

    Driver   GREETED: 41 bytes -> PROVED: 36 bytes -> TOLD: as many as the worker has announced -> DONE
    Worker   GREETED: 73 bytes -> LET_IN: 1 byte -> DONE

Anything unexpected raises Refused, after which the connection must be closed.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct

TOKEN_SIZE = NONCE_SIZE = PROOF_SIZE = 32
MOST_HELLO = 1 << 16  # bytes

NAME, VERSION = b"penstock", 1
PREFACE = NAME + bytes([VERSION])
ADMITTED = b"\6"

_LENGTH = struct.Struct("<I")


class ChallengeState(enum.Enum):
    """The message that one end of a new connection is waiting for."""

    GREETED = "the preface and the nonce of the other end; from the driver also its proof"
    PROVED = "the proof of the worker"
    TOLD = "the hello of the worker"
    LET_IN = "the confirmation that the driver has accepted the hello"
    DONE = "nothing: both ends have proved that they have the token"


class Refused(Exception):
    """Raised if the other end is not the expected one. `answer` may be sent before closing the connection."""

    def __init__(self, why: str, answer: bytes = b"") -> None:
        super().__init__(why)
        self.answer = answer


class Challenge:
    """One end of the authentication. The caller sends `greeting`, then passes up to `wants` bytes to `receive`."""

    greeting = b""

    def __init__(self, token: bytes, nonce: bytes, wants: int) -> None:
        self._token, self._nonce = token, nonce
        self._got = bytearray()
        self.wants = wants
        self.state = ChallengeState.GREETED

    def receive(self, data: bytes) -> bytes:
        """Takes at most `wants` bytes from the other end, and returns the bytes to send now."""
        if len(data) > self.wants:
            raise Refused(f"it has sent {len(data)} bytes, and {self.wants} were due")
        self._got += data
        self.wants -= len(data)
        if self.state is ChallengeState.GREETED:
            self._check_preface(bytes(self._got[: len(PREFACE)]))
        if self.wants or not data:
            return b""
        message = bytes(self._got)
        self._got.clear()
        return self._answer(message)

    def _check_preface(self, begun: bytes) -> None:
        """Raises Refused at the first wrong byte: a peer that speaks another protocol may never send the rest."""
        if not NAME.startswith(begun[: len(NAME)]):
            raise Refused("it does not speak penstock's protocol")
        if not PREFACE.startswith(begun):
            raise Refused(
                f"it speaks version {begun[-1]} of penstock's handshake, and this end speaks version {VERSION}: "
                "install the same version of penstock on all nodes",
                PREFACE,
            )

    def _answer(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _proof(self, role: bytes, of_worker: bytes, of_driver: bytes) -> bytes:
        return hmac.digest(self._token, PREFACE + role + of_worker + of_driver, hashlib.sha256)

    def _check(self, proof: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(proof, expected):
            raise Refused("it does not have the token of this loader")


class DriverEnd(Challenge):
    """The driver's end. Once the state is DONE, `hello` is the worker's description of itself."""

    def __init__(self, token: bytes, nonce: bytes) -> None:
        super().__init__(token, nonce, len(PREFACE) + NONCE_SIZE)
        self.hello = self._expected = b""

    def _answer(self, message: bytes) -> bytes:
        if self.state is ChallengeState.GREETED:
            theirs = message[len(PREFACE) :]
            self._expected = self._proof(b"worker", theirs, self._nonce)
            self.state, self.wants = ChallengeState.PROVED, PROOF_SIZE + _LENGTH.size
            return PREFACE + self._nonce + self._proof(b"driver", theirs, self._nonce)
        if self.state is ChallengeState.PROVED:
            self._check(message[:PROOF_SIZE], self._expected)
            (length,) = _LENGTH.unpack(message[PROOF_SIZE:])
            if not 0 < length <= MOST_HELLO:
                raise Refused(f"its hello has {length} bytes, and at most {MOST_HELLO} are taken")
            self.state, self.wants = ChallengeState.TOLD, length
            return b""
        self.hello, self.state = message, ChallengeState.DONE
        return ADMITTED


class WorkerEnd(Challenge):
    """The worker's end. It sends its greeting first, but the hello only after the proof of the driver."""

    def __init__(self, token: bytes, nonce: bytes, hello: bytes) -> None:
        super().__init__(token, nonce, len(PREFACE) + NONCE_SIZE + PROOF_SIZE)
        self._hello = hello
        self.greeting = PREFACE + nonce

    def _answer(self, message: bytes) -> bytes:
        if self.state is ChallengeState.LET_IN:
            if message != ADMITTED:
                raise Refused("it does not speak penstock's protocol")
            self.state = ChallengeState.DONE
            return b""
        theirs, proof = message[len(PREFACE) : -PROOF_SIZE], message[-PROOF_SIZE:]
        self._check(proof, self._proof(b"driver", self._nonce, theirs))
        self.state, self.wants = ChallengeState.LET_IN, len(ADMITTED)
        return self._proof(b"worker", self._nonce, theirs) + _LENGTH.pack(len(self._hello)) + self._hello
