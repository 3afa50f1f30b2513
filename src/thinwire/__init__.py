"""thinwire: gradient compression for data-parallel training over thin links.

Public names are those of `thinwire.api`. They are loaded when one of them is first used, because torch takes seconds to
import and the command line should answer at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thinwire._names import LOADERS as _LOADERS
from thinwire._version import __version__ as __version__

_LOADERS.append(lambda: import_module("thinwire.api"))

if TYPE_CHECKING:
    from thinwire import integrations as integrations
    from thinwire.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "integrations":
            return import_module("thinwire.integrations")
        if name == "__all__" or not name.startswith("_"):
            api = import_module("thinwire.api")
            if name == "__all__" or name in api.__all__:
                value = globals()[name] = getattr(api, name)
                return value
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), "integrations", *import_module("thinwire.api").__all__})
