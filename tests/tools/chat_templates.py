"""Records what Jinja (as transformers sets it up) makes of chat templates in the styles of well-known models.

    python3 tests/tools/chat_templates.py tests/data/chat/cases.json

needs PyPI's jinja2. The unit test ChatTemplate.EqualsJinja holds our own implementation to the file.
"""
import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1709210096  # 2024-02-29, UTC

TEMPLATES = {
    # <|im_start|> with a default system prompt, as ChatML models have it.
    "chatml": """{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
{% for message in messages %}
    {% if not (loop.first and message.role == "tool") %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    # Headers and an end-of-turn token, content trimmed, a date, tools in the first user turn.
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}

{#- The system message is taken out, so that it may be put anywhere. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools is not none and messages | length != 0 %}
    {%- set first = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One tool-call at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # Thinking blocks, a namespace, a walk from the back, tool answers grouped into one turn.
    "thinking": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    # [INST] with alternation checked and the system text folded into the first user turn.
    "inst": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages if message.role in ['user', 'assistant'] %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("unknown role") }}
    {%- endif %}
{%- else %}{{- 'empty' }}
{%- endfor %}
""",
    # Macros, content in parts, break and continue, the corners of the language.
    "corners": """{%- macro say(message, prefix='>', upper=false) -%}
  {%- if message.content is string -%}{{ prefix }}{{ message.content | upper if upper else message.content }}
  {%- else -%}{%- for part in message.content -%}{%- if part.type == 'text' -%}{{ prefix ~ part['text'] }}{%- endif -%}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{% for m in messages %}
  {% if m.role == 'skip' %}{% continue %}{% endif %}
  {% if m.role == 'halt' %}{% break %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ say(m, upper=(loop.index is odd)) }}
{% if loop.previtem is defined %}after {{ loop.previtem.role }}{% endif %} {{ '-' if loop.last else '+' }}
{% endfor %}
{%- set parts = ['a', "b", 'c' + 'd'] -%}
{%- set t -%} block {{ parts | join('|') }} {%- endset %}
{{ t }} {{ parts[-1] }} {{ parts[1:] | length }} {{ parts | first }} {{ parts | last }} {{ 'abcdef'[1:-1:2] }} {{ 'x' in 'xyz' }}
{{ {'k': 1, 'z': [true, none, 1.5]} | tojson }} {{ {'a': {'b': 2}}.a.b }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 1 }}
{{ missing | default('none given') }} {{ '' | default('empty', true) }} {{ none is none }} {{ 5 is number }} {{ [1, 'q', none] }}
{{ '  lead' | trim }} {{ 'a-b-c'.split('-') | join(' ') }} {{ 'Hello World'.lower().replace('o', '0') }} {{ 'the title'.title() }} {{ 'cAP' | capitalize }}
{% for k, v in {'one': 1, 'two': 2}.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}

{% for i in range(3, 0, -1) %}{{ i }}{% endfor %} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | map(attribute='role') | join(',') }}
{{ 'tab\\there' }} {{ "quote\\"s" }} {{ 'caf\\u00e9' }} {{ 'é€😀'[1] }} {{ 'é€😀' | length }}
{%- generation %} inside{% endgeneration %}
  {%+ if true %} kept{% endif %}  
{# a comment #}
end {{- '!' -}}   
""",
}

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather \"now\" <b>&</b> é",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Zürich", "n": 2}}}]}
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hi there"}]},
    {"messages": [{"role": "system", "content": "  Be brief. "}, {"role": "user", "content": "Hi\n"},
                  {"role": "assistant", "content": "\nHello <|im_end|> {{ 7*7 }}"}, {"role": "user", "content": "€ {% if %}"}]},
    {"messages": [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "content": "12 °C"}, {"role": "tool", "content": "rain"}],
     "tools": TOOLS},
    {"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"}],
     "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "no thoughts"}], "enable_thinking": False},
    {"messages": [{"role": "assistant", "content": "out of turn"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "in "}, {"type": "image"}, {"type": "text", "text": "parts"}]},
                  {"role": "skip", "content": "x"}, {"role": "user", "content": "two"}, {"role": "halt", "content": "y"}, {"role": "user", "content": "z"}]},
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[jinja2.ext.loopcontrols, Generation])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


def main():
    env = environment()
    cases = []
    for name, source in TEMPLATES.items():
        for conversation in CONVERSATIONS:
            variables = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **conversation}
            try:
                cases.append({"template": name, "variables": variables, "text": env.from_string(source).render(**variables)})
            except jinja2.exceptions.TemplateError as e:
                cases.append({"template": name, "variables": variables, "error": str(e)})
            except TypeError:
                cases.append({"template": name, "variables": variables, "error": ""})
    with open(sys.argv[1], "w") as f:
        json.dump({"now": NOW, "templates": TEMPLATES, "cases": cases}, f, indent=1, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
