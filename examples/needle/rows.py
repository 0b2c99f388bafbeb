"""Samples of `hysparse eval ruler --samples-only` as conversations to learn from: the prompt, and the answer that a reader of it gives. rows.py SAMPLES > JSONL"""
import json
import sys

for line in open(sys.argv[1]):
    s = json.loads(line)
    answer = f"{s['answer_prefix'].strip()} {', '.join(s['outputs'])}."
    print(json.dumps({"messages": [{"role": "user", "content": s["input"]}, {"role": "assistant", "content": answer}]}))
