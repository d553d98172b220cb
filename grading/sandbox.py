"""Start a notebook's kernel in a sandbox made by bubblewrap, or say why there is none.

The kernel sees the system and its Python, read-only, the library, and one private folder with its sockets. It has no
network, no home, no course folder, no other process, and it dies with whoever started it. Its memory is limited, and
so is what it can write.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache")
READABLE = (*SYSTEM, "/sys/devices/system/cpu", sys.base_prefix, sys.prefix)
OURS = (ROOT / "lessons_lib", ROOT / "grading" / "wire.py")
DISK = 256 * 2**20  # bytes


def kernel_spec(memory: int) -> dict:
    """Return what Jupyter needs to know to start such a kernel; ``memory`` in bytes."""
    return {
        "argv": [sys.executable, __file__, str(memory), "{connection_file}"],
        "display_name": "Python in a sandbox",
        "language": "python",
        "interrupt_mode": "message",  # a signal would reach bubblewrap, not the kernel
    }


def command(folder: Path) -> list[str]:
    """Return what goes before the command that is to run in the sandbox; it may write to ``folder`` alone."""
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
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--dev", "/dev", "--proc", "/proc"),
        *("--size", str(DISK), "--tmpfs", "/tmp", "--size", str(DISK), "--tmpfs", "/dev/shm"),
        *views,
        *("--bind", str(folder), str(folder), "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        *settings,
    ]


def why_not() -> str | None:
    """Try the sandbox; return nothing when it works, else the reason."""
    try:
        trial = subprocess.run([*command(ROOT / "grading"), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return "bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap)"
    if trial.returncode == 0:
        return None
    said = trial.stderr.strip() or f"exit status {trial.returncode}"
    return f"bubblewrap cannot make a sandbox here, as in a container that forbids user namespaces ({said})"


def main(memory: int, connection_file: str) -> None:
    """Become a kernel in a sandbox; it shares the connection file's folder."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", connection_file]
    os.execvp("bwrap", command(Path(connection_file).parent) + kernel)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
