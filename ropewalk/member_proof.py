"""The proof of members of a group, and of their operators, that both ends of a connection know `ropewalkSecret`.

    asker     CHALLENGE (30000)   its nonce; the address that it dialed                ->
              <-                  `Challenge`: the nonce of the answerer                     answerer
    asker     a code              `counter2`, `proof2` of the question                 ->
              <-                  `proof2` of the answer to this very question               answerer

`proof2` is HMAC-SHA256(K, transcript) in hex. K is scrypt(secret, "ropewalk/2/" + cluster), so that guessing a secret
from an overheard proof is dear. The transcript is a list of fields, each behind its length:

    "ropewalk member proof 2", ask or answer, cluster, brokerName     another group's or direction's proof is none
    the address that was dialed, as text and as the socket's          a stranger that was dialed cannot pass it on
    both nonces, the binding to TLS (empty)                           another connection's proof is none
    counter, code                                                     a question counts once; an answer belongs to it
    response code, remark                                             of an answer; empty for a question
    extFields but the proof's own, SHA-256(body)                      what was said

The answerer compares the address that was dialed with its own ones, and takes rising counters only. It answers under
the secret with which it was asked, so only the answerer has to know two secrets while a secret is changed.

Version 1 proves questions alone: `proof` is HMAC-SHA256(secret, challenge, code, body). It is kept for members of the
release before. A member that gets `nonce2` takes no `proof` on that connection.

Pure: no sockets, no clock, and nonces are handed in. What follows from a proof, and from none, is the caller's.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import Command

__all__ = [
    "CHALLENGE_SIZE",
    "NONCE_SIZE",
    "SECRET_LENGTH_MIN",
    "Answerer",
    "Asker",
    "Challenge",
    "NotProven",
    "ProofRefused",
    "Seal",
    "key_of",
    "proof_of",
    "proves",
    "short_secret",
]

CHALLENGE_SIZE: Final = 16
"""Bytes of a challenge of version 1. Any other length would have the asker sign words of the answerer's choice."""
NONCE_SIZE: Final = 32
SECRET_LENGTH_MIN: Final = 16

_CHALLENGE_BODY_MAX: Final = 4 << 10
_SAID_MAX: Final = 300
_ADDRESS_MAX: Final = 300
_COUNTER_MAX: Final = (1 << 64) - 1
_DOMAIN: Final = b"ropewalk member proof 2"
_ASK, _ANSWER = b"ask", b"answer"
_OWN_FIELDS: Final = frozenset(("proof2", "counter2"))
_LENGTH: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


NO_SECRET: Final = "it carries no proof, so its sender has no ropewalkSecret, or is a stranger"
"""Said of a question to a member that has a secret."""
OTHER_SECRET: Final = "its proof is of another ropewalkSecret than the one here, or for another group"
"""Said of a question to a member that has a secret."""


class NotProven(RemoteProtocolError):
    """A question or an answer without a proof, or with a wrong one."""


class ProofRefused(NotProven):
    """The refusal of a proof by the other end, as the asker understands it: the secrets or the groups differ."""


