"""Start a notebook's kernel in a sandbox made by bubblewrap, or say why there is none.

The kernel sees the system and its Python, the library, and what it is shown, all read-only. It has no network, no home,
no course folder, no other process, no word of the environment of whoever grades, and it dies with whoever started it.
Its memory is limited. What it writes lies in memory too, in file systems of a fixed size that end with it; no file of
its making ever lies on a disk. Whoever grades reaches its sockets through ``/proc``.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache")
READABLE = (*SYSTEM, "/sys/devices/system/cpu", sys.base_prefix, sys.prefix)
OURS = (ROOT / "lessons_lib", ROOT / "grading" / "wire.py")
DISK = 256 * 2**20  # bytes in /tmp, and as many in /dev/shm
SHOWN, OWN = "shown", "own"  # of the folder shared with a kernel: what it may read, and where its sockets are


@contextmanager
def lent_folder() -> Iterator[Path]:
    """Lend a folder and remove it, however deep it has become: ``shutil.rmtree`` gives up at a thousand levels."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        if subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL).returncode:
            print(f"{folder} could not be removed", file=sys.stderr)


def kernel_spec(memory: int) -> dict:
    """Return what Jupyter needs to know to start such a kernel; ``memory`` in bytes."""
    return {
        "argv": [sys.executable, __file__, str(memory), "{connection_file}"],
        "display_name": "Python in a sandbox",
        "language": "python",
        "interrupt_mode": "message",  # a signal would reach bubblewrap, not the kernel
    }


def environment() -> dict[str, str]:
    """Return what bubblewrap may know of ours: it is process 1 in there, and students can read its environment."""
    return {"PATH": os.environ.get("PATH", os.defpath)}


def command(folder: Path) -> list[str]:
    """Return what goes before the command that is to run in the sandbox, with its part of ``folder``."""
    views = [part for path in (*READABLE, *map(str, OURS)) for part in ("--ro-bind-try", path, path)]
    variables = {
        "HOME": "/tmp",
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "MPLCONFIGDIR": "/tmp/matplotlib",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),  # the library beside this package, wherever another may be installed
    }
    settings = [part for name, value in variables.items() for part in ("--setenv", name, value)]
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--clearenv"),
        # bubblewrap leaves /proc/sys as it is; to root's processes its files are writable, and they are the host's
        *("--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
        *("--size", str(DISK), "--tmpfs", "/tmp", "--size", str(DISK), "--tmpfs", "/dev/shm"),
        *views,
        *("--ro-bind-try", str(folder / SHOWN), str(folder / SHOWN)),
        *("--size", str(2**20), "--tmpfs", str(folder / OWN)),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        *settings,
    ]


def why_not() -> str | None:
    """Try the sandbox; return nothing when it works, else the reason."""
    try:
        trial = subprocess.run(
            [*command(Path("/tmp")), "true"], capture_output=True, text=True, env=environment(), errors="replace"
        )
    except OSError as error:  # PATH may also name a folder that one may not enter
        return f"bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap), or not to be run: {error}"
    if trial.returncode == 0:
        return None
    said = trial.stderr.strip() or f"exit status {trial.returncode}"
    if "Unknown option" in said:
        return f"bubblewrap 0.8 or newer is needed ({said})"
    return f"bubblewrap cannot make a sandbox here, as in a container that forbids user namespaces ({said})"


def main(memory: int, connection_file: str) -> None:
    """Become a kernel in a sandbox, and leave the way to its sockets beside the folder that it is shown."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(connection_file).parents[1]
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        with os.fdopen(reader) as said:
            text = said.read()
        if text:
            (folder / OWN).symlink_to(f"/proc/{json.loads(text)['child-pid']}/root{folder / OWN}")
        os._exit(0)
    os.set_inheritable(writer, True)
    bubblewrap = command(folder)
    bubblewrap[1:1] = ["--info-fd", str(writer)]
    os.execvpe("bwrap", [*bubblewrap, sys.executable, "-m", "ipykernel_launcher", "-f", connection_file], environment())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
