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
    """What Axolotl accepts in its YAML beside its own keys."""

    evalq: Optional[Dict[str, Any]] = None


class EvalqPlugin(BasePlugin):  # type: ignore[misc,unused-ignore]
    """Gives EvalqCallback to the Trainer that Axolotl makes."""

    def get_input_args(self) -> str:
        """Where Axolotl finds EvalqArgs."""
        return f"{__name__}.EvalqArgs"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> List[Any]:
        """The callbacks for the Trainer. A wrong option turns evalq off and is logged."""
        try:
            return [EvalqCallback(**dict(cfg.evalq or {}))]
        except TypeError as error:
            log.warning("evalq is off for this training: the section `evalq`: %s", error)
            return []
