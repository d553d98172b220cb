"""Calls from the process that checks to the process that holds a student's answers: plain data on a socket.

The answers never see the check, its seed or its reference, and the check never runs a line of the student's.
What crosses is JSON, one message a line: numbers, strings, ``None``, lists, tuples, dicts and tensors. An iterator
crosses one item at a time. An argument that either side changes in place changes on the other side too, so that a
check still notices an answer that spoils its arguments. A function or an object of the student's stays where it is:
the check gets an ``Answer`` that it can call.

This file runs on both sides; in the notebook's kernel it needs torch and ``lessons_lib.checks`` alone. Where a check
asks with autograd switched off, the answer is called ``by_hand`` over there.
"""

import base64
import json
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from lessons_lib.checks import by_hand

LIMIT = 8 * 2**20  # bytes in a message: no answer is that long, and JSON read may take fifty times its length


class NoAnswerError(Exception):
    """The answer raised an exception, or never came."""


class Answers:
    """The checking side: what the student's notebook defines, by name."""

    def __init__(self, connection: socket.socket):
        self._file = connection.makefile("rwb")

    def close(self) -> None:
        """Give up the file that was made of the connection; the connection itself closes only after that."""
        with suppress(OSError):  # what was to be sent to a side that has hung up
            self._file.close()

    def named(self, name: str):
        """Return a plain value as it is, anything else as an ``Answer``."""
        return self._ask({"name": name}, [])[0]

    def call(self, number: int, arguments: tuple, options: dict):
        """Call the function of that number over there, lending it iterators that stay here."""
        iterators: list[Iterator] = []
        lent = pack([list(arguments), options], lambda thing: _lend(thing, iterators))
        result, changed = self._ask({"call": number, "given": lent, "grad": torch.is_grad_enabled()}, iterators)
        overwrite(tensors([list(arguments), options]), changed)
        return result

    def _ask(self, message: dict, iterators: list[Iterator]) -> tuple[object, list]:
        items: dict[int, object] = {}  # the last that each iterator gave
        write(self._file, message)
        while (reply := read(self._file)) is not None:
            if "error" in reply:
                raise NoAnswerError(str(reply["error"]))
            if "value" in reply:
                return unpack(reply["value"], self._stand_in), unpack(reply["changed"])
            number = int(reply["next"])
            before = items.get(number)
            items[number] = next(iterators[number], None)  # it may change the item before
            write(self._file, {"item": pack(items[number]), "changed": pack(tensors(before))})
        raise NoAnswerError("no answer: it ran too long, or its process ended")

    def _stand_in(self, number: int, name: str) -> "Answer":
        return type(name, (Answer,), {})(self, number)  # so that a check can say what it got


class Answer:
    """A function of the student's, which stays in the student's process."""

    def __init__(self, answers: Answers, number: int):
        self._answers, self._number = answers, number

    def __call__(self, *arguments, **options):
        """Have it called over there."""
        return self._answers.call(self._number, arguments, options)


def serve(address: str, names: dict) -> None:
    """Answer from the student's process until the checking side hangs up."""
    things: list[Callable] = []

    def keep(thing) -> int:
        things.append(thing)
        return len(things) - 1

    def do(message: dict) -> dict:
        if "name" in message:
            if message["name"] not in names:
                raise NameError(f"{message['name']} is not defined")
            return {"value": pack(names[message["name"]], keep), "changed": []}
        arguments, options = given = unpack(message["given"], lambda number, _: borrowed(file, number))
        with torch.set_grad_enabled(True) if message["grad"] else by_hand():
            result = things[message["call"]](*arguments, **options)
        return {"value": pack(result, keep), "changed": pack(tensors(given))}

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rwb") as file:
            while (message := read(file)) is not None:
                try:
                    reply = do(message)
                except Exception as error:
                    reply = {"error": in_words(error)}
                write(file, reply)


def borrowed(file, number: int) -> Iterator:
    """Iterate over what stays on the checking side."""
    item = None
    while True:
        write(file, {"next": number})
        reply = read(file)
        if reply is None:
            return
        overwrite(tensors(item), unpack(reply["changed"]))
        item = unpack(reply["item"])
        if item is None:
            return
        yield item


def _lend(thing: object, iterators: list[Iterator]) -> int:
    if not isinstance(thing, Iterator):
        raise TypeError(f"a check cannot hand a {type(thing).__name__} to an answer in another process")
    iterators.append(thing)
    return len(iterators) - 1


def _refuse(thing: object) -> int:
    raise TypeError(f"a {type(thing).__name__} cannot travel to another process")


def pack(value: object, keep: Callable[[object], int] = _refuse):
    """Turn a value into what JSON can hold; ``keep`` numbers what cannot travel."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Integral():  # NumPy's numbers
            return int(value)
        case Real():
            return float(value)
        case Tensor():
            flat = value.detach().cpu().contiguous().reshape(-1)
            data = base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode()
            return {"tensor": data, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        case list():
            return [pack(item, keep) for item in value]
        case tuple():
            return {"tuple": [pack(item, keep) for item in value]}
        case dict():
            return {"dict": [[pack(key, keep), pack(item, keep)] for key, item in value.items()]}
    return {"thing": keep(value), "type": type(value).__name__}


def unpack(packed, fetch: Callable[[int, str], object] | None = None) -> Any:
    """Undo ``pack``; ``fetch`` stands in for what did not travel, given its number and the name of its type."""
    match packed:
        case {"tensor": data, "dtype": dtype, "shape": shape}:
            raw = bytearray(base64.b64decode(data))
            flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            return flat.view(getattr(torch, dtype)).reshape(shape)
        case {"tuple": items}:
            return tuple(unpack(item, fetch) for item in items)
        case {"dict": pairs}:
            return {unpack(key, fetch): unpack(item, fetch) for key, item in pairs}
        case {"thing": number, "type": name} if fetch:
            return fetch(int(number), name)
        case list():
            return [unpack(item, fetch) for item in packed]
    return packed


def tensors(value: object) -> list[Tensor]:
    """List the tensors in a nest of lists, tuples and dicts."""
    match value:
        case Tensor():
            return [value]
        case dict():
            return tensors(list(value.values()))
        case list() | tuple():
            return [tensor for item in value for tensor in tensors(item)]
    return []


def overwrite(mine: list[Tensor], theirs: list[Tensor]) -> None:
    """Give our tensors the values that they have on the other side."""
    with torch.no_grad():
        for tensor, other in zip(mine, theirs, strict=True):
            tensor.copy_(other)


def write(file, message: dict) -> None:
    """Send one message."""
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def read(file) -> dict | None:
    """Receive one message, or ``None`` when the other side has hung up or says too much."""
    line = file.readline(LIMIT)
    return json.loads(line) if line.endswith(b"\n") else None


def in_words(error: Exception) -> str:
    """Say what an answer raised, and in which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line for frame in frames if "ipykernel_" in frame.filename]  # a notebook's cells are files there
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{said}, at: {lines[-1]}" if lines else said
