"""One request: what is tried again and what is not, and what an error says."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import obstore.store
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._files.pieces import PiecesInMemory
from penstock._files.remote import RemoteFile
from penstock._measure.cached import CacheCounts
from penstock._remote import store
from penstock._remote.objects import _failed, is_strong
from penstock._remote.origin import Origin
from penstock._remote.retry import Patience, RequestFailed, RequestFault
from penstock._remote.store import Remote, remotes
from penstock.errors import FormatError, RemoteError, RemoteFileNotFound
from remote.serving import Handler, Server, running, serving


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, but as much patience as a busy machine needs."""
    allow(monkeypatch, 100.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For outages that last."""
    allow(monkeypatch, 0.3)


def allow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for name in ("READING", "FINDING"):
        monkeypatch.setattr(store, name, Patience(seconds, first=0.001, longest=0.01))


def remote_file(url: str, **storage: Any) -> RemoteFile:
    ((remote, key),) = remotes([url], storage)
    return RemoteFile(remote, remote.find(key), PiecesInMemory())


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.floats(0, 299), st.floats(0, 1))
def test_pauses_double_up_to_a_limit_with_jitter(failures: int, odd: int, elapsed: float, dice: float) -> None:
    patience = Patience()
    pause = patience.pause(RequestFault.PASSING, failures, odd, elapsed, dice)
    longest = min(20.0, 0.2 * 2 ** (failures - 1))
    assert pause == pytest.approx(longest * (1 + dice) / 2)
    assert patience.pause(RequestFault.PASSING, failures, odd, 300.0, dice) is None
    assert (patience.pause(RequestFault.ODD, failures, odd, elapsed, dice) is None) == (odd >= 5)
    for fault in (RequestFault.FINAL, RequestFault.MISSING, RequestFault.CHANGED):
        assert patience.pause(fault, failures, odd, elapsed, dice) is None


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_status_that_passes_is_tried_again(folder: Path, server: Server, counts: CacheCounts, status: int) -> None:
    (folder / "x").write_bytes(b"content")
    file, tries = remote_file(f"{server.url}/x"), count()
    assert counts.requests == len(server.log) == 1
    server.status = lambda path: status if next(tries) < 3 else 0
    assert file.read(0, 7) == b"content"
    assert counts.requests == len(server.log) == 5
    assert (counts.retries, counts.nbytes) == (3, 7)


@pytest.mark.parametrize("status", [400, 401, 403, 405])
def test_a_status_that_stays_is_an_error_at_once(folder: Path, server: Server, status: int) -> None:
    (folder / "x").write_bytes(b"content")
    file = remote_file(f"{server.url}/x")
    server.status, before = lambda path: status, len(server.log)
    with pytest.raises(RemoteError) as raised:
        file.read(0, 7)
    assert len(server.log) == before + 1
    text = str(raised.value)
    assert text.startswith(f"Bytes 0 to 7 of {server.url}/x cannot be read: the server answered {status}")
    assert "(Refused). It was tried once. Check the " in text


@pytest.mark.usefixtures("impatient")
def test_an_outage_that_lasts_is_an_error_with_the_number_of_tries(folder: Path, server: Server) -> None:
    (folder / "x").write_bytes(b"content")
    file = remote_file(f"{server.url}/x")
    server.status = lambda path: 503
    with pytest.raises(RemoteError, match=r"answered 503 .*tried \d+ times in \d+ s\. The store is overloaded"):
        file.read(0, 7)


@pytest.mark.usefixtures("impatient")
def test_a_host_that_is_not_there_is_an_error_after_a_while() -> None:
    with pytest.raises(RemoteError, match=r"no connection to 127\.0\.0\.1:1 \(Connection refused\)\. It"):
        remote_file("http://127.0.0.1:1/x")


def test_a_file_that_is_not_there_is_an_error_of_two_types(server: Server) -> None:
    with pytest.raises(RemoteFileNotFound, match=r"answered 404 .*Check the URL") as raised:
        remote_file(f"{server.url}/x")
    assert isinstance(raised.value, FileNotFoundError) and isinstance(raised.value, RemoteError)
    assert len(server.log) == 1


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_that_changed_is_never_a_sample(folder: Path, etags: bool) -> None:
    path = folder / "x"
    path.write_bytes(b"content")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    with serving(folder, etags=etags) as server:
        file = remote_file(f"{server.url}/x")
        copy = pickle.loads(pickle.dumps(file))
        path.write_bytes(b"another")  # of the same size
        assert remote_file(f"{server.url}/x").pieces_of(0, 7)[0].name != file.pieces_of(0, 7)[0].name
        for one in (file, copy):
            with pytest.raises(FormatError, match=r"/x has changed since the dataset was made"):
                one.read(0, 7)


def test_a_request_says_which_content_it_wants(folder: Path, server: Server) -> None:
    (folder / "x").write_bytes(b"content")
    file = remote_file(f"{server.url}/x")
    file.read(0, 7)
    assert server.headers[-1]["if-match"] == f'"{file.modified}"'
    assert [is_strong(token) for token in ("abc", 'W/"abc"', "at 2026-11-17", "")] == [True, False, False, False]


def test_a_file_that_became_shorter_is_an_error(folder: Path) -> None:
    (folder / "x").write_bytes(b"content")
    with serving(folder, etags=False) as server:
        file = remote_file(f"{server.url}/x")
        (folder / "x").write_bytes(b"c")
        with pytest.raises(FormatError, match=r"/x has changed"):
            file.peek(3, 2)


def test_a_server_without_ranges_is_named(folder: Path) -> None:
    (folder / "x").write_bytes(b"content")
    said = r"whole file instead of a part.*tried once.*http\.server cannot"
    with serving(folder, ranges=False) as server, pytest.raises(RemoteError, match=said):
        remote_file(f"{server.url}/x")


def test_an_empty_file_has_no_bytes(folder: Path, server: Server) -> None:
    (folder / "x").touch()
    file = remote_file(f"{server.url}/x")
    assert (file.size, file.read(0, 0), file.read_each([0], [0]), file.peek(0, 0)) == (0, b"", [b""], b"")


def test_a_url_that_is_signed_for_get_is_read_without_head(folder: Path, server: Server) -> None:
    (folder / "x").write_bytes(b"content")
    assert remote_file(f"{server.url}/x").read(0, 7) == b"content"
    assert {method for method, _, _ in server.log} == {"GET"}


def test_a_user_in_the_url_is_sent_and_not_shown(folder: Path, server: Server) -> None:
    (folder / "x").write_bytes(b"content")
    file = remote_file(server.url.replace("//", "//me:SECRET@") + "/x?sig=SECRET")
    assert file.read(0, 7) == b"content"
    assert server.headers[-1]["authorization"].startswith("Basic ")
    assert "SECRET" not in f"{file!r} {file.path} {file._remote!r} {file.modified}"


def test_letters_that_urls_encode(folder: Path, server: Server) -> None:
    (folder / "a b%c ä.bin").write_bytes(b"content")
    file = remote_file(f"{server.url}/a%20b%25c%20%C3%A4.bin")
    assert file.read(0, 7) == b"content"


def test_without_credentials_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    nowhere = "http://127.0.0.1:1"
    with pytest.raises(RemoteError, match=r"no credentials were found\. It was tried once\. Set .*skip_signature"):
        Remote("s3://b", "", {"endpoint": nowhere, "metadata_endpoint": nowhere}).find("k")


@pytest.mark.parametrize(
    ("status", "fault"), [(403, RequestFault.FINAL), (404, RequestFault.FINAL), (429, RequestFault.PASSING)]
)
def test_what_the_service_of_credentials_answers_is_not_about_the_object(status: int, fault: RequestFault) -> None:
    asked = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms"
    failed = _failed(Exception(f"{asked} - Server returned non-2xx status code: {status} X: "))
    assert failed.fault is fault
    assert (failed.came == "no credentials were found") == (fault is RequestFault.FINAL)


FAULTS = {
    401: RequestFault.FINAL,
    403: RequestFault.FINAL,
    404: RequestFault.MISSING,
    412: RequestFault.CHANGED,
    416: RequestFault.CHANGED,
}
FAULTS |= {400: RequestFault.FINAL, 429: RequestFault.PASSING, 500: RequestFault.PASSING, 503: RequestFault.PASSING}


@pytest.mark.parametrize("status", [*FAULTS, 0])
def test_what_a_failure_is_does_not_depend_on_the_text_for_debugging(status: int, tmp_path: Path) -> None:
    """obstore's class, or the status in its message, decides; 0 is a server that is gone."""
    (tmp_path / "x").write_bytes(b"12345")
    with serving(tmp_path, status=lambda path: status) as server:
        made = {name: make(server.url) for name, make in MAKES.items()}
        raised = {name: caught(each) for name, each in made.items() if status}
    raised = raised or {name: caught(each) for name, each in made.items()}
    for name, error in raised.items():
        head = str(error).partition("\n\nDebug source")[0]
        expected = FAULTS.get(status, RequestFault.PASSING)
        assert _failed(error).fault is expected, (name, error)
        for text in (head, f"{head}\n\nDebug source:\nAnother {{ status: 200, kind: Unheard }}"):
            assert _failed(type(error)(text)).fault is expected, (name, text)
        if type(error).__name__ != "GenericError":
            assert _failed(type(error)("quite another message")).fault is expected


def caught(store: Any) -> Exception:
    try:
        store.get("x", options={"range": (0, 1)})
    except Exception as error:
        return error
    raise AssertionError("nothing failed")


OPTIONS = {"client_options": {"allow_http": True, "timeout": "20s"}, "retry_config": {"max_retries": 0}}
MAKES: dict[str, Callable[[str], Any]] = {
    "http": lambda url: obstore.store.HTTPStore(url, **OPTIONS),
    "s3": lambda url: obstore.store.S3Store("b", endpoint=url, skip_signature=True, **OPTIONS),
}


def test_a_list_that_is_cut_off_is_asked_for_again() -> None:
    failed = _failed(Exception("Generic S3 error: Got invalid list response: unexpected `Event::Eof`"))
    assert failed.fault is RequestFault.ODD


def test_an_error_chains_nothing_of_the_library(server: Server) -> None:
    with pytest.raises(RemoteError) as raised:
        remote_file(f"{server.url}/x?sig=SECRET")
    assert raised.value.__cause__ is None and raised.value.__context__ is None
    assert "SECRET" not in str(raised.value)


class _Malformed(Handler):
    def do_GET(self) -> None:
        self.answer(416, b"", {})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "many")
        self.end_headers()


