"""Chat templates in the style of published ones, and checkpoint directories that have them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

XML = r"""
{%- macro shown(content) -%}
{%- if content is string -%}{{- content -}}{%- elif content is iterable -%}
{%- for part in content -%}
{%- if part.type == 'image' or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- elif content is none -%}{{- '' -}}
{%- else -%}{{- raise_exception('Unexpected content.') -}}{%- endif -%}
{%- endmacro -%}
{%- if not messages -%}{{- raise_exception('No messages provided.') -}}{%- endif -%}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>" }}
    {{- '\n\nReply like this:\n\n<tool_call>\n<function=example>\n</function>\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}
        {%- set content = shown(messages[0].content)|trim %}
        {%- if content %}
            {{- '\n\n' + content }}
        {%- endif %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + shown(messages[0].content)|trim + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set content = shown(message.content)|trim %}
        {%- set result = content.startswith('<tool_response>') %}
        {%- if not(result and content.endswith('</tool_response>')) %}
            {%- set ns.multi_step_tool = false %}
            {%- set ns.last_query_index = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = shown(message.content)|trim %}
    {%- if message.role == "system" %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning_content = thought.split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- set reasoning_content = reasoning_content|trim %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content }}
            {{- '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls and message.tool_calls is iterable %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function is defined %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {%- if loop.first %}
                    {{- '\n\n' if content else '' }}
                    {{- '<tool_call>\n<function=' + tool_call.name + '>\n' }}
                {%- else %}
                    {{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}
                {%- endif %}
                {%- if tool_call.arguments is defined %}
                    {%- for args_name, args_value in tool_call.arguments|items %}
                        {{- '<parameter=' + args_name + '>\n' }}
                        {%- if args_value is mapping or args_value is sequence %}
                            {%- set text = args_value is string %}
                            {%- set args_value = args_value if text else args_value | tojson %}
                        {%- endif %}
                        {{- args_value | string }}
                        {{- '\n</parameter>\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
"""
"""Tools before the system text, XML parameters, answers inside a thought, images."""

JSON = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call functions, within <tools></tools> tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nReturn a json object:\n<tool_call>\n" }}
    {{- "{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- generation %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or (not loop.first) %}
                {{- '\n' }}
            {%- endif %}
            {%- set tool_call = tool_call.function %}
            {{- '<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
        {%- endgeneration %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
"""The system text before the tools, calls in JSON, answers that open their thought themselves."""

PLAIN = r"""
{{- bos_token }}
{%- for message in messages %}
    {%- if loop.index0 > 100 %}{% break %}{% endif %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('Roles are system, user and assistant only.') }}
    {%- endif %}
    {{- '<|start|>' + message.role + '<|end|>\n\n' + message.content | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}
"""
"""No thoughts, no tools, a beginning and an end of its own."""

UNFLAGGED = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Added tokens that published files do not call special."""


def tokenizer_file(
    added: tuple[tuple[str, dict[str, Any]], ...] = (), *, small: bool = False
) -> bytes:
    """The bundled tokenizer with the marks not called special, and with more added tokens.

    A small one has a token for every byte and no others.
    """
    file = json.loads(files("engine.chat").joinpath("tokenizer.json").read_bytes())
    if small:
        letters = sorted(token for token in file["model"]["vocab"] if len(token) == 1)
        file["model"] |= {"vocab": {token: id for id, token in enumerate(letters)}, "merges": []}
    first = len(file["model"]["vocab"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for content, how in added:
        file["added_tokens"].append({"content": content, **flags, "special": True, **how})
    for number, token in enumerate(file["added_tokens"]):
        token["id"] = first + number
        token["special"] = token["special"] and token["content"] not in UNFLAGGED
    return json.dumps(file, ensure_ascii=False).encode()


ADDED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("<|start|>", {}),
    ("<|end|>", {"rstrip": True}),
    ("<|bos|>", {}),
    ("<|eos|>", {"lstrip": True}),
    ("<h1>", {"special": False}),
)


def checkpoint(
    directory: Path,
    template: str,
    config: dict[str, Any] | None = None,
    where: str = "jinja",
    *,
    small: bool = True,
) -> Path:
    """A directory with a tokenizer, a template and the files beside them."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_bytes(tokenizer_file(ADDED, small=small))
    tokens: dict[str, Any] = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    tokens["tokenizer_class"] = "PreTrainedTokenizerFast"
    if where == "jinja":
        (directory / "chat_template.jinja").write_text(template)
    elif where == "json":
        (directory / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    else:
        each = [{"name": "rag", "template": "x"}, {"name": "default", "template": template}]
        tokens["chat_template"] = template if where == "config" else each
    (directory / "tokenizer_config.json").write_text(json.dumps(tokens))
    if config is not None:
        (directory / "generation_config.json").write_text(json.dumps(config))
    return directory
