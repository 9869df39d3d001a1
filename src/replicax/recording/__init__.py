"""The flight recorder: what this process ran last, always on, and how it gets into a file.

Just above floor 0 of the design. It knows no strategy, no worker and no program: whoever starts
something tells it. Records of several workers are read and merged by `replicax.inspection`.
"""

from __future__ import annotations

from ._dump import FORMAT as FORMAT
from ._dump import VERSION as VERSION
from ._dump import dump as dump
from ._dump import snapshot as snapshot
from ._dump import write as write
from ._dump import write_or_log as write_or_log
from ._places import FOLDER as FOLDER
from ._places import chosen_folder as chosen_folder
from ._places import default_folder as default_folder
from ._places import job_folder as job_folder
from ._places import own_folder as own_folder
from ._places import write_whole as write_whole
from ._recorder import CAPACITY as CAPACITY
from ._recorder import RECORDER as RECORDER
from ._recorder import Collective as Collective
from ._recorder import Recorder as Recorder
from ._recorder import Subject as Subject
from ._signal import dump_on_signal as dump_on_signal
from ._signal import ignore_signal as ignore_signal

__all__ = [
    "CAPACITY",
    "FOLDER",
    "FORMAT",
    "RECORDER",
    "VERSION",
    "Collective",
    "Recorder",
    "Subject",
    "chosen_folder",
    "default_folder",
    "dump",
    "dump_on_signal",
    "ignore_signal",
    "job_folder",
    "own_folder",
    "snapshot",
    "write",
    "write_or_log",
    "write_whole",
]
