"""lm-eval: multiple choice by log probabilities of /v1/completions, and answers of /v1/chat/completions."""
import json
import pathlib
import subprocess
import tempfile

TASKS = pathlib.Path(__file__).resolve().parent.parent / "lm_eval"
WRITTEN = """task: oato_written
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
test_split: test
output_type: generate_until
doc_to_text: "Answer with one word. {{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  max_gen_toks: 12
  until: ["\\n\\n"]
metric_list:
  - metric: exact_match
"""


def harness(c, kind, task, url, *more):
    """The samples that lm-eval wrote."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "written.yaml").write_text(WRITTEN.format(questions=TASKS / "questions.jsonl"))
        r = subprocess.run([c.kept.lm_eval, "-m", "lm_eval", "--model", kind, "--include_path", str(TASKS if task == "oato_ten" else folder), "--tasks", task, "--log_samples", "--output_path", str(folder / "out"),
                            "--model_args", f"model=any,base_url={c.url}{url},num_concurrent=2", *more], capture_output=True, text=True, cwd=TASKS, timeout=900)
        samples = [json.loads(line) for f in (folder / "out").rglob("samples_*.jsonl") for line in f.open()]
        return samples or f"status {r.returncode}: {r.stderr[-800:]}"


ROWS = [
    ("lm-eval: multiple choice by log probabilities", lambda c: harness(c, "local-completions", "oato_ten", "/v1/completions,tokenizer_backend=remote"), lambda a: len(a) == 10 and sum(s["acc"] for s in a) >= 8),
    ("lm-eval: answers of chats", lambda c: harness(c, "local-chat-completions", "oato_written", "/v1/chat/completions", "--apply_chat_template"),
     lambda a: len(a) == 10 and all(s["resps"][0][0] for s in a)),
]