def test_a_length_that_is_not_a_number_is_an_error_of_the_store(folder: Path) -> None:
    with Server(folder) as server, running(server):
        server.RequestHandlerClass = _Malformed
        with pytest.raises(RemoteError, match=r"is malformed \(ValueError: .*'many'\)\. It was tried 5 times"):
            remote_file(f"{server.url}/x?sig=SECRET")


@pytest.mark.parametrize("error", [AttributeError("no such name"), TypeError("x"), ValueError("Invalid header")])
def test_an_error_of_the_program_is_not_tried_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls = []

    def ask(*_: Any) -> Any:
        calls.append(1)
        raise error

    monkeypatch.setattr("penstock._remote.client.WebServer.ask", ask)
    with pytest.raises(RemoteError, match=rf"could not be made \({type(error).__name__}: .*\)\. It was tried once"):
        remote_file(f"{server.url}/x?sig=SECRET")
    assert len(calls) == 1


def test_idle_connections_are_closed_before_a_cycle_with_them_is_finalized(server: Server) -> None:
    first = Origin(f"{server.url}/?sig=SECRET", "", {})
    with pytest.raises(RequestFailed):
        first.find("x")
    later: Any = Origin(f"{server.url}/?sig=SECRET", "", {})  # it is younger than the socket
    later.server._idle.append(first.server._idle.pop())
    later.cycle = later
    del later
    gc.collect()  # a socket that is not closed would warn, which is an error here


