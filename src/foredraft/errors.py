"""Every error a user can meet.

    ForedraftError
    ├── ConfigError      a flag, a parameter or a speculative config that makes no sense
    ├── LoadError        a model, tokenizer or drafter that can't be loaded
    ├── RequestError     one request that can't be served (others are unaffected)
    └── CapacityError    memory or KV room that doesn't suffice

A message is one sentence with the offending value and the remedy; command line tools print it and exit with code 2.
"""


class ForedraftError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(ForedraftError):
    """A configuration value is wrong."""


class LoadError(ForedraftError):
    """A model, tokenizer or drafter can't be loaded."""


class RequestError(ForedraftError):
    """A request can't be served; no other request is affected."""


class CapacityError(ForedraftError):
    """Memory, KV cache or queue room doesn't suffice."""
