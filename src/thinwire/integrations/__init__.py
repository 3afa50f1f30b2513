"""Front ends: one line for Accelerate, Lightning, the Trainer of transformers, and Ray Train.

Each module imports its framework, when it is first used; `import thinwire` imports none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire.integrations import accelerate as accelerate
    from thinwire.integrations import lightning as lightning
    from thinwire.integrations import ray as ray
    from thinwire.integrations import transformers as transformers
else:

    def __getattr__(name: str) -> Any:
        if name in ("accelerate", "lightning", "ray", "transformers"):
            return import_module(f"thinwire.integrations.{name}")
        raise AttributeError(f"module 'thinwire.integrations' has no attribute {name!r}")