def test_answers_of_another_length_are_errors_after_five(
    monkeypatch: pytest.MonkeyPatch, counts: CacheCounts
) -> None:
    class Short:
        def find(self, key: str) -> Any:
            return store.StoredObject(key, 10, "")

        def read(self, stored: Any, start: int, stop: int) -> bytes:
            return b"short"

    monkeypatch.setattr(store, "_connect", lambda *args: Short())
    with pytest.raises(RemoteError, match=r"5 bytes came instead of 10\. It was tried 5 times"):
        remote_file("s3://b/k").read(0, 10)
    assert (counts.requests, counts.retries, counts.nbytes) == (6, 4, 0)  # one to find it


def test_an_odd_answer_after_an_outage_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([*[RequestFailed(RequestFault.PASSING, "busy")] * 6, b"short", b"0123456789"])

    class Recovering:
        def find(self, key: str) -> Any:
            return store.StoredObject(key, 10, "")

        def read(self, stored: Any, start: int, stop: int) -> bytes:
            answer = next(answers)
            if isinstance(answer, RequestFailed):
                raise answer
            return answer

    monkeypatch.setattr(store, "_connect", lambda *args: Recovering())
    assert remote_file("s3://b/k").read(0, 10) == b"0123456789"


def test_a_retry_leaves_the_callers_random_generator_alone(folder: Path, server: Server) -> None:
    (folder / "x").write_bytes(b"content")
    file, tries = remote_file(f"{server.url}/x"), count()
    server.status = lambda path: 503 if next(tries) < 3 else 0
    before = random.getstate()
    assert file.read(0, 7) == b"content"
    assert random.getstate() == before


