"""Start a notebook's kernel in a sandbox made by bubblewrap, or report why that is not possible.

The kernel can read the system and its Python, the library, and the folder shared with it, and can write to none of
them. It has no access to the network, the home folder, the course folder, other processes or the grader's environment
variables, and it is killed when its parent process ends. Its memory is limited. Files that it writes are kept in
memory, in file systems of a fixed size that end with it, and never on disk. The grading process reaches the kernel's
sockets through ``/proc``.
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
OURS = (ROOT / "lessons_lib", ROOT / "grading" / "rpc.py")
DISK = 256 * 2**20  # bytes in /tmp, and as many in /dev/shm
SHOWN, OWN = "shown", "own"  # in the folder shared with a kernel: files that it may read, and its sockets


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder and remove it on exit, at any depth; ``shutil.rmtree`` fails at a thousand levels."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        if subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL).returncode:
            print(f"{folder} could not be removed", file=sys.stderr)


def kernel_spec(memory: int) -> dict:
    """Return Jupyter's kernel specification of a sandboxed kernel; ``memory`` is in bytes."""
    return {
        "argv": [sys.executable, __file__, str(memory), "{connection_file}"],
        "display_name": "Python in a sandbox",
        "language": "python",
        "interrupt_mode": "message",  # a signal would reach bubblewrap, not the kernel
    }


def environment() -> dict[str, str]:
    """Return the environment of bubblewrap: it is process 1 in the sandbox, where students can read it."""
    return {"PATH": os.environ.get("PATH", os.defpath)}


def command(folder: Path) -> list[str]:
    """Return the prefix of a command to run in the sandbox, where the shared part of ``folder`` can be read."""
    views = [part for path in (*READABLE, *map(str, OURS)) for part in ("--ro-bind-try", path, path)]
    variables = {
        "HOME": "/tmp",
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "MPLCONFIGDIR": "/tmp/matplotlib",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),  # the library beside this package comes before an installed one
    }
    settings = [part for name, value in variables.items() for part in ("--setenv", name, value)]
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--clearenv"),
        # bubblewrap does not protect /proc/sys: its files belong to the host, and root could write to them
        *("--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
        *("--size", str(DISK), "--tmpfs", "/tmp", "--size", str(DISK), "--tmpfs", "/dev/shm"),
        *views,
        *("--ro-bind-try", str(folder / SHOWN), str(folder / SHOWN)),
        *("--size", str(2**20), "--tmpfs", str(folder / OWN)),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        *settings,
    ]


def sandbox_error() -> str | None:
    """Try to start a sandbox; return ``None`` if it works, else the reason."""
    try:
        trial = subprocess.run(
            [*command(Path("/tmp")), "true"], capture_output=True, text=True, env=environment(), errors="replace"
        )
    except OSError as error:  # also if PATH has a folder without permission to enter
        return f"bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap), or not to be run: {error}"
    if trial.returncode == 0:
        return None
    message = trial.stderr.strip() or f"exit status {trial.returncode}"
    if "Unknown option" in message:
        return f"bubblewrap 0.8 or newer is needed ({message})"
    return f"bubblewrap cannot make a sandbox here, as in a container that forbids user namespaces ({message})"


def main(memory: int, connection_file: str) -> None:
    """Replace this process by a kernel in a sandbox, and link to its sockets in the shared folder."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(connection_file).parents[1]
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        if text:
            (folder / OWN).symlink_to(f"/proc/{json.loads(text)['child-pid']}/root{folder / OWN}")
        os._exit(0)
    os.set_inheritable(writer, True)
    bubblewrap = command(folder)
    bubblewrap[1:1] = ["--info-fd", str(writer)]
    os.execvpe("bwrap", [*bubblewrap, sys.executable, "-m", "ipykernel_launcher", "-f", connection_file], environment())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
