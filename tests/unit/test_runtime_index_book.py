"""The indexes of files that an attempt's workers hand each other: one makes each, also where that one is lost."""

from threading import Barrier, Thread

from waiting import wait_for

from ringleader.runtime.messages import IndexAnswer
from ringleader.runtime.supervisor.index_book import NAMES, IndexBook
from ringleader.runtime.worker.handed_indexes import HandedIndexes

MAKE, MAKES, OWN = (IndexAnswer(state) for state in ("make", "makes", "own"))


def test_one_worker_makes_an_index_and_the_others_get_it() -> None:
    book = IndexBook(lambda: {"w0", "w1"})
    assert [book.ask(worker, "ab") for worker in ("w0", "w1", "w2")] == [MAKE, MAKES, MAKES]
    assert book.ask("w0", "ab") == MAKE, "its first answer was lost"
    assert book.ask("w1", "cd") == MAKE
    book.made("w0", "ab", b"index")
    assert [book.ask(worker, "ab") for worker in ("w0", "w1", "w2")] == [IndexAnswer("made", b"index")] * 3


def test_a_lost_maker_leaves_its_index_to_the_next_and_what_it_has_made_stays() -> None:
    alive = {"w0", "w1"}
    book = IndexBook(lambda: alive)
    book.ask("w0", "ab")
    book.ask("w0", "cd")
    book.made("w0", "cd", b"index")
    alive.remove("w0")
    assert [book.ask(worker, "ab") for worker in ("w1", "w2")] == [MAKE, MAKES]
    assert book.ask("w2", "cd") == IndexAnswer("made", b"index")


def test_a_maker_that_made_none_leaves_it_to_the_next() -> None:
    book = IndexBook(lambda: {"w0", "w1"})
    book.ask("w0", "ab")
    book.made("w1", "ab", None)  # who was not to make it has no say
    assert book.ask("w1", "ab") == MAKES
    book.made("w0", "ab", None)
    assert book.ask("w1", "ab") == MAKE


def test_the_longest_unused_make_room() -> None:
    book = IndexBook(lambda: (), all_bytes=10)
    for name in ("ab", "cd"):
        book.made("w0", name, b"12345")
    book.ask("w0", "ab")
    book.made("w0", "ef", b"1")
    assert [book.ask("w1", name).state for name in ("ab", "cd", "ef")] == ["made", "make", "made"]
    for number in range(NAMES + 1):
        book.made("w0", str(number), b"")
    assert [book.ask("w1", name).state for name in ("ab", "0", "1")] == ["make", "make", "own"]


class Link:
    """The supervisor, or none."""

    def __init__(self, book: IndexBook | None) -> None:
        self.book = book

    def index(self, worker: str, name: str) -> IndexAnswer | None:
        return self.book.ask(worker, name) if self.book is not None else None

    def index_made(self, worker: str, name: str, index: bytes | None) -> None:
        if self.book is not None:
            self.book.made(worker, name, index)


def worker(name: str, book: IndexBook | None, **bounds: float) -> HandedIndexes:
    return HandedIndexes(name, Link(book), **bounds)  # type: ignore[arg-type] # the two calls that it makes


def test_whoever_comes_meanwhile_waits_for_the_index() -> None:
    book = IndexBook(lambda: {"w0", "w1", "w2"})
    assert worker("w0", book).take("ab") is None
    begun, got = Barrier(3), []

    def wait(name: str) -> None:
        begun.wait(60)
        got.append(worker(name, book).take("ab"))

    others = [Thread(target=wait, args=(name,)) for name in ("w1", "w2")]
    for thread in others:
        thread.start()
    begun.wait(60)
    worker("w0", book).give("ab", b"index")
    wait_for("the index", lambda: len(got) == 2)
    for thread in others:
        thread.join(60)
    assert got == [b"index"] * 2


def test_an_index_that_is_too_large_is_made_by_each_node_at_once() -> None:
    book = IndexBook(lambda: {"w0", "w1"})
    first = worker("w0", book, most_bytes=4)
    assert first.take("ab") is None
    first.give("ab", b"12345")
    assert book.ask("w1", "ab") == book.ask("w2", "ab") == OWN
    assert worker("w1", book).take("ab") is None


def test_without_a_supervisor_or_for_too_long_nobody_waits() -> None:
    assert worker("w0", None).take("ab") is None
    book = IndexBook(lambda: {"w0"})
    book.ask("w0", "ab")
    assert worker("w1", book, wait_s=0.1).take("ab") is None
