"""The command `ropewalk broker`: options in, the process run, its exit."""

from __future__ import annotations

import gc
import ipaddress
import os
import shutil
import sys
import tempfile
import time
from typing import NoReturn

import structlog
import trio

from broker.process.announcement import print_config
from broker.process.broker import BrokerProcess
from broker.process.launch import (
    StartFailed,
    open_log,
    raise_file_limit,
    readable_store,
    refuse_few_descriptors,
    refuse_unfit_interpreter,
    restrict_files,
)
from broker.process.options import BrokerOptions
from broker.process.stop_signals import ignore_stop_signals
from broker.settings.config import load_config
from ropewalk.client.core.ids import local_ip
from store.io.workers import FlushFailed

__all__ = ["run_broker"]

log = structlog.get_logger("broker.process")

_GC_THRESHOLD = 50_000
_SWITCH_INTERVAL_S = 0.0005
_EXIT_FAILED = 70  # EX_SOFTWARE


def run_broker(options: BrokerOptions) -> None:
    """Run a broker in the foreground. Raises RopewalkError with a text for the user if it cannot start."""
    started = time.monotonic()
    refuse_unfit_interpreter()
    named = {}
    if options.name_server is not None:
        named["namesrvAddr"] = options.name_server
    if options.namesrv_port is not None:
        named["namesrvPort"] = str(options.namesrv_port)
    for key, value in (
        ("logLevel", options.log_level),
        ("logFormat", options.log_format),
        ("logFile", options.log_file),
    ):
        if value is not None:
            named[key] = str(value)
    temporary = tempfile.mkdtemp(prefix="ropewalk-") if options.ephemeral else None
    if temporary is not None:
        named["storePathRootDir"] = temporary
    try:
        config = load_config(
            config_file=options.config_file,
            settings=options.settings,
            named=named,
            environ=os.environ,
            local_ip=lambda: str(ipaddress.IPv4Address(local_ip())),
            ephemeral=options.ephemeral,
        )
        if options.print_config:
            print_config(config, as_json=options.json)
            return
        restrict_files(config.file_mode_mask)
        open_log(config.log_level, config.log_format, config.log_file)
        for warning in config.warnings:
            log.warning("configuration", finding=warning)
        raise_file_limit()
        refuse_few_descriptors()
        if (finding := readable_store(config.store_path_root_dir, config.file_mode_mask)) is not None:
            log.warning("exposed", finding=finding)
        process = BrokerProcess(config, options)
        process.start()
        # What exists now lives as long as the process: the collector need not look at it again, and a turn makes
        # thousands of short-lived objects that reference counting alone takes care of.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 20)
        # A helper thread in the middle of Python code gives the interpreter back after this, when the loop wants it;
        # the default of 5 ms would be the p99 of every answer.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            trio.run(process.run, started)
        except StartFailed:
            process.close()
            raise
        except BaseException as exc:
            _fail(exc)
        try:
            process.close()
        except OSError as exc:
            _fail(exc)
        log.info("stopped")
        ignore_stop_signals()
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _fail(exc: BaseException) -> NoReturn:
    """End the process at once, with the reason in the log.

    Closing in good order would claim more than is known, after a failed flush above all. What this leaves is for the
    next start's recovery to judge, like any other crash.
    """
    trouble = disk_trouble(exc)
    if trouble is None:
        log.critical("the broker failed", exc_info=exc)
    else:
        log.critical("the broker ends: its disk failed", error=trouble)
        log.debug("the call that failed", exc_info=exc)
    sys.stderr.flush()
    os._exit(_EXIT_FAILED)


def disk_trouble(exc: BaseException) -> str | None:
    """Return the error of the disk that this is, with the name of the file; None if it is anything else."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    if isinstance(exc, FlushFailed):
        return str(exc)
    return str(exc) if isinstance(exc, OSError) and exc.filename is not None else None
