"""The official OpenAI client against a server: python3 tests/tools/openai_client.py URL"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none-needed-0123456789")
model = client.models.list().data[0].id
ask = client.chat.completions.create
user = [{"role": "user", "content": "Line 5"}]

r = client.completions.create(model=model, prompt="Line 1", max_tokens=8, temperature=0, logprobs=2, echo=True)
assert r.choices[0].text.startswith("Line 1") and len(r.choices[0].logprobs.token_logprobs) == r.usage.total_tokens, r
r = client.completions.create(model=model, prompt=[[1, 2], [3]], max_tokens=2)
assert [c.index for c in r.choices] == [0, 1], r
r = ask(model=model, messages=user, max_tokens=8, n=2, seed=3, logprobs=True, top_logprobs=2)
assert len(r.choices) == 2 and len(r.choices[0].logprobs.content[0].top_logprobs) == 2, r
text, usage, finish = "", None, None
for event in ask(model=model, messages=user, max_tokens=8, seed=3, stream=True, stream_options={"include_usage": True}):
    usage = event.usage or usage
    for choice in event.choices:
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
assert text == r.choices[0].message.content and finish == r.choices[0].finish_reason and usage.completion_tokens > 0, (text, finish, usage)
schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"], "additionalProperties": False}
r = ask(model=model, messages=user, max_tokens=60, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
assert 0 <= json.loads(r.choices[0].message.content)["n"] <= 99, r
try:
    ask(model=model, messages=user, tools=[{"type": "function", "function": {"name": "f"}}])
    raise SystemExit("tools were taken")
except openai.BadRequestError as e:
    assert "tools" in str(e), e
print("openai", openai.__version__, "works")
