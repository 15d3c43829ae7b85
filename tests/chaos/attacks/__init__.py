"""Attacks by an enrolled member, by name; `hostile` says how to write one."""

from . import lies as lies
from . import messages as messages
from . import pulls as pulls
from . import workers as workers
from .hostile import ATTACKS as ATTACKS
from .hostile import HostileWorker as HostileWorker
