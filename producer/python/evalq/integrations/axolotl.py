"""evalq in Axolotl: a plugin that the YAML of the training names.

    plugins: [evalq.integrations.axolotl.EvalqPlugin]
    evalq: {suites: eval}

The keys below `evalq` are the options of EvalqCallback. See docs/trainers.md.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional

from axolotl.integrations.base import BasePlugin  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel  # type: ignore[import-not-found,unused-ignore]

from .transformers import EvalqCallback

log = logging.getLogger("evalq")


class EvalqArgs(BaseModel):  # type: ignore[misc,unused-ignore]
    """The keys that Axolotl accepts in its YAML in addition to its own."""

    evalq: Optional[Dict[str, Any]] = None


class EvalqPlugin(BasePlugin):  # type: ignore[misc,unused-ignore]
    """Gives EvalqCallback to the Trainer that Axolotl makes."""

    def get_input_args(self) -> str:
        """Returns the name by which Axolotl imports EvalqArgs."""
        return f"{__name__}.EvalqArgs"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> List[Any]:
        """Returns the callbacks for the Trainer. If an option is wrong, evalq is off, with a
        warning."""
        try:
            return [EvalqCallback(**dict(cfg.evalq or {}))]
        except TypeError as error:
            log.warning("evalq is off for this training: the section `evalq`: %s", error)
            return []
