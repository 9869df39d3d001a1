"""Threads that work for another one: ahead of it, or several at a time.

Floor 0 of the design. A thread ends with the iterator that started it, hands exceptions over in
their turn, sees the consumer's settings of JAX, and is never inside of JAX when Python ends.
"""

from replicax._threads._ahead import Ahead as Ahead
from replicax._threads._ahead import closed as closed
from replicax._threads._jax_settings import current_settings as current_settings
from replicax._threads._jax_settings import settings as settings
from replicax._threads._parallel import parallel as parallel

__all__ = ["Ahead", "closed", "current_settings", "parallel", "settings"]