class Challenge(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to CHALLENGE: numbers for proofs on this connection; without them, none is asked for."""

    challenge: bytes = b""
    version: str = ""
    version2: bytes = b""
    """The nonce of a member that speaks version 2, on a connection whose asker does."""
    cluster: str = ""
    broker_name: str = ""
    """The group of the answerer, for an operator who knows its address alone."""

    def encoded(self) -> bytes:
        """Return the body of an answer with this challenge."""
        return msgspec.msgpack.encode(self)


def short_secret(secret: str) -> str | None:
    """Return in words that a secret is too short, or None."""
    if not secret or len(secret) >= SECRET_LENGTH_MIN:
        return None
    return (
        f"it has {len(secret)} characters: whoever overhears one proof can guess a short secret. Take at least "
        f"{SECRET_LENGTH_MIN} random ones (`openssl rand -base64 24`); a later release refuses shorter ones"
    )


# -- version 1 ------------------------------------------------------------------------------------------------


def proof_of(secret: str, challenge: bytes, code: int, body: bytes) -> str:
    """Return the proof of version 1 that the sender of this body knows the secret."""
    words = challenge + code.to_bytes(4, "big") + body
    return hmac.new(secret.encode(), words, hashlib.sha256).hexdigest()


def proves(proof: str, secret: str, challenge: bytes, code: int, body: bytes) -> bool:
    """Return whether a proof of version 1 is right. A connection that was given no challenge proves nothing."""
    return bool(challenge) and _equal(proof_of(secret, challenge, code, body), proof)


def _equal(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


# -- version 2 ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def key_of(secret: str, cluster: str) -> bytes:
    """Return the key of a cluster's proofs. Blocks for some 50 ms the first time: call it before a loop begins."""
    salt = f"ropewalk/2/{cluster}".encode()
    return hashlib.scrypt(secret.encode(), salt=salt, n=1 << 14, r=8, p=1, maxmem=64 << 20, dklen=32)


@dataclass(frozen=True, slots=True)
class _Channel:
    """The part of a transcript that is the same for all proofs of one connection."""

    cluster: str
    broker_name: str
    dialed: str
    """The address that the asker connected to, as it was given."""
    socket: str
    """The same as `ip:port` of the asker's socket."""
    asker_nonce: bytes
    answerer_nonce: bytes
    tls: bytes = b""

    def proof(self, key: bytes, direction: bytes, counter: int, code: int, said: Command) -> str:
        """Return the proof of a question (its own code) or of the answer to a question of this code."""
        is_answer = direction is _ANSWER
        ext = sorted(
            (_text(name), _text(value)) for name, value in said.ext.items() if name not in _OWN_FIELDS
        )
        fields = [
            _DOMAIN, direction, _text(self.cluster), _text(self.broker_name), _text(self.dialed), _text(self.socket),
            self.asker_nonce, self.answerer_nonce, self.tls, _U64.pack(counter), _U64.pack(code),
            _U64.pack(said.code & _COUNTER_MAX) if is_answer else b"",
            _text(said.remark or "") if is_answer else b"",
            _LENGTH.pack(len(ext)), *(part for pair in ext for part in pair),
            hashlib.sha256(said.body).digest(),
        ]  # fmt: skip
        mac = hmac.new(key, digestmod=hashlib.sha256)
        for each in fields:
            mac.update(_LENGTH.pack(len(each)))
            mac.update(each)
        return mac.hexdigest()


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class Asker:
    """The end of a connection that asks. One object for one connection."""

    def __init__(
        self,
        secret: str,
        dialed: str,
        socket: str,
        nonce: bytes,
        *,
        cluster: str = "",
        broker_name: str = "",
        takes_older: bool = True,
    ) -> None:
        """`dialed` and `socket` are the address of the other end as it was given, and as the socket has it.

        Without `cluster` and `broker_name` the answerer's are taken: an operator asks brokers of any group.
        `takes_older`: whether to go on, unproven, with an end that does not speak version 2.
        """
        assert len(nonce) == NONCE_SIZE, len(nonce)
        self._secret = secret
        self._dialed, self._socket, self._nonce = dialed, socket, nonce
        self._group = cluster, broker_name
        self._takes_older = takes_older
        self._challenge = b""
        self._answerer = cluster, broker_name
        """The group that the answerer says it is of."""
        self._channel: _Channel | None = None
        self._key = b""
        self._counter = 0

    @property
    def has_secret(self) -> bool:
        """Return whether this end knows a secret."""
        return bool(self._secret)

    @property
    def version(self) -> int:
        """Return the version that both ends speak; 0 where the other end asks for no proof, or none is known here."""
        return 2 if self._channel is not None else 1 if self._challenge else 0

    def question(self) -> Command:
        """Return the request for a challenge."""
        if not self._secret:
            return Command(RequestCode.ROPEWALK_CHALLENGE)
        ext = {"nonce2": self._nonce.hex(), "dialed2": self._dialed, "socket2": self._socket}
        return Command(RequestCode.ROPEWALK_CHALLENGE, ext)

    def challenged(self, body: bytes) -> None:
        """Take the challenge in the body of an answer. Raises `RemoteProtocolError` for anything else."""
        if len(body) > _CHALLENGE_BODY_MAX:
            raise RemoteProtocolError(f"a challenge of {len(body)} bytes")
        try:
            found = msgspec.msgpack.decode(body, type=Challenge)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise RemoteProtocolError(f"this is no Challenge: {exc}") from exc
        if not self._secret:
            return
        if len(found.challenge) not in (0, CHALLENGE_SIZE) or len(found.version2) not in (0, NONCE_SIZE):
            raise RemoteProtocolError(
                f"a challenge of {len(found.challenge)} bytes and a nonce of {len(found.version2)}, "
                f"instead of {CHALLENGE_SIZE} and {NONCE_SIZE}: nothing is proven with it"
            )
        if not found.version2 and not self._takes_older:
            raise NotProven(
                f"{self._dialed} does not prove its answers: it is a stranger, has no ropewalkSecret, or is of an "
                "older release (upgrade it first, or set ROPEWALK_SECRET_V1=true to believe it all the same)"
            )
        self._challenge = found.challenge
        if found.version2:
            self._answerer = found.cluster, found.broker_name
            cluster, broker_name = self._group if any(self._group) else self._answerer
            self._channel = _Channel(
                cluster, broker_name, self._dialed, self._socket, self._nonce, found.version2
            )
            self._key = key_of(self._secret, cluster)

    def prove(self, question: Command) -> Command:
        """Return the question with the proof that the other end asks for; as it is where that asks for none."""
        if self._channel is not None:
            self._counter += 1
            proof = self._channel.proof(self._key, _ASK, self._counter, question.code, question)
            return replace(question, ext={**question.ext, "counter2": str(self._counter), "proof2": proof})
        if self._challenge:
            proof = proof_of(self._secret, self._challenge, question.code, question.body)
            return replace(question, ext={**question.ext, "proof": proof})
        return question

    def check(self, question: Command, answer: Command) -> bool:
        """Return whether an answer proves that it comes from a member, and answers this question.

        Raises `NotProven` where the other end speaks version 2, and this answer is without a proof or has a wrong one.
        """
        if self._channel is None:
            return False
        counter = int(question.ext["counter2"])
        expected = self._channel.proof(self._key, _ANSWER, counter, question.code, answer)
        if not _equal(expected, answer.ext.get("proof2", "")):
            raise self._unproven(question, answer)
        return True

    def _unproven(self, question: Command, answer: Command) -> NotProven:
        """Return the error for an answer without a proof that counts."""
        said = f" (it says: {answer.remark[:_SAID_MAX]})" if answer.remark else ""
        if answer.code != ResponseCode.NO_PERMISSION:
            return NotProven(
                f"{self._dialed} does not prove its answer to {question.code}{said}: it is not believed"
            )
        if any(self._group) and self._answerer != self._group:
            theirs, own = (f"{name} of cluster {cluster}" for cluster, name in (self._answerer, self._group))
            return ProofRefused(
                f"{self._dialed} refuses the proof: it is of {theirs}, and the proof of {own}{said}"
            )
        return ProofRefused(
            f"{self._dialed} refuses the proof: its ropewalkSecret differs from the one here, or it is a stranger. "
            f"Members and their operators need the same one{said}"
        )


class Seal(Protocol):
    """The proof of an answer to one question."""

    def seal(self, answer: Command) -> Command:
        """Return the answer with its proof."""


@dataclass(frozen=True, slots=True)
class _Seal2:
    channel: _Channel
    key: bytes
    counter: int
    code: int

    def seal(self, answer: Command) -> Command:
        proof = self.channel.proof(self.key, _ANSWER, self.counter, self.code, answer)
        return replace(answer, ext={**answer.ext, "proof2": proof})


class _Unsealed:
    """The seal of version 1: none."""

    def seal(self, answer: Command) -> Command:
        return answer


class Answerer:
    """The end of a connection that is asked. One object for one connection, from a challenge to the next one."""

    def __init__(
        self,
        secrets: tuple[str, ...],
        cluster: str,
        broker_name: str,
        addresses: Iterable[str],
        *,
        challenge: bytes,
        nonce: bytes,
        takes_version1: bool = True,
    ) -> None:
        """`addresses` are those at which members may dial this broker, `host:port` each."""
        assert secrets and len(challenge) == CHALLENGE_SIZE and len(nonce) == NONCE_SIZE
        self._secrets = secrets
        self._group = cluster, broker_name
        self._addresses = tuple(addresses)
        self._challenge = challenge
        self._nonce = nonce
        self._takes_version1 = takes_version1
        self._channel: _Channel | None = None
        self._counter = 0

    def challenge(self, ext: Mapping[str, str], version: str) -> Challenge:
        """Return the challenge for a connection whose asker said this. Raises `NotProven` for what cannot be proven."""
        if "nonce2" not in ext:
            if not self._takes_version1:
                raise NotProven(
                    "this broker takes proofs of version 2 alone (ropewalkSecretV1=false): whoever asks has no "
                    "ropewalkSecret, or is of an older release"
                )
            return Challenge(self._challenge, version)
        dialed, socket = ext.get("dialed2", ""), ext.get("socket2", "")
        try:
            nonce = bytes.fromhex(ext["nonce2"])
        except ValueError:
            nonce = b""
        if len(nonce) != NONCE_SIZE or max(len(dialed), len(socket)) > _ADDRESS_MAX:
            raise NotProven(
                f"a CHALLENGE of version 2 has a nonce of {NONCE_SIZE} bytes in hex, and addresses"
            )
        own = {_normal(each) for each in self._addresses}
        if own.isdisjoint((_normal(dialed), _normal(socket))):
            raise NotProven(
                f"the asker dialed {dialed} ({socket}), and this broker is at {', '.join(sorted(own))}: somebody "
                "stands between, or ropewalkAddressAliases of this broker lacks that address"
            )
        self._channel = _Channel(*self._group, dialed, socket, nonce, self._nonce)
        return Challenge(self._challenge, version, self._nonce, *self._group)

    def verify(self, question: Command) -> Seal:
        """Return the seal for the answer to a question that is proven. Raises `NotProven` for any other."""
        if self._channel is not None:
            return self._verify2(self._channel, question)
        given = question.ext.get("proof") or ""
        right = [
            proves(given, secret, self._challenge, question.code, question.body) for secret in self._secrets
        ]
        if not self._takes_version1 or not any(right):
            raise NotProven(OTHER_SECRET if given else NO_SECRET)
        return _Unsealed()

    def _verify2(self, channel: _Channel, question: Command) -> Seal:
        given, text = question.ext.get("proof2") or "", question.ext.get("counter2") or ""
        counter = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
        if not given:
            raise NotProven(NO_SECRET)
        if not self._counter < counter <= _COUNTER_MAX:
            raise NotProven("the counter of the proof has not risen: a question counts once")
        keys = [key_of(secret, channel.cluster) for secret in self._secrets]
        right = [_equal(channel.proof(key, _ASK, counter, question.code, question), given) for key in keys]
        if not any(right):
            raise NotProven(OTHER_SECRET)
        self._counter = counter
        return _Seal2(channel, keys[right.index(True)], counter, question.code)


def _normal(address: str) -> str:
    """Return one text for the texts of an address that mean the same."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]").lower()
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return f"{host}:{port}"
    mapped = getattr(found, "ipv4_mapped", None)
    return f"{mapped or found}:{port}"
