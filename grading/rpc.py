"""Remote procedure calls from the checking process to the process with a student's answers, over a socket.

The answers never see the check, its seed or its reference, and the checking process never runs a student's code.
Messages are JSON, one a line: numbers, strings, ``None``, lists, tuples, dicts and tensors. An iterator is sent one
item at a time. If either side changes an argument in place, it changes on the other side too, so that a check still
notices an answer that modifies its arguments. A function or another object stays in the student's process; the check
receives an ``Answer`` that it can call.

This file runs on both sides; in the notebook's kernel it imports only torch and ``lessons_lib.checks``. If a check
calls an answer with autograd disabled, the answer runs under ``without_autograd`` in the student's process.
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

from lessons_lib.checks import without_autograd

LIMIT = 8 * 2**20  # bytes in a message; no answer needs more, and parsed JSON may take fifty times its length


class NoAnswerError(Exception):
    """Raised if the answer raised an exception or did not return."""


class Answers:
    """The checking side of the connection: access to the names that the student's notebook defines."""

    def __init__(self, connection: socket.socket):
        self._file = connection.makefile("rwb")

    def close(self) -> None:
        """Close the file object of the connection, without which the connection itself would stay open."""
        with suppress(OSError):  # unsent data, if the other side has closed the connection
            self._file.close()

    def named(self, name: str):
        """Return the value of a name: plain data as it is, anything else as an ``Answer``."""
        return self._ask({"name": name}, [])[0]

    def call(self, number: int, arguments: tuple, options: dict):
        """Call the function with that number in the student's process; iterators among the arguments stay here."""
        iterators: list[Iterator] = []
        lent = pack([list(arguments), options], lambda thing: _lend(thing, iterators))
        result, changed = self._ask({"call": number, "given": lent, "grad": torch.is_grad_enabled()}, iterators)
        overwrite(tensors([list(arguments), options]), changed)
        return result

    def _ask(self, message: dict, iterators: list[Iterator]) -> tuple[object, list]:
        items: dict[int, object] = {}  # the last item of each iterator
        write(self._file, message)
        while (reply := read(self._file)) is not None:
            if "error" in reply:
                raise NoAnswerError(str(reply["error"]))
            if "value" in reply:
                return unpack(reply["value"], self._stand_in), unpack(reply["changed"])
            number = int(reply["next"])
            before = items.get(number)
            items[number] = next(iterators[number], None)  # this may change the previous item in place
            write(self._file, {"item": pack(items[number]), "changed": pack(tensors(before))})
        raise NoAnswerError("no answer: it ran too long, or its process ended")

    def _stand_in(self, number: int, name: str) -> "Answer":
        return type(name, (Answer,), {})(self, number)  # has the type's name, for the check's error messages


class Answer:
    """A proxy for a function or object in the student's process."""

    def __init__(self, answers: Answers, number: int):
        self._answers, self._number = answers, number

    def __call__(self, *arguments, **options):
        """Call the function in the student's process."""
        return self._answers.call(self._number, arguments, options)


def serve(address: str, names: dict) -> None:
    """Serve calls in the student's process until the checking side closes the connection."""
    things: list[Callable] = []

    def keep(thing) -> int:
        things.append(thing)
        return len(things) - 1

    def do(message: dict) -> dict:
        if "name" in message:
            if message["name"] not in names:
                raise NameError(f"{message['name']} is not defined")
            return {"value": pack(names[message["name"]], keep), "changed": []}
        arguments, options = given = unpack(message["given"], lambda number, _: remote_iterator(file, number))
        with torch.set_grad_enabled(True) if message["grad"] else without_autograd():
            result = things[message["call"]](*arguments, **options)
        return {"value": pack(result, keep), "changed": pack(tensors(given))}

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rwb") as file:
            while (message := read(file)) is not None:
                try:
                    reply = do(message)
                except Exception as error:
                    reply = {"error": describe_error(error)}
                write(file, reply)


def remote_iterator(file, number: int) -> Iterator:
    """Iterate over an iterator on the checking side."""
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
    """Convert a value to JSON data; ``keep`` returns a number for an object that cannot be sent."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Integral():  # NumPy's numbers
            return int(value)
        case Real():
            return float(value)
        case Tensor():
            # A copy: one entry of a row keeps the row's stride otherwise, and cannot be viewed as bytes.
            flat = value.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
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
    """Undo ``pack``; ``fetch`` returns the substitute for an object that was not sent, given its number and type name.

    >>> unpack(pack((1, "a", None)))
    (1, 'a', None)
    """
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
    """Return the tensors in a nested structure of lists, tuples and dicts."""
    match value:
        case Tensor():
            return [value]
        case dict():
            return tensors(list(value.values()))
        case list() | tuple():
            return [tensor for item in value for tensor in tensors(item)]
    return []


def overwrite(mine: list[Tensor], theirs: list[Tensor]) -> None:
    """Copy the values of the other side's tensors into ours, in place."""
    with torch.no_grad():
        for tensor, other in zip(mine, theirs, strict=True):
            tensor.copy_(other)


def write(file, message: dict) -> None:
    """Send one message."""
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def read(file) -> dict | None:
    """Receive one message, or ``None`` if the other side has closed the connection or the message is too long."""
    line = file.readline(LIMIT)
    return json.loads(line) if line.endswith(b"\n") else None


def describe_error(error: Exception) -> str:
    """Return the type and message of an exception that an answer raised, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line for frame in frames if "ipykernel_" in frame.filename]  # ipykernel's names for cells
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{message}, at: {lines[-1]}" if lines else message