def test_what_a_library_says_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Talking:
        def find(self, key: str) -> Any:
            said = "GET https://h/k?sig=SECRET with SECRET-key, SECRET-token, me:%SECRET, SECRET%2Bkey failed"
            raise RequestFailed(RequestFault.FINAL, said)

    monkeypatch.setattr(store, "_connect", lambda *args: Talking())
    headers = {"client_options": {"default_headers": {"t": b"SECRET-token"}}}
    storage = {"secret_access_key": "SECRET-key", "token": "SECRET+key", **headers}
    ((remote, key),) = remotes(["sftp://me:%25SECRET@h/k"], storage)
    with pytest.raises(RemoteError, match=r"sftp://h/k cannot be found: GET https://h/k with \*\*\*, ") as raised:
        remote.find(key)
    assert "SECRET" not in str(raised.value)


def test_a_failure_in_a_thread_ends_the_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class One:
        def find(self, key: str) -> Any:
            return store.StoredObject(key, 100 << 20, "")

        def read(self, stored: Any, start: int, stop: int) -> bytes:
            fault = RequestFault.FINAL if start == 0 else RequestFault.PASSING
            raise RequestFailed(fault, "failed")

    monkeypatch.setattr(store, "READING", Patience(seconds=1000, first=1000, longest=1000))
    monkeypatch.setattr(store, "_connect", lambda *args: One())
    with pytest.raises(RemoteError, match="Bytes 0 to"):
        remote_file("s3://b/k").read(0, 100 << 20)


def test_an_interrupt_does_not_wait_for_the_answer(folder: Path, server: Server) -> None:
    (folder / "x").write_bytes(bytes(20 << 20))
    file = remote_file(f"{server.url}/x")
    held = threading.Event()
    server.status = lambda path: int(held.wait(30)) and 503
    for pieces, wanted in ((1, 1), (3, 20 << 20)):
        until = len(server.log) + pieces

        def interrupt(until: int = until) -> None:
            while len(server.log) < until:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            file.read(0, wanted)
        thread.join()
    assert not held.is_set()
    held.set()


def test_a_listing_goes_on_after_a_page_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, asked = [f"{number:03}" for number in range(30)], list[str]()

    class Listing:
        def below(self, folder: str, deep: bool, after: str) -> Iterator[store.Page]:
            asked.append(after)
            left = [key for key in keys if key > after]
            yield store.Page([store.StoredObject(key, 1, "") for key in left[:10]], [])
            if len(left) > 10:
                raise RequestFailed(RequestFault.PASSING, "failed")

    monkeypatch.setattr(store, "_connect", lambda *args: Listing())
    found = [each.key for page in Remote("s3://b", "", {}).below("", True) for each in page.objects]
    assert (found, asked) == (keys, ["", "009", "019"])
