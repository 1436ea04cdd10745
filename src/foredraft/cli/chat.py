"""`foredraft chat`: a conversation in the terminal, or one turn per line of piped stdin.

The engine keeps the keys and values of what was said, so that each turn only reads what is new.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.cli.parse import chosen_sampling, logit_bias, speculative_config
from foredraft.cli.starting import starting
from foredraft.cli.terminal import TextWriter, dim, figures, say
from foredraft.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from foredraft.cli.conversation import Conversation

__all__ = ["chat"]

INPUT_PROMPT = "> "
BLOCK = '"""'
HELP = f"""\
/system TEXT  set the system message, and start over
/reset        forget the conversation
/stats        figures of this session
/exit         leave (or Ctrl-D)
Ctrl-C stops an answer. Begin and end a message of several lines with {BLOCK}."""


def chat(
    model: options.Model,
    system: options.System = None,
    show: options.Show = False,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias_json: options.LogitBias = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = None,
    min_tokens: options.MinTokens = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    speculative_config_json: options.SpeculativeConfig = None,
    spec_method: options.SpecMethod = None,
    spec_model: options.SpecModel = None,
    spec_tokens: options.SpecTokens = None,
    plain: options.Plain = False,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
) -> None:
    """Talk with a model in the terminal.

    /help lists the commands. Piped stdin is a conversation, too: each line is one turn.
    """
    config = speculative_config(speculative_config_json, spec_method, spec_model, spec_tokens, plain=plain)
    given = chosen_sampling(
        {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": None if logit_bias_json is None else logit_bias(logit_bias_json),
            "seed": seed,
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "stop": stop,
            "stop_token_ids": stop_token_ids,
            "ignore_eos": ignore_eos,
        }
    )
    with starting(model, offline=offline):
        from foredraft.cli.conversation import Conversation
        from foredraft.engine.llm import LLM

        llm = LLM(
            model,
            speculative_config=config,
            dtype=dtype,
            quantization=quantization,
            device=device,
            max_model_len=max_model_len,
            max_num_seqs=1,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            enforce_eager=enforce_eager,
            revision=revision,
            trust_remote_code=trust_remote_code,
            offline=offline,
        )
    converse(Conversation(llm, given, system), show=show, interactive=sys.stdin.isatty())


def converse(conversation: Conversation, *, show: bool, interactive: bool) -> None:
    """Take turns until /exit or the end of stdin."""
    if interactive:
        say(dim("Type a message, or /help. Ctrl-D leaves."))
    for message in read_messages(interactive=interactive):
        if message.split()[0] == "/exit":
            return
        if message.startswith("/"):
            obey(conversation, message)
        else:
            take_turn(conversation, message, show=show, interactive=interactive)


def take_turn(conversation: Conversation, message: str, *, show: bool, interactive: bool) -> None:
    """Print the answer to a message. On a terminal, Ctrl-C ends the answer and a refused message ends nothing."""
    try:
        with TextWriter(show_drafts=show) as writer:
            decoded = conversation.answer(message, lambda delta: writer.write(delta.pieces))
    except KeyboardInterrupt:
        if not interactive:
            raise
        say(dim("stopped"))
    except RequestError as error:
        if not interactive:
            raise
        say(f"{error} /reset starts over.")
    else:
        say(dim(figures(decoded, speculative=conversation.speculative)))
    if interactive:
        say()


def obey(conversation: Conversation, command: str) -> None:
    """Run one of the commands in HELP."""
    name, _, argument = command.partition(" ")
    if name == "/help":
        say(HELP)
    elif name == "/stats":
        say(conversation.summary())
    elif name == "/reset":
        conversation.restart()
        say(dim("The conversation starts over."))
    elif name == "/system":
        conversation.system = argument.strip() or None
        conversation.restart()
        which = "a new" if conversation.system else "no"
        say(dim(f"The conversation starts over, with {which} system message."))
    else:
        say(f"{name} is unknown; /help lists the commands.")


def read_messages(*, interactive: bool) -> Iterator[str]:
    """The user's messages, without empty ones."""
    if interactive:
        with suppress(ImportError):  # gives the input line its arrow keys and history
            import readline  # noqa: F401
    try:
        while True:
            message = read_line(interactive=interactive).strip()
            while message.startswith(BLOCK) and not (message.endswith(BLOCK) and len(message) >= 2 * len(BLOCK)):
                message += "\n" + _line_of_block(interactive=interactive).rstrip()
            if message.startswith(BLOCK):
                message = message.removeprefix(BLOCK).removesuffix(BLOCK).strip()
            if message:
                yield message
    except (EOFError, KeyboardInterrupt) as ended:
        if interactive:
            say()  # leaves the prompt's line
        if isinstance(ended, KeyboardInterrupt):
            raise


def _line_of_block(*, interactive: bool) -> str:
    """A further line of a block, whose end is also that of stdin."""
    try:
        return read_line(interactive=interactive)
    except EOFError:
        if interactive:
            raise
        return BLOCK


def read_line(*, interactive: bool) -> str:
    """A line of stdin; raises EOFError at its end."""
    if interactive and sys.stdout.isatty():
        return input(INPUT_PROMPT)
    try:
        line = sys.stdin.readline()
        line.encode()  # a locale may decode what is no text to halves of surrogates
    except UnicodeError as error:
        raise ConfigError("stdin isn't UTF-8 text; convert it first") from error
    if not line:
        raise EOFError
    return line
