"""Check the interpreter of Spark's Python workers before the first job, where a wrong one can still be explained.

Spark starts its workers, and the processes that plan reads of a Python data source, with `PYSPARK_PYTHON`, else with
`python3` of the PATH: in a virtual environment that is another interpreter than the script's own. It finds no
`ropewalk` there, or cannot unpickle what another Python pickled, and tells so in the depths of the first job.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ropewalk import __version__
from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WorkerMismatch", "check_interpreter", "check_session"]

_PROBE: Final = """
import importlib.util, json, sys
found = {"version": sys.version_info[:2], "missing": [], "ropewalk": None}
for name in ("ropewalk", "pyarrow", "numpy"):
    if importlib.util.find_spec(name) is None:
        found["missing"].append(name)
if "ropewalk" not in found["missing"]:
    import ropewalk
    found["ropewalk"] = ropewalk.__version__
print(json.dumps(found))
"""
_PROBE_S: Final = 60.0


class WorkerMismatch(RopewalkError):
    """An interpreter of Spark's workers that cannot run Ropewalk's data source."""


def check_session(spark: SparkSession) -> None:
    """Check the interpreter that this session starts workers with. Raises WorkerMismatch. Blocks.

    A session of Spark Connect starts its workers on the server, and is not checked.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return
    # What was shipped with --py-files or addPyFile is on the path of workers, and not on that of a probe.
    ships_files = bool(context._python_includes or spark.conf.get("spark.submit.pyFiles", ""))
    check_interpreter(context.pythonExec, ships_files=ships_files)


def check_interpreter(command: str, *, ships_files: bool = False) -> None:
    """Check that an interpreter is a Python of this version that can import Ropewalk. Raises WorkerMismatch. Blocks."""
    path = shutil.which(command)
    if path == sys.executable:
        return
    reason = _mismatch(command, path, ships_files)
    if reason is not None:
        raise WorkerMismatch(
            f"Spark's workers run {command}{f' ({path})' if path not in (command, None) else ''}, and {reason}. Set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made (os.environ, or the shell), or make it with "
            f"ropewalk.spark.session(), which does that where it is unset; on a cluster, name an interpreter of the "
            f"workers' machines that has the same Python and the same Ropewalk"
        )


@lru_cache(maxsize=8)
def _mismatch(command: str, path: str | None, ships_files: bool) -> str | None:
    if path is None:
        return "there is no such program on this machine, where reads are planned"
    try:
        done = subprocess.run(
            [path, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout)
        version = tuple(found["version"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return "it does not run Python code"
    if version != sys.version_info[:2]:
        theirs, ours = (".".join(map(str, one)) for one in (version, sys.version_info[:2]))
        return f"that is Python {theirs}, where this is Python {ours}: the one cannot read what the other pickles"
    if ships_files:
        return None
    if found["missing"]:
        return f"it cannot import {', '.join(found['missing'])}"
    if found["ropewalk"] != __version__:
        return f"it has ropewalk {found['ropewalk']}, where this is {__version__}"
    return None
