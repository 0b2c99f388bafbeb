"""lm-evaluation-harness's local-completions, unmodified, against a server of a model that knows "the quick brown fox
jumps over the lazy dog" by heart: python3 tests/tools/lm_eval_client.py URL"""
import json
import sys
import urllib.request

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url = sys.argv[1]
model = json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
lm = LocalCompletionsAPI(base_url=url + "/v1/completions", model=model, tokenizer_backend="remote", tokenized_requests=True,
                         num_concurrent=1, max_length=512, batch_size=2)
asked = [("Line 12: the quick", " brown fox"), ("Line 3: the", " lazy purple"), ("the quick brown fox", " jumps")]
scores = lm.loglikelihood([Instance(request_type="loglikelihood", doc={}, arguments=a, idx=i) for i, a in enumerate(asked)])
assert scores[0][0] > scores[1][0] and not scores[1][1], scores
text = lm.generate_until([Instance(request_type="generate_until", doc={}, idx=0,
                                   arguments=("Line 7: the quick", {"until": ["dog", "zzz"], "max_gen_toks": 24, "temperature": 0}))])
assert "dog" not in text[0], text
print("lm_eval works:", scores, text)
