"""How evaluations run tokens that they know: through decode steps, or as prompts."""

from __future__ import annotations

from suffice.attention import ATTENTIONS, SOFTMAXES, rule_of
from suffice.engine.config import Config
from suffice.errors import OptionError

MODES = ("decode", "prefill")


def check_mode(mode: str, config: Config) -> None:
    """Require decode steps for techniques that apply to nothing else.

    Raises:
        InputError: In mode `prefill` a technique, or its audits, would do nothing.
    """
    if mode != "prefill":
        return
    idle: dict[str, object] = {}
    rule = rule_of(config.attention)
    if rule is not None and not rule.exact and not config.technique.unread_in_prompts:
        idle["attention"] = ATTENTIONS.text_of(config.attention)
    if config.softmax.coded and not config.softmax.prefill:
        idle["softmax"] = SOFTMAXES.text_of(config.softmax)
    if config.audit is not None:
        idle["audit"] = config.audit
    for option, value in idle.items():
        message = "is for decode steps, and --mode prefill has none: leave one of them out"
        raise OptionError(option, value, message)
