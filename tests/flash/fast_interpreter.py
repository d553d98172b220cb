"""Triton's interpreter without work that it repeats, for the tests that run kernels in it: half of their time."""

from collections.abc import Callable

from triton.runtime import interpreter


def once_per_launch(patch: Callable) -> Callable:
    """Return Triton's ``_patch_lang``, which returns None where a launch has patched the same names already.

    The interpreter searches the whole of ``triton.language`` for functions to replace before it runs a kernel, and
    again at each call from one function of a kernel to another. It puts the original functions back at the end of the
    launch only, so the repetitions change nothing.
    """
    patched = set()

    def patch_lang(function: Callable):
        names = id(function.__globals__)  # which functions are replaced depends on these alone
        if names in patched:
            return None  # a call inside a kernel, which does not use the result
        scope = patch(function)
        if not patched:
            restore = scope.restore

            def end_launch() -> None:
                restore()
                patched.clear()

            scope.restore = end_launch
        patched.add(names)
        return scope

    return patch_lang


def once_per_type(find: Callable) -> Callable:
    """Return Triton's ``_get_np_dtype``, which looks up each type of numbers once instead of filling a table."""
    found = {}

    def get_np_dtype(type_):
        name = type_.scalar.name
        if name not in found:
            found[name] = find(type_)
        return found[name]

    return get_np_dtype


def install() -> None:
    """Replace the two functions in this process."""
    interpreter._patch_lang = once_per_launch(interpreter._patch_lang)
    interpreter._get_np_dtype = once_per_type(interpreter._get_np_dtype)
