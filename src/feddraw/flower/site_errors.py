"""What goes wrong at a site: one line that fits into the server's ledger, and all of it in a file
at the site.

The line has the beginning of the message, where its cause is, the end, where the remedy is, and the
name of the file. Flower carries an error as text with the type's name around it.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.flower.client_memory import memory_folder
from feddraw.system.file_writing import make_folder, open_file
from feddraw.text import one_line

ERRORS_FILE = "errors.log"
LARGEST_ERRORS_FILE = 1 << 20  # bytes, beyond which it is begun anew
LONGEST_REASON = 400  # characters of a site's reason in the ledger
LONGEST_MESSAGE = 280  # of these, for what the error itself says; the rest is the file's name
FLOWERS_FORM = re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>:<'(.*)'>", re.DOTALL)
SELF_EXPLAINING = ("UserError", "SiteFailed")  # types whose name adds nothing to their message


class SiteFailed(UserError):
    """The work of a site failed; says where at the site the whole story is."""

    in_file = False  # the whole story is there


class StoryInFile(logging.Filter):
    """Flower logs what an app raises with its traceback: where that is in the site's file, the line
    is enough for the node's log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, SiteFailed) and error.in_file:
            record.exc_info = None
            record.msg = "This site could not do its part: %s"
            record.args = (str(error),)
        return True


story_in_file = StoryInFile()


@contextmanager
def failure_in_one_line(node: Mapping[str, Any]) -> Iterator[None]:
    """Errors go on as one line, and whole to a file in the folder that the node's settings name.

    Without a list of sites the server has no name for a node that never answered, so the line has
    the one in the settings.
    """
    try:
        yield
    except Exception as error:
        name = type(error).__name__
        message = str(error) or "no reason given"
        if not isinstance(error, UserError):
            message = f"{name}: {message}"
        line = shortened(message, LONGEST_MESSAGE)
        file = memory_folder(node) / ERRORS_FILE
        in_file = _written(file, error)
        if in_file:
            site = one_line(node.get("client") or "the site")
            line = f"{line} (in full at {site}: {file})"
        failure = SiteFailed(line)
        failure.in_file = in_file
        logging.getLogger("flwr").addFilter(story_in_file)  # once, however often it is added
        raise failure from error


def shortened(message: str, most: int) -> str:
    """One line of at most so many characters: the beginning and the end of the message."""
    line = one_line(" ".join(message.split()), max(len(message), 1))
    if len(line) <= most:
        return line
    half = (most - 3) // 2
    return f"{line[:half].rstrip()} … {line[-half:].lstrip()}"


def _written(file: Path, error: Exception) -> bool:
    """Whether the error is in the file, which only its owner may read: it may name patients'
    files.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    story = "".join(traceback.format_exception(error))
    try:
        make_folder(file.parent, private=True)
        large = file.is_file() and file.stat().st_size > LARGEST_ERRORS_FILE
        with open_file(file, "w" if large else "a", private=True) as log:
            log.write(f"{now}\n{story}\n")
    except (OSError, UserError):  # the disk may be what is broken
        return False
    return True


def reason_in_error(reason: str | None) -> str:
    """What an error says that a node sent, in one line without Flower's form around it."""
    reason = reason or ""
    match = FLOWERS_FORM.fullmatch(reason.strip())
    if match is None:
        return one_line(reason, LONGEST_REASON) or "no reason given"
    name, message = match.groups()
    words = message if name in SELF_EXPLAINING else f"{name}: {message}"
    return one_line(words, LONGEST_REASON) or "no reason given"
