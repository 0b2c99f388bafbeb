"""Asks a running server with nothing but Python's standard library: python3 chat.py [URL]

A key, where one is needed, is in HYSPARSE_API_KEY.
"""
import json
import os
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"


def ask(path, body=None):
    headers = {"Content-Type": "application/json"}
    if os.environ.get("HYSPARSE_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["HYSPARSE_API_KEY"]
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, headers))


def stream(path, body):
    for line in ask(path, {**body, "stream": True}):
        line = line.decode().strip()
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[len("data: "):])


model = json.load(ask("/v1/models"))["data"][0]["id"]
print("model:", model)

answer = json.load(ask("/v1/completions", {"model": model, "prompt": "It is a truth", "max_tokens": 24, "temperature": 0}))
print("text:", answer["choices"][0]["text"])
print("usage:", answer["usage"])

print("stream: ", end="")
for event in stream("/v1/completions", {"model": model, "prompt": "It is a truth", "max_tokens": 24, "seed": 7}):
    print(event["choices"][0]["text"], end="", flush=True)
print()

schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}}, "required": ["answer", "sure"]}
answer = json.load(ask("/v1/completions", {"prompt": "Is it so?", "max_tokens": 64,
                       "response_format": {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}}))
print("object:", json.loads(answer["choices"][0]["text"]))
